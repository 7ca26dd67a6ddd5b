"""The noise-adaptive rate: limits, invariances, reductions."""

import math

import numpy as np
import pytest

from helpers.tiers import logic
from helpers.trials import TENSORS
from helpers.trials import Trial
from helpers.trials import hidden
from helpers.trials import kinds
from helpers.trials import normals
from helpers.trials import shapes_of

pytestmark = logic


@pytest.mark.parametrize("reference", ["previous_gradient", "momentum"])
@pytest.mark.parametrize("scale", [10.0, 1e-12, 1e12])
def test_scale_invariance(reference, scale):
    """Relative alpha: the unit of the gradient does not matter."""
    names = list(TENSORS)
    trials = [Trial(kinds(*names), noise_reference=reference) for _ in range(2)]
    for t in range(4):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        # Unequal noise, so that the ratios matter.
        gradients = [g * 2.0**-i for i, g in enumerate(gradients)]
        one = trials[0].step(gradients)
        two = trials[1].step([np.float32(scale) * g for g in gradients])
        for a, b in zip(one, two, strict=True):
            # Observed 2e-6.
            assert np.linalg.norm(a - b) < 1e-4 * np.linalg.norm(a)
    assert trials[0].ratios().min() < 0.9
    np.testing.assert_allclose(
        trials[0].ratios(), trials[1].ratios(), rtol=1e-4
    )


def test_absolute_alpha_has_the_gradients_unit():
    names = list(TENSORS)
    trials = [
        Trial(kinds(*names), alpha=alpha, alpha_unit="absolute")
        for alpha in (1.0, 8.0)
    ]
    for t in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        one = trials[0].step(gradients)
        two = trials[1].step([8.0 * g for g in gradients])
        for a, b in zip(one, two, strict=True):
            # Observed 0: 8 is a power of two.
            assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(a)
    assert trials[0].ratios().min() < 0.9


def test_small_alpha_limit():
    """alpha -> 0: the ratio is (H_min / H)^(1/4)."""
    trial = Trial([hidden(4, 6)] * 3, alpha=1e-6, alpha_unit="absolute")
    for t in range(3):
        gradients = normals((4, 6), (4, 6), (4, 6), seed=t)
        trial.step([g * 4.0**i for i, g in enumerate(gradients)])
    noise = np.concatenate([one["noise"] for one in trial.report()])
    np.testing.assert_allclose(
        trial.ratios(), np.sqrt(noise.min() / noise), rtol=1e-5
    )


@pytest.mark.parametrize("name", ["table", "head"])
def test_embedding_noise(name):
    """The largest sum over the vocabulary, over the features."""
    _, shape, _, _, _ = TENSORS[name]
    trial = Trial(kinds(name), noise_schedule="interval")
    one, two = normals(shape, shape)
    trial.step([one])
    trial.step([two])
    (report,) = trial.report()
    vocabulary = 0 if name == "table" else 1
    wanted = np.max(np.sum(np.abs(two - one), axis=vocabulary))
    np.testing.assert_allclose(
        report["noise"], math.sqrt(0.1) * wanted, rtol=1e-6
    )


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_identical_layers_have_ratio_one(reduction):
    trial = Trial(
        [hidden(6, 9)] * 3 + kinds("gain", "gain", "table", "table"),
        group_reduction=reduction,
    )
    for t in range(4):
        kernel, gain, table = normals((6, 9), (9,), (11, 4), seed=t)
        moves = trial.step([kernel] * 3 + [gain] * 2 + [table] * 2)
        np.testing.assert_allclose(trial.ratios(), 1.0, rtol=1e-6)
        for a, b in [(0, 1), (0, 2), (3, 4), (5, 6)]:
            np.testing.assert_allclose(moves[a], moves[b], rtol=1e-6)


def test_reductions():
    """Maximum: the quietest has ratio 1. Mean: the mean ratio is 1."""
    names = list(TENSORS)
    group = [TENSORS[n][0] for n in names for _ in range(TENSORS[n][4][0])]
    for reduction in ("max", "mean"):
        trial = Trial(kinds(*names), group_reduction=reduction)
        for t in range(3):
            gradients = normals(*shapes_of(kinds(*names)), seed=t)
            trial.step([g * 2.0**-i for i, g in enumerate(gradients)])
        ratios = trial.ratios()
        assert (ratios > 0.0).all()
        for role in ("hidden", "embedding", "vector"):
            some = ratios[[one == role for one in group]]
            assert some.min() < 0.95
            if reduction == "max":
                assert some.max() == 1.0
            else:
                np.testing.assert_allclose(np.mean(some), 1.0, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["max", "mean"])
@pytest.mark.parametrize("quiet", ["constant", "zero", "late"])
def test_layer_without_noise_does_not_throttle(quiet, reduction):
    """Its ratio is 1, and its group is as it would be without it."""
    two = [hidden(5, 8), hidden(6, 4)]
    with_quiet = Trial([*two, hidden(5, 8)], group_reduction=reduction)
    without = Trial(two, group_reduction=reduction)
    (constant,) = normals((5, 8), seed=99)
    for t in range(4):
        gradients = normals((5, 8), (6, 4), seed=t)
        gradients[1] *= 0.05
        present = quiet == "constant" or (quiet == "late" and t == 3)
        one = with_quiet.step(
            [*gradients, constant if present else 0.0 * constant]
        )
        two_moves = without.step(gradients)
        for a, b in zip(one[:2], two_moves, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-8)
    ratios = with_quiet.ratios()
    assert ratios[2] == 1.0
    np.testing.assert_allclose(ratios[:2], without.ratios(), rtol=1e-6)
    assert abs(ratios[0] - ratios[1]) > 0.1

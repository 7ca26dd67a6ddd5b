"""The theory's experiment runs, and its constants are what it says."""

import json

import numpy as np
import pytest

from experiments.paper import quadratic
from experiments.paper import report
from experiments.paper import theory
from helpers.tiers import logic

pytestmark = logic


def tiny(**options):
    options = {
        "trials": 2,
        "lemma_steps": 12,
        "beta_2": 1 - 1 / 8,
        "horizons": (4, 8),
        "noise_steps": 4,
        "noises": (1, 8),
        "factors": (1,),
        "layers": 2,
        # Promises nothing of interest, but soon.
        "delta": 40.0,
        **options,
    }
    return theory.Scale(**options)


def test_run():
    result = theory.measure(tiny(), seeds=(0,))
    result = json.loads(json.dumps(result))
    assert result["lemmas"]["frequency"]["H_surely"] == 1.0
    assert result["lemmas"]["frequency"]["ratio_surely"] == 1.0
    assert all(norm > 0 for norm in result["rate"]["fixed"]["norms"][0])
    np.testing.assert_allclose(result["noise"]["predicted"][0], 1.0)
    # All layers equally noisy: there is nothing to adapt to.
    assert result["noise"]["own"][0] == pytest.approx(1.0, abs=0.05)
    assert "| 1 | 1.00 |" in report.theory_table(result)


def test_smoothness_is_1():
    """Of one layer, from the RMS->RMS norm to its dual."""
    rng = np.random.default_rng(0)
    for D in (
        rng.standard_normal((16, 24)),
        quadratic.isometries(1, rng)[0],
    ):
        norm = np.linalg.norm(D, 2) / quadratic.SHAPE
        change = quadratic.dual(quadratic.CURVATURE * D)
        assert change <= norm * (1 + 1e-9)
    assert change == pytest.approx(norm)  # of an isometry: it is tight


def test_noise_is_within_its_bounds():
    rng = np.random.default_rng(0)
    S = np.array([0.5, 2.0])
    draws = np.array([quadratic.draw_noise(S, rng) for _ in range(4000)])
    sizes = quadratic.dual(draws) / S
    assert sizes.min() >= quadratic.LOWEST - 1e-9
    assert sizes.max() <= 1 + 1e-9
    assert np.abs(draws.mean(axis=0)).max() < 0.05 * np.abs(draws).max()
    found = (
        np.mean(quadratic.dual(draws[::2] - draws[1::2]) ** 2, axis=0) / S**2
    )
    assert quadratic.LOWEST**2 <= quadratic.mean_square() <= 4
    np.testing.assert_allclose(found, quadratic.mean_square(), rtol=0.03)


def test_the_optimizer_keeps_H_and_ratio_as_printed():
    S = np.array([0.5, 2.0])
    given = {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.75, "alpha": 0.1}
    run = quadratic.trajectory(S, 3, **given, seed=5, record=True)
    rng = np.random.default_rng(5)
    quadratic.isometries(2, rng)  # the optimum's
    H = np.zeros(2)
    for t in range(3):
        first, second = (quadratic.draw_noise(S, rng) for _ in range(2))
        H = 0.75 * H + 0.25 * quadratic.dual(first - second) ** 2
        np.testing.assert_allclose(run["H"][t], H, rtol=1e-4)
        a = 0.1 / np.sqrt(0.01 + H)
        ratio = np.sqrt(a / a.max())
        np.testing.assert_allclose(run["ratios"][t], ratio, rtol=1e-4)


def test_nothing_promised_is_an_error():
    with pytest.raises(ValueError, match="Received: beta_2=0.5"):
        theory.check_lemmas(tiny(beta_2=0.5, delta=0.1))

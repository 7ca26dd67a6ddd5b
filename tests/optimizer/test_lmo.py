"""Sizes and limits of a step, read off the weights."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from helpers.norms import dual
from helpers.norms import lmo
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.trials import EXACT
from helpers.trials import HALVES
from helpers.trials import HIDDEN
from helpers.trials import LEARNING_RATE
from helpers.trials import PLAIN_QUINTIC
from helpers.trials import TENSORS
from helpers.trials import Trial
from helpers.trials import hidden
from helpers.trials import kinds
from helpers.trials import normals
from helpers.trials import rms
from helpers.trials import shapes_of
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.core.norms import ColNorm
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import RowNorm
from keras_lanton.core.norms import Rule
from keras_lanton.optimizer.lmo import LMOOptimizer


# -- Sizes -----------------------------------------------------------------
def check_size(name, move, rates, tolerance):
    """The printed step, at the given rate for each matrix."""
    role, shape, inputs, outputs, (batch, d_in, _) = TENSORS[name]
    if role == "hidden":
        if batch > 1:  # the batch axis is the first of "experts"
            found = [rms(one) for one in move]
        else:
            found = [rms(move)]
        wanted = 0.2 * rates
    elif role == "embedding":
        size = np.abs(move)
        found = [size.min(), size.max()]
        wanted = rates[0] * 300.0 / d_in
    else:
        found = [rms(move)]
        wanted = rates
    # Observed 2e-7 in float32 and 2e-3 in half precision.
    np.testing.assert_allclose(found, wanted, rtol=tolerance)


@logic
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_sizes(scale):
    """At ratio 1 and after noise was measured, in float32."""
    names = list(TENSORS)
    trial = Trial(kinds(*names), **EXACT)
    for seed in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=seed, scale=scale)
        moves = trial.step(gradients)
        report = trial.report()
        for name, move, one in zip(names, moves, report, strict=True):
            assert np.isfinite(one["noise"]).all()
            assert (one["ratio"] > 0.0).all()
            np.testing.assert_allclose(
                one["learning_rate"], LEARNING_RATE * one["ratio"], rtol=1e-6
            )
            if seed == 0:
                np.testing.assert_array_equal(one["ratio"], 1.0)
            check_size(name, move, one["learning_rate"], 1e-4)
    assert int(trial.optimizer.skipped_steps) == 0


@pytest.mark.parametrize("scale", keep([1e-4, 1.0, 1e4], [1.0]))
@pytest.mark.parametrize("dtype", HALVES)
def test_sizes_in_half_precision(dtype, scale):
    names = list(TENSORS)
    trial = Trial(kinds(*names), dtype=dtype, **EXACT)
    for seed in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=seed, scale=scale)
        moves = trial.step(gradients)
        for name, move, one in zip(names, moves, trial.report(), strict=True):
            assert np.isfinite(move).all()
            assert (one["ratio"] > 0.0).all()
            if seed == 0:  # from 0, so that the move is not rounded away
                check_size(name, move, one["learning_rate"], 0.02)
    assert int(trial.optimizer.skipped_steps) == 0


@logic
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_sizes_in_bfloat16_at_the_ends(scale):
    names = list(TENSORS)
    trial = Trial(kinds(*names), dtype="bfloat16", **EXACT)
    gradients = normals(*shapes_of(kinds(*names)), scale=scale)
    moves = trial.step(gradients)
    for name, move in zip(names, moves, strict=True):
        rates = np.full(TENSORS[name][4][0], LEARNING_RATE)
        check_size(name, move, rates, 0.02)


@logic
@pytest.mark.parametrize("shape", [(1, 12), (12, 1), (1, 1)])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_rows_and_columns(shape, scale):
    """A row's polar factor is the row at unit length."""
    trial = Trial([hidden(*shape)], ns_coefficients=PLAIN_QUINTIC)
    (gradient,) = normals(shape, scale=scale)
    (move,) = trial.step([gradient])
    unit = gradient / np.linalg.norm(gradient.astype("float64"))
    wanted = -LEARNING_RATE * 0.2 * math.sqrt(max(shape)) * unit
    # Observed 5e-7.
    np.testing.assert_allclose(move, wanted, rtol=1e-5)


@logic
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_rank_one_size(scale):
    trial = Trial([hidden(10, 14)], ns_coefficients=PLAIN_QUINTIC)
    left, right = normals((10, 1), (1, 14))
    (move,) = trial.step([scale * (left @ right)])
    unit = left @ right / np.linalg.norm(left) / np.linalg.norm(right)
    wanted = -LEARNING_RATE * 0.2 * math.sqrt(14) * unit
    # Observed 7e-9.
    np.testing.assert_allclose(move, wanted, rtol=0, atol=1e-7)


@logic
@pytest.mark.parametrize(
    "coefficients", ["jordan", "you", "polar_express", "cubic", PLAIN_QUINTIC]
)
@pytest.mark.parametrize("steps", [1, 4, 5, 9])
def test_rank_one_points_downhill(coefficients, steps):
    trial = Trial(
        [hidden(12, 20)], ns_coefficients=coefficients, ns_steps=steps
    )
    left, right = normals((12, 1), (1, 20))
    gradient = left @ right
    (move,) = trial.step([gradient])
    cosine = np.sum(gradient * move) / (
        np.linalg.norm(gradient) * np.linalg.norm(move)
    )
    assert cosine < -0.99  # observed -1 + 2e-5


@pytest.mark.parametrize("dtype", keep(["float32", *HALVES], ["float32"]))
def test_zero_gradients(dtype):
    """Nothing moves, nothing decays, nothing becomes NaN."""
    names = list(TENSORS)
    trial = Trial(kinds(*names), dtype=dtype, start=0.5, weight_decay=0.1)
    zeros = [np.zeros(one, "float32") for one in shapes_of(kinds(*names))]
    for _ in range(3):
        for move in trial.step(zeros):
            np.testing.assert_array_equal(move, 0.0)
    np.testing.assert_array_equal(trial.ratios(), 1.0)
    for move in trial.step([zero + 1.0 for zero in zeros]):
        assert np.isfinite(move).all()
        assert np.any(move != 0.0)


def test_zero_matrix_in_a_stack():
    """An expert that saw no token rests."""
    trial = Trial(kinds("experts"), start=0.5, weight_decay=0.1)
    for seed in range(3):
        (gradient,) = normals((3, 4, 7), seed=seed)
        gradient[1] = 0.0
        (move,) = trial.step([gradient])
        np.testing.assert_array_equal(move[1], 0.0)
        assert np.all(move[[0, 2]] != 0.0)
    (report,) = trial.report()
    assert report["noise"][1] == 0.0
    assert report["ratio"][1] == 1.0
    assert max(report["ratio"][[0, 2]]) == 1.0


# -- Reductions ------------------------------------------------------------
@logic
@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_huge_alpha_is_the_skeleton(reduction):
    """No noise ratio left: momentum and LMO, at the exact polar factor."""
    names = list(TENSORS)
    trial = Trial(
        kinds(*names),
        alpha=1e12,
        alpha_unit="absolute",
        group_reduction=reduction,
        weight_decay=0.1,
        start=0.1,
        **EXACT,
    )
    momentum = [0.0 for _ in names]
    for t in range(4):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        before = trial.weights()
        moves = trial.step(gradients)
        np.testing.assert_allclose(trial.ratios(), 1.0, rtol=1e-6)
        for i, name in enumerate(names):
            beta = 0.95 if t else 0.0
            momentum[i] = beta * momentum[i] + (1.0 - beta) * gradients[i]
            wanted = -LEARNING_RATE * (
                0.1 * before[i] + skeleton(name, momentum[i])
            )
            # Observed 2e-6.
            off = np.linalg.norm(moves[i] - wanted) / np.linalg.norm(wanted)
            assert off < 1e-4, name


def skeleton(name, m):
    role, shape, inputs, outputs, (batch, d_in, d_out) = TENSORS[name]
    if role == "embedding":
        return 300.0 / d_in * np.sign(m)
    if role == "vector":
        return m / rms(m)
    batches = tuple(set(range(len(shape))) - set(inputs) - set(outputs))
    order = batches + inputs + outputs
    stack = np.transpose(m, order).reshape(batch, d_in, d_out)
    u, _, vt = np.linalg.svd(stack.astype("float64"), full_matrices=False)
    polar = (u @ vt).reshape([shape[axis] for axis in order])
    polar = np.transpose(polar, np.argsort(order))
    return 0.2 * math.sqrt(max(d_in, d_out)) * polar


@logic
def test_transposed_storage():
    """(vocab, width) and (width, vocab), (in, out) and (out, in)."""
    trial = Trial(
        [
            *kinds("table", "head"),
            ("hidden", (5, 16), (0,), (1,)),
            ("hidden", (16, 5), (1,), (0,)),
        ],
    )
    for t in range(3):
        table, kernel = normals((11, 4), (5, 16), seed=t)
        moves = trial.step([table, table.T, kernel, kernel.T])
        # Observed 0.
        np.testing.assert_allclose(moves[0], moves[1].T, atol=1e-6)
        np.testing.assert_allclose(moves[2], moves[3].T, atol=1e-6)
    table, head, kernel, mirrored = trial.report()
    np.testing.assert_allclose(table["noise"], head["noise"], rtol=1e-5)
    for key in ("noise", "ratio"):  # d_in and d_out follow the axes
        np.testing.assert_allclose(kernel[key], mirrored[key], rtol=1e-5)


class RowsByNumber(Norm):
    """Row k, an input, weighs k: no norm of A^T is like it."""

    def lmo(self, B, noise=None):
        return ops.sign(B) * self.numbers(B)

    def dual(self, D):
        return ops.sum(ops.abs(D) * self.numbers(D), axis=(-2, -1))

    def dual_scale(self, d_in, d_out):
        return 0.5 / d_out

    def numbers(self, B):
        return ops.arange(1, B.shape[-2] + 1, dtype="float32")[:, None]


class OfOneNorm(LMOOptimizer):
    """A norm of hidden matrices, at rates that noise does not change."""

    def __init__(self, norm):
        noise = NoiseAdaptiveRate(
            alpha=None,
            within_matrices=False,
            alpha_unit="absolute",
            beta_2=0.0,
            interval=1,
        )
        super().__init__(
            LEARNING_RATE,
            beta_1=0.0,
            newton_schulz=NewtonSchulz(),
            noise=noise,
        )
        self.norm = norm

    def make_rules(self, hidden):
        return {"hidden": Rule(self.norm, lambda spec: 3.0 * spec.d_in)}


@logic
@pytest.mark.parametrize("norm", [RowsByNumber(), ColNorm(), RowNorm()])
def test_hidden_norms_that_depend_on_the_orientation(norm):
    """lmo(A^T) is not lmo(A)^T: each matrix is given as (d_in, d_out)."""
    kernels = [  # shape, axis of the inputs
        ((9, 4), 0),
        ((4, 9), 0),
        ((4, 9), 1),
        ((5, 5), 1),
    ]
    shapes = [shape for shape, _ in kernels]
    variables = [
        keras.Variable(np.zeros(shape), name=f"kernel_{i}")
        for i, shape in enumerate(shapes)
    ]
    optimizer = OfOneNorm(norm)
    for x, (_, axis) in zip(variables, kernels, strict=True):
        optimizer.assign_role("hidden", [x], axis, 1 - axis)
    optimizer.build(variables)
    first, second = normals(*shapes, seed=0), normals(*shapes, seed=1)
    optimizer.apply(list(map(ops.convert_to_tensor, first)), variables)
    weights = [ops.convert_to_numpy(x).copy() for x in variables]
    optimizer.apply(list(map(ops.convert_to_tensor, second)), variables)
    report = optimizer.noise_report()
    rows = zip(kernels, weights, first, second, report.values(), strict=True)
    for (_, axis), x, g, then, one in rows:
        G, D = (a.T if axis else a for a in (g, then - g))
        wanted = -LEARNING_RATE * 3.0 * len(G) * lmo(norm, G[None])[0]
        np.testing.assert_allclose(x.T if axis else x, wanted, rtol=1e-5)
        d = norm.dual_scale(*D.shape) * dual(norm, D[None])
        np.testing.assert_allclose(one["noise"], d, rtol=1e-5)


@logic
def test_weight_decay_uses_the_base_rate():
    names = ["tall", "wide", "table", "gain"]
    trials = [
        Trial(kinds(*names), start=2.0, weight_decay=decay)
        for decay in (0.0, 0.5)
    ]
    for t in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        before = trials[1].weights()
        plain, decayed = (trial.step(gradients) for trial in trials)
        for x, a, b in zip(before, plain, decayed, strict=True):
            # Observed 2e-7, the rounding of weights of size 2.
            np.testing.assert_allclose(
                b - a, -LEARNING_RATE * 0.5 * x, atol=2e-6
            )
    assert trials[1].ratios().min() < 0.99


# -- Noise -----------------------------------------------------------------
@logic
@pytest.mark.parametrize("norm", ["rms", "sign"])
@pytest.mark.parametrize("name", [*HIDDEN, "gain", "bias"])
def test_lmo_attains_the_dual_norm(name, norm):
    """<G, lmo(G)> = -dual(G), with the LMO read off the first step."""
    role, shape, _, _, (batch, d_in, d_out) = TENSORS[name]
    trial = Trial(
        kinds(name),
        step_scale="operator",
        vector_norm=norm,
        noise_estimator="svd",
        noise_reference="momentum",
        noise_schedule="interval",
        **EXACT,
    )
    zero, gradient = normals(shape, shape)
    (move,) = trial.step([gradient])
    attained = -np.sum(gradient * move) / LEARNING_RATE
    # With the opposite gradient next, D_2 = -2 G: the dual norm is 2-fold.
    trial.step([-gradient])
    (report,) = trial.report()
    dual = np.sum(report["noise"]) / math.sqrt(1.0 - 0.9) / 2.0
    # Observed 7e-7.
    np.testing.assert_allclose(attained, dual, rtol=1e-4)


@logic
def test_without_noise_there_is_no_state_of_it():
    state = {}
    for noise in (None, NoiseAdaptiveRate(), NoiseAdaptiveRate(alpha=1e12)):
        variable = keras.Variable(np.ones((4, 6), "float32"), name="kernel")
        optimizer = Lanton(noise=noise)
        optimizer.build([variable])
        state[noise] = {v.name for v in optimizer.variables}
        if noise is None:
            with pytest.raises(ValueError, match="`noise_report` needs"):
                optimizer.noise_report()
    assert not {"noise", "measurements"} & state[None]
    assert {"noise", "measurements"} <= state[NoiseAdaptiveRate()]


@logic
def test_without_noise_is_with_rates_of_one():
    """Until the first measurement, and at an alpha that nothing reaches."""
    loud = NoiseAdaptiveRate(
        alpha=1e12, alpha_unit="absolute", within_matrices=False, interval=1
    )
    ends = []
    for noise in (None, loud):
        variable = keras.Variable(np.ones((4, 6), "float32"), name="kernel")
        optimizer = Lanton(noise=noise)
        for seed in range(3):
            (gradient,) = normals((4, 6), seed=seed)
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        ends.append(keras.ops.convert_to_numpy(variable))
    np.testing.assert_allclose(*ends, rtol=1e-6)

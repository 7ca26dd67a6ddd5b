"""Sizes and limits of a step, read off the weights."""

import keras
import numpy as np
import pytest
from keras import ops

from helpers.norms import dual
from helpers.norms import lmo
from helpers.optimizers import paper
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.variables import to_arrays
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import Rule
from keras_lanton.optimizer.lmo import LMOOptimizer

LEARNING_RATE = 0.01
# Its fixed point is 1: an exact polar factor.
EXACT = {"ns_coefficients": [(1.875, -1.25, 0.375)], "ns_steps": 30}
# role, shape, input axes, output axes, matrices
TENSORS = {
    "square": ("hidden", (6, 6), (0,), (1,), 1),
    "tall": ("hidden", (16, 5), (0,), (1,), 1),
    "wide": ("hidden", (5, 16), (0,), (1,), 1),
    "heads": ("hidden", (8, 2, 3), (0,), (1, 2), 1),
    "output": ("hidden", (2, 3, 8), (0, 1), (2,), 1),
    "gemma": ("hidden", (2, 8, 3), (1,), (0, 2), 1),
    "conv": ("hidden", (2, 2, 3, 5), (0, 1, 2), (3,), 1),
    "experts": ("hidden", (3, 4, 7), (1,), (2,), 3),
    "table": ("embedding", (11, 4), (1,), (0,), 1),
    "head": ("embedding", (4, 11), (0,), (1,), 1),
    "gain": ("vector", (9,), None, None, 1),
    "bias": ("vector", (3, 4), None, None, 1),
}
SHAPES = [one[1] for one in TENSORS.values()]


def normals(*shapes, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [
        (scale * rng.standard_normal(shape)).astype("float32")
        for shape in shapes
    ]


class Trial:
    """The variables of `TENSORS` under one optimizer."""

    def __init__(self, dtype="float32", start=0.0, **options):
        settings = {"weight_decay": 0.0, "noise_interval": 1, **options}
        self.optimizer = paper(learning_rate=LEARNING_RATE, **settings)
        self.dtype, self.variables = dtype, []
        for name, (role, shape, inputs, outputs, _) in TENSORS.items():
            value = np.full(shape, start, "float32")
            variable = keras.Variable(value, dtype=dtype, name=name)
            self.variables.append(variable)
            self.optimizer.assign_role(role, variable, inputs, outputs)
        self.optimizer.build(self.variables)

    def weights(self):
        return to_arrays([ops.cast(v, "float32") for v in self.variables])

    def step(self, gradients):
        """How far each variable moves."""
        before = self.weights()
        given = [ops.convert_to_tensor(g, self.dtype) for g in gradients]
        self.optimizer.apply(given, self.variables)
        return [x - y for x, y in zip(self.weights(), before, strict=True)]

    def report(self):
        snapshot = self.optimizer.noise_snapshot()
        return list(self.optimizer.noise_report(snapshot).values())

    def ratios(self):
        return np.concatenate([one["ratio"] for one in self.report()])


def check_size(name, move, rates, tolerance):
    """The printed step, at the given rate for each matrix."""
    role, _, inputs, _, matrices = TENSORS[name]
    found = np.sqrt(np.mean(move.reshape(matrices, -1) ** 2, axis=1))
    wanted = rates
    if role == "hidden":
        wanted = 0.2 * rates
    elif role == "embedding":
        size = np.abs(move)
        found = [size.min(), size.max()]
        wanted = rates[0] * 300.0 / max(move.shape[inputs[0]], 64)
    # Observed 2e-7 in float32 and 2e-3 in half precision.
    np.testing.assert_allclose(found, wanted, rtol=tolerance)


SIZES = [
    ("float32", 1e-20, 1e-4),
    ("float32", 1e20, 1e-4),
    ("bfloat16", 1e-20, 0.02),
    ("bfloat16", 1.0, 0.02),
    ("bfloat16", 1e20, 0.02),
    ("float16", 1e-4, 0.02),
    ("float16", 1.0, 0.02),
    ("float16", 1e4, 0.02),
]


@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [
        pytest.param(*case, marks=() if case[1] == 1.0 else logic)
        for case in SIZES
    ],
)
def test_sizes(dtype, scale, tolerance):
    """At ratio 1, and after noise was measured; the oracle has scale 1."""
    trial = Trial(dtype, **EXACT)
    for seed in range(3):
        moves = trial.step(normals(*SHAPES, seed=seed, scale=scale))
        for name, move, one in zip(TENSORS, moves, trial.report(), strict=True):
            rates, ratio = one["learning_rate"], one["ratio"]
            assert np.isfinite(move).all()
            assert np.isfinite(one["noise"]).all()
            assert (ratio > 0.0).all()
            np.testing.assert_allclose(rates, LEARNING_RATE * ratio, rtol=1e-6)
            if seed == 0:
                np.testing.assert_array_equal(ratio, 1.0)
            # Away from 0, half precision rounds the move itself.
            if seed == 0 or dtype == "float32":
                check_size(name, move, rates, tolerance)
    assert int(trial.optimizer.skipped_steps) == 0


@logic
@pytest.mark.parametrize("reference", ["previous_gradient", "momentum"])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_invariance(reference, scale):
    """Relative alpha: the unit of the gradient does not matter."""
    trials = [Trial(noise_reference=reference) for _ in range(2)]
    for t in range(4):
        # Unequal noise, so that the ratios matter.
        gradients = [
            g * 2.0**-i for i, g in enumerate(normals(*SHAPES, seed=t))
        ]
        one = trials[0].step(gradients)
        two = trials[1].step([np.float32(scale) * g for g in gradients])
        for a, b in zip(one, two, strict=True):
            # Observed 2e-6.
            assert np.linalg.norm(a - b) < 1e-4 * np.linalg.norm(a)
    found, wanted = (trial.ratios() for trial in trials)
    assert found.min() < 0.9
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize(
    "dtype", keep(["float32", "bfloat16", "float16"], ["float32"])
)
def test_zero_gradients(dtype):
    """Nothing moves, nothing decays, nothing becomes NaN."""
    trial = Trial(dtype, start=0.5, weight_decay=0.1)
    zeros = [np.zeros(shape, "float32") for shape in SHAPES]
    for _ in range(3):
        for move in trial.step(zeros):
            np.testing.assert_array_equal(move, 0.0)
    np.testing.assert_array_equal(trial.ratios(), 1.0)
    for move in trial.step([zero + 1.0 for zero in zeros]):
        assert np.isfinite(move).all()
        assert np.any(move != 0.0)


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
            LEARNING_RATE, beta_1=0.0, newton_schulz=NewtonSchulz(), noise=noise
        )
        self.norm = norm

    def make_rules(self, hidden):
        return {"hidden": Rule(self.norm, lambda spec: 3.0 * spec.d_in)}


@logic
def test_hidden_norm_that_depends_on_the_orientation():
    """lmo(A^T) is not lmo(A)^T: each matrix is given as (d_in, d_out)."""
    norm = RowsByNumber()
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
def test_without_noise_is_with_rates_of_one():
    """And has no state of it."""
    loud = NoiseAdaptiveRate(
        alpha=1e12, alpha_unit="absolute", within_matrices=False, interval=1
    )
    ends, state = [], []
    for noise in (None, loud):
        variable = keras.Variable(np.ones((4, 6), "float32"), name="kernel")
        optimizer = Lanton(noise=noise)
        for seed in range(3):
            (gradient,) = normals((4, 6), seed=seed)
            optimizer.apply([ops.convert_to_tensor(gradient)], [variable])
        ends.append(ops.convert_to_numpy(variable))
        state.append({v.name for v in optimizer.variables})
        if noise is None:
            with pytest.raises(ValueError, match="`noise_report` needs"):
                optimizer.noise_report()
    np.testing.assert_allclose(*ends, rtol=1e-6)
    assert not {"noise", "measurements"} & state[0]
    assert {"noise", "measurements"} <= state[1]

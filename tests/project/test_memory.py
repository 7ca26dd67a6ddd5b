"""What the state and the temporaries take, and in which dtypes."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from helpers.optimizers import lanton
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate

SHAPES = [*[(64, 64)] * 10, *[(64, 128)] * 5, *[(128, 64)] * 5, (64,), (9,)]
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int32": 4, "int64": 8}


def make_variables():
    random = np.random.default_rng(0)
    return [
        keras.Variable(
            0.1 * random.standard_normal(shape, "float32"), name=f"kernel_{i}"
        )
        for i, shape in enumerate(SHAPES)
    ]


def build(**options):
    optimizer, variables = lanton(**options), make_variables()
    optimizer.build(variables)
    return optimizer, variables


def size(variables):
    return sum(
        math.prod(v.shape) * BYTES[keras.backend.standardize_dtype(v.dtype)]
        for v in variables
    )


def state_over_weights(**options):
    """Without the noise of rows and columns, unless they are asked for."""
    optimizer, variables = build(**{"within_matrices": False, **options})
    return size(optimizer.variables) / size(variables)


def test_state_over_weights():
    # Of the previous gradient one matrix in ten is kept: observed 1.10.
    usual = state_over_weights()
    assert usual < 1.15
    lines = sum(sum(shape) for shape in SHAPES if len(shape) == 2)
    added = state_over_weights(within_matrices=True) - usual
    weights = sum(map(math.prod, SHAPES))
    np.testing.assert_allclose(added, lines / weights, rtol=0.01)
    assert state_over_weights(noise_reference="momentum") < 1.01
    assert 1.99 < state_over_weights(noise_schedule="interval") < 2.01
    halves = {"previous_gradient_dtype": "bfloat16"}
    halved = state_over_weights(momentum_dtype="bfloat16", **halves)
    np.testing.assert_allclose(halved, usual / 2, rtol=0.01)
    # One byte for four, and a scale for every 128 of the matrices' entries,
    # 64 here.
    eighths = {"momentum_dtype": "int8", "noise_reference": "momentum"}
    assert state_over_weights(**eighths) < 0.28


def train(steps, **options):
    optimizer, variables = build(**options)
    start = [ops.convert_to_numpy(v) + 0.0 for v in variables]
    for t in range(steps):
        random = np.random.default_rng(t)
        gradients = [
            ops.convert_to_tensor(
                random.standard_normal(v.shape).astype("float32")
            )
            for v in variables
        ]
        optimizer.apply(gradients, variables)
    moved = [
        (ops.convert_to_numpy(v) - x).ravel()
        for v, x in zip(variables, start, strict=True)
    ]
    return optimizer, np.concatenate(moved)


@logic
@pytest.mark.parametrize(
    "options",
    [
        {"momentum_dtype": "bfloat16"},
        {"previous_gradient_dtype": "bfloat16"},
        {"momentum_dtype": "bfloat16", "noise_reference": "momentum"},
    ],
)
def test_half_the_state_moves_almost_alike(options):
    reference = options.get("noise_reference", "previous_gradient")
    _, expected = train(3, noise_interval=2, noise_reference=reference)
    optimizer, found = train(3, noise_interval=2, **options)
    kept = {
        keras.backend.standardize_dtype(v.dtype) for v in optimizer.variables
    }
    assert "bfloat16" in kept
    # bfloat16 has eight bits; observed at most 0.01.
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0.0 < error < 0.03


@pytest.mark.parametrize(
    # Where JAX has no float64, it would be float32.
    "dtype",
    [pytest.param("float64", marks=logic), "float16", "bfloat16"],
)
def test_other_dtypes_of_weights(dtype):
    """Also where matrices are taken one by one, and float32 comes out."""
    variables = [
        keras.Variable(
            0.01 * ops.ones((66, 70)), dtype=dtype, name=f"kernel_{i}"
        )
        for i in range(3)
    ]
    optimizer = Lanton(noise=NoiseAdaptiveRate(interval=1))
    random = np.random.default_rng(0)
    for _ in range(3):
        gradients = [
            ops.convert_to_tensor(
                random.standard_normal((66, 70)), dtype=variables[0].dtype
            )
            for _ in variables
        ]
        optimizer.apply(gradients, variables)
    for variable in variables:
        assert variable.dtype == optimizer.variables[2].dtype
        weights = ops.convert_to_numpy(ops.cast(variable, "float32"))
        assert np.all(np.isfinite(weights))
        assert np.ptp(weights) > 0.001

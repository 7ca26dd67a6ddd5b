"""The momentum in int8: its blocks, its error, and what is left alone."""

import keras
import numpy as np
import pytest
from keras import ops

from helpers.saves import resumed
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.optimizer.momentum import LARGEST
from keras_lanton.optimizer.momentum import block_length
from keras_lanton.optimizer.momentum import dequantize
from keras_lanton.optimizer.momentum import quantize
from keras_lanton.roles.matrix_view import MatrixView
from keras_lanton.roles.spec import vector_spec


@logic
@pytest.mark.parametrize(
    ("shape", "length"),
    [
        ((768, 3072), 128),
        ((768, 12, 64), 64),
        ((50257, 768), 128),
        ((768, 50257), 29),
        ((3, 3, 128, 96), 96),
        ((64, 64), 64),
        ((64, 63), None),  # too few entries
        ((4096, 10), None),  # too short an axis
        ((768,), None),
        ((), None),
    ],
)
def test_blocks(shape, length):
    view = vector_spec("x", shape).view
    assert block_length(view) == length


def test_a_block_is_of_one_matrix():
    """Gates of 96 columns, and matrices that the last axis numbers."""
    gates = MatrixView(
        shape=(64, 384), input_axes=(0,), output_axes=(1,), output_blocks=4
    )
    assert block_length(gates) == 96
    numbered = MatrixView(
        shape=(64, 8, 128), batch_axes=(2,), input_axes=(0,), output_axes=(1,)
    )
    assert block_length(numbered) is None


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_the_error_is_below_one_of_127_parts(scale):
    random = np.random.default_rng(0)
    B = (scale * random.standard_normal((6, 4, 96))).astype("float32")
    u = random.random(B.shape).astype("float32")
    numbers, scales = quantize(ops.convert_to_tensor(B), 32, u)
    assert keras.backend.standardize_dtype(numbers.dtype) == "int8"
    assert tuple(scales.shape) == (6, 4, 3)
    found = ops.convert_to_numpy(dequantize(numbers, scales))
    blocks = B.reshape(6, 4, 3, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    error = np.abs(found.reshape(blocks.shape) - blocks)
    assert (error <= largest / LARGEST * (1 + 1e-5)).all()
    # ... and the largest entry has none.
    at_largest = np.abs(blocks) == largest
    np.testing.assert_allclose(error[at_largest] / scale, 0, atol=1e-6)


def test_the_mean_of_many_roundings_is_the_momentum():
    B = np.tile(np.array([1.0, 0.1234, -0.001, 0.0], "float32"), (20000, 8))
    u = np.random.default_rng(1).random(B.shape).astype("float32")
    found = dequantize(*quantize(ops.convert_to_tensor(B), 32, u))
    off = ops.convert_to_numpy(found).mean(axis=0) - B[0]
    # Of 20,000 numbers that are at most 1 / 127 apart.
    assert np.abs(off).max() < 5 * 0.5 / 127 / 20000**0.5


@logic
def test_zero_stays_zero():
    numbers, scales = quantize(
        ops.zeros((2, 64)), 64, np.full((2, 64), 0.999, "float32")
    )
    assert not ops.convert_to_numpy(dequantize(numbers, scales)).any()


SHAPES = {"dense/kernel": (64, 128), "small/kernel": (8, 8), "dense/bias": (8,)}


def make(momentum_dtype, **options):
    random = np.random.default_rng(2)
    weights = [
        keras.Variable(random.standard_normal(shape).astype("float32"))
        for shape in SHAPES.values()
    ]
    options = {"noise": NoiseAdaptiveRate(reference="momentum"), **options}
    optimizer = Lanton(1e-2, momentum_dtype=momentum_dtype, **options)
    optimizer.assign_role("hidden", weights[:2], 0, 1)
    optimizer.assign_role("vector", weights[2])
    optimizer.build(weights)
    return optimizer, weights


def gradients(step):
    random = np.random.default_rng(step)
    return [
        ops.convert_to_tensor(random.standard_normal(shape).astype("float32"))
        for shape in SHAPES.values()
    ]


def test_steps_are_close_to_those_of_float32():
    # With noise all rates would depend on all momenta, a little.
    (exact, x), (ours, y) = (make(d, noise=None) for d in (None, "int8"))
    start = ops.convert_to_numpy(x[0])
    for step in range(20):
        exact.apply(gradients(step), x)
        ours.apply(gradients(step), y)
    moved = np.linalg.norm(ops.convert_to_numpy(x[0]) - start)
    off = np.linalg.norm(ops.convert_to_numpy(x[0] - y[0]))
    assert 0 < off < 0.03 * moved
    for i in (1, 2):  # not in int8
        np.testing.assert_array_equal(
            *(ops.convert_to_numpy(w[i]) for w in (x, y))
        )


@logic
def test_what_is_in_int8():
    optimizer, _ = make("int8")
    kinds = {
        variable.path.split("/")[-1]: variable.dtype
        for variable in optimizer.variables
    }
    dtypes = [v.dtype for v in optimizer._state.by_name["momentum"]]
    assert dtypes == ["int8", "float32", "float32"], kinds
    (scale,) = optimizer._state.by_name["momentum_scale"]
    assert tuple(scale.shape) == (64, 1)


def test_a_resumed_run_is_the_same(tmp_path):
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)]
    )
    model.compile(Lanton(1e-2, momentum_dtype="int8"), loss="mse")
    random = np.random.default_rng(4)
    x, y = random.standard_normal((64, 64)), random.standard_normal((64, 1))

    def train(model):
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)

    train(model)
    resumed(model, tmp_path, train)

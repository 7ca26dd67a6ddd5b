"""Stochastic rounding: the bits, their mean, and weights that move by it."""

import keras
import numpy as np
import pytest
from keras import ops

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton.optimizer.rounding import random_bits
from keras_lanton.optimizer.rounding import stochastic_bfloat16
from keras_lanton.optimizer.rounding import uniform


def mixed(x):
    """The hash in NumPy's uint32, which overflows as it should."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def expected_bits(shape, t, number):
    with np.errstate(over="ignore"):
        step = np.array([t], "uint32") * np.uint32(0x9E3779B1)
        variable = np.array([number + 1], "uint32") * np.uint32(0x85EBCA77)
        count = np.arange(np.prod(shape), dtype="uint32").reshape(shape)
        return mixed(count ^ mixed(step + variable))


@pytest.mark.parametrize(
    ("shape", "t", "number"), [((5, 7), 1, 0), ((300,), 123456, 77)]
)
def test_bits_are_the_same_on_every_backend(shape, t, number):
    found = random_bits(shape, t=ops.convert_to_tensor(t), number=number)
    found = ops.convert_to_numpy(found)
    assert found.dtype == "int32"
    wanted = expected_bits(shape, t, number).view("int32")
    np.testing.assert_array_equal(found, wanted)


@logic
def test_numbers_are_uniform_and_independent():
    rows = np.stack(
        [
            ops.convert_to_numpy(
                uniform(
                    random_bits((4096,), t=ops.convert_to_tensor(t), number=i)
                )
            )
            for t in range(1, 9)
            for i in range(4)
        ]
    )
    assert rows.min() >= 0
    assert rows.max() < 1
    counts, _ = np.histogram(rows, bins=64, range=(0, 1))
    expected = rows.size / 64
    # Chi squared with 63 degrees of freedom: 5 standard deviations.
    assert np.sum((counts - expected) ** 2 / expected) < 63 + 5 * 126**0.5
    correlations = np.corrcoef(rows)[~np.eye(len(rows), dtype=bool)]
    assert np.abs(correlations).max() < 6 / 4096**0.5


def test_the_mean_of_many_roundings_is_the_number():
    # Between the neighbours 1 and 1 + 2^-7 of bfloat16, and of both signs.
    x = np.array([1 + 0.3 * 2**-7, -1 - 0.8 * 2**-7], "float32")
    x = np.repeat(x[:, None], 20000, axis=1)
    bits = random_bits(x.shape, t=ops.convert_to_tensor(3), number=1)
    found = stochastic_bfloat16(ops.convert_to_tensor(x), bits)
    found = ops.convert_to_numpy(ops.cast(found, "float32"))
    assert set(np.unique(found[0])) == {1, np.float32(1 + 2**-7)}
    # Of 20,000: 5 standard deviations of the mean are 2e-2 of the distance.
    off = (found.mean(axis=1) - x[:, 0]) * 2**7
    assert np.abs(off).max() < 2e-2


@logic
@pytest.mark.parametrize(
    "value", [0.0, 1.0, -2.5, float("inf"), -float("inf"), float("nan")]
)
def test_numbers_of_bfloat16_stay(value):
    x = ops.convert_to_tensor(np.full(64, value, "float32"))
    bits = random_bits((64,), t=ops.convert_to_tensor(1), number=0)
    found = ops.cast(stochastic_bfloat16(x, bits), "float32")
    np.testing.assert_array_equal(
        ops.convert_to_numpy(found), np.full(64, value, "float32")
    )


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_small_updates_of_bfloat16_weights(rounding):
    """Each is a hundredth of the distance of neighbours at 1."""
    weights = [
        keras.Variable(np.ones((64, 64)), dtype="bfloat16", name="kernel"),
        keras.Variable(np.ones((4096,)), dtype="bfloat16", name="bias"),
    ]
    optimizer = Lanton(
        2.0**-7 / 100,
        noise=None,
        nesterov=False,
        step_scale="rms_matched",
        hidden_scale=8.0 * 64**-0.5,  # sign-like: its entries are about 1
        weight_decay=0.0,
        rounding=rounding,
    )
    optimizer.build(weights)
    gradients = [np.eye(64, dtype="float32"), -np.ones(4096, "float32")]
    gradients = [ops.cast(g, "bfloat16") for g in gradients]
    for _ in range(50):
        optimizer.apply(gradients, weights)
    means = [
        float(ops.mean(ops.cast(w, "float32") - 1)) * 2**7 for w in weights
    ]
    if rounding == "nearest":
        assert means == [0, 0]
    else:  # half the distance, of 4,096 entries: 5 standard deviations
        assert means[1] == pytest.approx(0.5, abs=0.04)
        assert means[0] < 0


@logic
def test_weights_that_it_is_not_for():
    weights = [keras.Variable(np.ones((4, 4)), name="kernel")]
    with pytest.raises(ValueError, match="bfloat16.*Received: weights of floa"):
        Lanton(rounding="stochastic").build(weights)

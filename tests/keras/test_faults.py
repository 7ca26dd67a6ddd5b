"""The fault campaign in small, impossible states, and bad days."""

import keras
import numpy as np
import pytest

import faults
from helpers.models import COUNTS
from helpers.models import to_arrays
from helpers.optimizers import lanton
from helpers.tiers import exhaustive
from helpers.tiers import logic

BACKEND = keras.backend.backend()


def assert_no_failures(results):
    failures = [line for one in results for line in one.failures]
    assert not failures, "\n".join(failures)
    for one in results:
        handled = one.refused + one.harmless + one.unnoticed
        assert handled == one.injected > 0, one


# -- The campaign ------------------------------------------------------------
@exhaustive
@pytest.mark.skipif(BACKEND != "torch", reason="nothing here is the backend's")
@pytest.mark.parametrize("way", ["backup", "checkpoint"])
def test_kills(way):
    assert_no_failures(faults.kills(2, 0, way, steps=24))


@logic
def test_corruptions():
    assert_no_failures(faults.corruptions(30, 0))


@logic
def test_sequences():
    # Eager steps, and compiling, take long elsewhere.
    assert_no_failures(faults.sequences(90 if BACKEND == "torch" else 9, 0))


@logic
def test_values():
    assert_no_failures(faults.values(10, 0))


@logic
def test_unnoticed_is_for_bare_hdf5_alone():
    passing = [name for name, row in faults.LOADERS.items() if row[2]]
    assert passing == [".weights.h5, load_checkpoint"]


# -- Bad days ----------------------------------------------------------------
# Elsewhere: a loss scale that overflows, a layer without a gradient, a layer
# unfrozen in mid-run (test_keras_features.py).
def test_batch_of_zeros():
    """No gradient reaches a kernel behind zeros: it stays, the bias moves."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, name="dense")(inputs))
    optimizer = lanton(**faults.OPTIONS)
    model.compile(optimizer, loss="mse", jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 4)), rng.standard_normal((4, 3))
    model.train_on_batch(x, y)
    kernel, bias = to_arrays(model.weights)
    state = to_arrays(optimizer.variables)
    model.train_on_batch(np.zeros_like(x), y)
    after = to_arrays(model.weights)
    np.testing.assert_array_equal(after[0], kernel)
    assert np.abs(after[1] - bias).max() > 1e-4
    for variable, old, new in zip(
        optimizer.variables,
        state,
        to_arrays(optimizer.variables),
        strict=True,
    ):
        if variable.name in ("dense_kernel_momentum", "noise"):
            np.testing.assert_array_equal(new, old)
    # Targets of zero as well: nothing moves at all, and nothing is skipped.
    model.get_layer("dense").bias.assign(np.zeros(3))
    before = to_arrays(model.weights)
    model.train_on_batch(np.zeros_like(x), np.zeros_like(y))
    assert faults.equal(to_arrays(model.weights), before)
    assert optimizer.skipped_steps == 0


def test_learning_rate_that_goes_to_zero():
    """From then on only the state moves; nothing divides by the rate."""
    model = faults.built_model(
        learning_rate=keras.optimizers.schedules.PolynomialDecay(0.1, 4, 0.0)
    )
    faults.train(model, 4)
    weights = to_arrays(model.trainable_variables)
    state = to_arrays(model.optimizer.variables)
    faults.train(model, 4)
    assert faults.equal(to_arrays(model.trainable_variables), weights)
    after = to_arrays(model.optimizer.variables)
    assert not faults.equal(after, state)
    assert all(np.isfinite(x).all() for x in after)
    for one in model.optimizer.noise_report().values():
        np.testing.assert_array_equal(one["learning_rate"], 0.0)


def test_weights_with_infinities():
    """The gradients are NaN, all steps are skipped, the rest is as it was."""
    model = faults.built_model()
    faults.train(model, 2)
    kernel = model.get_layer("second").kernel
    value = to_arrays([kernel])[0]
    value[0, 0] = np.inf
    kernel.assign(value)
    before = faults.state(model)
    faults.train(model, 3)
    assert model.optimizer.skipped_steps == 3
    variables = [*model.variables, *model.optimizer.variables]
    for variable, old, new in zip(
        variables, before, faults.state(model), strict=True
    ):
        if variable.name not in COUNTS:
            np.testing.assert_array_equal(new, old, variable.path)

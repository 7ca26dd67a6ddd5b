"""Gradients that are not finite."""

import warnings

import keras
import numpy as np
import pytest

from helpers import runs
from helpers.models import make_data
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton


@pytest.mark.parametrize("value", keep([np.nan, np.inf, -np.inf], [np.inf]))
@pytest.mark.parametrize(
    "options",
    [
        {"noise_reference": "previous_gradient"},
        pytest.param({"noise_reference": "momentum"}, marks=logic),
        runs.PRESETS["defaults"],
        {**runs.PRESETS["defaults"], "use_ema": True, "ema_momentum": 0.5},
        {"clipvalue": 1.0},
    ],
    ids=["previous_gradient", "momentum", "defaults", "ema", "clipvalue"],
)
def test_skip_changes_nothing(value, options):
    optimizer, variables = runs.run(runs.make_gradients(3), **options)
    before, state = to_arrays(variables), runs.state_of(optimizer)
    gradients = runs.make_gradients(1, seed=5)[0]
    gradients[2][1] = value
    for step in (1, 2):
        runs.apply(optimizer, variables, gradients)
        runs.assert_equal(variables, before)
        runs.assert_same_state(runs.state_of(optimizer), state)
        assert optimizer.skipped_steps == step
        assert runs.count(optimizer.iterations) == 3 + step


@pytest.mark.parametrize(
    ("reference", "where", "preset"),
    [
        ("previous_gradient", 0, "paper"),
        ("independent_gradient", 0, "defaults"),
        ("independent_gradient", 1, "paper"),
    ],
)
def test_skipped_window(reference, where, preset):
    """One bad micro-batch skips its window, and no more than that."""
    gradients = runs.make_gradients(8)
    holes = runs.make_gradients(8)
    holes[2 + where][1][0, 0] = np.inf
    options = {
        **runs.PRESETS[preset],
        "gradient_accumulation_steps": 2,
        "noise_reference": reference,
        "noise_interval": 1,
    }
    optimizer, found = runs.run(holes, **options)
    _, wanted = runs.run([*gradients[:2], *gradients[4:]], **options)
    runs.assert_equal(found, wanted)
    assert optimizer.skipped_steps == 1


def test_propagate():
    gradients = runs.make_gradients(2)
    gradients[1][2][1] = np.nan
    optimizer, variables = runs.run(gradients, nonfinite="propagate")
    assert np.isnan(to_arrays(variables)[2]).any()
    assert optimizer.skipped_steps == 0


@pytest.mark.parametrize("nonfinite", keep(["skip", "propagate"], ["skip"]))
@both_presets
def test_nonfinite_in_fit(nonfinite, preset):
    model = runs.model_of_runs()
    x, y = make_data()
    y[5, 1] = np.nan
    optimizer = paper(**{**runs.PRESETS[preset], "nonfinite": nonfinite})
    is_jax = runs.BACKEND == "jax"
    model.compile(optimizer=optimizer, loss="mse", jit_compile=is_jax)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    skips = nonfinite == "skip"
    finite = [np.isfinite(w).all() for w in to_arrays(model.weights)]
    assert all(finite) == skips
    assert optimizer.skipped_steps == skips
    assert runs.count(optimizer.iterations) == 4


@pytest.mark.skipif(runs.BACKEND != "tensorflow", reason="of TensorFlow")
@pytest.mark.parametrize("preset", runs.PRESETS)
def test_nothing_else_is_nonfinite(preset):
    """Or `enable_check_numerics` would stop there."""
    import tensorflow as tf

    tf.debugging.enable_check_numerics()
    try:
        options = {**runs.PRESETS[preset], "clipvalue": 1.0}
        runs.fit(runs.model_of_runs(), paper(**options), jit_compile=False)
    finally:
        tf.debugging.disable_check_numerics()


def test_finite_gradients_of_any_size_are_not_skipped():
    """Of changing signs: their differences are not finite in float32."""
    gradients = [
        [np.full_like(g, 3.4e38) * np.sign(g) for g in one]
        for one in runs.make_gradients(4)
    ]
    optimizer, variables = runs.run(gradients)
    assert optimizer.skipped_steps == 0
    for one in to_arrays([*variables, *optimizer.variables]):
        assert np.isfinite(one).all()


# -- Many skipped steps in a row ---------------------------------------------
def model_on_nans(bad):
    """A model, and data of 24 steps of which these are NaN."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    is_jax = runs.BACKEND == "jax"
    model.compile(Lanton(noise=None), "mse", jit_compile=is_jax)
    x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
    x[list(bad)] = np.nan
    return model, x


def warnings_of(model, x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, x[:, :2], batch_size=1, shuffle=False, verbose=0)
    said = [str(one.message) for one in caught]
    return [one for one in said if "steps in a row were skipped" in one]


def test_many_skips_in_a_row_warn_once():
    """Also where the end of the run was fine."""
    model, x = model_on_nans(range(5, 15))
    (said,) = warnings_of(model, x)
    assert said.endswith("Received: skipped_steps=10")
    assert not warnings_of(model, x)
    assert model.optimizer.skipped_steps == 20


def test_scattered_skips_do_not_warn():
    model, x = model_on_nans({*range(9), *range(10, 19), 20, 22})
    assert not warnings_of(model, x)
    assert model.optimizer.skipped_steps == 20


@logic
def test_skips_in_a_row_go_on_in_a_loaded_run(tmp_path):
    model, x = model_on_nans(range(18, 24))
    assert not warnings_of(model, x)
    model.save(tmp_path / "run.keras")
    loaded = keras.models.load_model(tmp_path / "run.keras")
    _, x = model_on_nans(range(4))
    assert len(warnings_of(loaded, x)) == 1
    _, x = model_on_nans(range(9))
    assert not warnings_of(model, np.roll(x, 3, axis=0))

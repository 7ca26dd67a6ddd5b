"""Gradients that are not finite."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from helpers.models import make_data
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import PRESETS
from helpers.runs import apply
from helpers.runs import assert_equal
from helpers.runs import assert_same_state
from helpers.runs import make_gradients
from helpers.runs import model_of_runs
from helpers.runs import run
from helpers.runs import state_of
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton


# -- Gradients that are not finite -----------------------------------------
@pytest.mark.parametrize("value", keep([np.nan, np.inf, -np.inf], [np.inf]))
@pytest.mark.parametrize(
    "options",
    [
        {"noise_reference": "previous_gradient"},
        pytest.param({"noise_reference": "momentum"}, marks=logic),
        PRESETS["defaults"],
    ],
    ids=["previous_gradient", "momentum", "defaults"],
)
def test_skip_changes_nothing(value, options):
    optimizer, variables = run(make_gradients(3), **options)
    before, state = to_arrays(variables), state_of(optimizer)
    gradients = make_gradients(1, seed=5)[0]
    gradients[2][1] = value
    for step in (1, 2):
        apply(optimizer, variables, gradients)
        assert_equal(to_arrays(variables), before)
        assert_same_state(state_of(optimizer), state)
        assert optimizer.skipped_steps == step
        assert int(ops.convert_to_numpy(optimizer.iterations)) == 3 + step


@both_presets
def test_skipped_steps_never_were(preset):
    """What follows equals a run without them."""
    gradients = make_gradients(6)
    holes = [*gradients[:2], make_gradients(1)[0], *gradients[2:]]
    holes[2][0][0, 0] = np.nan
    optimizer, found = run(holes, **PRESETS[preset])
    other, wanted = run(gradients, **PRESETS[preset])
    assert_equal(to_arrays(found), to_arrays(wanted))
    assert_same_state(state_of(optimizer), state_of(other))
    assert optimizer.skipped_steps == 1


@pytest.mark.parametrize(
    "reference, where",
    [
        ("previous_gradient", 0),
        ("independent_gradient", 0),
        ("independent_gradient", 1),
    ],
)
def test_skipped_window(reference, where):
    """One bad micro-batch skips its window, and no more than that."""
    gradients = make_gradients(8)
    holes = make_gradients(8)
    holes[2 + where][1][0, 0] = np.inf
    options = {
        "gradient_accumulation_steps": 2,
        "noise_reference": reference,
        "noise_interval": 1,
    }
    optimizer, found = run(holes, **options)
    _, wanted = run([*gradients[:2], *gradients[4:]], **options)
    assert_equal(to_arrays(found), to_arrays(wanted))
    assert optimizer.skipped_steps == 1


@both_presets
def test_skip_with_ema(preset):
    """The average stays as well."""
    options = {**PRESETS[preset], "use_ema": True, "ema_momentum": 0.5}
    optimizer, variables = run(make_gradients(3), **options)
    state = state_of(optimizer)
    gradients = make_gradients(1, seed=5)[0]
    gradients[0][0] = np.nan
    apply(optimizer, variables, gradients)
    assert_same_state(state_of(optimizer), state)


def test_propagate():
    gradients = make_gradients(2)
    gradients[1][2][1] = np.nan
    optimizer, variables = run(gradients, nonfinite="propagate")
    assert np.isnan(to_arrays(variables)[2]).any()
    assert optimizer.skipped_steps == 0


@pytest.mark.parametrize("nonfinite", keep(["skip", "propagate"], ["skip"]))
@both_presets
def test_nonfinite_in_fit(nonfinite, preset):
    model = model_of_runs()
    x, y = make_data()
    y[5, 1] = np.nan
    optimizer = paper(**{**PRESETS[preset], "nonfinite": nonfinite})
    model.compile(optimizer=optimizer, loss="mse", jit_compile=BACKEND == "jax")
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    finite = [np.isfinite(w).all() for w in to_arrays(model.weights)]
    if nonfinite == "skip":
        assert all(finite)
        assert optimizer.skipped_steps == 1
    else:
        assert not all(finite)
        assert optimizer.skipped_steps == 0
    assert int(ops.convert_to_numpy(optimizer.iterations)) == 4


@pytest.mark.parametrize("size", keep([1e36, 3.4e38], [3.4e38]))
def test_finite_gradients_of_any_size_are_not_skipped(size):
    """Of changing signs: their differences are not finite in float32."""
    gradients = [
        [np.full_like(g, size) * np.sign(g) for g in one]
        for one in make_gradients(4)
    ]
    optimizer, variables = run(gradients)
    assert optimizer.skipped_steps == 0
    for one in to_arrays([*variables, *optimizer.variables]):
        assert np.isfinite(one).all()


# -- Many skipped steps in a row ---------------------------------------------
def model_on_nans(bad):
    """A model, and data of 24 steps of which these are NaN."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(Lanton(noise=None), "mse", jit_compile=BACKEND == "jax")
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


def test_skipped_steps_before_build():
    assert Lanton().skipped_steps == 0


@pytest.mark.parametrize("value", keep([np.inf, -np.inf], [np.inf]))
def test_an_infinite_gradient_is_skipped_before_it_is_clipped(value):
    optimizer, variables = run(make_gradients(1), clipvalue=1.0)
    before = to_arrays(variables)
    gradients = make_gradients(1, seed=5)[0]
    gradients[0].flat[0] = value
    apply(optimizer, variables, gradients)
    assert optimizer.skipped_steps == 1
    assert_equal(to_arrays(variables), before)

"""Ways to run `fit`: eager, compiled, several steps at once."""

import functools

import keras
import numpy as np
import pytest
from keras import layers

from helpers.models import make_data
from helpers.models import set_weights
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import OPTIONS
from helpers.runs import PRESETS
from helpers.runs import assert_close
from helpers.runs import fit
from helpers.runs import model_of_runs
from helpers.runs import reference_weights
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic


# -- Ways to run fit -------------------------------------------------------
@pytest.mark.parametrize(
    "compiled",
    [
        {"jit_compile": False},
        {"run_eagerly": True},
        {"steps_per_execution": 2},
    ],
    ids=str,
)
@both_presets
def test_ways_to_run(compiled, preset):
    if BACKEND == "torch" and "steps_per_execution" in compiled:
        pytest.skip("Keras has no steps_per_execution on PyTorch")
    found = fit(model_of_runs(), paper(**PRESETS[preset]), **compiled)
    # Observed 3e-7.
    assert_close(found, reference_weights(preset), 1e-5)


# On PyTorch compiling takes a minute and more; the single kernel has to do.
COMPILED = ["defaults"] if BACKEND == "tensorflow" else []


@pytest.mark.skipif(BACKEND == "jax", reason="this is the reference itself")
@pytest.mark.parametrize("preset", keep(PRESETS, COMPILED, exhaustive))
def test_compiled(preset):
    if BACKEND == "torch" and not torch_compiles():
        pytest.skip("this Keras and PyTorch cannot compile SGD either")
    found = fit(model_of_runs(), paper(**PRESETS[preset]), jit_compile=True)
    # Observed 3e-7.
    assert_close(found, reference_weights(preset), 1e-5)


def fit_single_kernel(optimizer, jit_compile):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, use_bias=False, name="dense")]
    )
    set_weights(model)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((12, 4)), rng.standard_normal((12, 3))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return to_arrays(model.trainable_variables)


@functools.cache
def torch_compiles():
    """Not without a C++ compiler, and not on every pair of versions."""
    try:
        fit_single_kernel(keras.optimizers.SGD(), True)
    except Exception:
        return False
    return True


@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile is of PyTorch")
@pytest.mark.parametrize("preset", keep(PRESETS, ["defaults"], exhaustive))
def test_compiled_single_kernel(preset):
    """One variable alone: no list in the step may have a length to guess."""
    if not torch_compiles():
        pytest.skip("this Keras and PyTorch cannot compile SGD either")
    found = fit_single_kernel(paper(**PRESETS[preset]), True)
    wanted = fit_single_kernel(paper(**PRESETS[preset]), False)
    # Observed 1e-7.
    assert_close(found, wanted, 1e-5)


@logic
def test_training_lowers_the_loss():
    model = model_of_runs()
    model.compile(optimizer=paper(**OPTIONS), loss="mse")
    x, y = make_data()
    history = model.fit(x, y, batch_size=8, epochs=15, verbose=0)
    assert history.history["loss"][-1] < 0.8 * history.history["loss"][0]


# -- Constraints and regularizers ------------------------------------------
@logic
def test_constraint():
    constraint = keras.constraints.UnitNorm(axis=0)
    model = model_of_runs(constraint)
    fit(model, paper(**OPTIONS))
    kernel = to_arrays([model.get_layer("first").kernel])[0]
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, rtol=1e-5)

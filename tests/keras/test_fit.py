"""Ways to run `fit`: eager, compiled, several steps at once."""

import keras
import numpy as np
import pytest
from keras import layers

from helpers import runs
from helpers.models import set_weights
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import PRESETS
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton


@pytest.mark.parametrize(
    "compiled",
    [{"jit_compile": False}, {"run_eagerly": True}, {"steps_per_execution": 2}],
    ids=str,
)
@both_presets
def test_ways_to_run(compiled, preset):
    together = "steps_per_execution" in compiled
    if BACKEND == "torch" and together and keras.__version__ < "3.16":
        pytest.skip("this Keras has no steps_per_execution on PyTorch")
    model, optimizer = runs.model_of_runs(), paper(**PRESETS[preset])
    found = runs.fit(model, optimizer, **compiled)
    # Observed 3e-7.
    wanted = runs.reference_weights(preset)
    runs.assert_close(found, wanted, runs.TOLERANCES.get(preset, 1e-5))


# On PyTorch compiling takes a minute and more; the single kernel has to do.
COMPILED = ["defaults"] if BACKEND == "tensorflow" else []


def if_it_compiles(call):
    """The result; PyTorch needs a C++ compiler, and fits not every Keras."""
    try:
        return call()
    except Exception:
        try:
            fit_single_kernel(keras.optimizers.SGD(), True)
        except Exception:
            pytest.skip("this Keras and PyTorch cannot compile SGD either")
        raise


@pytest.mark.skipif(BACKEND == "jax", reason="this is the reference itself")
@pytest.mark.parametrize("preset", keep(PRESETS, COMPILED, exhaustive))
def test_compiled(preset):
    model, optimizer = runs.model_of_runs(), paper(**PRESETS[preset])
    found = if_it_compiles(lambda: runs.fit(model, optimizer, jit_compile=True))
    wanted = runs.reference_weights(preset)
    runs.assert_close(found, wanted, runs.TOLERANCES.get(preset, 1e-5))


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


@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile is of PyTorch")
@pytest.mark.parametrize("preset", keep(PRESETS, ["defaults"], exhaustive))
def test_compiled_single_kernel(preset):
    """One variable alone: no list in the step may have a length to guess."""
    one, two = (paper(**PRESETS[preset]) for _ in range(2))
    found = if_it_compiles(lambda: fit_single_kernel(one, True))
    # Observed 1e-7.
    runs.assert_close(found, fit_single_kernel(two, False), 1e-5)


@logic
def test_constraint():
    model = runs.model_of_runs(keras.constraints.UnitNorm(axis=0))
    runs.fit(model, paper(**runs.OPTIONS))
    kernel = to_arrays([model.get_layer("first").kernel])[0]
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, rtol=1e-5)


@logic
def test_narrow_tables_at_a_constant_rate():
    """Of two seeds 0.014 and 0.015; 0.02 to 0.04 with updates of 300 / 64."""
    random = np.random.default_rng(0)
    categories = random.normal(size=(100, 3))

    def draw(count):
        x = random.integers(0, 100, (count, 2))
        return x, categories[x].prod(1).sum(1) / 3**0.5

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            layers.Embedding(100, 4),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer=Lanton(0.005), loss="mse")
    model.fit(*draw(51_200), batch_size=256, epochs=3, verbose=0)
    assert model.evaluate(*draw(4096), verbose=0) < 0.02

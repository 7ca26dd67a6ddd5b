"""Variables without a gradient stay."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

from helpers import runs
from helpers.models import set_weights
from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.tiers import keep
from helpers.tiers import logic

pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist")
INDEPENDENT = {
    "noise_reference": "independent_gradient",
    "gradient_accumulation_steps": 2,
}


def assert_none_is_zero(count, calls, variable, options):
    """At these of the calls, without a gradient of the variable.

    tests/test_lanton.py has zeros against the oracle.
    """
    found = []
    for without in (lambda g: None, np.zeros_like):
        gradients = runs.make_gradients(count)
        for t in calls:
            gradients[t][variable] = without(gradients[t][variable])
        found.append(runs.run(gradients, **{**options, "noise_interval": 1}))
    (one, weights), (two, wanted) = found
    runs.assert_equal(weights, wanted)
    runs.assert_same_state(runs.state_of(one), runs.state_of(two))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"noise_reference": "previous_gradient"}, marks=logic),
        pytest.param(
            {"noise_reference": "momentum", "nesterov": True}, marks=logic
        ),
        INDEPENDENT,
        runs.PRESETS["defaults"],
    ],
    ids=["previous_gradient", "momentum", "independent_gradient", "defaults"],
)
def test_none_is_zero(options):
    """Two windows without a gradient for the table, at the start and later."""
    k = options.get("gradient_accumulation_steps", 1)
    calls = [*range(k), *range(3 * k, 4 * k)]
    assert_none_is_zero(6 * k, calls, 0, options)


@pytest.mark.parametrize("missing", keep([0, 1, 2], [1]))
def test_none_on_one_micro_step(missing):
    """The other micro-steps of the window count, as zeros would.

    Not so for the last: there Keras takes the variable's whole window as
    missing.
    """
    options = {**INDEPENDENT, "gradient_accumulation_steps": 4}
    assert_none_is_zero(8, [4 + missing], 1, options)


def test_unused_layer_in_fit():
    """JAX sends zeros for it, the others None: neither moves it."""

    class TwoBranches(keras.Model):
        def __init__(self):
            super().__init__()
            self.used = layers.Dense(3, name="used")
            self.unused = layers.Dense(3, name="unused")

        def build(self, shape):
            self.used.build(shape)
            self.unused.build(shape)
            super().build(shape)

        def call(self, x):
            return self.used(x)

    model = TwoBranches()
    model.build((None, 4))
    set_weights(model)
    before = to_arrays(model.trainable_variables)
    is_jax = runs.BACKEND == "jax"
    model.compile(paper(**runs.OPTIONS), loss="mse", jit_compile=is_jax)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 3))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist")
        model.fit(x, y, batch_size=2, verbose=0)
    report = model.optimizer.noise_report()
    for variable, start in zip(model.trainable_variables, before, strict=True):
        path, after = variable.path, to_arrays([variable])[0]
        assert np.array_equal(after, start) == ("unused" in path), path
        noise = report[path]["noise"]
        assert (noise == 0.0).all() == ("unused" in path), path

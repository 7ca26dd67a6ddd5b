"""Variables without a gradient stay."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

from helpers.models import set_weights
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import OPTIONS
from helpers.runs import PATHS
from helpers.runs import PRESETS
from helpers.runs import apply
from helpers.runs import assert_equal
from helpers.runs import assert_same_state
from helpers.runs import make_gradients
from helpers.runs import run
from helpers.runs import state_of
from helpers.tiers import keep
from helpers.tiers import logic


# -- Variables without a gradient ------------------------------------------
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"noise_reference": "previous_gradient"}, marks=logic),
        pytest.param(
            {"noise_reference": "momentum", "nesterov": True}, marks=logic
        ),
        {
            "noise_reference": "independent_gradient",
            "gradient_accumulation_steps": 2,
        },
        PRESETS["defaults"],
    ],
    ids=["previous_gradient", "momentum", "independent_gradient", "defaults"],
)
def test_none_is_zero(options):
    """Two windows without a gradient for the table, at the start and later."""
    k = options.get("gradient_accumulation_steps", 1)
    none, zero = make_gradients(6 * k), make_gradients(6 * k)
    for t in [*range(0, k), *range(3 * k, 4 * k)]:
        none[t][0] = None
        zero[t][0] = np.zeros_like(zero[t][0])
    options = {**options, "noise_interval": 1}
    optimizer, found = run(none, **options)
    other, wanted = run(zero, **options)
    assert_equal(to_arrays(found), to_arrays(wanted))
    assert_same_state(state_of(optimizer), state_of(other))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("missing", keep([0, 1, 2], [1]))
def test_none_on_one_micro_step(missing):
    """The other micro-steps of the window count, as zeros would.

    Not so for the last: there Keras takes the variable's whole window as
    missing.
    """
    none, zero = make_gradients(8), make_gradients(8)
    none[4 + missing][1] = None
    zero[4 + missing][1] = np.zeros_like(zero[4 + missing][1])
    options = {
        "noise_reference": "independent_gradient",
        "gradient_accumulation_steps": 4,
        "noise_interval": 1,
    }
    optimizer, found = run(none, **options)
    other, wanted = run(zero, **options)
    assert_equal(to_arrays(found), to_arrays(wanted))
    assert_same_state(state_of(optimizer), state_of(other))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@both_presets
def test_without_gradient_nothing_moves(preset):
    optimizer, variables = run(make_gradients(3), **PRESETS[preset])
    before, state = to_arrays(variables), state_of(optimizer)
    gradients = make_gradients(1, seed=5)[0]
    bias = PATHS.index("first/bias")
    gradients[0] = gradients[bias] = None
    apply(optimizer, variables, gradients)
    after = to_arrays(variables)
    for i in (0, bias):
        np.testing.assert_array_equal(before[i], after[i])
    assert np.abs(after[1] - before[1]).max() > 1e-4
    slots = ["tokens_embeddings_momentum", "first_bias_momentum"]
    slots += ["first_bias_root_velocity"] * (preset == "defaults")
    kept = [[key for key in state if key.endswith(slot)] for slot in slots]
    for (key,) in kept:
        assert np.any(state[key])
        np.testing.assert_array_equal(state[key], state_of(optimizer)[key])


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
    before = {v.path: to_arrays([v])[0] for v in model.trainable_variables}
    model.compile(
        optimizer=paper(**OPTIONS),
        loss="mse",
        jit_compile=BACKEND == "jax",
    )
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 3))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist")
        model.fit(x, y, batch_size=2, verbose=0)
    for variable in model.trainable_variables:
        moved = np.abs(to_arrays([variable])[0] - before[variable.path]).max()
        assert (moved == 0.0) == ("unused" in variable.path), variable.path
    report = model.optimizer.noise_report()
    for path, one in report.items():
        assert (one["noise"] == 0.0).all() == ("unused" in path), path

"""Variables that are overwritten with their gradient."""

import re

import keras
import numpy as np
import pytest
from keras import layers

from helpers.models import set_weights
from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import OPTIONS
from helpers.runs import PATHS
from helpers.runs import apply
from helpers.runs import assert_close
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import run


# -- Variables overwritten with their gradient -----------------------------
@pytest.mark.parametrize("k", [None, 2])
def test_overwrite_with_gradient(k):
    gradients = make_gradients(4)
    variables = make_variables()
    scale = keras.Variable(np.ones(3, "float32"), name="scale")
    scale.overwrite_with_gradient = True
    optimizer = paper(**OPTIONS, gradient_accumulation_steps=k)
    values = [np.full(3, 2.0 + t, "float32") for t in range(4)]
    mixed = [*variables[:2], scale, *variables[2:]]
    for one, value in zip(gradients, values, strict=True):
        apply(optimizer, mixed, [*one[:2], value, *one[2:]])
    np.testing.assert_array_equal(to_arrays([scale])[0], values[-1])
    other, wanted = run(gradients, gradient_accumulation_steps=k)
    # Exact, but for a compiled reference on JAX: observed 2e-7.
    assert_close(to_arrays(variables), to_arrays(wanted), 1e-6)
    assert [one.path for one in optimizer.updated_specs] == PATHS
    assert list(optimizer.noise_report()) == PATHS
    extra = len(optimizer.variables) - len(other.variables)
    assert extra == (1 if k else 0)  # Keras accumulates it as well


def test_float8():
    """Scales and amax histories are overwritten, kernels are moved."""
    inputs = keras.Input((4,))
    x = layers.Dense(4, activation="tanh", name="first")(inputs)
    model = keras.Model(inputs, layers.Dense(3, name="second")(x))
    set_weights(model)
    model.quantize("float8")
    optimizer = paper(**OPTIONS)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=BACKEND == "jax")
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 3))
    before = {v.path: to_arrays([v])[0] for v in model.trainable_variables}
    model.fit(x, y, batch_size=4, verbose=0)
    assert len(optimizer.updated_specs) == 4
    assert len(optimizer.layers) == len(before) > 4
    for variable in model.trainable_variables:
        after = to_arrays([variable])[0]
        assert np.isfinite(after).all()
        if re.search("kernel$|bias$", variable.path):
            assert np.abs(after - before[variable.path]).max() > 1e-4

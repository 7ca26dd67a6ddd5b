"""The small model of most tests, its data, and its numbers as arrays.

A table, a convolution where one is wanted, a norm, the mean over the sequence
and Dense layers named `first`, `second` and so on. Weights are the same on
every backend.
"""

import contextlib

import keras
import numpy as np
from keras import layers
from keras import ops

NAMES = ("first", "second", "third")
# State that a skipped step changes.
COUNTS = ("iteration", "skipped_in_a_row", "skipped_steps")


def make_model(
    *hidden,
    outputs=3,
    vocabulary=7,
    filters=None,
    norm=layers.LayerNormalization,
    constraints=None,
    seed=0,
):
    """The model, not compiled.

    Args:
        *hidden: Widths of the Dense layers before the last, of tanh.
        outputs: Width of the last Dense layer.
        vocabulary: Rows of the table.
        filters: Of a convolution over two tokens; None: there is none.
        norm: The class of the normalization.
        constraints: Of the kernels of Dense layers, by name.
        seed: Of the weights.
    """
    constraints = constraints or {}
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(vocabulary, 4, name="tokens")(inputs)
    if filters:
        x = layers.Conv1D(filters, 2, activation="tanh", name="conv")(x)
    x = norm(name="norm")(x)
    x = layers.GlobalAveragePooling1D(name="mean")(x)
    for name, width in zip(NAMES, (*hidden, outputs), strict=False):
        last = name == NAMES[len(hidden)]
        x = layers.Dense(
            width,
            activation=None if last else "tanh",
            kernel_constraint=constraints.get(name),
            name=name,
        )(x)
    model = keras.Model(inputs, x)
    set_weights(model, seed)
    return model


@contextlib.contextmanager
def dtype_policy(name):
    """Layers made within have this policy; None: that of Keras."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name or before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def set_weights(model, seed=0):
    """The same weights on every backend; scales and averages as they are."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        name = variable.path.rpartition("/")[2]
        if name != "gamma" and not name.startswith("moving_"):
            value = 0.5 * rng.standard_normal(variable.shape)
            variable.assign(value.astype("float32"))


def make_data(size=16, vocabulary=7, outputs=3, seed=1):
    """Sequences of tokens, and targets."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, vocabulary, (size, 5)).astype("int32")
    return x, rng.standard_normal((size, outputs)).astype("float32")


def batch_of(step):
    """Four samples, by the number of the step alone."""
    return make_data(4, seed=step)


def to_arrays(variables):
    """Copies, in float32."""
    return [
        np.array(ops.convert_to_numpy(ops.cast(v.value, "float32")))
        for v in variables
    ]


def state(model):
    """All numbers of a model and its optimizer."""
    return to_arrays([*model.variables, *model.optimizer.variables])

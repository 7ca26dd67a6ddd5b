"""Variables of every role and view, their gradients, and steps."""

import keras
import numpy as np

from oracle import Layer

# What the roles and views must be, by hand.
EXPECTED = {
    "dense/kernel": Layer("hidden", (12, 20), (), (0,), (1,)),
    "dense/bias": Layer("vector", (20,)),
    "conv/kernel": Layer("hidden", (3, 3, 4, 6), (), (0, 1, 2), (3,)),
    "conv/bias": Layer("vector", (6,)),
    "lstm/lstm_cell/kernel": Layer("hidden", (5, 16), (), (0,), (1,), 4),
    "lstm/lstm_cell/recurrent_kernel": Layer(
        "hidden", (4, 16), (), (0,), (1,), 4
    ),
    "lstm/lstm_cell/bias": Layer("vector", (16,)),
    "attention/query/kernel": Layer("hidden", (12, 3, 4), (), (0,), (1, 2)),
    "attention/query/bias": Layer("vector", (3, 4)),
    "attention/key/kernel": Layer("hidden", (12, 3, 4), (), (0,), (1, 2)),
    "attention/key/bias": Layer("vector", (3, 4)),
    "attention/value/kernel": Layer("hidden", (12, 3, 4), (), (0,), (1, 2)),
    "attention/value/bias": Layer("vector", (3, 4)),
    "attention/attention_output/kernel": Layer(
        "hidden", (3, 4, 12), (), (0, 1), (2,)
    ),
    "attention/attention_output/bias": Layer("vector", (12,)),
    "tokens/embeddings": Layer("embedding", (20, 8), (), (1,), (0,)),
    "norm/gamma": Layer("vector", (7,)),
    "norm/beta": Layer("vector", (7,)),
    "head/reverse_embeddings": Layer("embedding", (8, 20), (), (0,), (1,)),
    "gemma/kernel": Layer("hidden", (3, 12, 4), (), (1,), (0, 2)),
    "experts/kernel": Layer("hidden", (3, 6, 10), (0,), (1,), (2,)),
}
PATHS = list(EXPECTED)


# Enough for what does not depend on the view, and quicker to compile.
FEW = [
    "dense/kernel",
    "dense/bias",
    "lstm/lstm_cell/kernel",
    "lstm/lstm_cell/recurrent_kernel",
    "attention/query/kernel",
    "attention/query/bias",
    "tokens/embeddings",
    "norm/beta",
    "head/reverse_embeddings",
    "experts/kernel",
]
BY_HAND = ["head/reverse_embeddings", "gemma/kernel", "experts/kernel"]


def make_variable(scope, value, dtype="float32"):
    """The kernel of a layer of that name."""
    with keras.name_scope(scope):
        return keras.Variable(
            np.asarray(value, "float32"), dtype=dtype, name="kernel"
        )


def make_variables(paths=PATHS):
    """These variables of `EXPECTED`, in its order, with fixed values."""
    zeros = {"kernel_initializer": "zeros"}
    layers = [
        (keras.layers.Dense(20, name="dense", **zeros), [(None, 12)]),
        (keras.layers.Conv2D(6, 3, name="conv", **zeros), [(None, 8, 8, 4)]),
        (
            keras.layers.LSTM(
                4, recurrent_initializer="zeros", name="lstm", **zeros
            ),
            [(None, 3, 5)],
        ),
        (
            keras.layers.MultiHeadAttention(3, 4, name="attention", **zeros),
            [(None, 5, 12), (None, 5, 12)],
        ),
        (
            keras.layers.Embedding(
                20, 8, embeddings_initializer="zeros", name="tokens"
            ),
            [(None, 5)],
        ),
        (keras.layers.LayerNormalization(name="norm"), [(None, 7)]),
    ]
    found = {}
    for layer, shapes in layers:
        layer.build(*shapes)
        found.update((v.path, v) for v in layer.trainable_variables)
    for path in BY_HAND:
        scope, name = path.split("/")
        with keras.name_scope(scope):
            found[path] = keras.Variable(
                np.zeros(EXPECTED[path].shape, "float32"), name=name
            )
    assert sorted(found) == sorted(EXPECTED)
    rng = np.random.default_rng(1)
    variables = [found[path] for path in paths]
    for variable in variables:
        variable.assign(0.1 * rng.standard_normal(variable.shape))
    return variables


def make_gradients(steps, paths=PATHS):
    """A drift plus noise for each variable, at scales 1e-3 to 1."""
    rng = np.random.default_rng(2)
    shapes = [EXPECTED[path].shape for path in paths]
    scales = 10.0 ** rng.uniform(-3.0, 0.0, len(shapes))
    drifts = [rng.standard_normal(shape) for shape in shapes]
    return [
        [
            (s * (0.5 * d + rng.standard_normal(d.shape))).astype("float32")
            for s, d in zip(scales, drifts, strict=True)
        ]
        for _ in range(steps)
    ]


def to_tensors(gradients):
    return [
        None if g is None else keras.ops.convert_to_tensor(g) for g in gradients
    ]


def to_arrays(variables):
    return [
        np.array(keras.ops.convert_to_numpy(v), np.float64) for v in variables
    ]


class Steps:
    """Calls the optimizer; on JAX and TensorFlow compiled, unless told not."""

    def __init__(self, optimizer, variables, jit=True):
        self.optimizer = optimizer
        self.variables = variables
        self.backend = keras.backend.backend() if jit else None
        self.compiled = None

    def __call__(self, gradients):
        gradients = to_tensors(gradients)
        if self.backend == "jax":
            self.jax_step(gradients)
        elif self.backend == "tensorflow":
            self.tensorflow_step(gradients)
        else:
            self.optimizer.apply(gradients, self.variables)

    def jax_step(self, gradients):
        values = (
            [v.value for v in self.optimizer.variables],
            gradients,
            [v.value for v in self.variables],
        )
        if self.compiled is None:
            import jax

            # Compiling takes most of the time: half of it without passes.
            lowered = jax.jit(self.optimizer.stateless_apply).lower(*values)
            self.compiled = lowered.compile(
                compiler_options={"xla_backend_optimization_level": 0}
            )
        weights, state = self.compiled(*values)
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(value)
        for variable, value in zip(
            self.optimizer.variables, state, strict=True
        ):
            variable.assign(value)

    def tensorflow_step(self, gradients):
        if self.compiled is None:
            import tensorflow as tf

            self.compiled = tf.function(
                lambda some: self.optimizer.apply(some, self.variables)
            )
        self.compiled(gradients)


def deviations(found, wanted, start):
    """Each variable's Frobenius deviation, relative to the distance moved."""
    ratios = []
    for one, two, zero in zip(found, wanted, start, strict=True):
        moved = np.linalg.norm(two - zero)
        off = np.linalg.norm(one - two)
        ratios.append(off / moved if moved > 0.0 else off)
    return ratios

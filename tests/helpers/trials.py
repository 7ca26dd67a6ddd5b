"""Variables of every kind under one optimizer, step by step."""

import math

import keras
import numpy as np

from helpers.optimizers import paper

LEARNING_RATE = 0.01
PLAIN_QUINTIC = [(1.875, -1.25, 0.375)]  # fixed point 1: an exact polar factor
EXACT = {"ns_coefficients": PLAIN_QUINTIC, "ns_steps": 30}
HALVES = ("bfloat16", "float16")


# role, shape, input axes, output axes, (batch, d_in, d_out)
TENSORS = {
    "square": ("hidden", (6, 6), (0,), (1,), (1, 6, 6)),
    "tall": ("hidden", (16, 5), (0,), (1,), (1, 16, 5)),
    "wide": ("hidden", (5, 16), (0,), (1,), (1, 5, 16)),
    "heads": ("hidden", (8, 2, 3), (0,), (1, 2), (1, 8, 6)),
    "output": ("hidden", (2, 3, 8), (0, 1), (2,), (1, 6, 8)),
    "gemma": ("hidden", (2, 8, 3), (1,), (0, 2), (1, 8, 6)),
    "conv": ("hidden", (2, 2, 3, 5), (0, 1, 2), (3,), (1, 12, 5)),
    "experts": ("hidden", (3, 4, 7), (1,), (2,), (3, 4, 7)),
    "table": ("embedding", (11, 4), (1,), (0,), (1, 4, 11)),
    "head": ("embedding", (4, 11), (0,), (1,), (1, 4, 11)),
    "gain": ("vector", (9,), None, None, (1, 1, 9)),
    "bias": ("vector", (3, 4), None, None, (1, 1, 12)),
}
HIDDEN = [name for name, one in TENSORS.items() if one[0] == "hidden"]


class Trial:
    """Variables of given kinds under one optimizer."""

    def __init__(self, kinds, dtype="float32", start=0.0, **options):
        self.variables = []
        options = {
            "learning_rate": LEARNING_RATE,
            "weight_decay": 0.0,
            "noise_interval": 1,
            **options,
        }
        self.optimizer = paper(**options)
        for number, (role, shape, inputs, outputs) in enumerate(kinds):
            with keras.name_scope(f"layer_{number}"):
                variable = keras.Variable(
                    np.full(shape, start, "float32"),
                    dtype=dtype,
                    name="weight",
                )
            self.variables.append(variable)
            self.optimizer.assign_role(
                role, [variable], input_axes=inputs, output_axes=outputs
            )
        self.optimizer.build(self.variables)
        self.dtype = dtype

    def weights(self):
        return [
            np.array(
                keras.ops.convert_to_numpy(
                    keras.ops.cast(variable.value, "float32")
                ),
                "float64",
            )
            for variable in self.variables
        ]

    def step(self, gradients):
        """Applies the gradients; returns how far each variable moved."""
        before = self.weights()
        self.optimizer.apply(
            [keras.ops.convert_to_tensor(g, self.dtype) for g in gradients],
            self.variables,
        )
        return [
            new - old for new, old in zip(self.weights(), before, strict=True)
        ]

    def report(self):
        snapshot = self.optimizer.noise_snapshot()
        return list(self.optimizer.noise_report(snapshot).values())

    def ratios(self):
        return np.concatenate([one["ratio"] for one in self.report()])


def kinds(*names):
    return [TENSORS[name][:4] for name in names]


def hidden(*shape):
    return ("hidden", shape, (0,), (1,))


def normals(*shapes, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [
        (scale * rng.standard_normal(shape)).astype("float32")
        for shape in shapes
    ]


def shapes_of(some):
    return [one[1] for one in some]


def rms(x):
    return math.sqrt(np.mean(np.square(x)))

"""`Lanton` against Algorithm 1 in float64 NumPy (`oracle.py`).

Every role and every kind of matrix view takes part in each comparison. The
gradients are fixed arrays, so that a float32 and a float64 run see the same
problem. Run as a script, `test_oracle.py FILE` writes the weights that the
current backend reaches, for the comparison between backends.
"""

import dataclasses
import importlib.util
import inspect
import math
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from oracle import Layer
from oracle import Oracle
from presets import DEFAULTS
from presets import PRESETS
from presets import both_presets

from keras_lanton import Lanton
from keras_lanton import forms

LEARNING_RATE = 0.02
# Observed 4e-6 of the distance moved, on every backend and at every step.
TOLERANCE = 1e-4
CUBIC = [(1.875, -1.25, 0.375)]

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


def make_optimizer(variables, paths=PATHS, **options):
    """`Lanton.paper`, built, with the roles of `BY_HAND` assigned."""
    options = {"learning_rate": LEARNING_RATE, **options}
    optimizer = Lanton.paper(**options)
    for path, variable in zip(paths, variables, strict=True):
        if path in BY_HAND:
            layer = EXPECTED[path]
            optimizer.assign_role(
                layer.role,
                [variable],
                input_axes=layer.input_axes,
                output_axes=layer.output_axes,
            )
    optimizer.build(variables)
    return optimizer


def turns(optimizer):
    """For each layer, on which steps of a round its matrices are measured."""
    found = [np.full(layer.batch, -1) for layer in optimizer.moving_layers]
    for measuring in optimizer._plan.rounds:
        for i, share in enumerate(measuring.shares):
            for part in share.parts:
                turn = (measuring.offset + i) % optimizer.noise.noise_interval
                assert np.all(found[part.index][part.start : part.stop] == -1)
                found[part.index][part.start : part.stop] = turn
    for layer, one in zip(optimizer.moving_layers, found, strict=True):
        measured = layer.role not in optimizer.adamw_roles
        assert np.all((one >= 0) == measured), layer.path
    return found


def make_oracle(paths=PATHS, weight_decay_exclude=(), **options):
    """The oracle with these layers of `EXPECTED`."""
    for name in (
        "ns_dtype",
        "max_temporary_bytes",
        "previous_gradient_dtype",
    ):
        options.pop(name, None)
    layers = [
        dataclasses.replace(
            EXPECTED[path],
            decay=not any(re.search(one, path) for one in weight_decay_exclude),
        )
        for path in paths
    ]
    return Oracle(layers, **options)


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


def check(optimizer, oracle, variables, weights, start, paths=PATHS):
    """Weights and the noise report against the oracle's; their maximum."""
    found = deviations(to_arrays(variables), weights, start)
    worst = dict(zip(paths, found, strict=True))
    assert max(found) < TOLERANCE, worst
    report = optimizer.noise_report()
    assert list(report) == paths
    keys = ["noise", "ratio"]
    if isinstance(optimizer.learning_rate, keras.Variable):  # no schedule
        keys.append("learning_rate")
    for path, wanted in zip(paths, oracle.report(), strict=True):
        for key in keys:
            np.testing.assert_allclose(
                report[path][key],
                wanted[key],
                rtol=TOLERANCE,
                err_msg=f"{key} of {path}",
            )
    return max(found)


def compare(
    options,
    gradients,
    checkpoints,
    learning_rates=None,
    jit=True,
    paths=PATHS,
):
    """Runs both; returns the largest deviation at each checkpoint.

    `gradients` holds one list for each call of the optimizer: the
    micro-batches one by one, if gradients are accumulated. `checkpoints`
    counts those calls. `learning_rates` are the oracle's, one for each step.
    """
    options = dict(options)
    variables = make_variables(paths)
    start = weights = to_arrays(variables)
    optimizer = make_optimizer(variables, paths, **options)
    k = options.pop("gradient_accumulation_steps", 1)
    options.pop("learning_rate", None)
    oracle = make_oracle(paths, turns=turns(optimizer), **options)
    steps = Steps(optimizer, variables, jit)
    result = []
    for call in range(len(gradients)):
        before = to_arrays(variables)
        steps(gradients[call])
        iterations = keras.ops.convert_to_numpy(optimizer.iterations)
        assert int(iterations) == (call + 1) // k
        if (call + 1) % k:
            continue
        rate = learning_rates[call // k] if learning_rates else LEARNING_RATE
        chunk = gradients[call + 1 - k : call + 1]
        if options.get("noise_reference") != "independent_gradient":
            assert k == 1
            chunk = chunk[0]
        skipped = oracle.skipped_steps
        weights = oracle.step(chunk, weights, rate)
        assert int(optimizer.skipped_steps) == oracle.skipped_steps
        if oracle.skipped_steps > skipped:
            for one, two in zip(to_arrays(variables), before, strict=True):
                np.testing.assert_array_equal(one, two)
        if call + 1 in checkpoints:
            result.append(
                check(optimizer, oracle, variables, weights, start, paths)
            )
    return result


def test_roles_and_views():
    variables = make_variables()
    optimizer = make_optimizer(variables)
    assert [record.path for record in optimizer.layers] == PATHS
    for record in optimizer.layers:
        wanted = EXPECTED[record.path]
        assert record.role == wanted.role, record
        assert tuple(record.shape) == wanted.shape, record
        assert record.batch == len(wanted.matrices()), record
        if wanted.role == "vector":
            continue
        assert record.batch_axes == wanted.batch_axes, record
        assert record.input_axes == wanted.input_axes, record
        assert record.output_axes == wanted.output_axes, record
        assert record.output_blocks == wanted.blocks, record
        d_in, d_out = wanted.matrices()[0].shape
        assert (record.d_in, record.d_out) == (d_in, d_out), record


CASES = {
    "defaults": {},
    "previous": {"noise_interval": 1, "noise_estimator": "svd"},
    "previous_3": {
        "noise_interval": 3,
        "noise_estimator": "svd",
        "ns_coefficients": "you",
    },
    "newton_schulz": {
        "noise_interval": 1,
        "noise_estimator": "newton_schulz",
        "nesterov": True,
    },
    "interval": {"noise_interval": 3, "noise_schedule": "interval"},
    "interval_momentum": {
        "noise_interval": 3,
        "noise_schedule": "interval",
        "noise_reference": "momentum",
        "alpha_unit": "absolute",
        "alpha": 0.1,
    },
    "small_stacks": {"max_temporary_bytes": 1000, "noise_interval": 4},
    "momentum": {
        "noise_reference": "momentum",
        "noise_interval": 1,
        "noise_estimator": "svd",
        "vector_norm": "sign",
        "vector_scale": 0.5,
    },
    "momentum_3": {
        "noise_reference": "momentum",
        "noise_interval": 3,
        "noise_estimator": "newton_schulz",
        "nesterov": True,
        "group_reduction": "mean",
    },
    "mean": {
        "group_reduction": "mean",
        "noise_interval": 1,
        "noise_estimator": "svd",
        "step_scale": "operator",
    },
    "absolute": {
        "alpha_unit": "absolute",
        "alpha": 1.0,
        "noise_interval": 1,
        "noise_estimator": "svd",
        "weight_decay": 0.0,
    },
    "absolute_mean": {
        "alpha_unit": "absolute",
        "alpha": 0.1,
        "group_reduction": "mean",
        "noise_interval": 3,
        "ns_coefficients": CUBIC,
        "ns_steps": 12,
    },
    "polar_express": {
        "ns_coefficients": "polar_express",
        "noise_interval": 1,
    },
    "more_steps": {
        "ns_coefficients": "polar_express",
        "ns_steps": 7,
        "noise_interval": 1,
    },
    "few_steps": {
        "ns_coefficients": "you",
        "ns_steps": 3,
        "noise_interval": 1,
    },
    "numbers": {
        "beta_1": 0.6,
        "beta_2": 0.5,
        "alpha": 1.5,
        "hidden_scale": 0.3,
        "embedding_scale": 50.0,
        "vector_scale": 0.7,
        "weight_decay": 0.4,
        "weight_decay_exclude": ["bias", "^norm/", "embeddings$"],
        "noise_interval": 1,
    },
    # Halves of the momentum are rounded after the step: no looser check.
    "half_momentum": {"momentum_dtype": "bfloat16", "noise_interval": 1},
    "adamw": DEFAULTS,
    "adamw_embeddings": {**DEFAULTS, "adamw_roles": ("embedding",)},
    "adamw_both": {**DEFAULTS, "adamw_roles": ("embedding", "vector")},
    "adamw_half_momentum": {**DEFAULTS, "momentum_dtype": "bfloat16"},
    "adamw_numbers": {
        **DEFAULTS,
        "adam_lr_ratio": 0.3,
        "adam_beta_1": 0.6,
        "adam_beta_2": 0.7,
        "epsilon": 0.01,
        "weight_decay": 0.4,
        "weight_decay_exclude": ["bias", "^norm/", "embeddings$"],
        "noise_interval": 1,
    },
}


# The paper's own, and the constructor's.
ALL_VIEWS = ("defaults", "previous", "newton_schulz", "numbers", "adamw")


def test_presets():
    """`CASES["adamw"]` is `Lanton()`; the paper's numbers are the oracle's."""
    made = Lanton.paper(**DEFAULTS).get_config()
    assert made == Lanton().get_config()
    paper = Lanton.paper().get_config()
    for name, one in inspect.signature(Oracle).parameters.items():
        if name not in ("layers", "turns"):
            wanted = list(one.default) if name == "adamw_roles" else one.default
            assert paper[name] == wanted, name


@pytest.mark.parametrize("name", CASES)
def test_steps(name):
    paths = PATHS if name in ALL_VIEWS else FEW
    gradients = make_gradients(50, paths)
    compare(CASES[name], gradients, (1, 2, 50), paths=paths)


INDEPENDENT = {
    "noise_reference": "independent_gradient",
    "noise_estimator": "svd",
}


@pytest.mark.parametrize(
    ("k", "options"),
    [
        (2, {"noise_interval": 1, "nesterov": True}),
        (4, {"noise_interval": 3, "group_reduction": "mean"}),
    ],
)
def test_independent_gradient(k, options):
    options = {**INDEPENDENT, **options, "gradient_accumulation_steps": k}
    compare(
        options,
        make_gradients(20 * k, FEW),
        (k, 2 * k, 20 * k),
        paths=FEW,
    )


def test_steps_as_large_matrices_take_them(monkeypatch):
    """One matrix after the other, in blocks, Gram form and estimator."""
    monkeypatch.setattr(forms, "ONE_BY_ONE_FROM", 1)
    monkeypatch.setattr(forms, "BLOCKS_FROM", 2)
    compare({"noise_interval": 2}, make_gradients(6, FEW), (1, 6), paths=FEW)


def test_eager_apply():
    """Plain `apply`, on JAX too."""
    compare(
        {"noise_interval": 1},
        make_gradients(3, FEW),
        (1, 2, 3),
        jit=False,
        paths=FEW,
    )


def test_gradients_are_clipped_first():
    norm = 1.0
    gradients = make_gradients(5, FEW)
    variables = make_variables(FEW)
    start = weights = to_arrays(variables)
    options = {"noise_interval": 1, "noise_estimator": "svd"}
    optimizer = make_optimizer(variables, FEW, global_clipnorm=norm, **options)
    oracle = make_oracle(FEW, **options)
    steps = Steps(optimizer, variables)
    for one in gradients:
        steps(one)
        whole = math.sqrt(sum(float(np.sum(g.astype("d") ** 2)) for g in one))
        assert whole > norm
        clipped = [g.astype("d") * (norm / whole) for g in one]
        weights = oracle.step(clipped, weights, LEARNING_RATE)
    check(optimizer, oracle, variables, weights, start, FEW)


def paper_rate(t, warmup, total, highest, lowest):
    """Linear over `warmup` steps, then cosine until step `total`."""
    if t <= warmup:
        return highest * t / warmup
    phase = math.pi * (t - warmup) / (total - warmup)
    return lowest + 0.5 * (highest - lowest) * (1.0 + math.cos(phase))


def paper_schedule(warmup, total, highest, lowest):
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=highest / warmup,
        warmup_steps=warmup - 1,
        warmup_target=highest,
        decay_steps=total - warmup,
        alpha=lowest / highest,
    )


def test_schedule_is_the_papers():
    shape = (7, 50, 5e-3, 5e-4)
    schedule = paper_schedule(*shape)
    found = [float(schedule(t - 1)) for t in range(1, 51)]
    wanted = [paper_rate(t, *shape) for t in range(1, 51)]
    # Observed 3e-7.
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


def test_schedule():
    shape = (4, 12, 0.03, 0.003)
    compare(
        {"learning_rate": paper_schedule(*shape), "noise_interval": 3},
        make_gradients(12, FEW),
        (1, 2, 12),
        learning_rates=[paper_rate(t, *shape) for t in range(1, 13)],
        paths=FEW,
    )


def test_reported_rate_under_a_schedule():
    """It is the rate of the last step, not the one of the next."""
    shape = (4, 12, 0.03, 0.003)
    variable = keras.Variable(np.zeros((3,), "float32"), name="gain")
    optimizer = Lanton(paper_schedule(*shape))
    optimizer.assign_role("vector", [variable])
    optimizer.build([variable])
    for t in range(1, 7):
        optimizer.apply(to_tensors([np.ones(3, "float32")]), [variable])
        (one,) = optimizer.noise_report().values()
        np.testing.assert_allclose(
            one["learning_rate"],
            paper_rate(t, *shape) * one["ratio"],
            rtol=TOLERANCE,
        )


# From step FROM to step TO (counted from 1, both included) a variable has no
# gradient.
GAPS = {
    "dense/kernel": (1, 3),
    "dense/bias": (1, 2),
    "lstm/lstm_cell/kernel": (3, 4),
    "attention/query/kernel": (3, 3),
    "attention/query/bias": (4, 4),
    "tokens/embeddings": (3, 4),
    "experts/kernel": (1, 12),
    "norm/beta": (2, 2),
}


def with_gaps(gradients, fill):
    result = []
    for t, one in enumerate(gradients, start=1):
        one = list(one)
        for path, (first, last) in GAPS.items():
            if first <= t <= last:
                index = FEW.index(path)
                one[index] = fill(one[index])
        result.append(one)
    return result


@pytest.mark.parametrize(
    ("reference", "interval"),
    [("previous_gradient", 1), ("previous_gradient", 3), ("momentum", 1)],
)
@both_presets
def test_zero_gradients(reference, interval, preset):
    options = {
        **PRESETS[preset],
        "noise_reference": reference,
        "noise_interval": interval,
    }
    gradients = with_gaps(make_gradients(9, FEW), np.zeros_like)
    compare(options, gradients, range(1, 10), paths=FEW)


def test_zero_independent_gradients():
    options = {
        **INDEPENDENT,
        "noise_interval": 1,
        "gradient_accumulation_steps": 2,
    }
    gradients = make_gradients(16, FEW)
    for call in (0, 1, 4, 5, 8, 9, 10, 11):
        gradients[call][0] = np.zeros_like(gradients[call][0])
    compare(options, gradients, range(2, 17, 2), paths=FEW)


@both_presets
@pytest.mark.parametrize("interval", [1, 3])
def test_missing_gradients(interval, preset):
    """`None` is what torch and TensorFlow hand over for unused layers."""
    if interval == 3 and keras.backend.backend() == "jax":
        pytest.skip("eager steps are slow on JAX, and have no `None`")
    gradients = with_gaps(make_gradients(6, FEW), lambda g: None)
    compare(
        {**PRESETS[preset], "noise_interval": interval},
        gradients,
        range(1, 7),
        jit=False,
        paths=FEW,
    )


@both_presets
@pytest.mark.parametrize(("interval", "value"), [(1, np.nan), (3, np.inf)])
def test_nonfinite_step_is_skipped(interval, value, preset):
    """`t` counts the applied steps, the schedule all of them."""
    shape = (4, 12, 0.03, 0.003)
    gradients = make_gradients(9, FEW)
    gradients[2][FEW.index("dense/bias")][1] = value
    compare(
        {
            **PRESETS[preset],
            "learning_rate": paper_schedule(*shape),
            "noise_interval": interval,
        },
        gradients,
        range(1, 10),
        learning_rates=[paper_rate(t, *shape) for t in range(1, 10)],
        paths=FEW,
    )


@both_presets
def test_nonfinite_micro_batch_is_skipped(preset):
    options = {
        **PRESETS[preset],
        **INDEPENDENT,
        "noise_interval": 1,
        "gradient_accumulation_steps": 2,
    }
    gradients = make_gradients(10, FEW)
    gradients[4][3][0] = np.nan
    compare(options, gradients, range(2, 11, 2), paths=FEW)


def write_weights(path):
    """The weights after 20 steps on the current backend."""
    variables = make_variables()
    optimizer = make_optimizer(variables, noise_interval=3, nesterov=True)
    steps = Steps(optimizer, variables)
    for gradients in make_gradients(20):
        steps(gradients)
    names = [name.replace("/", ".") for name in PATHS]
    np.savez(path, **dict(zip(names, to_arrays(variables), strict=True)))


@pytest.mark.skipif(
    keras.backend.backend() != "jax",
    reason="one backend starts the other two",
)
def test_backends_agree(tmp_path):
    others = [
        name
        for name in ("torch", "tensorflow")
        if importlib.util.find_spec(name)
    ]
    if not others:
        pytest.skip("neither torch nor tensorflow is installed")
    tests = pathlib.Path(__file__).resolve().parent
    search = [str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")]
    runs = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path / f"{name}.npz")],
            env={
                **os.environ,
                "KERAS_BACKEND": name,
                "PYTHONPATH": os.pathsep.join(search),
            },
        )
        for name in others
    ]
    write_weights(tmp_path / "jax.npz")
    assert [run.wait() for run in runs] == [0] * len(runs)
    names = ["jax", *others]
    weights = {one: np.load(tmp_path / f"{one}.npz") for one in names}
    for one in names:
        for two in names:
            for key in weights[one]:
                a, b = weights[one][key], weights[two][key]
                off = np.linalg.norm(a - b) / np.linalg.norm(b)
                # Observed 2e-7.
                assert off < 2e-5, (one, two, key, off)


if __name__ == "__main__":
    write_weights(sys.argv[1])

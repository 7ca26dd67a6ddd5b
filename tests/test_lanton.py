"""`Lanton` against Algorithm 1 in float64 NumPy (`oracle.py`).

Every role and every kind of matrix view takes part in each comparison. The
gradients are fixed arrays, so that a float32 and a float64 run see the same
problem.
"""

import dataclasses
import importlib.util
import inspect
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from helpers.optimizers import DEFAULTS
from helpers.optimizers import FIELDS
from helpers.optimizers import PRESETS
from helpers.optimizers import assign_roles
from helpers.optimizers import both_presets
from helpers.optimizers import config_of
from helpers.optimizers import paper
from helpers.optimizers import paper_rate
from helpers.optimizers import paper_schedule
from helpers.processes import environment
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.variables import BY_HAND
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import PATHS
from helpers.variables import Steps
from helpers.variables import deviations
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.baselines import Scion
from keras_lanton.fast import batching
from keras_lanton.fast import dispatch
from oracle import Oracle

LEARNING_RATE = 0.02


# Observed 4e-6 of the distance moved, on every backend and at every step.
TOLERANCE = 1e-4
PLAIN_QUINTIC = [(1.875, -1.25, 0.375)]


def make_optimizer(variables, paths=PATHS, **options):
    """`Lanton.paper`, built, with the roles of `BY_HAND` assigned."""
    options = {"learning_rate": LEARNING_RATE, **options}
    optimizer = paper(**options)
    layers = {path: EXPECTED[path] for path in paths}
    assign_roles(optimizer, layers, variables, BY_HAND)
    optimizer.build(variables)
    return optimizer


def turns(optimizer):
    """For each layer, on which steps of a round its matrices are measured."""
    specs = optimizer.updated_specs
    found = [np.full(spec.batch, -1) for spec in specs]
    for group in optimizer._plan.groups:
        for i, chunk in enumerate(group.chunks):
            for part in chunk.parts:
                turn = (group.offset + i) % optimizer.noise.interval
                assert np.all(found[part.index][part.start : part.stop] == -1)
                found[part.index][part.start : part.stop] = turn
    for spec, one in zip(specs, found, strict=True):
        measured = spec.role not in optimizer.adamw_roles
        assert np.all((one >= 0) == measured), spec.path
    return found


def make_oracle(paths=PATHS, weight_decay_exclude=(), **options):
    """The oracle with these layers of `EXPECTED`."""
    for name in ("ns_dtype", "max_temporary_bytes", "previous_gradient_dtype"):
        options.pop(name, None)
    layers = [
        dataclasses.replace(
            EXPECTED[path],
            decay=not any(re.search(one, path) for one in weight_decay_exclude),
        )
        for path in paths
    ]
    attends = any("query" in path for path in paths)
    return Oracle(layers, narrow=64 if attends else 600, **options)


def check(optimizer, oracle, variables, weights, start, paths=PATHS):
    """Weights and the noise report against the oracle's; their maximum."""
    found = deviations(to_arrays(variables), weights, start)
    worst = dict(zip(paths, found, strict=True))
    assert max(found) < TOLERANCE, worst
    report = optimizer.noise_report(optimizer.noise_snapshot())
    measured = [s.path for s in optimizer.layers if s.path in report]
    assert (
        list(report)
        == measured
        == [
            s.path
            for s in optimizer.layers
            if s.role not in optimizer.adamw_roles
        ]
    )
    keys = ["noise", "ratio"]
    if isinstance(optimizer.learning_rate, keras.Variable):  # no schedule
        keys.append("learning_rate")
    for path, wanted in zip(paths, oracle.report(), strict=True):
        for key in keys if path in report else ():
            np.testing.assert_allclose(
                report[path][key],
                wanted[key],
                rtol=TOLERANCE,
                err_msg=f"{key} of {path}",
            )
    return max(found)


def compare(
    options, gradients, checkpoints, learning_rates=None, jit=True, paths=PATHS
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


SVD = {"noise_interval": 1, "noise_estimator": "svd"}
CASES = {
    "defaults": {},
    "previous": SVD,
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
        **SVD,
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
    "mean": {"group_reduction": "mean", **SVD, "step_scale": "operator"},
    "absolute": {
        "alpha_unit": "absolute",
        "alpha": 1.0,
        **SVD,
        "weight_decay": 0.0,
    },
    "absolute_mean": {
        "alpha_unit": "absolute",
        "alpha": 0.1,
        "group_reduction": "mean",
        "noise_interval": 3,
        "ns_coefficients": PLAIN_QUINTIC,
        "ns_steps": 12,
    },
    "polar_express": {"ns_coefficients": "polar_express", "noise_interval": 1},
    "cubic": {"ns_coefficients": "cubic", "noise_interval": 1},
    "more_steps": {
        "ns_coefficients": "polar_express",
        "ns_steps": 7,
        "noise_interval": 1,
    },
    "few_steps": {"ns_coefficients": "you", "ns_steps": 3, "noise_interval": 1},
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
    "within": {**DEFAULTS, "alpha": None, "noise_interval": 3},
    "within_alone": {
        "within_matrices": True,
        "alpha": None,
        "group_reduction": "mean",
        "noise_schedule": "interval",
        "noise_interval": 1,
    },
    "group_noise": {
        **DEFAULTS,
        "alpha_unit": "group_noise",
        "within_matrices": False,
        "noise_interval": 2,
    },
    "signal": {"alpha_unit": "signal", "noise_interval": 2},
    "frobenius": {
        "alpha_unit": "absolute",
        "noise_interval": 1,
        "noise_estimator": "frobenius",
    },
    "signal_momentum": {
        "alpha_unit": "signal",
        "noise_reference": "momentum",
        **SVD,
    },
    "within_momentum": {
        "within_matrices": True,
        "noise_reference": "momentum",
        "noise_interval": 2,
        "max_temporary_bytes": 1000,
        "beta_1": 0.8,
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
ALL_VIEWS = (
    "defaults",
    "previous",
    "newton_schulz",
    "numbers",
    "adamw",
    "within",
)
# On every backend: the defaults with all views, then each other reference and
# schedule, estimator, reduction and norm at least once.
EVERYWHERE = (
    "adamw",
    "interval_momentum",
    "momentum",
    "polar_express",
    "signal",
    "within",
)


@logic
def test_presets():
    """`CASES["adamw"]` is `Lanton()`; the paper's numbers are the oracle's."""
    made = config_of(paper(**DEFAULTS, learning_rate=1e-3))
    assert made == config_of(Lanton())
    optimizer = Lanton.paper()
    assert optimizer.auxiliary_adamw is None
    for name, one in inspect.signature(Oracle).parameters.items():
        part, field = FIELDS.get(name, (None, name))
        if part == "auxiliary_adamw" or name in ("layers", "narrow", "turns"):
            continue
        owner = optimizer if part is None else getattr(optimizer, part)
        assert getattr(owner, field) == one.default, name


@logic
def test_for_fine_tuning():
    """It differs from `Lanton()` in momentum, decay, and what AdamW updates."""
    made = config_of(Lanton.for_fine_tuning())
    usual = config_of(Lanton())
    assert {name for name in made if made[name] != usual[name]} == {
        "auxiliary_adamw",
        "beta_1",
        "embedding_scale",  # AdamW has none
        "weight_decay",
    }
    optimizer = Lanton.for_fine_tuning(1e-3, weight_decay=0.1)
    assert optimizer.weight_decay == 0.1
    variables = make_variables(PATHS)
    optimizer.build(variables)
    assert set(optimizer.adamw_roles) == {"embedding", "vector"}


@pytest.mark.parametrize("name", keep(CASES, EVERYWHERE))
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
        pytest.param(
            4, {"noise_interval": 3, "group_reduction": "mean"}, marks=logic
        ),
        pytest.param(
            4, {"noise_interval": 1, "within_matrices": True}, marks=logic
        ),
    ],
)
def test_independent_gradient(k, options):
    options = {**INDEPENDENT, **options, "gradient_accumulation_steps": k}
    compare(options, make_gradients(20 * k, FEW), (k, 2 * k, 20 * k), paths=FEW)


@pytest.mark.parametrize("within", keep([False, True], [True]))
def test_steps_as_large_matrices_take_them(within, monkeypatch):
    """One matrix after the other, in blocks, Gram form and estimator."""
    monkeypatch.setattr(batching, "ONE_BY_ONE_FROM", 1)
    monkeypatch.setitem(dispatch.BLOCKS_FROM, "float32", 2)
    options = {"noise_interval": 2, "within_matrices": within}
    compare(options, make_gradients(6, FEW), (1, 6), paths=FEW)


def test_one_huge_gradient():
    """Of a size that squares of float32 cannot have."""
    gradients = make_gradients(12, FEW)
    for g in gradients[5]:
        g[...] = np.float32(3.4e38) * (g / np.abs(g).max())
    variables = make_variables(FEW)
    start = weights = to_arrays(variables)
    optimizer = make_optimizer(variables, FEW, **DEFAULTS)
    oracle = make_oracle(FEW, turns=turns(optimizer), **DEFAULTS)
    steps = Steps(optimizer, variables)
    for one in gradients:
        steps(one)
        weights = oracle.step(one, weights, LEARNING_RATE)
    assert optimizer.skipped_steps == 0
    found = deviations(to_arrays(variables), weights, start)
    assert max(found) < TOLERANCE, dict(zip(FEW, found, strict=True))


@pytest.mark.parametrize("noise", [NoiseAdaptiveRate(), None])
def test_a_model_without_matrices(noise):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.LayerNormalization()]
    )
    model.compile(Lanton(noise=noise), loss="mse")
    model.fit(x, x[:, ::-1], epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 2


def test_eager_apply():
    """Plain `apply`, on JAX too, of an embedding without attention."""
    paths = ["dense/kernel", "dense/bias", "conv/kernel", "tokens/embeddings"]
    compare(
        {"noise_interval": 1},
        make_gradients(3, paths),
        (1, 2, 3),
        jit=False,
        paths=paths,
    )


# From which step to which (counted from 1, both included) a variable has a
# gradient of zeros. tests/keras/test_missing_gradients.py has those of None.
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


def with_gaps(gradients):
    for path, (first, last) in GAPS.items():
        for one in gradients[first - 1 : last]:
            one[FEW.index(path)] = np.zeros_like(one[FEW.index(path)])
    return gradients


@pytest.mark.parametrize(
    ("reference", "interval"),
    [
        ("previous_gradient", 1),
        pytest.param("previous_gradient", 3, marks=logic),
        pytest.param("momentum", 1, marks=logic),
    ],
)
@both_presets
def test_zero_gradients(reference, interval, preset):
    options = {
        **PRESETS[preset],
        "noise_reference": reference,
        "noise_interval": interval,
    }
    gradients = with_gaps(make_gradients(9, FEW))
    compare(options, gradients, range(1, 10), paths=FEW)


@logic
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
@pytest.mark.parametrize(
    ("interval", "value"), [(1, np.nan), pytest.param(3, np.inf, marks=logic)]
)
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


def write_weights(path):
    """The weights after 20 steps on the current backend."""
    variables = make_variables()
    optimizer = make_optimizer(variables, noise_interval=3, nesterov=True)
    steps = Steps(optimizer, variables)
    for gradients in make_gradients(20):
        steps(gradients)
    names = [name.replace("/", ".") for name in PATHS]
    np.savez(path, **dict(zip(names, to_arrays(variables), strict=True)))


@exhaustive
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
    runs = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path / f"{name}.npz")],
            env=environment(KERAS_BACKEND=name),
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


@pytest.mark.parametrize("make", keep([Lanton, Scion], [Lanton]))
def test_variables_without_an_entry(make):
    optimizer = make(0.1)
    shapes = {"kernel": (0, 3), "bias": (0,), "second/kernel": (3, 2)}
    variables = [
        keras.Variable(np.ones(shape, "float32"), name=name.split("/")[-1])
        for name, shape in shapes.items()
    ]
    optimizer.build(variables)
    for _ in range(2):
        optimizer.apply([keras.ops.ones(v.shape) for v in variables], variables)
    assert [spec.shape for spec in optimizer.updated_specs] == [(3, 2)]
    assert not np.any(to_arrays(variables)[2] == 1.0)

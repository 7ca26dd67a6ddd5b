"""What all compared optimizers share."""

import copy
import json

import keras
import numpy as np
import pytest

from helpers.baselines import BASELINES
from helpers.baselines import CLASSES
from helpers.baselines import NOISE
from helpers.baselines import NOISE_PART
from helpers.baselines import assert_equal
from helpers.baselines import make
from helpers.baselines import run
from helpers.models import make_data
from helpers.models import make_model
from helpers.saves import resumed
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import Steps
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton import baselines
from keras_lanton.optimizer.lmo import LMOOptimizer


@logic
@pytest.mark.parametrize("name", ["Muon", "DMuon", "AdaMuon", "NorMuon"])
def test_adamw_moves_by_the_momentum_before_it_is_rounded(name):
    paths = ["dense/bias", "tokens/embeddings"]
    gradients = make_gradients(1, paths)
    cls = BASELINES[name]
    wanted, start = run(cls, gradients, paths)
    found, _ = run(cls, gradients, paths, momentum_dtype="bfloat16")
    assert_equal(found, wanted, start)


# -- The noise-adaptive rate as their part ------------------------------------
@logic
@pytest.mark.parametrize("name", ["DMuon", "Muon", "AdaMuon", "NorMuon"])
def test_noise_slows_hidden_layers_as_in_lanton(name):
    gradients = make_gradients(4, FEW)
    reports = []
    for cls, options in (
        (BASELINES[name], {"noise": NOISE_PART}),
        (Lanton, NOISE),
    ):
        variables = make_variables(FEW)
        optimizer = make(cls, variables, FEW, **options)
        steps = Steps(optimizer, variables)
        for one in gradients:
            steps(one)
        reports.append(optimizer.noise_report())
    found, wanted = reports
    hidden = [path for path in FEW if EXPECTED[path].role == "hidden"]
    assert list(found) == hidden
    for path in hidden:
        np.testing.assert_allclose(
            found[path]["ratio"], wanted[path]["ratio"], rtol=1e-4
        )
        assert (found[path]["noise"] > 0).all()
    ratios = [one["ratio"] for one in found.values()]
    assert np.ptp(np.concatenate(ratios)) > 0.01


@logic
@pytest.mark.parametrize("group_reduction", ["mean", "max"])
def test_lanton_is_d_muon_with_noise(group_reduction):
    """All roles; without momentum, which starts at G_1 here and at 0 there."""
    gradients = make_gradients(4, FEW)
    options = {
        **NOISE,
        "group_reduction": group_reduction,
        "beta_1": 0.0,
        "hidden_scale": 0.2,
        "ns_coefficients": "jordan",
        "nesterov": True,
        "adam_lr_ratio": 0.7,
        "adam_beta_1": 0.8,
        "adam_beta_2": 0.9,
        "epsilon": 1e-20,  # which the two add at different places
        "weight_decay": 0.1,
    }
    ours = {"adamw_roles": ["embedding", "vector"], "step_scale": "rms_matched"}
    found, start = run(Lanton, gradients, **ours, **options)
    wanted, _ = run(baselines.DMuon, gradients, **options)
    assert_equal(found, wanted, start)


@logic
def test_scion_with_noise_is_lanton_without_momentum():
    gradients = make_gradients(4, FEW)
    found, start = run(
        baselines.Scion,
        gradients,
        beta_1=0.0,
        constrained=False,
        hidden_scale=1.0,
        embedding_scale=300.0,
        vector_scale=1.0,
        noise=NOISE_PART,
    )
    options = {
        "beta_1": 0.0,
        "embedding_scale": 300.0 * 64 / 8,  # Scion divides by the width, 8
        "step_scale": "operator",
        "weight_decay": None,
    }
    wanted, _ = run(Lanton.paper, gradients, **options, **NOISE)
    assert_equal(found, wanted, start)


# -- As Keras optimizers ------------------------------------------------------
@pytest.mark.parametrize(
    "cls", keep(CLASSES, [baselines.DMuon]), ids=lambda cls: cls.__name__
)
def test_fit_save_and_resume(cls, tmp_path):
    model = make_model(4, filters=5)
    options = {}
    if issubclass(cls, LMOOptimizer):
        options = {"noise": NoiseAdaptiveRate(interval=2)}
    model.compile(cls(1e-3, **options), loss="mse")

    def train(model):
        model.fit(*make_data(12), batch_size=4, shuffle=False, verbose=0)

    train(model)
    loaded = resumed(model, tmp_path, train)
    assert type(loaded.optimizer) is cls
    assert loaded.optimizer.skipped_steps == 0


@logic
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_config_round_trip(cls):
    options = {}
    if issubclass(cls, LMOOptimizer):
        options = {"noise": NoiseAdaptiveRate(alpha=0.5)}
    optimizer = cls(0.5, **options)
    config = json.loads(json.dumps(optimizer.get_config()))
    assert cls.from_config(copy.deepcopy(config)).get_config() == config
    whole = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    loaded = keras.optimizers.deserialize(whole)
    assert type(loaded) is cls
    assert loaded.get_config() == config


@logic
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_nonfinite_steps_are_skipped(cls):
    paths = ["dense/kernel", "dense/bias", "tokens/embeddings"]
    variables = make_variables(paths)
    optimizer = make(cls, variables, paths)
    steps = Steps(optimizer, variables)
    good = make_gradients(2, paths)
    steps(good[0])
    before = to_arrays(variables) + to_arrays(optimizer.variables[1:])
    bad = [np.full_like(g, np.nan) for g in good[1]]
    steps(bad)
    after = to_arrays(variables) + to_arrays(optimizer.variables[1:])
    changed = [
        not np.array_equal(one, two)
        for one, two in zip(before, after, strict=True)
    ]
    assert sum(changed) == 2  # the counts of skipped steps
    assert optimizer.skipped_steps == 1


@logic
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_other_dtypes_of_weights(cls, dtype):
    """The first step is that of float32, as far as the dtype holds it."""
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has float32 only, unless it is told otherwise")
    moved = {}
    for kind in ("float32", dtype):
        random = np.random.default_rng(0)
        variables, gradients = [], []
        for name, shape in (("kernel", (12, 20)), ("bias", (20,))):
            start = 0.01 * random.standard_normal(shape)
            variables.append(keras.Variable(start, dtype=kind, name=name))
            gradient = random.standard_normal(shape)
            gradients.append(keras.ops.convert_to_tensor(gradient, kind))
        cls(0.01, weight_decay=None).apply(gradients, variables)
        for variable in variables:
            assert keras.backend.standardize_dtype(variable.dtype) == kind
        moved[kind] = to_arrays(
            [keras.ops.cast(v, "float32") for v in variables]
        )
    for one, two in zip(*moved.values(), strict=True):
        error = np.linalg.norm(one - two) / np.linalg.norm(one)
        assert error < (1e-5 if dtype == "float64" else 0.02)


# The Muons need AdamW for all roles that have no matrices.
VECTORS = AuxiliaryAdamW(roles=("vector",))
WRONG = [
    ("Scion", {"vector_norm": "col"}, "vector_norm"),
    ("Scion", {"hidden_scale": -1.0}, "hidden_scale"),
    ("Scion", {"beta_1": 1.0}, "beta_1"),
    ("Scion", {"constrained": "yes"}, "constrained"),
    ("Scion", {"weight_decay": 0.1}, "weight_decay"),
    ("Scion", {"nesterov": True}, "nesterov"),
    ("Scion", {"noise": 0.3}, "noise"),
    ("Muon", {"auxiliary_adamw": 0.5}, "auxiliary_adamw"),
    ("Muon", {"noise": "yes"}, "noise"),
    ("Muon", {"newton_schulz": 5}, "newton_schulz"),
    ("Muon", {"nesterov": 1}, "nesterov"),
    ("DMuon", {"hidden_scale": None}, "hidden_scale"),
    ("DMuon", {"auxiliary_adamw": VECTORS}, "auxiliary_adamw"),
    ("AdaMuon", {"auxiliary_adamw": None}, "auxiliary_adamw"),
    ("NorMuon", {"beta_2": 1.0}, "beta_2"),
]


@logic
@pytest.mark.parametrize(("name", "options", "argument"), WRONG)
def test_wrong_argument(name, options, argument):
    with pytest.raises(ValueError, match=f"`{argument}.*Received: "):
        BASELINES[name](**options)


@logic
def test_noise_needs_its_own_type_and_windows():
    with pytest.raises(ValueError, match="`alpha` must be.*Received: "):
        NoiseAdaptiveRate(alpha=-1.0)
    noise = NoiseAdaptiveRate(reference="independent_gradient")
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        baselines.DMuon(noise=noise)
    optimizer = baselines.DMuon()
    optimizer.build(make_variables(["dense/kernel"]))
    with pytest.raises(ValueError, match="`noise_report` needs"):
        optimizer.noise_report()


@logic
def test_noise_without_a_hidden_layer():
    paths = ["tokens/embeddings", "norm/gamma"]
    gradients = make_gradients(3, paths)
    noise = NoiseAdaptiveRate(interval=1)
    found, start = run(baselines.DMuon, gradients, paths, noise=noise)
    wanted, _ = run(baselines.DMuon, gradients, paths)
    assert_equal(found, wanted, start, 1e-6)

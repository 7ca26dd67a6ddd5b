"""The compared optimizers against their oracles, and against each other."""

import copy
import inspect
import json
import math

import keras
import numpy as np
import pytest
from baseline_oracles import AdaMuonOracle
from baseline_oracles import BlockwiseAdamWOracle
from baseline_oracles import DMuonOracle
from baseline_oracles import GluonOracle
from baseline_oracles import LambOracle
from baseline_oracles import MarsOracle
from baseline_oracles import MuonOracle
from baseline_oracles import ScionOracle
from marks import some_fast
from test_oracle import BY_HAND
from test_oracle import EXPECTED
from test_oracle import FEW
from test_oracle import Steps
from test_oracle import deviations
from test_oracle import make_gradients
from test_oracle import make_variables
from test_oracle import to_arrays

from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton import baselines
from keras_lanton.baselines.blockwise_adamw import MULTIPLIERS
from keras_lanton.blocks import block_of
from keras_lanton.norm_optimizer import NormOptimizer
from keras_lanton.roles import make_layer

ETA = 0.01
# As in test_oracle: of the distance moved.
TOLERANCE = 1e-4
NOISE = {"noise_interval": 1, "alpha": 0.2, "group_reduction": "mean"}
CLASSES = [getattr(baselines, name) for name in baselines.__all__]


def make(cls, variables, paths=FEW, **options):
    """A built optimizer, with the roles of `BY_HAND` assigned."""
    optimizer = cls(ETA, **options)
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


def run(cls, gradients, paths=FEW, **options):
    """The weights that an optimizer reaches, and where it started."""
    variables = make_variables(paths)
    start = to_arrays(variables)
    steps = Steps(make(cls, variables, paths, **options), variables)
    for one in gradients:
        steps(one)
    return to_arrays(variables), start


def some_gradients(steps=5, paths=FEW):
    """Also a step without a gradient of the first and the last layer."""
    gradients = make_gradients(steps, paths)
    for i in (0, -1):
        gradients[2][i] = np.zeros_like(gradients[2][i])
    return gradients


RATIOS = {
    i: MULTIPLIERS[
        block_of(
            make_layer(
                path,
                EXPECTED[path].shape,
                EXPECTED[path].role,
                EXPECTED[path].input_axes or None,
                EXPECTED[path].output_axes or None,
            )
            if EXPECTED[path].blocks == 1
            else make_layer(path, EXPECTED[path].shape, "hidden", 0, 1)
        )
    ]
    for i, path in enumerate(FEW)
}
GLUON = {
    "radii": {"tokens": 2.0, "norm": 0.5},
    "smoothness": {"dense/kernel": [0.1, 2.0], "lstm": [0.0, 3.0]},
}
LATE = {
    "minimum_learning_rate": 0.002,
    "maximum_learning_rate": 0.02,
    "warmup_steps": 2,
}
CASES = {
    "muon": ("Muon", MuonOracle, {}, {}),
    "muon_plain": ("Muon", MuonOracle, *[{"nesterov": False}] * 2),
    "muon_decay": (
        "Muon",
        MuonOracle,
        *[{"weight_decay": 0.1, "adam_lr_ratio": 0.5}] * 2,
    ),
    "d_muon": ("DMuon", DMuonOracle, {}, {}),
    "adamuon": ("AdaMuon", AdaMuonOracle, {}, {}),
    "scion": ("Scion", ScionOracle, {}, {}),
    "scion_free": (
        "Scion",
        ScionOracle,
        *[{"constrained": False, "vector_norm": "sign"}] * 2,
    ),
    "scion_col": ("Scion", ScionOracle, *[{"embedding_norm": "col"}] * 2),
    "scion_row": (
        "Scion",
        ScionOracle,
        *[{"embedding_norm": "row", "embedding_normalized": False}] * 2,
    ),
    "scion_sign": (
        "Scion",
        ScionOracle,
        *[{"embedding_normalized": False}] * 2,
    ),
    "gluon": ("Gluon", GluonOracle, {}, {}),
    "gluon_layers": (
        "Gluon",
        GluonOracle,
        GLUON,
        {
            "radii": {FEW.index("tokens/embeddings"): 2.0, 7: 0.5},
            "smoothness": {0: (0.1, 2.0), 2: (0.0, 3.0), 3: (0.0, 3.0)},
        },
    ),
    "lamb": ("Lamb", LambOracle, {}, {}),
    "lamb_plain": ("Lamb", LambOracle, *[{"weight_decay": 0.0}] * 2),
    "mars": ("Mars", MarsOracle, {}, {}),
    "mars_all": (
        "Mars",
        MarsOracle,
        *[{"optimize_1d": True, "weight_decay": 0.1, "gamma": 0.2}] * 2,
    ),
    "blockwise": (
        "BlockwiseAdamW",
        BlockwiseAdamWOracle,
        {},
        {"ratios": RATIOS},
    ),
    "blockwise_late": (
        "BlockwiseAdamW",
        BlockwiseAdamWOracle,
        LATE,
        {"ratios": RATIOS, **LATE},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_oracle(case):
    name, oracle_class, options, oracle_options = CASES[case]
    gradients = some_gradients()
    found, start = run(getattr(baselines, name), gradients, **options)
    oracle = oracle_class([EXPECTED[path] for path in FEW], **oracle_options)
    weights = start
    for one in gradients:
        weights = oracle.step(one, weights, ETA)
    worst = dict(zip(FEW, deviations(found, weights, start), strict=True))
    assert max(worst.values()) < TOLERANCE, worst


# Identities between them.


def assert_equal(found, wanted, start, tolerance=TOLERANCE):
    assert max(deviations(found, wanted, start)) < tolerance


def test_d_muon_is_muon_of_another_scale():
    paths, gradients = ["dense/kernel"], make_gradients(4, ["dense/kernel"])
    found, start = run(baselines.DMuon, gradients, paths, weight_decay=None)
    muon, _ = run(baselines.Muon, gradients, paths)
    scale = math.sqrt(20) * 0.2 / math.sqrt(20 / 12)
    moved = [start[0] + scale * (muon[0] - start[0])]
    assert_equal(found, moved, start)


def test_d_muon_is_about_keras_muon_in_two_dimensions():
    """Whose epsilon is added to the norm, and whose biases are 1-D."""
    arguments = inspect.signature(keras.optimizers.Muon).parameters
    if "adam_weight_decay" not in arguments:
        pytest.skip("this Keras' Muon has other scales")
    paths = ["dense/kernel", "dense/bias"]
    gradients = make_gradients(4, paths)
    found, start = run(baselines.DMuon, gradients, paths, weight_decay=None)
    wanted, _ = run(
        KerasMuon,
        gradients,
        paths,
        adam_beta_1=0.9,
        adam_beta_2=0.95,
        epsilon=1e-8,
        weight_decay=None,
    )
    assert_equal(found, wanted, start, 1e-3)


class KerasMuon(keras.optimizers.Muon):
    """Takes no roles."""

    def assign_role(self, *args, **kwargs):
        """Not needed for two dimensions."""


def test_constrained_scion_is_unconstrained_with_decay_1():
    gradients = make_gradients(3, FEW)
    found, start = run(baselines.Scion, gradients)
    wanted, _ = run(
        baselines.Scion, gradients, constrained=False, weight_decay=1.0
    )
    assert_equal(found, wanted, start)


@pytest.mark.compiles_a_lot
@pytest.mark.parametrize("noise", [None, NoiseAdaptiveRate(**NOISE)])
def test_gluon_of_one_radius_is_unconstrained_scion(noise):
    gradients = make_gradients(3, FEW)
    found, start = run(
        baselines.Gluon, gradients, radii={".": 3.0}, noise=noise
    )
    scales = dict.fromkeys(
        ("hidden_scale", "embedding_scale", "vector_scale"), 3.0
    )
    wanted, _ = run(
        baselines.Scion,
        gradients,
        beta_1=0.95,
        constrained=False,
        noise=noise,
        **scales,
    )
    assert_equal(found, wanted, start)


def test_scion_without_momentum_and_scale_is_sign_descent():
    paths = ["tokens/embeddings"]
    gradients = make_gradients(2, paths)
    found, start = run(
        baselines.Scion,
        gradients,
        paths,
        beta_1=0.0,
        constrained=False,
        embedding_scale=1.0,
        embedding_normalized=False,
    )
    wanted = [start[0] - ETA * sum(np.sign(one[0]) for one in gradients)]
    assert_equal(found, wanted, start)


def test_adamuon_steps_have_their_size():
    paths = ["dense/kernel", "experts/kernel"]
    variables = make_variables(paths)
    steps = Steps(
        make(baselines.AdaMuon, variables, paths, weight_decay=None), variables
    )
    for gradients in make_gradients(3, paths):
        before = to_arrays(variables)
        steps(gradients)
        for one, two in zip(before, to_arrays(variables), strict=True):
            rms = np.sqrt(np.mean((two - one) ** 2, axis=(-2, -1)))
            np.testing.assert_allclose(rms, 0.2 * ETA, rtol=1e-4)


def adamw(gradients, paths=FEW, **options):
    """The oracle's AdamW: block ratios of 1."""
    start = weights = to_arrays(make_variables(paths))
    oracle = BlockwiseAdamWOracle(
        [EXPECTED[path] for path in paths],
        ratios=dict.fromkeys(range(len(paths)), 1.0),
        **options,
    )
    for one in gradients:
        weights = oracle.step(one, weights, ETA)
    return weights, start


def test_mars_without_correction_is_adamw():
    gradients = [
        [1e-3 * g for g in one] for one in make_gradients(3, FEW)
    ]  # of norm below 1
    found, start = run(
        baselines.Mars,
        gradients,
        gamma=0.0,
        optimize_1d=True,
        weight_decay=0.1,
        beta_1=0.9,
        beta_2=0.95,
    )
    assert_equal(found, adamw(gradients)[0], start)


def test_blockwise_adamw_of_equal_ratios_is_adamw():
    gradients = make_gradients(3, FEW)
    ones = dict.fromkeys(MULTIPLIERS, 1.0)
    found, start = run(baselines.BlockwiseAdamW, gradients, multipliers=ones)
    assert_equal(found, adamw(gradients)[0], start)


def test_lamb_moves_by_the_size_of_the_weights():
    paths = ["dense/kernel", "norm/gamma"]
    found, start = run(
        baselines.Lamb, make_gradients(1, paths), paths, weight_decay=None
    )
    for one, two in zip(start, found, strict=True):
        moved = np.linalg.norm(two - one)
        assert moved == pytest.approx(ETA * np.linalg.norm(one), rel=1e-4)


@pytest.mark.parametrize("name", ["Muon", "DMuon", "Scion", "AdaMuon", "Gluon"])
def test_directions_do_not_depend_on_the_gradients_scale(name):
    paths = ["dense/kernel", "tokens/embeddings"]
    gradients = make_gradients(2, paths)
    options = {} if name in ("Scion", "Gluon") else {"epsilon": 1e-20}
    cls = getattr(baselines, name)
    wanted, start = run(cls, gradients, paths, **options)
    scaled = [[10.0 * g for g in one] for one in gradients]
    found, _ = run(cls, scaled, paths, **options)
    assert_equal(found, wanted, start)


@pytest.mark.parametrize("name", ["Muon", "DMuon", "AdaMuon"])
def test_adamw_moves_by_the_momentum_before_it_is_rounded(name):
    paths = ["dense/bias", "tokens/embeddings"]
    gradients = make_gradients(1, paths)
    cls = getattr(baselines, name)
    wanted, start = run(cls, gradients, paths)
    found, _ = run(cls, gradients, paths, momentum_dtype="bfloat16")
    assert_equal(found, wanted, start)


# The noise-adaptive rate as their part.


@pytest.mark.compiles_a_lot
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
        noise=NoiseAdaptiveRate(**NOISE),
    )
    wanted, _ = run(
        Lanton.paper,
        gradients,
        beta_1=0.0,
        step_scale="operator",
        weight_decay=None,
        **NOISE,
    )
    assert_equal(found, wanted, start)


@pytest.mark.compiles_a_lot
@pytest.mark.parametrize("name", ["DMuon", "Muon", "AdaMuon"])
def test_noise_slows_hidden_layers_as_in_lanton(name):
    paths, gradients = FEW, make_gradients(4, FEW)
    variables = make_variables(paths)
    optimizer = make(
        getattr(baselines, name),
        variables,
        paths,
        noise=NoiseAdaptiveRate(**NOISE),
    )
    lanton = make(Lanton, make_variables(paths), paths, **NOISE)
    steps = Steps(optimizer, variables)
    others = Steps(lanton, make_variables(paths))
    others.variables = lanton._trainable_variables
    for one in gradients:
        steps(one)
        others(one)
    found, wanted = optimizer.noise_report(), lanton.noise_report()
    for path, record in zip(paths, optimizer.layers, strict=True):
        if record.role == "hidden":
            np.testing.assert_allclose(
                found[path]["ratio"], wanted[path]["ratio"], rtol=1e-4
            )
            assert (found[path]["noise"] > 0).all()
        else:
            assert not found[path]["noise"].any()
            np.testing.assert_array_equal(found[path]["ratio"], 1.0)
    ratios = [found[x.path]["ratio"] for x in optimizer.layers]
    assert np.ptp(np.concatenate(ratios)) > 0.01


@pytest.mark.compiles_a_lot
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("preset", [Lanton, Lanton.paper])
def test_d_muon_with_noise_moves_hidden_layers_as_lanton(preset, nesterov):
    gradients = make_gradients(4, FEW)
    options = {"beta_1": 0.0, "nesterov": nesterov, "hidden_scale": 0.2}
    found, start = run(
        baselines.DMuon, gradients, noise=NoiseAdaptiveRate(**NOISE), **options
    )
    wanted, _ = run(preset, gradients, **NOISE, **options)
    hidden = [EXPECTED[path].role == "hidden" for path in FEW]
    for one, two, three, chosen in zip(
        found, wanted, start, hidden, strict=True
    ):
        if chosen:
            assert_equal([one], [two], [three])


@pytest.mark.compiles_a_lot
@pytest.mark.parametrize("group_reduction", ["mean", "max"])
def test_lanton_is_d_muon_with_noise(group_reduction):
    """All roles; without momentum, which starts at G_1 here and at 0 there."""
    gradients = make_gradients(4, FEW)
    noise = {**NOISE, "group_reduction": group_reduction}
    options = {
        "beta_1": 0.0,
        "hidden_scale": 0.2,
        "nesterov": True,
        "adam_lr_ratio": 0.7,
        "adam_beta_1": 0.8,
        "adam_beta_2": 0.9,
        "epsilon": 1e-20,  # which the two add at different places
        "weight_decay": 0.1,
    }
    both = ["embedding", "vector"]
    found, start = run(Lanton, gradients, adamw_roles=both, **noise, **options)
    wanted, _ = run(
        baselines.DMuon, gradients, noise=NoiseAdaptiveRate(**noise), **options
    )
    assert_equal(found, wanted, start)


@pytest.mark.parametrize("role", ["embedding", "vector"])
def test_adamw_in_lanton_is_keras_adamw(role):
    """That one's epsilon has an effect on neither, at gradients of size 1."""
    paths = [path for path in FEW if EXPECTED[path].role == role]
    gradients = make_gradients(6, paths)
    found, start = run(
        Lanton,
        gradients,
        paths,
        adamw_roles=[role],
        adam_lr_ratio=0.5,
        adam_beta_1=0.8,
        adam_beta_2=0.97,
        epsilon=1e-12,
        weight_decay=0.1,
    )
    variables = make_variables(paths)
    adamw = keras.optimizers.AdamW(
        0.5 * ETA, beta_1=0.8, beta_2=0.97, epsilon=1e-12, weight_decay=0.1
    )
    adamw.build(variables)
    steps = Steps(adamw, variables)
    for one in gradients:
        steps(one)
    off = deviations(found, to_arrays(variables), start)
    assert max(off) < 1e-5, off


def test_adamw_in_lanton_has_the_epsilon_of_torch():
    """Added to the debiased root: step 1 is g / (|g| + epsilon)."""
    paths = ["dense/bias", "tokens/embeddings"]
    gradients = make_gradients(1, paths)
    found, start = run(
        Lanton,
        gradients,
        paths,
        adamw_roles=["embedding", "vector"],
        epsilon=0.1,
        weight_decay=None,
    )
    for one, zero, g in zip(found, start, gradients[0], strict=True):
        wanted = zero - ETA * g / (np.abs(g) + 0.1)
        assert max(deviations([one], [wanted], [zero])) < 1e-5


# As Keras optimizers.


@pytest.mark.parametrize(
    "cls",
    some_fast(CLASSES, [baselines.DMuon, baselines.Mars]),
    ids=lambda cls: cls.__name__,
)
def test_fit_save_and_resume(cls, tmp_path):
    def make_model(optimizer):
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                keras.layers.Embedding(11, 8),
                keras.layers.Conv1D(8, 3, activation="gelu"),
                keras.layers.LayerNormalization(),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(3),
            ]
        )
        model.compile(optimizer, loss="mse")
        return model

    rng = np.random.default_rng(0)
    x = rng.integers(0, 11, (12, 5)).astype("int32")
    y = rng.standard_normal((12, 3)).astype("float32")
    options = {"batch_size": 4, "shuffle": False, "verbose": 0}
    if issubclass(cls, NormOptimizer):
        optimizer = cls(1e-3, noise=NoiseAdaptiveRate(noise_interval=2))
    else:
        optimizer = cls(1e-3)
    model = make_model(optimizer)
    model.fit(x, y, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is cls
    for one in (model, loaded):
        one.fit(x, y, **options)
    for one, two in zip(
        to_arrays(model.variables), to_arrays(loaded.variables), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    assert optimizer.skipped_steps == 0


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_config_round_trip(cls):
    options = {"Gluon": GLUON, "BlockwiseAdamW": LATE}.get(cls.__name__, {})
    if issubclass(cls, NormOptimizer):
        options = {**options, "noise": NoiseAdaptiveRate(alpha=0.5)}
    optimizer = cls(0.5, **options)
    config = json.loads(json.dumps(optimizer.get_config()))
    assert cls.from_config(copy.deepcopy(config)).get_config() == config
    whole = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    loaded = keras.optimizers.deserialize(whole)
    assert type(loaded) is cls
    assert loaded.get_config() == config


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
    assert sum(changed) == 1  # the count of skipped steps
    assert optimizer.skipped_steps == 1


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


WRONG = [
    ("Scion", {"embedding_norm": "rms"}, "embedding_norm"),
    ("Scion", {"hidden_scale": -1.0}, "hidden_scale"),
    ("Scion", {"beta_1": 1.0}, "beta_1"),
    ("Scion", {"constrained": "yes"}, "constrained"),
    ("Scion", {"weight_decay": 0.1}, "weight_decay"),
    ("Scion", {"nesterov": True}, "nesterov"),
    ("Scion", {"noise": 0.3}, "noise"),
    ("Muon", {"adam_lr_ratio": -0.1}, "adam_lr_ratio"),
    ("Muon", {"noise": "yes"}, "noise"),
    ("Muon", {"ns_steps": 0}, "ns_steps"),
    ("Muon", {"nesterov": 1}, "nesterov"),
    ("DMuon", {"hidden_scale": None}, "hidden_scale"),
    ("DMuon", {"adam_beta_2": 1.5}, "adam_beta_2"),
    ("AdaMuon", {"epsilon": 0.0}, "epsilon"),
    ("Gluon", {"noise": 0.3}, "noise"),
    ("Gluon", {"radii": {"(": 1.0}}, "radii"),
    ("Gluon", {"radii": {"a": -1.0}}, "radii"),
    ("Gluon", {"smoothness": {"a": [0.0, 0.0]}}, "smoothness"),
    ("Gluon", {"smoothness": [1.0]}, "smoothness"),
    ("Lamb", {"beta_2": 1.0}, "beta_2"),
    ("Lamb", {"epsilon": -1.0}, "epsilon"),
    ("Mars", {"gamma": -0.1}, "gamma"),
    ("Mars", {"optimize_1d": "no"}, "optimize_1d"),
    ("Mars", {"adam_weight_decay": -1.0}, "adam_weight_decay"),
    ("BlockwiseAdamW", {"multipliers": {"ffn": 1.0}}, "multipliers"),
    ("BlockwiseAdamW", {"multipliers": {"qk": 0.0}}, "multipliers"),
    ("BlockwiseAdamW", {"warmup_steps": 1.5}, "warmup_steps"),
    (
        "BlockwiseAdamW",
        {"minimum_learning_rate": 1e-4},
        "maximum_learning_rate",
    ),
    (
        "BlockwiseAdamW",
        {"minimum_learning_rate": 1e-4, "maximum_learning_rate": 1e-5},
        "maximum_learning_rate",
    ),
]


@pytest.mark.parametrize(("name", "options", "argument"), WRONG)
def test_wrong_argument(name, options, argument):
    with pytest.raises(ValueError, match=f"`{argument}.*Received: "):
        getattr(baselines, name)(**options)


def test_gluon_patterns_must_match():
    variables = make_variables(["dense/kernel"])
    optimizer = baselines.Gluon(radii={"attention": 1.0})
    with pytest.raises(ValueError, match="`radii` has a pattern"):
        optimizer.build(variables)


def test_noise_needs_its_own_type_and_windows():
    with pytest.raises(ValueError, match="`alpha` must be.*Received: "):
        NoiseAdaptiveRate(alpha=-1.0)
    noise = NoiseAdaptiveRate(noise_reference="independent_gradient")
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        baselines.DMuon(noise=noise)
    optimizer = baselines.DMuon()
    optimizer.build(make_variables(["dense/kernel"]))
    with pytest.raises(ValueError, match="`noise_report` needs"):
        optimizer.noise_report()


def test_noise_without_a_hidden_layer():
    paths = ["tokens/embeddings", "norm/gamma"]
    gradients = make_gradients(3, paths)
    noise = NoiseAdaptiveRate(noise_interval=1)
    found, start = run(baselines.DMuon, gradients, paths, noise=noise)
    wanted, _ = run(baselines.DMuon, gradients, paths)
    assert_equal(found, wanted, start, 1e-6)


def test_scion_starts_on_its_balls():
    variables = make_variables(FEW)
    before = to_arrays(variables)
    optimizer = make(baselines.Scion, variables)
    optimizer.initialize(variables)
    for layer, one, two in zip(
        optimizer.layers, before, to_arrays(variables), strict=True
    ):
        if layer.role == "vector":
            np.testing.assert_array_equal(one, two)
            continue
        for positions in EXPECTED[layer.path].matrices():
            m = two.ravel()[positions]
            if layer.role == "hidden":
                found = np.linalg.svd(m, compute_uv=False)
                wanted = 50.0 * math.sqrt(layer.d_out / layer.d_in)
            else:
                found, wanted = np.abs(m), 3000.0 / layer.d_in
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    steps = Steps(optimizer, variables)
    steps(make_gradients(1, FEW)[0])
    with pytest.raises(ValueError, match="Received: iterations=1"):
        optimizer.initialize(variables)

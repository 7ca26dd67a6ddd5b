"""Every wrong argument is a ValueError that names it and what it got."""

import dataclasses
import inspect

import numpy as np
import pytest

from helpers.optimizers import FIELDS
from helpers.optimizers import NEEDS
from helpers.optimizers import PARTS
from helpers.optimizers import arguments_of
from helpers.tiers import logic
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.baselines import DMuon
from keras_lanton.baselines import Scion
from keras_lanton.optimizer.base import LayerwiseOptimizer
from keras_lanton.validation import MOVED

pytestmark = logic

NAN = float("nan")
WRONG = {
    Lanton: {
        "learning_rate": [1, -1e-3, NAN, float("inf"), "1e-3", None, True],
        "beta_1": [-0.1, 1.0, NAN, "0.9", None, True, [0.9]],
        "noise": [0.3, "yes", True, NoiseAdaptiveRate],
        "newton_schulz": [5, None, "jordan", NewtonSchulz],
        "auxiliary_adamw": [("vector",), "vector", True, AuxiliaryAdamW],
        "hidden_scale": [-1, NAN, "0.2"],
        "embedding_scale": [-1, NAN, "300"],
        "vector_scale": [-1, NAN, "1"],
        "vector_norm": ["l2", 2],
        "step_scale": ["muon", None, 1],
        "nesterov": [1, "yes", None],
        "momentum_warmup": [1, "yes", None],
        "momentum_dtype": ["int4", "float64", 16, True],
        "rounding": ["up", None, True],
        "nonfinite": ["ignore", None, True],
        "weight_decay": [-0.1, NAN, "0.1", True],
        "weight_decay_exclude": ["bias", [1], ["("], 3],
        "rate_multipliers": [
            *(0.5, ["bias"], {"(": 1.0}, {1: 1.0}),
            *({"bias": wrong} for wrong in (-1.0, "2", True, NAN)),
        ],
        "clipnorm": [0, -1.0, NAN],
        "clipvalue": [0, -1.0, NAN, "1"],
        "global_clipnorm": [0, -1.0, NAN, float("inf")],
        "loss_scale_factor": [0, -2.0, NAN],
        "gradient_accumulation_steps": [1, 0, 2.5, "2", True],
        "ema_momentum": [1.5, -0.1],
        "ema_overwrite_frequency": [0, -1, 1.5],
    },
    NoiseAdaptiveRate: {
        "alpha": [0, 0.0, -1, NAN, float("inf"), "0.3"],
        "within_matrices": [0, None, "yes"],
        "alpha_unit": ["relative", None, 1],
        "group_reduction": ["min", None, 1],
        "beta_2": [-0.1, 1.0, NAN, "0.9", None],
        "interval": [0, -1, 1.5, 10.0, None, True, "10"],
        "schedule": ["random", None, True],
        "reference": ["previous", None, 3],
        "estimator": ["qr", None, 3],
        "previous_gradient_dtype": ["int8", "float64", 16],
    },
    NewtonSchulz: {
        "steps": [0, -1, 2.5, None, True, "5"],
        "coefficients": [
            *("muon", None, 3, [], [(1, 2)], [(1, 2, NAN)]),
            [("a", "b", "c")],
        ],
        "dtype": ["float64", None, 16],
        "max_temporary_bytes": [0, -1, 1e9, True, "1G"],
        "shard": [1, "auto", 0.5],
    },
    AuxiliaryAdamW: {
        "roles": ["embedding", ("hidden",), ("vector", "vector"), 3, None],
        "lr_ratio": [-1, NAN, None, "1"],
        "beta_1": [-0.1, 1.0, NAN, None],
        "beta_2": [-0.1, 1.0, NAN, None],
        "epsilon": [0, -1e-8, NAN, None],
        "weight_decay": [-0.1, NAN, "0.1", True],
        "epsilon_before_debiasing": [1, "yes", None],
    },
}
CASES = [
    (make, name, value)
    for make, arguments in WRONG.items()
    for name, values in arguments.items()
    for value in values
]


@pytest.mark.parametrize(("make", "name", "value"), CASES)
def test_wrong_argument(make, name, value):
    arguments = {name: value, **NEEDS.get(name, {})}
    with pytest.raises(ValueError, match=rf"{name}(?s:.)*Received") as error:
        make(**arguments)
    assert repr(value) in str(error.value) or str(value) in str(error.value)


def test_every_argument_has_a_wrong_value():
    """Of the parts; `Lanton` shares those of its bases, and has `roles`."""
    for make in (NoiseAdaptiveRate, NewtonSchulz, AuxiliaryAdamW):
        assert WRONG[make].keys() == arguments_of(make).keys()
    missing = inspect.signature(Lanton).parameters.keys() - WRONG[Lanton].keys()
    assert missing == {"name", "kwargs"}


@pytest.mark.parametrize("make", [Lanton, Lanton.paper, DMuon, Scion])
@pytest.mark.parametrize("name", [name for name in FIELDS if name in MOVED])
def test_a_flat_argument_is_refused_with_its_place(make, name):
    if name in ("adam_weight_decay",):
        pytest.skip("was never an argument of these")
    part, field = FIELDS[name]
    value = arguments_of(PARTS[part])[field]
    if make is Scion and part == "auxiliary_adamw":
        part = ""  # it has none; the argument is unknown
    with pytest.raises(ValueError, match=rf"{name}(?s:.)*{part}"):
        make(**{name: value})


@pytest.mark.parametrize("make", [Lanton, Lanton.paper, DMuon, Scion])
def test_names_of_other_optimizers_are_refused_with_ours(make):
    for name, ours in (
        ("lr", "learning_rate"),
        ("momentum", "beta_1"),
        ("steps", "NewtonSchulz"),
        ("interval", "NoiseAdaptiveRate"),
    ):
        with pytest.raises(ValueError, match=f"{ours}.*Received: {name}=0.5"):
            make(**{name: 0.5})


class Plain(LayerwiseOptimizer):
    """No noise, no Newton-Schulz, no AdamW beside it."""

    def __init__(self, learning_rate=0.1, **kwargs):
        super().__init__(learning_rate, **kwargs)


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (Lanton, "betas", "is `beta_1=..., auxiliary_adamw=AuxiliaryAdamW(bet"),
        (Lanton, "params", "is `optimizer.build(variables)` here"),
        (Lanton, "foo", "is no argument of `Lanton`: learning_rate, beta_1, n"),
        # It has no part that these are in.
        (Plain, "steps", "is no argument of `Plain`: learning_rate, nonfinit"),
        (Plain, "noise", "is no argument of `Plain`: learning_rate, nonfinit"),
        (Plain, "betas", "is no argument of `Plain`: learning_rate, nonfinit"),
    ],
)
def test_an_unknown_argument_leads_to_ours(make, name, said):
    with pytest.raises(ValueError, match=f"Received: {name}=0.5") as error:
        make(**{name: 0.5})
    assert f"`{name}` {said}" in str(error.value)


def test_arguments_of_a_subclass_are_its_own():
    class Mine(Lanton):
        def __init__(self, *, ours=1, **kwargs):
            super().__init__(**kwargs)
            self.ours = ours

    assert Mine(ours=2, beta_1=0.5).ours == 2
    with pytest.raises(ValueError, match="no argument of `Mine`: ours, learn"):
        Mine(theirs=3)


def test_a_private_subclass_has_a_name_that_tensorflow_takes():
    class _Mine(Lanton):
        pass

    assert _Mine().name == "mine"


@pytest.mark.parametrize("make", [Lanton, Lanton.paper, DMuon, Scion, Plain])
def test_what_needs_a_step_says_how_to_build(make):
    with pytest.raises(ValueError, match=r"model\.build\(.*optimizer\.build\("):
        make().summary()


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        (
            NoiseAdaptiveRate,
            {"alpha": None, "group_reduction": "max"},
            "group_reduction='max'",
        ),
        (
            NoiseAdaptiveRate,
            {"previous_gradient_dtype": "bfloat16", "reference": "momentum"},
            "reference='momentum'",
        ),
        (NewtonSchulz, {"coefficients": [(1, 2, 3)] * 6}, "steps=5"),
        (
            Lanton,
            {"step_scale": "operator", "hidden_scale": 1.0},
            "hidden_scale",
        ),
        (
            Lanton,
            {"noise": NoiseAdaptiveRate(reference="independent_gradient")},
            "gradient_accumulation_steps=None",
        ),
        (
            Lanton,
            {
                "noise": NoiseAdaptiveRate(reference="independent_gradient"),
                "gradient_accumulation_steps": 3,
            },
            "gradient_accumulation_steps=3",
        ),
        (
            Lanton,
            {
                "auxiliary_adamw": AuxiliaryAdamW(roles=("embedding",)),
                "embedding_scale": 30,
            },
            "embedding_scale=30",
        ),
        # Also where it is the default.
        (Lanton, {"vector_scale": 1.0}, "vector_scale=1.0"),
        (Lanton, {"vector_scale": 0.5}, "vector_scale=0.5"),
        (Lanton, {"vector_norm": "sign"}, "vector_norm='sign'"),
        (Lanton, {"clipnorm": 1.0, "clipvalue": 1.0}, "clipnorm"),
        (Lanton, {"momentum": 0.9}, "momentum"),
    ],
)
def test_arguments_that_do_not_go_together(make, arguments, named):
    with pytest.raises(ValueError, match=named):
        make(**arguments)


@pytest.mark.parametrize(
    "part", [NoiseAdaptiveRate(), NewtonSchulz(), AuxiliaryAdamW()]
)
def test_parts_are_frozen_values(part):
    """Equal where their arguments are; no argument can be assigned."""
    again = type(part).from_config(part.get_config())
    assert again == part and hash(again) == hash(part)
    for name in arguments_of(type(part)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, None)


def test_what_adamw_does_not_move_has_its_options():
    optimizer = Lanton(embedding_scale=30)
    assert optimizer.embedding_scale == 30.0
    assert optimizer.auxiliary_adamw.roles == ("vector",)
    embedding = AuxiliaryAdamW(roles=["embedding"])
    made = Lanton.paper(auxiliary_adamw=embedding, vector_scale=0.5)
    assert made.vector_scale == 0.5
    optimizer = Lanton(auxiliary_adamw=embedding, vector_norm="sign")
    assert optimizer.vector_norm == "sign"


def test_paper_takes_all_arguments():
    """tests/test_lanton.py has the paper's own."""
    made = Lanton.paper(
        learning_rate=1e-3,
        nesterov=True,
        noise=NoiseAdaptiveRate(),
        auxiliary_adamw=AuxiliaryAdamW(roles=["embedding"]),
    )
    assert float(made.learning_rate) == np.float32(1e-3)
    assert made.nesterov and made.noise.group_reduction == "mean"
    assert made.auxiliary_adamw.roles == ("embedding",)
    with pytest.raises(ValueError, match="momentun"):
        Lanton.paper(momentun=0.9)


def test_numpy_numbers_are_numbers():
    optimizer = Lanton(np.float64(1e-3), beta_1=np.float32(0.5))
    assert optimizer.get_config()["beta_1"] == 0.5
    assert isinstance(optimizer.get_config()["beta_1"], float)
    part = NewtonSchulz(steps=np.int64(4))
    assert isinstance(part.get_config()["steps"], int)

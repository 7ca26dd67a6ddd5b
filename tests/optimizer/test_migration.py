"""From AdamW's and Muon's settings to Lanton's."""

import inspect

import keras
import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.baselines import DMuon
from keras_lanton.baselines import Muon
from keras_lanton.baselines import Scion

pytestmark = logic

has_rms_rate = pytest.mark.skipif(
    "rms_rate" not in inspect.signature(keras.optimizers.Muon).parameters,
    reason="the Muon of this Keras has no `rms_rate`",
)
SCHEDULE = keras.optimizers.schedules.CosineDecay(
    0.0, 10, warmup_target=1e-3, warmup_steps=2
)


def rate_of(optimizer):
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def test_from_adamw():
    adamw = keras.optimizers.AdamW(
        2e-3,
        weight_decay=0.05,
        beta_2=0.99,
        epsilon=1e-6,
        clipnorm=1.0,
        use_ema=True,
        gradient_accumulation_steps=4,
    )
    lanton = Lanton.from_adamw(adamw, noise=NoiseAdaptiveRate(alpha=0.5))
    assert rate_of(lanton) == pytest.approx(5e-3)
    config = lanton.get_config()
    wanted = {
        "weight_decay": 0.05,
        "clipnorm": 1.0,
        "use_ema": True,
        "gradient_accumulation_steps": 4,
    }
    assert {name: config[name] for name in wanted} == wanted
    part = lanton.auxiliary_adamw
    assert (part.beta_1, part.beta_2, part.epsilon) == (0.9, 0.99, 1e-6)
    assert part.roles == ("embedding", "vector")
    assert part.lr_ratio == 0.4
    assert lanton.noise.alpha == 0.5
    assert rate_of(Lanton.from_adamw(adamw, rate_factor=3)) == pytest.approx(
        6e-3
    )
    assert rate_of(Lanton.from_adamw(adamw, learning_rate=0.5)) == 0.5


@pytest.mark.parametrize(
    "make, migrated",
    [
        (
            lambda: keras.optimizers.AdamW(SCHEDULE, weight_decay=0.1),
            lambda adamw: Lanton.from_adamw(adamw, rate_factor=3.0),
        ),
        pytest.param(
            lambda: keras.optimizers.Muon(
                SCHEDULE, adam_lr_ratio=0.5, adam_weight_decay=0.1
            ),
            Lanton.from_muon,
            marks=has_rms_rate,
        ),
        (lambda: DMuon(SCHEDULE), Lanton.from_muon),
    ],
)
def test_embeddings_and_biases_move_as_before(make, migrated):
    rng = np.random.default_rng(0)
    start = [rng.standard_normal((6, 4)), rng.standard_normal(4)]
    gradients = rng.standard_normal((3, 6, 4)), rng.standard_normal((3, 4))
    before = make()
    ended = []
    for optimizer in (before, migrated(before)):
        names = ("embeddings", "bias")
        variables = [
            keras.Variable(x.astype("float32"), name=name)
            for x, name in zip(start, names, strict=True)
        ]
        if hasattr(optimizer, "assign_role"):
            optimizer.assign_role("embedding", variables[0])
        optimizer.build(variables)
        for some in zip(*gradients, strict=True):
            optimizer.apply([keras.ops.cast(g, "float32") for g in some])
        ended.append([keras.ops.convert_to_numpy(v) for v in variables])
    for ours, theirs in zip(ended[1], ended[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_from_adam():
    lanton = Lanton.from_adamw(keras.optimizers.Adam(1e-3))
    assert lanton.weight_decay is None


def test_schedule_is_scaled_and_saved():
    adamw = keras.optimizers.AdamW(SCHEDULE)
    lanton = Lanton.from_adamw(adamw)
    again = Lanton.from_config(lanton.get_config())
    variable = keras.Variable(np.ones((3, 4), "float32"), name="kernel")
    for optimizer in (lanton, again):
        optimizer.build([variable])
        for step in range(5):
            wanted = 2.5 * float(keras.ops.convert_to_numpy(SCHEDULE(step)))
            assert rate_of(optimizer) == pytest.approx(wanted)
            optimizer.iterations.assign(step + 1)


@has_rms_rate
def test_from_muon():
    muon = keras.optimizers.Muon(
        2e-3, weight_decay=0.05, rms_rate=0.3, adam_lr_ratio=0.5, ns_steps=4
    )
    lanton = Lanton.from_muon(muon)
    assert rate_of(lanton) == pytest.approx(2e-3)
    assert lanton.hidden_scale == 0.3
    assert lanton.auxiliary_adamw.lr_ratio == 0.5
    assert lanton.auxiliary_adamw.roles == ("embedding", "vector")
    assert lanton.newton_schulz.steps == 4
    assert lanton.weight_decay == 0.05


@has_rms_rate
def test_hidden_steps_are_muons():
    """Without noise yet, the first steps are equal."""
    rng = np.random.default_rng(0)
    start, gradient = rng.standard_normal((2, 24, 16)).astype("float32")
    muon = keras.optimizers.Muon(1e-2, weight_decay=None)
    steps = []
    for optimizer in (muon, Lanton.from_muon(muon)):
        variable = keras.Variable(start, name="kernel")
        optimizer.build([variable])
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        steps.append(keras.ops.convert_to_numpy(variable) - start)
    np.testing.assert_allclose(steps[1], steps[0], rtol=2e-2, atol=1e-5)


@has_rms_rate
def test_what_muon_has_of_its_own():
    muon = keras.optimizers.Muon(muon_a=3.0, muon_b=-4.0, muon_c=2.0)
    (row,) = Lanton.from_muon(muon).newton_schulz.coefficients
    assert tuple(row) == (3.0, -4.0, 2.0)
    muon = keras.optimizers.Muon(exclude_layers=["a"], adam_weight_decay=0.5)
    with pytest.warns(UserWarning, match=r"Left out: exclude_layers=\['a'\]"):
        lanton = Lanton.from_muon(muon)
    assert lanton.auxiliary_adamw.weight_decay == 0.5
    muon = keras.optimizers.Muon(exclude_embeddings=False)
    with pytest.warns(UserWarning, match="Left out: exclude_embeddings"):
        Lanton.from_muon(muon)


def test_muon_of_baselines():
    settings = {
        "hidden_scale": 0.4,
        "momentum_dtype": "bfloat16",
        "rounding": "stochastic",
        "nonfinite": "propagate",
    }
    muon = DMuon(SCHEDULE, **settings)
    lanton = Lanton.from_muon(muon)
    for name, value in settings.items():
        assert getattr(lanton, name) == value, name
    assert lanton.auxiliary_adamw == muon.auxiliary_adamw
    config = lanton.get_config()["learning_rate"]
    assert config["class_name"] == "CosineDecay"


@has_rms_rate
def test_epsilon_means_the_same():
    adamw = keras.optimizers.AdamW(1e-3, epsilon=1e-2)
    muon = keras.optimizers.Muon(1e-3, epsilon=1e-2)
    for found in (Lanton.from_adamw(adamw), Lanton.from_muon(muon)):
        assert found.auxiliary_adamw.epsilon_before_debiasing


def test_amsgrad_is_named():
    with pytest.warns(UserWarning, match="amsgrad"):
        Lanton.from_adamw(keras.optimizers.AdamW(1e-3, amsgrad=True))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: Lanton.from_adamw("adamw"), "Received: adamw='adamw'"),
        (lambda: Lanton.from_adamw(keras.optimizers.SGD()), "Received: adamw="),
        (
            lambda: Lanton.from_adamw(keras.optimizers.AdamW(), rate_factor=0),
            "`rate_factor`",
        ),
        (
            lambda: Lanton.from_adamw(keras.optimizers.AdamW(lambda: 1e-3)),
            "must be a float or a",
        ),
        (lambda: Lanton.from_muon(None), "Received: muon=None"),
        (lambda: Lanton.from_muon(keras.optimizers.AdamW()), "muon="),
        pytest.param(
            lambda: Lanton.from_muon(keras.optimizers.Muon(rms_rate=None)),
            "rms_rate=None",
            marks=has_rms_rate,
        ),
        (lambda: Lanton.from_muon(Muon()), "DMuon"),
        # Its `hidden_scale` is of another norm.
        (lambda: Lanton.from_muon(Scion()), "Received: muon="),
    ],
)
def test_wrong_arguments(call, said):
    with pytest.raises(ValueError, match=said):
        call()

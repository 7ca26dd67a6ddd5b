"""`explain`: what it says of an optimizer and a model."""

import keras
import pytest
from keras import layers

from helpers.tiers import logic
from helpers.transformer import make_model
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton import explain
from keras_lanton.baselines import DMuon
from keras_lanton.baselines import Scion

pytestmark = logic


def told(*arguments, **kwargs):
    said = []
    explain(*arguments, print_fn=said.append, **kwargs)
    (text,) = said
    return text


def test_explain():
    model = make_model()
    text = told(model)
    for part in (
        "Lanton updates the 1,",
        "weights of small (",
        "hidden: 4 variables (2 queries and keys, 2 values and attention "
        "outputs), 256 weights",
        "updates of RMS 0.00196.",
        "embedding: 2 variables (1 embedding, 1 head)",
        "AdamW updates them, at 1 times the rate",
        "each matrix once in 10 steps",
        "noise is large beside their own momentum",
        "The noise of rows and columns",
        "Weight decay 0.1 times the learning rate.",
    ):
        assert part in text
    assert text.endswith("Nothing looks suspicious.")
    assert getattr(model, "optimizer", None) is None  # nothing was made


def test_explain_tells_how_embeddings_move():
    text = told(make_model(), Lanton.from_adamw(keras.optimizers.AdamW()))
    assert "hidden matrices are updated in units of it." in text
    text = told(make_model(), Scion())
    assert "weights; by the signs of their momentum, updates of RMS" in text
    assert "by their normalized momentum" in text  # gains and biases


def test_explain_tells_what_noise_does():
    for noise, wanted in (
        (
            NoiseAdaptiveRate(alpha_unit="group_noise"),
            "Within a role the noisier matrices get smaller updates",
        ),
        (NoiseAdaptiveRate(alpha=None), "All matrices have the base rate."),
    ):
        assert wanted in told(make_model(), Lanton(noise=noise))


def test_explain_tells_of_the_models_own_optimizer(capsys):
    model = make_model()
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, 100, warmup_target=0.02, warmup_steps=10
    )
    model.compile(
        keras.optimizers.LossScaleOptimizer(
            DMuon(schedule, weight_decay=0.2, weight_decay_exclude=["bias"])
        )
    )
    explain(model)
    text = capsys.readouterr().out
    for part in ("DMuon updates", "up to 0.02", "rate, but for bias: "):
        assert part in text
    assert "Noise of" not in text
    model.optimizer.build(model.trainable_variables)
    explain(model)
    assert capsys.readouterr().out == text


def test_explain_lists_every_guess():
    layer = layers.Layer(name="odd")
    layer.add_weight(shape=(3, 4, 5), name="kernel")
    layer.add_weight(shape=(3, 5), name="bias")
    layer.add_weight(shape=(6, 7))
    text = told(layer)
    taken = "nothing explains it, it is taken as"
    bank = f"{taken} 3 hidden matrices (4 x 5), output axis 2."
    assert f"- odd/kernel (3, 4, 5): {bank}" in text
    assert f"(6, 7): {taken} 1 hidden" in text
    assert text.count(taken) == 2


def test_suspicious_models():
    text = told(make_model(fused=True, head="words"))
    assert "- words/kernel (8, 50) is treated as hidden" not in text
    model = make_model(fused=True)
    optimizer = Lanton()
    optimizer.assign_role("hidden", model.layers[-1].kernel)
    text = told(model, optimizer)
    assert "- head/kernel (8, 50) is treated as hidden, with as many" in text
    assert "- qkv/kernel (8, 24) seems to hold queries, keys" in text
    odd = keras.Sequential([keras.Input((4,)), layers.Dense(9000)])
    assert "is treated as hidden, with 9,000 outputs" in told(odd)


WARM_UP = keras.optimizers.schedules.CosineDecay(
    0.0, 900, warmup_target=1e-3, warmup_steps=100
)
COLD = keras.optimizers.schedules.CosineDecay(5e-4, 900)


@pytest.mark.parametrize(
    "rate, adamw, said",
    [
        (5e-3, None, None),
        (1e-4, None, "0.0001 is low: without a schedule 0.001 is the default"),
        (0.05, None, "is high"),
        (keras.optimizers.schedules.CosineDecay(5e-3, 900), None, None),
        (COLD, None, "0.0005 is low: peaks of schedules are mostly 0.005"),
        (5e-3, 1e-3, "`Lanton.for_fine_tuning`"),
        (5e-3, keras.optimizers.AdamW(8e-3), "AdamW's learning rate was 0.008"),
        (3e-2, 1e-4, "AdamW's learning rate was 0.0001"),
        # Of a schedule what it rises to, not the 0 that it starts with.
        (5e-3, keras.optimizers.AdamW(WARM_UP), "for_fine_tuning"),
    ],
)
def test_suspicious_rates(rate, adamw, said):
    text = told(make_model(), Lanton(rate), adamw=adamw)
    if said is None:
        assert text.endswith("Nothing looks suspicious.")
    else:
        assert said in text


def test_embeddings_of_features():
    """At most half of the rate without attention, before the build too."""
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(9, 4),
            layers.Flatten(),
            layers.Dense(8),
        ]
    )
    assert "updates of RMS 0.0005" in told(model, Lanton(1e-3))


def test_fine_tuning():
    text = told(make_model(), Lanton.for_fine_tuning(5e-3), adamw=1e-3)
    assert text.endswith("Nothing looks suspicious.")
    model = make_model()
    for layer in model.layers:
        if isinstance(layer, layers.Embedding):
            layer.enable_lora(2)
    text = told(model, Lanton.for_fine_tuning(), adamw=1e-3)
    assert "is low for low-rank adapters" in text
    for variable in model.trainable_variables:
        if "lora" in variable.name:
            variable.assign(keras.ops.zeros(variable.shape))
    text = told(model, Lanton.for_fine_tuning(5e-3))
    assert text.count("adapter of zeros") == 1


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"model": keras.Sequential([layers.Dense(3)])}, "built model"),
        ({"model": None}, "Received: model=None"),
        ({"optimizer": "adamw"}, "optimizer='adamw'"),
        ({"optimizer": keras.optimizers.SGD()}, "optimizer="),
        ({"adamw": "1e-3"}, "adamw='1e-3'"),
        ({"adamw": -1.0}, "adamw=-1.0"),
        ({"adamw": keras.optimizers.SGD()}, "adamw=<"),
    ],
)
def test_wrong_arguments(arguments, said):
    with pytest.raises(ValueError, match=said):
        explain(**{"model": make_model(), **arguments})


def test_multipliers_and_the_decay_of_adamw():
    model = make_model()
    optimizer = Lanton(
        rate_multipliers={"query": 0.0, "value": 10.0},
        auxiliary_adamw=AuxiliaryAdamW(weight_decay=0.0),
    )
    text = told(model, optimizer)
    assert "frozen" in text
    assert "10 times the rate: attention/value/kernel" in text
    assert "what AdamW updates: 0 times its rate" in text


def test_patterns_that_match_nothing():
    """A `Sequential` has its own name in front of its paths."""
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, name="head")], name="all"
    )
    optimizer = Lanton(
        rate_multipliers={"^head/": 0.0}, weight_decay_exclude=["^head"]
    )
    text = told(model, optimizer)
    assert "Nothing looks suspicious" not in text
    assert "all/head/bias" in text
    with pytest.warns(UserWarning, match="`rate_multipliers` has a pattern"):
        optimizer.build(model.trainable_variables)


def test_an_optimizer_of_another_model():
    optimizer = Lanton()
    optimizer.build(make_model().trainable_variables)
    with pytest.raises(ValueError, match="built on .* of another model"):
        explain(make_model(), optimizer)

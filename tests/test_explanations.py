"""What is said of an optimizer and a model: summary and explain."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_lanton import Lanton
from keras_lanton import explain
from keras_lanton import roles
from keras_lanton import summaries
from keras_lanton.baselines import BlockwiseAdamW
from keras_lanton.baselines import DMuon


def make_model(*, fused=False, head="head"):
    """One block of a transformer on a vocabulary of 50."""
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(50, 8, name="tokens")(inputs)
    x = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    if fused:
        x = layers.Dense(24, name="qkv")(x)
        x = layers.Dense(8, name="down")(x)
    return keras.Model(inputs, layers.Dense(50, name=head)(x), name="small")


def told(*arguments, **kwargs):
    said = []
    explain(*arguments, print_fn=said.append, **kwargs)
    (text,) = said
    return text


def table(optimizer):
    printed = []
    optimizer.summary(print_fn=printed.append)
    return printed[0]


# -- The table -------------------------------------------------------------


def test_summary_has_steps_and_memory():
    model = make_model()
    optimizer = Lanton.paper(hidden_scale=0.25)
    optimizer.build(model.trainable_variables)
    text = table(optimizer)
    assert "Step RMS / rate" in text
    lines = {
        words[0]: words[1:]
        for words in map(str.split, text.splitlines())
        if words
    }
    assert lines["attention/query/kernel"][-2:] == ["0.25", "64"]
    assert lines["tokens/embeddings"][-2:] == ["37.5", "400"]  # 300 / 8
    assert lines["head/bias"][-2:] == ["1", "50"]
    # Momentum, and a tenth of the last gradients, and what is counted.
    assert "momentum 4.4 KiB" in text
    assert "times the weights" in text
    optimizer = Lanton()
    optimizer.build(model.trainable_variables)
    assert table(optimizer).count("AdamW") == 5  # the biases


def test_summary_without_norms_has_no_steps():
    optimizer = BlockwiseAdamW()
    optimizer.build(make_model().trainable_variables)
    text = table(optimizer)
    assert "Step RMS" not in text
    assert "times the weights" in text


def test_guesses_are_marked_and_survive_the_config():
    variables = [keras.Variable(np.ones((2, 3, 4)), name="odd")]
    optimizer = Lanton()
    with pytest.warns(UserWarning, match="guesses"):
        optimizer.build(variables)
    again = Lanton.from_config(optimizer.get_config())
    again.build(variables)
    for one in (optimizer, again):
        assert "hidden (guess)" in table(one)
        assert "guess: of odd the last axis is taken as output" in " ".join(
            table(one).split()
        )
    known = roles.make_layer("a", (2, 3), "hidden")
    assert "guessed" not in roles.layer_to_config(known)


@pytest.mark.parametrize(
    "size, text",
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (3 * 2**30, "3.0 GiB"),
        (5 * 2**40, "5,120.0 GiB"),
    ],
)
def test_units(size, text):
    assert summaries.in_units(size) == text


@pytest.mark.parametrize(
    "dtype, size",
    [("float32", 4), ("bfloat16", 2), ("int32", 4), ("bool", 1), ("int8", 1)],
)
def test_bytes_of_dtypes(dtype, size):
    assert summaries.bytes_of(dtype) == size


# -- In words --------------------------------------------------------------


def test_explain():
    model = make_model()
    text = told(model)
    assert "Lanton moves the 1," in text
    assert "weights of small (" in text
    assert "hidden: 4 variables (2 qk, 2 vo), 256 weights" in text
    assert "steps of RMS 0.001." in text
    assert "embedding: 2 variables (1 embedding, 1 head)" in text
    assert "AdamW moves them, at 1 times the rate" in text
    assert "each matrix once in 10 steps" in text
    assert "Weight decay 0.1 times the learning rate." in text
    assert text.endswith("Nothing looks suspicious.")
    assert getattr(model, "optimizer", None) is None  # nothing was made


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
    assert "DMuon moves" in text
    assert "rate of up to 0.02" in text
    assert "times the learning rate, but for bias." in text
    assert "Noise of" not in text
    model.optimizer.build(model.trainable_variables)
    explain(model)
    assert capsys.readouterr().out == text


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


@pytest.mark.parametrize(
    "rate, adamw, said",
    [
        (5e-3, None, None),
        (3e-4, None, "would suit AdamW"),
        (0.5, None, "is high"),
        (5e-3, 1e-3, None),
        (5e-3, keras.optimizers.AdamW(4e-3), "AdamW's learning rate was 0.004"),
        (3e-2, 1e-4, "AdamW's learning rate was 0.0001"),
        # Of a schedule what it rises to, not the 0 that it starts with.
        (5e-3, keras.optimizers.AdamW(WARM_UP), None),
    ],
)
def test_suspicious_rates(rate, adamw, said):
    text = told(make_model(), Lanton(rate), adamw=adamw)
    if said is None:
        assert text.endswith("Nothing looks suspicious.")
    else:
        assert said in text


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: explain(keras.Sequential([layers.Dense(3)])), "built model"),
        (lambda: explain(None), "Received: model=None"),
        (lambda: explain(make_model(), "adamw"), "optimizer='adamw'"),
        (lambda: explain(make_model(), keras.optimizers.SGD()), "optimizer="),
        (lambda: explain(make_model(), adamw="1e-3"), "adamw='1e-3'"),
        (lambda: explain(make_model(), adamw=-1.0), "adamw=-1.0"),
        (
            lambda: explain(make_model(), adamw=keras.optimizers.SGD()),
            "adamw=<",
        ),
    ],
)
def test_wrong_arguments(call, said):
    with pytest.raises(ValueError, match=said):
        call()

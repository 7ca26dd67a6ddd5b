"""The table of `summary`."""

import math

import keras
import numpy as np
import pytest

from helpers.roles import make
from helpers.roles import read
from helpers.tiers import logic
from helpers.transformer import make_model
from keras_lanton import Lanton
from keras_lanton.optimizer.base import LayerwiseOptimizer
from keras_lanton.roles import table as tables_of
from keras_lanton.roles.spec import assigned_spec
from keras_lanton.roles.spec import spec_to_config

pytestmark = logic


# The table.
def test_summary(capsys):
    layer = make("lstm", name="a_name_that_is_rather_long_" * 4)
    records = read(layer)
    printed = []
    tables_of.print_summary(records, print_fn=printed.append)
    assert capsys.readouterr().out == ""
    (text,) = printed
    for part in ("(4, 20)", "4 x (4 x 5)", "1 x 20", "hidden", "vector"):
        assert part in text
    assert "hidden: 180 params, 2 variables, 8 matrices" in text
    assert "embedding: 0 params, 0 variables, 0 matrices" in text
    assert "vector: 20 params, 1 variables, 1 vectors" in text
    tables_of.print_summary(records)
    assert "4 x (4 x 5)" in capsys.readouterr().out


def test_summary_prints_paths_as_they_are():
    record = assigned_spec("[bold]a[/bold]/kernel", (4, 5), "hidden")
    printed = []
    tables_of.print_summary([record], print_fn=printed.append)
    assert "[bold]a[/bold]/kernel" in printed[0]
    assert f"{math.prod(record.shape)}" in printed[0]


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
    assert "Update RMS / rate" in text
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
    optimizer = LayerwiseOptimizer(1e-3)
    optimizer.build(make_model().trainable_variables)
    text = table(optimizer)
    assert "RMS" not in text
    assert "times the weights" in text


def test_guesses_are_marked_and_survive_the_config():
    shapes = {"odd": (2, 3, 4), "tensor": (3, 4), "kernel": (3, 4)}
    variables = [
        keras.Variable(np.ones(shape), name=name)
        for name, shape in shapes.items()
    ]
    optimizer = Lanton()
    with pytest.warns(UserWarning, match="guesses"):
        optimizer.build(variables)
    again = Lanton.from_config(optimizer.get_config())
    again.build(variables)
    for one in (optimizer, again):
        assert "hidden (guess)" in table(one)
        text = " ".join(table(one).split())
        for line in (
            "guess: odd (2, 3, 4) is taken as 1 hidden matrix (6 x 4), output",
            "guess: tensor (3, 4) is taken as 1 hidden matrix (3 x 4), output",
        ):
            assert line in text
        assert text.count("guess:") == 2
    known = assigned_spec("a", (2, 3), "hidden")
    assert "guessed" not in spec_to_config(known)


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
    assert tables_of.in_units(size) == text


@pytest.mark.parametrize(
    "dtype, size",
    [("float32", 4), ("bfloat16", 2), ("int32", 4), ("bool", 1), ("int8", 1)],
)
def test_bytes_of_dtypes(dtype, size):
    assert tables_of.bytes_of(dtype) == size

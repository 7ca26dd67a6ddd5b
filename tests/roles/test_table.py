"""The table of `summary`."""

import keras
import numpy as np
import pytest

from helpers import roles
from helpers.tiers import logic
from helpers.transformer import make_model
from keras_lanton import Lanton
from keras_lanton.optimizer.base import LayerwiseOptimizer
from keras_lanton.roles import table as tables_of
from keras_lanton.roles.spec import assigned_spec
from keras_lanton.roles.spec import spec_to_config

pytestmark = logic


def table(optimizer):
    printed = []
    optimizer.summary(print_fn=printed.append)
    return printed[0]


def test_summary(capsys):
    records = roles.read(roles.make("lstm", "a_name_that_is_rather_long_" * 4))
    printed = []
    tables_of.print_summary(records, print_fn=printed.append)
    assert capsys.readouterr().out == ""
    for part in (
        *("(4, 20)", "4 x (4 x 5)", "1 x 20", "hidden", "vector"),
        "hidden: 180 params, 2 variables, 8 matrices",
        "embedding: 0 params, 0 variables, 0 matrices",
        "vector: 20 params, 1 variables, 1 vectors",
    ):
        assert part in printed[0]
    path = "[bold]a[/bold]/kernel"  # as it is, though it looks like markup
    tables_of.print_summary([assigned_spec(path, (4, 5), "hidden")])
    shown = capsys.readouterr().out
    assert path in shown and "20" in shown


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
    assert lines["tokens/embeddings"][-2:] == ["4.69", "400"]  # 300 / 64
    assert lines["head/bias"][-2:] == ["1", "50"]
    # Momentum, and a tenth of the last gradients, and what is counted.
    assert "momentum 4.4 KiB" in text
    assert "times the weights" in text
    optimizer = Lanton()
    optimizer.build(model.trainable_variables)
    assert table(optimizer).count("AdamW") == 5  # the biases
    optimizer = LayerwiseOptimizer(1e-3)  # without norms
    optimizer.build(model.trainable_variables)
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


def test_units_and_bytes_of_dtypes():
    for size, text in (
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (3 * 2**30, "3.0 GiB"),
        (5 * 2**40, "5,120.0 GiB"),
    ):
        assert tables_of.in_units(size) == text
    sizes = {"float32": 4, "bfloat16": 2, "int32": 4, "bool": 1, "int8": 1}
    assert {name: tables_of.bytes_of(name) for name in sizes} == sizes

"""The tool behind docs/models.csv."""

import importlib.util
import pathlib

import keras
import pytest

from helpers.tiers import logic

pytest.importorskip("keras_hub", exc_type=ImportError)

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    path = ROOT / "tools" / "compare_roles.py"
    spec = importlib.util.spec_from_file_location("compare_roles", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_model(groups):
    return keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            keras.layers.Conv2D(8, 3, groups=groups, use_bias=False),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


@logic
def test_equal_roles(tool):
    assert tool.compare(make_model(1)) == ([2, 0, 1], [])


@logic
def test_a_path_does_not_tell_groups(tool):
    counts, differ = tool.compare(make_model(2))
    assert counts == [2, 0, 1]
    ((exact, guessed),) = differ
    assert (exact.batch, guessed.batch) == (2, 1)


@logic
def test_what_cannot_be_made_is_listed(tool, capsys):
    def missing():
        raise LookupError("image_encoder")

    tool.print_rows([("small", lambda: make_model(1)), ("composed", missing)])
    shown = capsys.readouterr()
    assert shown.out == "small,3,2,0,1,0\n"
    assert shown.err == "composed: LookupError image_encoder\n"

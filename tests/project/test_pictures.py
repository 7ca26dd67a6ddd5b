"""The pictures of docs/how_it_works.md are drawn from a run, and small."""

import importlib
import pathlib
import re

import pytest

from helpers.tiers import exhaustive
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how_it_works.md"


def shown():
    """The pictures that the page shows."""
    return set(re.findall(r"\(how_it_works/(\w+\.png)\)", PAGE.read_text()))


@logic
def test_the_page_shows_every_picture():
    folder = ROOT / "docs" / "how_it_works"
    assert shown() == {path.name for path in folder.iterdir()}
    for path in folder.iterdir():
        assert path.stat().st_size < 60_000, path


@exhaustive
def test_pictures_are_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="draws")
    pytest.importorskip("keras_hub", reason="has the GPT-2")
    monkeypatch.syspath_prepend(ROOT / "tools")
    pictures = importlib.import_module("make_pictures")
    pictures.main(["--steps", "25", "--output", str(tmp_path)])
    assert shown() == {path.name for path in tmp_path.iterdir()}

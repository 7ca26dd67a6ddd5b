"""The checker of words and sentences finds what it is there to find."""

import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest

from helpers.tiers import logic

pytestmark = logic

pytest.importorskip("markdown_it", reason="reads the documents")
pytest.importorskip("spylls", reason="knows the words")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLANTED = {
    "A mispelled word.": 'unknown word "mispelled"',
    "Its colour.": 'unknown word "colour"',
    "A cell:\n\n| a |\n|---|\n| wrod |": 'unknown word "wrod"',
    "A [liknk](README.md).": 'unknown word "liknk"',
    "![A pictrue](README.md)": 'unknown word "pictrue"',
    "It is " + "very " * 34 + "long.": "a sentence of 37 words",
    "Of all ways it is one.": 'opens with "Of"',
    "It runs. What it does is this.": 'opens with "What"',
    "Those are fast.": 'opens with "Those"',
    "Whether it runs is open.": 'opens with "Whether"',
    "Which matrices it takes, it says.": 'opens with "Which"',
    "There are two ways.": 'opens with "There are"',
    "It is this that pays.": 'opens with "It is this that"',
}
FINE = """# A page: `one` and two

What does it do? It has `mispelled` code, [a link](#a-page-one-and-two), and
Lanton's U V^T, e.g. of a matrix. That is all.

```python
mispelled
```

| what | there are |
|---|---|
| Whether `wrod` fits | Of all |
"""
MODULE = '''"""A module, at first.

    mispelled = formula

There are two.
"""


def function(first):
    """Where it begins.

    Args:
        first: Whether `mispelled` code is an
            eror here. What it is.

    Examples:
        >>> mispelled
    """
'''


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The checker, which is no part of the package."""
    path = ROOT / "tools" / "check_prose.py"
    spec = importlib.util.spec_from_file_location("check_prose", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look for their module there.
    sys.modules["check_prose"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository without a fault."""
    for name in ("docs", "keras_lanton", "tools"):
        (tmp_path / name).mkdir()
    (tmp_path / "tools" / "words.txt").write_text("Lanton\n")
    (tmp_path / "README.md").write_text(FINE)
    return tmp_path


def test_repository_is_fine(tool: ModuleType) -> None:
    assert not list(tool.problems(ROOT))


def test_fine_page_is_fine(tool: ModuleType, folder: pathlib.Path) -> None:
    assert not list(tool.problems(folder))


@pytest.mark.parametrize("text", PLANTED)
def test_finds_a_planted_error(
    tool: ModuleType, folder: pathlib.Path, text: str
) -> None:
    (folder / "docs" / "page.md").write_text(f"# Page\n\n{text}\n")
    (found,) = tool.problems(folder)
    line = 3 + text.count("\n")
    assert found.startswith(f"docs/page.md:{line}: {PLANTED[text]}")


def test_finds_errors_in_docstrings(
    tool: ModuleType, folder: pathlib.Path
) -> None:
    (folder / "keras_lanton" / "module.py").write_text(MODULE)
    found = [line.partition(".py:")[2] for line in tool.problems(folder)]
    expected = [
        '5: opens with "There are"',
        '10: opens with "Where"',
        '14: unknown word "eror"',
        '14: opens with "What"',
    ]
    assert len(found) == len(expected)
    assert all(map(str.startswith, found, expected)), found


def test_list_of_words_is_sorted() -> None:
    words = (ROOT / "tools" / "words.txt").read_text().split()
    assert words == sorted(set(words), key=lambda one: (one.lower(), one))

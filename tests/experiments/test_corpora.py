"""Texts: the standard library, files of any length, compressed files."""

import gzip
import lzma

import pytest

from experiments import corpora
from helpers.tiers import logic

pytestmark = logic


def test_standard_library(capsys):
    training, held_out = corpora.stdlib_documents()
    assert len(held_out) == (len(training) + len(held_out)) // 10
    assert not set(training[:50]) & set(held_out)
    assert "MB, from" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one line",
        "a paragraph\n\n" * 5000,
        "x" * 60_000,  # no blank line at all
        "\n" * 60_000,
        "\n\n" + "y" * 25_000 + "\n\nz",
        "\N{SNOWMAN}\n\n" * 20_000,
    ],
)
def test_documents_are_the_text_in_pieces(text):
    documents = corpora.split_documents(text)
    assert "".join(documents) == text
    assert all(0 < len(one.encode()) <= 100_000 for one in documents)
    # No more documents than the limit asks for, but for paragraphs' ends.
    assert len(documents) <= 2 * len(text) // corpora.DOCUMENT + 1
    if text.startswith("a paragraph"):
        assert all(one.endswith("paragraph\n\n") for one in documents)


def test_last_tenth_of_each_file_is_held_out(tmp_path):
    files = []
    for name in ("a.txt", "b.txt"):
        files.append(tmp_path / name)
        files[-1].write_text(name[0] * 90_000 + name[0].upper() * 10_000)
    training, held_out = corpora.file_documents(files)
    assert "".join(training) == "a" * 90_000 + "b" * 90_000
    assert "".join(held_out) == "A" * 10_000 + "B" * 10_000


@pytest.mark.parametrize(
    ("suffix", "opener"),
    [(".txt", open), (".gz", gzip.open), (".xz", lzma.open)],
)
def test_compressed_files_are_read(tmp_path, suffix, opener):
    path = tmp_path / f"text{suffix}"
    with opener(path, "wt", encoding="utf-8") as file:
        file.write("na\u00efve words\n")
    assert corpora.read_text(path) == "na\u00efve words\n"

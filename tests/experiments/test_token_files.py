"""Token files: the same tokens however often their making is interrupted."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("tqdm", reason="the token files show a progress bar")
ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # as with `python -m experiments.pretraining`

from experiments import token_files  # noqa: E402

SOURCE = {"dataset": "numbers"}
# Document i is the number i, i % 5 times, and an end token of 0.
TEXTS = [f"{i} " * (i % 5) for i in range(1, 101)]


def tokenize(texts):
    return np.array([int(n) for t in texts for n in (t + "0").split()], "<u2")


def open_stream(first):
    return iter(TEXTS[first:])


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(token_files, "BATCH", 3)


def write(folder, stream=open_stream, source=SOURCE, limit=None):
    token_files.write(folder, stream, tokenize, source, limit)


def read_all(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tokens_are_the_documents_end_to_end(tmp_path, capsys):
    write(tmp_path / "new" / "folder")
    tokens = token_files.read(tmp_path / "new" / "folder")
    expected = tokenize(TEXTS)
    np.testing.assert_array_equal(tokens, expected)
    random = np.random.default_rng(0)
    positions = random.integers(0, len(expected), (7, 11))
    np.testing.assert_array_equal(tokens[positions], expected[positions])
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.uint16
    assert "Tokenizing, folder" in capsys.readouterr().err  # the bar


def test_wider_tokens_keep_their_dtype(tmp_path):
    ids = np.array([1, 70_000], "<u4")
    token_files.write(tmp_path, open_stream, lambda texts: ids, SOURCE)
    found = token_files.read(tmp_path)
    assert found.dtype == ids.dtype
    np.testing.assert_array_equal(found[:2], ids)


def test_finished_files_are_left_alone(tmp_path):
    write(tmp_path)
    before = read_all(tmp_path)
    write(tmp_path, stream=None)  # which cannot be opened
    assert read_all(tmp_path) == before


@pytest.mark.parametrize("stop", range(0, 101, 10))
def test_interrupted_stream_goes_on(tmp_path, stop):
    def broken(first):
        yield from TEXTS[first:stop]
        raise ConnectionError

    write(tmp_path / "whole")
    folder = tmp_path / "broken"
    with pytest.raises(ConnectionError):
        write(folder, broken)
    with (folder / token_files.TOKENS).open("ab") as file:
        file.write(b"not in the index")  # as a kill leaves it
    opened = []

    def record(first):
        opened.append(first)
        return open_stream(first)

    write(folder, record)
    assert len(opened) == 1
    assert opened[0] <= stop
    assert opened[0] > 0 or stop < 3
    assert read_all(folder) == read_all(tmp_path / "whole")


KILLED = """
import os, pathlib, signal, sys
sys.path[:0] = {paths!r}
import test_token_files as t

def deadly(first):
    for i, text in enumerate(t.TEXTS[first:]):
        if i == 70:
            os.kill(os.getpid(), signal.SIGKILL)
        yield text

t.token_files.BATCH = 3
t.write(pathlib.Path({folder!r}), deadly)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_process_goes_on(tmp_path):
    write(tmp_path / "whole")
    folder = tmp_path / "killed"
    paths = [str(pathlib.Path(__file__).parent), str(ROOT)]
    program = KILLED.format(paths=paths, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    partial = read_all(folder)
    whole = read_all(tmp_path / "whole")
    tokens = token_files.TOKENS
    assert 0 < len(partial[tokens]) < len(whole[tokens])
    write(folder)
    assert read_all(folder) == whole


def test_limit_takes_no_more_of_the_stream(tmp_path):
    taken = []

    def counted(first):
        for text in TEXTS[first:]:
            taken.append(text)
            yield text

    expected = tokenize(TEXTS)
    write(tmp_path, counted, limit=50)
    assert len(taken) < 30
    tokens = token_files.read(tmp_path, limit=50)
    assert len(tokens) == 50
    np.testing.assert_array_equal(tokens[:], expected[:50])
    # More is added to what is there, less is read from it.
    before = len(taken)
    write(tmp_path, counted, limit=20)
    assert len(taken) == before
    np.testing.assert_array_equal(
        token_files.read(tmp_path, 20)[:], expected[:20]
    )
    write(tmp_path, counted, limit=150)
    assert taken == TEXTS[: len(taken)]
    np.testing.assert_array_equal(
        token_files.read(tmp_path, 150)[:], expected[:150]
    )
    write(tmp_path, counted)
    assert taken == TEXTS
    np.testing.assert_array_equal(token_files.read(tmp_path)[:], expected)


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_streams_of_few_documents(tmp_path, count):
    """Also those that end with a batch."""
    write(tmp_path, lambda first: iter(TEXTS[first:count]))
    tokens = token_files.read(tmp_path)
    expected = tokenize(TEXTS[:count]) if count else []
    np.testing.assert_array_equal(tokens, expected)
    assert json.loads((tmp_path / "index.json").read_text())["ended"]


def test_tokens_of_another_source_are_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="Received: {'dataset': 'numbers'}"):
        write(tmp_path, source={"dataset": "letters"})


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_damaged_shards_are_refused(tmp_path, damage):
    write(tmp_path)
    path = tmp_path / token_files.TOKENS
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match="tokens.bin must have .* Received: "):
        token_files.read(tmp_path)


def test_bar_counts_the_documents_of_a_list(tmp_path, capsys):
    """The number of a list's documents is known, a stream's is not."""
    write(tmp_path / "list", lambda first: TEXTS[first:])
    assert "100/100" in capsys.readouterr().err
    write(tmp_path / "stream", lambda first: (t for t in TEXTS[first:]))
    assert "documents" not in capsys.readouterr().err
    assert read_all(tmp_path / "list") == read_all(tmp_path / "stream")

"""Token files: the same tokens however often their making is interrupted."""

import numpy as np
import pytest

from helpers.tiers import logic

pytest.importorskip("tqdm", reason="the token files show a progress bar")

from experiments import token_files

pytestmark = logic

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
    np.testing.assert_array_equal(tokens, tokenize(TEXTS))
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.uint16
    assert "Tokenizing, folder" in capsys.readouterr().err  # the bar


def test_wider_tokens_keep_their_dtype(tmp_path):
    ids = np.array([1, 70_000], "<u4")
    token_files.write(tmp_path, open_stream, lambda texts: ids, SOURCE)
    found = token_files.read(tmp_path)
    assert found.dtype == ids.dtype
    np.testing.assert_array_equal(found[:2], ids)
    before = read_all(tmp_path)
    write(tmp_path, stream=None)  # which cannot be opened: all is there
    assert read_all(tmp_path) == before


@pytest.mark.parametrize("stop", [0, 1, 3, 50, 100])
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


def test_limit_takes_no_more_of_the_stream(tmp_path):
    taken = []

    def counted(first):
        for text in TEXTS[first:]:
            taken.append(text)
            yield text

    expected = tokenize(TEXTS)
    write(tmp_path, counted, limit=50)
    assert len(taken) < 30
    # More is added to what is there, less is read from it.
    for limit in (50, 20, 150, None):
        write(tmp_path, counted, limit=limit)
        tokens = token_files.read(tmp_path, limit)
        np.testing.assert_array_equal(tokens[:], expected[:limit])
        assert taken == TEXTS[: len(taken)]
        assert (len(taken) < 30) == (limit in (50, 20))
    assert taken == TEXTS


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_streams_of_few_documents(tmp_path, count):
    """Also those that end with a batch."""
    write(tmp_path, lambda first: iter(TEXTS[first:count]))
    expected = tokenize(TEXTS[:count])
    np.testing.assert_array_equal(token_files.read(tmp_path), expected)
    assert token_files.read_json(tmp_path / "index.json")["ended"]


def test_damaged_or_other_files_are_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="Received: {'dataset': 'numbers'}"):
        write(tmp_path, source={"dataset": "letters"})
    path = tmp_path / token_files.TOKENS
    for damage in (
        lambda: path.write_bytes(path.read_bytes()[:-2]),
        path.unlink,
    ):
        damage()
        with pytest.raises(ValueError, match="tokens.bin must have .* Rec"):
            token_files.read(tmp_path)


def test_bar_counts_the_documents_of_a_list(tmp_path, capsys):
    """The number of a list's documents is known, a stream's is not."""
    write(tmp_path / "list", lambda first: TEXTS[first:])
    assert "100/100" in capsys.readouterr().err
    write(tmp_path / "stream", lambda first: (t for t in TEXTS[first:]))
    assert "documents" not in capsys.readouterr().err
    assert read_all(tmp_path / "list") == read_all(tmp_path / "stream")

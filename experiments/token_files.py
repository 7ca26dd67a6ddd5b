"""A text, tokenized once, as memory-mapped files.

`write` takes a stream's documents in their order, packs their tokens end to
end and leaves in a folder

    00000.npy, 00001.npy, ...    token ids, whole documents each
    index.json                   the source, the files, how many documents

Interrupted at any moment, even killed, and called again, it continues after
the last file that the index names: the tokens are those of an undisturbed
call. `read` gives the folder as one long row.
"""

import itertools
import json
import operator
import os

import numpy as np
import tqdm

# Documents tokenized at a time: enough for the tokenizer's threads, and their
# encodings, 100 bytes a token, stay below 300 MB.
BATCH = 100
# Tokens after which a file is closed, with `BATCH` documents more at most:
# 128 MB at 16 bits, which is what a kill can cost and what is in memory.
SHARD = 2**26
DOCUMENTS = " documents"  # a progress bar's unit


def read_json(path):
    return json.loads(path.read_text()) if path.exists() else None


def write_json(path, value):
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(new, path)


def count_tokens(index):
    return sum(shard["tokens"] for shard in index["shards"])


def is_finished(index, limit):
    enough = limit is not None and count_tokens(index) >= limit
    return enough or index["ended"]


def read_index(folder, source):
    """The index of the tokens in `folder`; refuse another source's."""
    index = read_json(folder / "index.json")
    if index is None:
        return {"source": source, "documents": 0, "ended": False, "shards": []}
    if index["source"] != source:
        raise ValueError(
            f"{folder} must hold tokens of {source}: remove it or choose "
            f"another folder. Received: {index['source']}"
        )
    return index


def take(stream, tokenize, wanted, bar):
    """The next documents' tokens, `wanted` or some more if there are.

    Returns the arrays of tokens, the number of documents and whether they
    were the last.
    """
    arrays, documents, ended = [], 0, False
    while sum(map(len, arrays)) < wanted and not ended:
        texts = list(itertools.islice(stream, BATCH))
        ended = len(texts) < BATCH
        if texts:
            arrays.append(tokenize(texts))
            documents += len(texts)
            bar.update(len(texts) if bar.unit == DOCUMENTS else len(arrays[-1]))
    return arrays, documents, ended


def progress_bar(folder, documents, index, limit):
    """It counts documents where their number is known, or else tokens."""
    left = operator.length_hint(documents)
    if left and limit is None:
        done, unit = index["documents"], DOCUMENTS
        total = done + left
    else:
        done, total, unit = count_tokens(index), limit, " tokens"
    return tqdm.tqdm(
        desc=f"Tokenizing, {folder.name}",
        total=total,
        initial=done,
        unit=unit,
        unit_scale=True,
    )


def save(path, arrays):
    """Write one shard, under its name only when it is whole."""
    new = path.with_name("new.npy")
    np.save(new, np.concatenate(arrays))
    os.replace(new, path)
    size = path.stat().st_size
    return {
        "file": path.name,
        "bytes": size,
        "tokens": sum(map(len, arrays)),
    }


def write(folder, open_stream, tokenize, source, limit=None):
    """Tokenize into `folder` what it does not hold yet.

    With a higher `limit` than last time it adds the tokens that are missing.

    Args:
        folder: A `pathlib.Path`; made if need be.
        open_stream: Function of a number n, called only if documents are
            missing: an iterable over the texts without the first n.
        tokenize: Function of a list of texts: one array of all their tokens.
        source: All that the tokens depend on, as JSON has it.
        limit: Number of tokens after which it stops; None: all.

    Raises:
        ValueError: If the folder's tokens are those of another source.
    """
    index = read_index(folder, source)
    if is_finished(index, limit):
        return
    folder.mkdir(parents=True, exist_ok=True)
    documents = open_stream(index["documents"])
    stream = iter(documents)
    with progress_bar(folder, documents, index, limit) as bar:
        while not is_finished(index, limit):
            left = SHARD if limit is None else limit - count_tokens(index)
            arrays, documents, index["ended"] = take(
                stream, tokenize, min(SHARD, left), bar
            )
            if arrays:
                name = f"{len(index['shards']):05}.npy"
                index["shards"].append(save(folder / name, arrays))
                index["documents"] += documents
            write_json(folder / "index.json", index)  # last: all is written


class Tokens:
    """Several arrays as one long row of token ids.

    Args:
        shards: The arrays, memory-mapped or not.
        limit: Tokens behind these are left out.
    """

    def __init__(self, shards, limit=None):
        self.shards = shards
        self.stops = np.cumsum([0, *map(len, shards)])
        self.length = min(int(self.stops[-1]), limit or int(self.stops[-1]))

    def __len__(self):
        return self.length

    def __getitem__(self, positions):
        """The tokens at an array of positions, or of a slice."""
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(len(self)))
        positions = np.asarray(positions)
        if ((positions < 0) | (positions >= len(self))).any():
            raise IndexError(
                f"positions must lie in 0 to {len(self) - 1}. Received: "
                f"{positions.min()} to {positions.max()}"
            )
        found = np.empty(positions.shape, "int32")
        which = np.searchsorted(self.stops, positions, side="right") - 1
        for number in np.unique(which):
            here = which == number
            start = self.stops[number]
            found[here] = self.shards[number][positions[here] - start]
        return found


def read(folder, limit=None):
    """The tokens that `write` left in `folder`, the first `limit` of them.

    Raises:
        ValueError: If a file is not as long as it was written.
    """
    shards = []
    for shard in read_json(folder / "index.json")["shards"]:
        path = folder / shard["file"]
        size = path.stat().st_size if path.exists() else 0
        if size != shard["bytes"]:
            raise ValueError(
                f"{path} must have {shard['bytes']} bytes: remove {folder}, "
                f"to tokenize again. Received: {size} bytes"
            )
        shards.append(np.load(path, mmap_mode="r"))
    return Tokens(shards, limit)

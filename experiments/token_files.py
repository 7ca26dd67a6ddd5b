"""A text, tokenized once, as a memory-mapped file.

`write` takes a stream's documents in their order, packs their tokens end to
end and leaves in a folder

    tokens.bin     token ids
    index.json     the source, the ids' dtype, how many documents and tokens

Interrupted at any moment, even killed, and called again, it continues after
the last document that the index counts: the tokens are those of an
undisturbed call. `read` gives the tokens as one row.
"""

import itertools
import json
import operator
import os

import numpy as np
import tqdm

# Documents tokenized at a time, which is what a kill can cost: enough for the
# tokenizer's threads, and their encodings, 100 bytes a token, stay below
# 300 MB.
BATCH = 100
TOKENS = "tokens.bin"
DOCUMENTS = " documents"  # a progress bar's unit


def read_json(path):
    """The value of a file; None where there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def write_json(path, value):
    """Write a value; a kill leaves the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(new, path)


def is_finished(index, limit):
    """Whether all tokens are there, or `limit` of them."""
    return index["ended"] or (limit is not None and index["tokens"] >= limit)


def read_index(folder, source):
    """The index of the tokens in `folder`; refuse another source's."""
    index = read_json(folder / "index.json")
    if index is None:
        counts = {"documents": 0, "tokens": 0, "ended": False}
        return {"source": source, "dtype": "<u2", **counts}
    if index["source"] != source:
        raise ValueError(
            f"{folder} must hold tokens of {source}: remove it or choose "
            f"another folder. Received: {index['source']}"
        )
    return index


def progress_bar(folder, documents, index, limit):
    """It counts documents where their number is known, or else tokens."""
    left = operator.length_hint(documents)
    if left and limit is None:
        done, unit = index["documents"], DOCUMENTS
        total = done + left
    else:
        done, total, unit = index["tokens"], limit, " tokens"
    return tqdm.tqdm(
        desc=f"Tokenizing, {folder.name}",
        total=total,
        initial=done,
        unit=unit,
        unit_scale=True,
    )


def write(folder, open_stream, tokenize, source, limit=None):
    """Tokenize into `folder` what it does not hold yet.

    With a higher `limit` of tokens than last time it adds what is missing.
    `open_stream(n)`, called only then, gives the texts without the first n,
    `tokenize` one array of all tokens of a list of texts; `source` is all that
    the tokens depend on, as JSON has it.

    Raises:
        ValueError: If the folder's tokens are those of another source.
    """
    index = read_index(folder, source)
    if is_finished(index, limit):
        return
    folder.mkdir(parents=True, exist_ok=True)
    documents = open_stream(index["documents"])
    stream = iter(documents)
    with (
        (folder / TOKENS).open("ab") as file,
        progress_bar(folder, documents, index, limit) as bar,
    ):
        # What was written after the last index is written again.
        file.truncate(index["tokens"] * np.dtype(index["dtype"]).itemsize)
        while not is_finished(index, limit):
            texts = list(itertools.islice(stream, BATCH))
            index["ended"] = len(texts) < BATCH
            if texts:
                ids = tokenize(texts)
                file.write(ids.tobytes())
                file.flush()
                index["dtype"] = ids.dtype.str
                index["tokens"] += len(ids)
                index["documents"] += len(texts)
                bar.update(len(texts) if bar.unit == DOCUMENTS else len(ids))
            write_json(folder / "index.json", index)  # last: all is written


def read(folder, limit=None):
    """The tokens that `write` left in `folder`, the first `limit` of them.

    Raises:
        ValueError: If the file is shorter than it was written.
    """
    index, path = read_json(folder / "index.json"), folder / TOKENS
    dtype = np.dtype(index["dtype"])
    wanted = index["tokens"] * dtype.itemsize
    size = path.stat().st_size if path.exists() else 0
    if size < wanted:
        raise ValueError(
            f"{path} must have {wanted} bytes: remove {folder}, to tokenize "
            f"again. Received: {size} bytes"
        )
    if not wanted:
        return np.empty(0, dtype)
    shape = (index["tokens"],)
    return np.memmap(path, dtype, mode="r", shape=shape)[:limit]

"""The texts of the runs, as tokens: every tenth document is held out.

`wiki` is prose of the first 100 MB of the English Wikipedia dump of 2006
(enwik8) without markup, `sotu` the State of the Union addresses from 1790 to
2021. Both are read from a folder of `NAME.txt`, `.txt.gz` or `.txt.xz`.
`stdlib` is the source text of Python's standard library.
"""

import dataclasses
import os
import pathlib
import shutil

import numpy as np

from experiments import corpora
from experiments.tokens import learn_vocabulary
from experiments.tokens import tokenize

VOCABULARY = 1024
BASE = "wiki"  # what fine-tuning starts from
SUFFIXES = (".txt", ".txt.gz", ".txt.xz")


@dataclasses.dataclass(frozen=True)
class Text:
    """Token ids, `(tokens,)` uint16 each."""

    training: np.ndarray
    validation: np.ndarray


def find(name, folder):
    """The file of a text.

    Raises:
        FileNotFoundError: Where the folder has none.
    """
    for suffix in SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    wanted = " or ".join(f"{name}{suffix}" for suffix in SUFFIXES)
    raise FileNotFoundError(
        f"runs on the text {name!r} are missing, and training them needs "
        f"{wanted} in the folder that --texts names. Received: {folder}"
    )


def documents(name, folder):
    """(training, held out): every tenth document is held out."""
    if name == "stdlib":
        return corpora.stdlib_documents()
    texts = corpora.split_documents(corpora.read_text(find(name, folder)))
    held_out = texts[9::10]
    del texts[9::10]
    return texts, held_out


def path_of(name, cache, vocabulary=None, vocabulary_of=None):
    """The file of a text's tokens; see `prepare`."""
    by = "" if vocabulary_of in (None, name) else f"_by_{vocabulary_of}"
    file = f"{name}_{vocabulary or VOCABULARY}{by}.npz"
    return pathlib.Path(cache) / "texts" / file


def prepare(name, folder, cache, vocabulary=None, vocabulary_of=None):
    """Tokenize a text of `folder` into `cache`, unless it is there.

    The vocabulary is the number of tokens, `VOCABULARY` if None;
    `vocabulary_of` is the text that it is learned on, the text itself if None.
    """
    path = path_of(name, cache, vocabulary, vocabulary_of)
    if path.exists():
        return
    training, held_out = documents(name, folder)
    other = vocabulary_of not in (None, name)
    learned_on = documents(vocabulary_of, folder)[0] if other else training
    tokenizer = learn_vocabulary(learned_on, vocabulary or VOCABULARY)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new.npz")
    np.savez(
        new,
        training=tokenize(tokenizer, training),
        validation=tokenize(tokenizer, held_out),
    )
    os.replace(new, path)


def load(name, cache, vocabulary=None, vocabulary_of=None):
    """The text that `prepare` left in `cache`."""
    path = path_of(name, cache, vocabulary, vocabulary_of)
    with np.load(path) as arrays:
        return Text(arrays["training"], arrays["validation"])


def copy_images(name, folder, cache):
    """Leave images in `cache`, where the folder has them."""
    source, copy = (place / f"{name}.npz" for place in (folder, cache))
    if source.exists() and not copy.exists():
        cache.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)

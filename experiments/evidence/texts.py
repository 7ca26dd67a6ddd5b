"""The texts, as tokens: every tenth document is held out.

`wiki` is prose of the first 100 MB of the English Wikipedia dump of 2006
(enwik8) without markup, `sotu` the State of the Union addresses from 1790 to
2021. Both are read from TEXTS, a folder of `NAME.txt`, `.txt.gz` or `.txt.xz`.
`stdlib` is the source text of Python's standard library.
"""

import dataclasses
import os
import pathlib

import numpy as np

from experiments import corpora
from experiments.tokens import END_OF_TEXT
from experiments.tokens import tokenize

VOCABULARY = 1024
BATCH = 100  # documents tokenized at a time
SUFFIXES = (".txt", ".txt.gz", ".txt.xz")
FOLDER = "texts"  # of a cache


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


def learn_vocabulary(texts):
    """A tokenizer whose vocabulary was learned on these texts."""
    import tokenizers

    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts,
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    # The wrapper lacks the fast encoding.
    return tokenizers.Tokenizer.from_str(tokenizer.to_str())


def tokens(tokenizer, texts):
    """All texts in one row."""
    parts = [
        tokenize(tokenizer, texts[i : i + BATCH])
        for i in range(0, len(texts), BATCH)
    ]
    return np.concatenate(parts)


def path_of(name, cache, vocabulary):
    """The file of a text's tokens."""
    by = "" if vocabulary in (None, name) else f"_by_{vocabulary}"
    return pathlib.Path(cache) / f"{name}_{VOCABULARY}{by}.npz"


def make(name, folder, cache, vocabulary=None):
    """Tokenize a text into the folder `cache`, unless it is there.

    Args:
        name: Of the text.
        folder: Has the texts.
        cache: Another folder.
        vocabulary: Name of the text that the vocabulary is learned on;
            None for the text itself.
    """
    path = path_of(name, cache, vocabulary)
    if path.exists():
        return path
    training, held_out = documents(name, folder)
    other = vocabulary not in (None, name)
    learned_on = documents(vocabulary, folder)[0] if other else training
    tokenizer = learn_vocabulary(learned_on)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new.npz")
    np.savez(
        new,
        training=tokens(tokenizer, training),
        validation=tokens(tokenizer, held_out),
    )
    os.replace(new, path)
    return path


def load(name, cache, vocabulary=None):
    """The text that `make` left in `cache`."""
    with np.load(path_of(name, cache, vocabulary)) as arrays:
        return Text(arrays["training"], arrays["validation"])

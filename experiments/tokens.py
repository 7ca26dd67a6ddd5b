"""From documents to token files, with a tokenizer."""

import dataclasses
import functools
import itertools
import shutil
import sysconfig

import numpy as np

from experiments import corpora
from experiments import token_files
from experiments.token_files import read_json
from experiments.token_files import write_json

END_OF_TEXT = "<|endoftext|>"
PARTS = ("training", "validation")
VOCABULARY_DOCUMENTS = 100_000  # at most, to learn a vocabulary on


def make_tokenizer(args, texts):
    """GPT-2's byte-level byte pairs, its own or learned on `texts`."""
    import tokenizers

    if args.vocab:
        tokenizer = tokenizers.ByteLevelBPETokenizer(
            str(args.vocab), str(args.merges)
        )
        tokenizer.add_special_tokens([END_OF_TEXT])
        return tokenizer
    if args.preset.vocabulary is None:
        return tokenizers.Tokenizer.from_pretrained("gpt2")
    return learn_vocabulary(texts, args.preset.vocabulary)


def learn_vocabulary(texts, size):
    """A tokenizer whose vocabulary was learned on these texts."""
    import tokenizers

    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        itertools.islice(texts, VOCABULARY_DOCUMENTS),
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    # The wrapper lacks the fast encoding.
    return tokenizers.Tokenizer.from_str(tokenizer.to_str())


def tokenize(tokenizer, documents):
    """All documents in one row, each followed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    # 16 bits hold both vocabularies, GPT-2's 50257 tokens being the larger.
    dtype = np.uint16 if tokenizer.get_vocab_size() < 2**16 else np.uint32
    rows = []
    for first in range(0, len(documents), token_files.BATCH):
        some = documents[first : first + token_files.BATCH]
        for encoding in tokenizer.encode_batch_fast(some):
            rows.append(np.array([*encoding.ids, end], dtype))
    return np.concatenate(rows)


def describe_source(args):
    """All that the stored tokens depend on: another one replaces them."""
    files = [*args.text, *filter(None, (args.vocab, args.merges))]
    source = {
        "dataset": None if args.text else args.dataset,
        "files": [[str(f.resolve()), f.stat().st_size] for f in files],
        "vocabulary": args.preset.vocabulary,
    }
    if source["dataset"] == "stdlib":
        source["python"] = sysconfig.get_path("stdlib")
    if source["dataset"] == "openwebtext-100k":
        source["seed"] = args.seed  # of its split
    return source


def planned_steps(args):
    """The steps of each run; None: one epoch."""
    preset = args.preset
    return args.steps or (preset.sweep_steps if args.sweep else preset.steps)


def token_limits(args):
    """How much of a text to tokenize, for training and held out."""
    preset = args.preset
    if args.text or args.dataset not in corpora.STREAMS:
        return args.tokens, None
    # One more, since the targets are one token later.
    held_out = preset.validation_blocks * preset.context + 1
    if args.tokens:
        return args.tokens, held_out
    blocks = planned_steps(args) * preset.batch_size
    return blocks * preset.context + 1, held_out


@dataclasses.dataclass
class Data:
    """A tokenizer and both texts as its tokens."""

    tokenizer: object
    training: np.ndarray
    validation: np.ndarray


def prepare_folder(args, source, open_documents):
    """Make the folder of the tokens, with the tokenizer."""
    folder = args.data / ("text" if args.text else args.dataset)
    found = read_json(folder / "source.json")
    if found == source:
        return folder
    if found:
        print(f"Another text or vocabulary than before: {folder} is made anew")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(
        args, corpora.texts_behind(open_documents()[0], 0)
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "source.json", source)  # last: all else is whole
    return folder


def load_data(args):
    """Tokenize the text, once: the tokens are kept."""
    import tokenizers

    @functools.cache  # opened only if tokens are missing
    def open_documents():
        return corpora.load_documents(args)

    source = describe_source(args)
    folder = prepare_folder(args, source, open_documents)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = []
    for part, limit in enumerate(token_limits(args)):
        token_files.write(
            folder / PARTS[part],
            lambda first, part=part: corpora.texts_behind(
                open_documents()[part], first
            ),
            functools.partial(tokenize, tokenizer),
            source,
            limit,
        )
        tokens.append(token_files.read(folder / PARTS[part], limit))
    print(
        f"Tokens: {len(tokens[0]):,} for training, {len(tokens[1]):,} held "
        f"out, vocabulary {tokenizer.get_vocab_size():,}"
    )
    return Data(tokenizer, *tokens)

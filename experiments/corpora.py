"""The texts: documents to train on, and documents held out."""

import gzip
import lzma
import pathlib
import sysconfig

# Datasets of Hugging Face that are read as a stream: repository, configuration.
STREAMS = {
    "c4": ("allenai/c4", "en"),
    "minipile": ("JeanKaddour/minipile", None),
}
DATASETS = ("stdlib", "openwebtext-100k", *STREAMS)
# Characters of a file's documents: at most 100 kB in UTF-8.
DOCUMENT = 25_000


def stdlib_documents():
    """The sources of Python's standard library: (training, validation).

    Every tenth file is held out. The test suite, more than half of the text,
    and installed packages stay out where more than 10 MB remain without.
    """
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.rglob("*.py"))
    unwanted = {"test", "tests", "idle_test", "site-packages"}
    kept = [f for f in files if not unwanted & set(f.relative_to(folder).parts)]
    if sum(f.stat().st_size for f in kept) > 10e6:
        files = kept
    texts = [f.read_text(encoding="utf-8", errors="replace") for f in files]
    size = sum(map(len, texts)) / 1e6
    print(f"Text: {len(files)} files, {size:.1f} MB, from {folder}")
    if size < 10:
        print(
            "This is less than the 10 MB of a complete standard library: the "
            "losses will differ from those in the documents."
        )
    held_out = texts[9::10]
    del texts[9::10]
    return texts, held_out


def openwebtext_documents(seed):
    """OpenWebText-100k: 90,000 documents to train on, 10,000 to validate."""
    import datasets

    dataset = datasets.load_dataset("Elriggs/openwebtext-100k", split="train")
    halves = dataset.train_test_split(test_size=0.1, seed=seed)
    return halves["train"], halves["test"]


def stream_documents(name):
    """C4 or MiniPile, read over the network as far as it is wanted."""
    import datasets

    return tuple(
        datasets.load_dataset(*STREAMS[name], split=split, streaming=True)
        for split in ("train", "validation")
    )


def read_text(path):
    """The text of a file, which may be compressed: .gz or .xz."""
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        return file.read()


def split_documents(text):
    """Whole paragraphs, as many as fit into a document.

    Paragraphs end at blank lines; one that is longer than a document is cut.
    Joined, the documents are the text.
    """
    documents, start = [], 0
    while start < len(text):
        stop = start + DOCUMENT
        if stop < len(text):
            blank = text.rfind("\n\n", start, stop)
            stop = blank + 2 if blank > start else stop
        documents.append(text[start:stop])
        start = stop
    return documents


def file_documents(files):
    """The user's own text. The last tenth of each file is held out."""
    training, held_out = [], []
    for file in files:
        text = read_text(file)
        cut = len(text) * 9 // 10
        training += split_documents(text[:cut])
        held_out += split_documents(text[cut:])
    return training, held_out


def texts_behind(documents, first):
    """The texts of a list or a Hugging Face dataset, without the first."""
    if isinstance(documents, list):
        return documents[first:]
    return (row["text"] for row in documents.skip(first))


def load_documents(args):
    """(training, held out), of the files or the dataset of a command line."""
    if args.text:
        return file_documents(args.text)
    if args.dataset == "openwebtext-100k":
        return openwebtext_documents(args.seed)
    if args.dataset in STREAMS:
        return stream_documents(args.dataset)
    return stdlib_documents()

"""What several command lines share: types of arguments, and a table."""

import argparse
import pathlib


def positive(kind):
    """A number above 0, of a kind: int or float."""

    def convert(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    convert.__name__ = kind.__name__  # argparse prints it
    return convert


def existing_file(text):
    """The path of a file that there is."""
    path = pathlib.Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def print_table(rows):
    """Print dicts of one kind, a line each, under their keys."""
    widths = {
        name: 2 + max(len(name), *(len(row[name]) for row in rows))
        for name in rows[0]
    }
    print()
    for row in ({name: name for name in widths}, *rows):
        print("".join(row[name].rjust(width) for name, width in widths.items()))
    print(flush=True)

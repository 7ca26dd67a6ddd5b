"""Train the runs that docs/results.md is missing.

    python -m experiments --texts FOLDER [QUESTION ...]

Results that are there stay as they are, so that the command goes on where it
stopped; --limit stops it after some runs. Then `python -m experiments.report`
writes the page.
"""

import argparse
import os
import pathlib

from experiments import run as runs
from experiments.search import wanted
from experiments.sweeps import QUESTIONS


def make_parser(prog, doc, questions):
    """The command line of what trains the missing runs of questions."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def question(text):
        if text not in questions:
            raise argparse.ArgumentTypeError(
                f"must be one of {', '.join(questions)}. Received: {text}"
            )
        return text

    add = parser.add_argument
    add(
        "questions",
        nargs="*",
        type=question,
        metavar="QUESTION",
        help=f"of {', '.join(questions)}",
    )
    add(
        "--texts",
        type=pathlib.Path,
        default=runs.Place.texts,
        help="folder with wiki.txt and sotu.txt, or .txt.gz, .txt.xz, and "
        "with fashion_mnist.npz, unless Keras shall download it",
    )
    add("--limit", type=int, help="stop after so many runs")
    add("--workers", type=int, default=os.cpu_count(), help="runs at once")
    add(
        "--together",
        action="store_true",
        help="train language models that differ in rate, seed, text or length "
        "side by side, for a GPU that the workers share",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=runs.Place.cache,
        help="folder of tokens and compiled steps",
    )
    add("--results", type=pathlib.Path, default=runs.RESULTS)
    return parser


def train(names, questions, args):
    """Train what some of the questions miss, until nothing is missing.

    `questions` has tables by name; a command line says the rest.
    """
    results = runs.Results(args.results)
    place = runs.Place(
        texts=args.texts,
        cache=args.output,
        workers=args.workers,
        together=args.together,
    )
    left = args.limit
    for name in names:
        for table in questions[name]:
            while missing := wanted(table, results)[:left]:
                runs.train_missing(missing, results, place, name)
                left = None if left is None else left - len(missing)
            if left == 0:
                print("As many runs as asked for; call again to go on.")
                return


def main(argv=None):
    args = make_parser("python -m experiments", __doc__, QUESTIONS).parse_args(
        argv
    )
    train(args.questions or QUESTIONS, QUESTIONS, args)


if __name__ == "__main__":
    main()

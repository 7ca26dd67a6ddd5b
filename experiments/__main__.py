"""Train the runs that docs/evidence.md is missing.

    KERAS_BACKEND=jax python -m experiments --texts FOLDER [QUESTION ...]

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


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "questions",
        nargs="*",
        metavar="QUESTION",
        help=f"of {', '.join(QUESTIONS)}; by default all",
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
    args = parser.parse_args(argv)
    unknown = set(args.questions) - set(QUESTIONS)
    if unknown:
        parser.error(
            f"questions must be among {', '.join(QUESTIONS)}. Received: "
            f"{', '.join(sorted(unknown))}"
        )
    return args


def main(argv=None):
    args = parse(argv)
    results = runs.Results(args.results)
    place = runs.Place(
        texts=args.texts,
        cache=args.output,
        workers=args.workers,
        together=args.together,
    )
    train(args.questions or QUESTIONS, results, place, args.limit)


def train(questions, results, place, limit=None):
    """Train what questions miss, until nothing is missing.

    Args:
        questions: Keys of `QUESTIONS`.
        results: `run.Results`.
        place: `run.Place`.
        limit: Number of runs after which it stops; None: none.
    """
    left = limit
    for question in questions:
        for table in QUESTIONS[question]:
            while missing := wanted(table, results)[:left]:
                runs.train_missing(missing, results, place, question)
                left = None if left is None else left - len(missing)
            if left == 0:
                print("As many runs as asked for; call again to go on.")
                return


if __name__ == "__main__":
    main()

"""Train what docs/evidence.md is missing, then write the page.

    KERAS_BACKEND=jax python -m experiments.evidence --texts FOLDER

Results that are there stay as they are, so that the command goes on where it
stopped; --limit stops it after some runs.
"""

import argparse
import functools
import os
import pathlib

from experiments.evidence import pool
from experiments.evidence import questions
from experiments.evidence import report
from experiments.evidence import trials
from experiments.pretraining import positive


class Enough(Exception):
    """As many runs as were asked for."""


class Runner:
    """Trains missing trials, up to a number of them."""

    def __init__(self, args):
        self.args = args
        self.left = args.limit

    def __call__(self, wanted):
        """Train those of the trials that have no result.

        Raises:
            Enough: When the limit is reached.
        """
        missing = [
            trial
            for trial in dict.fromkeys(wanted)
            if trials.read(trial, self.args.results) is None
        ]
        if self.left is not None:
            missing = missing[: self.left]
            self.left -= len(missing)
        cache = self.args.output.resolve()
        for trial in missing:
            trial.prepare(self.args.texts, cache)
        pool.run_all(
            missing,
            cache=cache,
            results=self.args.results,
            workers=self.args.workers,
            together=self.args.together,
        )
        if self.left == 0:
            raise Enough


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.evidence", description=__doc__
    )
    add = parser.add_argument
    add(
        "--texts",
        type=pathlib.Path,
        default=pathlib.Path("texts"),
        help="folder with wiki.txt and sotu.txt, or .txt.gz, .txt.xz, and "
        "with fashion_mnist.npz, unless Keras shall download it",
    )
    add(
        "--question",
        default="",
        help="train only questions whose title has these words",
    )
    add("--limit", type=positive(int), help="stop after so many runs")
    add("--workers", type=int, default=os.cpu_count(), help="runs at once")
    add(
        "--together",
        action="store_true",
        help="train language models that differ in rate, seed or length side "
        "by side, for a GPU that the workers share",
    )
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("runs/evidence"),
        help="folder of tokens and compiled steps",
    )
    add("--results", type=pathlib.Path, default=trials.RESULTS)
    add("--page", type=pathlib.Path, default=report.PAGE)
    add("--report", action="store_true", help="train nothing")
    args = parser.parse_args(argv)
    of_training = ("question", "limit", "together")
    given = [f"--{name}" for name in of_training if getattr(args, name)]
    if args.report and given:
        parser.error(
            "--report trains nothing and writes the whole page: what chooses "
            f"runs must not be with it. Received: {' '.join(given)}"
        )
    return args


def chosen(words):
    """Questions whose title has these words.

    Raises:
        SystemExit: If there is none.
    """
    found = [
        question
        for question in questions.QUESTIONS
        if words.lower() in question.title.lower()
    ]
    if not found:
        titles = "\n  ".join(q.title for q in questions.QUESTIONS)
        raise SystemExit(
            "--question must be words of one of these:\n"
            f"  {titles}\nReceived: {words!r}"
        )
    return found


def main(argv=None):
    args = parse(argv)
    if not args.report:
        if os.environ.get("KERAS_BACKEND") != "jax":
            raise SystemExit("Set KERAS_BACKEND=jax: the steps are JAX's.")
        run = Runner(args)
        read = functools.partial(trials.read, folder=args.results)
        try:
            for question in chosen(args.question):
                question.train(run, read)
        except Enough:
            print("As many runs as asked for; call again to go on.")
    report.write(args.page, args.results)


if __name__ == "__main__":
    main()

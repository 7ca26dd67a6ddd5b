"""The LANTON paper's experiments, on one's own machine.

    python -m experiments.paper                 # all of them
    python -m experiments.paper losses cnn      # these

It trains what the table of results lacks; then `python -m
experiments.paper.report` writes docs/paper.md. `theory` is the theorem on a
quadratic. At the paper's own sizes `python -m experiments.pretraining` and
`python -m experiments.images` train, on a GPU.
"""

import os
import subprocess
import sys

from experiments.__main__ import make_parser
from experiments.__main__ import train
from experiments.paper.sweeps import QUESTIONS
from experiments.run import ROOT

THEORY = "theory"


def measure_theory():
    """Measure on the quadratic, in a process of its own.

    Thousands of steps of a hundred settings: PyTorch need not compile them.
    Matrices are of 16 x 24: threads would only wait for each other.
    """
    subprocess.run(
        [sys.executable, "-m", "experiments.paper.theory"],
        check=True,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"},
    )


def main(argv=None):
    names = [*QUESTIONS, THEORY]
    parser = make_parser("python -m experiments.paper", __doc__, names)
    args = parser.parse_args(argv)
    chosen = args.questions or names
    runs = [name for name in chosen if name != THEORY]
    train(runs, QUESTIONS, args)
    if THEORY in chosen:
        measure_theory()


if __name__ == "__main__":
    main()

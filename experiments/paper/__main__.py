"""The LANTON paper's experiments, on one's own machine.

    python -m experiments.paper                 # all of them
    python -m experiments.paper losses cnn      # these

It trains what the table of results lacks; then `python -m
experiments.paper.report` writes docs/paper.md. At the paper's own sizes `python
-m experiments.pretraining` and `python -m experiments.images` train, on a GPU.
"""

from experiments.__main__ import make_parser
from experiments.__main__ import train
from experiments.paper.sweeps import QUESTIONS


def main(argv=None):
    parser = make_parser("python -m experiments.paper", __doc__, QUESTIONS)
    args = parser.parse_args(argv)
    train(args.questions or QUESTIONS, QUESTIONS, args)


if __name__ == "__main__":
    main()

"""docs/paper.md, from the results of the experiments.

    python -m experiments.paper.report

The paper's numbers are those that arXiv 2510.14009 prints; its figures print
none.
"""

import argparse
import pathlib

import numpy as np

from experiments.paper import sweeps
from experiments.run import RESULTS
from experiments.run import ROOT
from experiments.run import Results
from experiments.tables import above
from experiments.tables import by_seed
from experiments.tables import comparison
from experiments.tables import filled
from experiments.tables import grid_table
from experiments.tables import markdown
from experiments.tables import with_interval

TEMPLATE = ROOT / "experiments" / "pages" / "paper.txt"


def cnn(results):
    """Accuracies of the CNN."""
    rows = []
    for label, run in sweeps.CNN.decide(results)[0]:
        accuracies = 100 * (1 - by_seed(results, run, sweeps.SEEDS))
        cells = [label, f"{run.learning_rate:g}", with_interval(accuracies, 2)]
        rows.append((np.mean(accuracies), cells))
    head = ["optimizer", "best rate", "test accuracy, %"]
    return markdown(head, [cells for _, cells in sorted(rows, reverse=True)])


BODIES = {
    "losses": lambda results: above(sweeps.LOSSES, results),
    "base_rate": lambda results: grid_table(sweeps.BASE_RATE, results),
    "batch_size": lambda results: grid_table(sweeps.BATCH_SIZE, results),
    "references": lambda results: comparison([sweeps.REFERENCES], results),
    "cnn": cnn,
}


def main(argv=None):
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs")
    args = parser.parse_args(argv)
    results = Results(args.results)
    if not any(table.decide(results)[0] for table in sweeps.LOSSES):
        raise SystemExit(
            f"There are no results in {args.results}: run "
            "`python -m experiments.paper` first."
        )
    (args.docs / "paper.md").write_text(filled(TEMPLATE, BODIES, results))
    print(args.docs / "paper.md")


if __name__ == "__main__":
    main()

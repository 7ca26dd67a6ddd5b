"""docs/paper.md, from the results of the experiments.

    python -m experiments.paper.report

The paper's numbers are those that arXiv 2510.14009 prints; its figures print
none.
"""

import argparse
import json
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

THEORY = ROOT / "benchmarks" / "results" / "theory.json"
TEMPLATE = ROOT / "experiments" / "pages" / "paper.txt"
# Mean and standard deviation of the rates, at the start and at the end.
PRINTED_RATES = {
    "hidden": ("0.56 ± 0.14", "0.32 ± 0.16"),
    "embedding": ("0.70 ± 0.30", "0.68 ± 0.32"),
}
# Largest and smallest noise at step 5000 of the 1.1B Llama.
PRINTED_NOISE = {
    "qk": (0.026, 0.003),
    "vo": (0.117, 0.009),
    "mlp": (0.107, 0.018),
}


def measured(results):
    """The line of the run of `MEASURED`; None if it has not run."""
    found = [results.get(run) for _, run in sweeps.MEASURED.decide(results)[0]]
    return found[0] if found else None


def effective_rates(results):
    """Rates of the layers over the base rate, at the start and at the end."""
    rows = []
    for kind, printed in PRINTED_RATES.items():
        looks = measured(results)["noise"][kind]
        ends = [f"{x[3]:.2f} ± {x[4]:.2f}" for x in (looks[0], looks[-1])]
        rows.append([kind, *ends, *printed])
    ends = ("at the start", "at the end")
    return markdown(["", *ends, *(f"paper: {end}" for end in ends)], rows)


def noise(results):
    """Largest over smallest noise by kind of layer, in the middle."""
    line = measured(results)
    middle = len(line["looks"]) // 2
    rows = []
    for kind, (largest, least) in PRINTED_NOISE.items():
        here = line["noise"][kind][middle]
        cells = [f"{here[2] / here[0]:.1f}", f"{largest / least:.1f}"]
        rows.append([kind.upper(), *cells])
    return markdown(["largest over smallest", "here", "paper"], rows)


def cnn(results):
    """Accuracies of the CNN."""
    rows = []
    for label, run in sweeps.CNN.decide(results)[0]:
        accuracies = 100 * (1 - by_seed(results, run, sweeps.SEEDS))
        cells = [label, f"{run.learning_rate:g}", with_interval(accuracies, 2)]
        rows.append((np.mean(accuracies), cells))
    head = ["optimizer", "best rate", "test accuracy, %"]
    return markdown(head, [cells for _, cells in sorted(rows, reverse=True)])


def theory_table(result):
    """The gain by noise that the theorem predicts, and what was seen."""
    found = result["noise"]
    keys = ("noises", "predicted", "own", "same", "tuned")
    rows = [
        [f"{row[0]:g}", *(f"{x:.2f}" for x in row[1:])]
        for row in zip(*[found[key] for key in keys], strict=True)
    ]
    head = (
        "noise of one layer",
        "predicted",
        "the theorem's rates",
        "equal rates",
        "tuned rates",
    )
    return markdown(head, rows)


BODIES = {
    "losses": lambda results: above(sweeps.LOSSES, results),
    "base_rate": lambda results: grid_table(sweeps.BASE_RATE, results),
    "batch_size": lambda results: grid_table(sweeps.BATCH_SIZE, results),
    "effective_rates": effective_rates,
    "noise": noise,
    "references": lambda results: comparison([sweeps.REFERENCES], results),
    "cnn": cnn,
    "theory": lambda _: theory_table(json.loads(THEORY.read_text())),
}


def main(argv=None):
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs")
    args = parser.parse_args(argv)
    results = Results(args.results)
    if measured(results) is None:
        raise SystemExit(
            f"There are no results in {args.results}: run "
            "`python -m experiments.paper` first."
        )
    (args.docs / "paper.md").write_text(filled(TEMPLATE, BODIES, results))
    print(args.docs / "paper.md")


if __name__ == "__main__":
    main()

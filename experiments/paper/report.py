"""docs/paper.md, with its pictures, from the results of the experiments.

    python -m experiments.paper.report

The paper's numbers are those that arXiv 2510.14009 prints; its figures print
none.
"""

import argparse
import json
import pathlib

import numpy as np
from matplotlib.figure import Figure

from experiments.figures import save
from experiments.paper import sweeps
from experiments.run import RESULTS
from experiments.run import ROOT
from experiments.run import Results
from experiments.styles import STYLES
from experiments.tables import by_seed
from experiments.tables import by_value
from experiments.tables import comparison
from experiments.tables import filled
from experiments.tables import grid_table
from experiments.tables import markdown
from experiments.tables import with_interval

THEORY = ROOT / "benchmarks" / "results" / "theory.json"
TEMPLATE = ROOT / "experiments" / "pages" / "paper.txt"
# Largest, smallest and mean noise at step 5000 of the 1.1B Llama.
PRINTED_NOISE = {
    "qk": (0.026, 0.003, 0.014),
    "vo": (0.117, 0.009, 0.046),
    "mlp": (0.107, 0.018, 0.038),
}
COLOURS = [STYLES[name][1] for name in ("lanton", "d_muon", "keras_muon")]


def draw_rates(results, path):
    """Draw losses by rate."""
    frame = by_value(sweeps.BASE_RATE, results)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for colour, (label, row) in zip(COLOURS, frame.iterrows(), strict=False):
        axes.semilogx(row.index, row, "o-", color=colour, label=label)
    axes.set_xlabel("base learning rate")
    axes.set_ylabel("validation loss (nats per token)")
    axes.legend()
    save(figure, [axes], path)


def measured(results):
    """By label: what the measured runs looked at."""
    found = {
        label: results.get(run.replace(seed=sweeps.SEEDS[0]))
        for label, run in sweeps.MEASURED.decide(results)[0]
    }
    return {label: line for label, line in found.items() if line is not None}


def effective_rates(results):
    """Rates of the layers over the base rate, at the start and at the end."""
    rows = []
    for label, line in measured(results).items():
        for kind in ("hidden", "embedding", "vector"):
            looks = line["noise"].get(kind, ())
            ends = [
                f"{x[3]:.2f} ± {x[4]:.2f}" for x in (*looks[:1], *looks[-1:])
            ]
            if ends:
                rows.append([label, kind, *ends])
    return markdown(["settings", "group", "at the start", "at the end"], rows)


def noise(results):
    """Noise of the layers of each kind, in the middle of the run."""
    line = measured(results)[sweeps.PAPERS]
    middle = len(line["looks"]) // 2
    rows = []
    for kind, printed in PRINTED_NOISE.items():
        least, mean, largest = line["noise"][kind][middle][:3]
        rows.append(
            [
                kind.upper(),
                *(f"{x:.3g}" for x in (largest, least, mean)),
                f"{largest / least:.1f}",
                *(f"{x:g}" for x in printed),
                f"{printed[0] / printed[1]:.1f}",
            ]
        )
    columns = ("max", "min", "mean", "max/min")
    head = ["block", *columns, *(f"paper: {name}" for name in columns)]
    return markdown(head, rows)


def draw_noise(results, path):
    """Draw the noise of the layers over training."""
    line = measured(results)[sweeps.PAPERS]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for colour, kind in zip(COLOURS, PRINTED_NOISE, strict=True):
        looks = np.array(line["noise"][kind], float)
        least, mean, largest = looks[:, :3].T
        style = {"color": colour}
        axes.plot(line["looks"], mean, "o-", label=kind.upper(), **style)
        axes.fill_between(line["looks"], least, largest, alpha=0.2, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("noise sqrt(H) (units of the dual norm)")
    axes.set_yscale("log")
    axes.set_title("line: mean, band: least and largest layer")
    axes.legend()
    save(figure, [axes], path)


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
    """What `theory` measured, as text."""
    lemmas, rate, noise = (result[k] for k in ("lemmas", "rate", "noise"))
    lines = [f"{lemmas['trials']} runs, from step {lemmas['t0']} on"]
    names = {
        "H": "H between M/2 and 3M/2",
        "ratio": "ratio within its bounds",
        "H_surely": "H below 4 S^2",
        "ratio_surely": "ratio within its sure bounds",
    }
    for key, name in names.items():
        found = lemmas["frequency"][key]
        promised = 1.0 if key.endswith("surely") else lemmas["promised"]
        verdict = "held" if found >= promised else "DID NOT HOLD"
        lines.append(f"  {name:30}{found:6.2f} (>= {promised:.2f})  {verdict}")
    worst = max(lemmas["largest_deviations"])
    lines.append(f"  {'largest |H / E H - 1|':30}{worst:6.2f} (<= 0.50)")
    lines.append("exponent of the average dual norm against T (-0.25)")
    for method in ("adaptive", "fixed"):
        found = rate[method]["exponent"]
        near = "agrees" if abs(found + 0.25) < 0.05 else "DIFFERS"
        lines.append(f"  {method:30}{found:6.2f}  {near}")
    lines.append("average norm without adaptation over that with it")
    lines.append("  noise of one layer  predicted    own   same  tuned")
    keys = ("noises", "predicted", "own", "same", "tuned")
    for row in zip(*[noise[key] for key in keys], strict=True):
        lines.append("  {:18g}{:11.2f}{:7.2f}{:7.2f}{:7.2f}".format(*row))
    return "\n".join(lines)


BODIES = {
    "losses": lambda results: comparison(sweeps.LOSSES, results, "model"),
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
    if not measured(results):
        raise SystemExit(
            f"There are no results in {args.results}: run "
            "`python -m experiments.paper` first."
        )
    pictures = args.docs / "paper"
    pictures.mkdir(parents=True, exist_ok=True)
    draw_rates(results, pictures / "base_rate.png")
    draw_noise(results, pictures / "noise.png")
    (args.docs / "paper.md").write_text(filled(TEMPLATE, BODIES, results))
    print(args.docs / "paper.md")


if __name__ == "__main__":
    main()

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
from experiments.tables import by_value
from experiments.tables import comparison
from experiments.tables import grid_table
from experiments.tables import markdown
from experiments.tables import with_interval

THEORY = ROOT / "benchmarks" / "results" / "theory.json"
HEAD = """# The paper's experiments

Hao et al., *Noise-Adaptive Layerwise Learning Rates*, arXiv 2510.14009, on a
small scale. This page is made by

```sh
make paper   # python -m experiments.paper, then experiments.paper.report
```

"Lanton" has the paper's kind of noise here, that between matrices:
`noise=NoiseAdaptiveRate(alpha_unit="group_noise", within_matrices=False)`. It
has `beta_1=0.9`, `step_scale="rms_matched"`, `embedding_scale=200` and
`bias_correction=False`, too. "Lanton, paper's settings" is `Lanton.paper()`.
[Evidence](evidence.md) has the defaults, and longer runs; [Speed](speed.md) has
the time of a step.

Language models: four layers of width 64 (0.2 million weights), 512 tokens of
vocabulary, 250 steps of 16 x 64 tokens of the Python standard library's source
text. CNN: a narrow airbench94 on scikit-learn's digits, 6 epochs. Each
optimizer's learning rate is the best of four, factors of 2 apart, by the first
seed. Numbers are means with 95 % intervals of Student's t over three seeds,
which share initial weights and batches between optimizers. This is little
training of little models: it shows what is so at this size, not at the
paper's.
"""
# Largest, smallest and mean noise at step 5000 of the 1.1B Llama.
PRINTED_NOISE = {
    "qk": (0.026, 0.003, 0.014),
    "vo": (0.117, 0.009, 0.046),
    "mlp": (0.107, 0.018, 0.038),
}
COLOURS = [STYLES[name][1] for name in ("lanton", "d_muon", "keras_muon")]


def losses(results, pictures):
    """Final losses of all optimizers."""
    return (
        f"{comparison(sweeps.LOSSES, results, 'model')}\n\n"
        "The paper: in its figures LANTON is lowest on both, ahead of D-Muon, "
        "of LAMB and BW-AdamW on C4, and of AdaMuon on OpenWebText-100k. "
        "Sample efficiency: D-Muon needs 1.5 times LANTON's tokens on C4; "
        "[Evidence](evidence.md#which-optimizer-ends-lowest) has tokens for "
        "equal loss."
    )


def base_rate(results, pictures):
    """Losses by rate, and the window of good ones."""
    frame = by_value(sweeps.BASE_RATE, results)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for colour, (label, row) in zip(COLOURS, frame.iterrows(), strict=False):
        axes.semilogx(row.index, row, "o-", color=colour, label=label)
    axes.set_xlabel("base learning rate")
    axes.set_ylabel("validation loss (nats per token)")
    axes.legend()
    save(figure, [axes], pictures / "base_rate.png")
    return (
        "The window is how many times its lowest rate the highest is that "
        "stays within 1 % of the lowest loss.\n\n"
        f"{grid_table(sweeps.BASE_RATE, results)}\n\n"
        "![Validation loss by base learning rate](paper/base_rate.png)\n\n"
        "The paper: LANTON's loss hardly moves for rates of 1e-3, 3e-3 and "
        "5e-3 on C4."
    )


def batch_size(results, pictures):
    """Losses by batch size."""
    return (
        "Each at its best rate for 16 blocks, at equal tokens.\n\n"
        f"{grid_table(sweeps.BATCH_SIZE, results)}\n\n"
        "The paper: about 4.0 for LANTON at 8 to 64, lowest at 16."
    )


def measured(results):
    """By label: what the measured runs looked at."""
    rows = dict(sweeps.MEASURED.decide(results)[0])
    found = {}
    for label, run in rows.items():
        line = results.get(run.replace(seed=sweeps.SEEDS[0]))
        if line is not None:
            found[label] = line
    return found


def effective_rates(results, pictures):
    """Rates of the layers over the base rate, at the start and at the end."""
    rows = []
    for label, line in measured(results).items():
        for kind in ("hidden", "embedding", "vector"):
            looks = line["noise"].get(kind)
            if looks:
                ends = [
                    f"{looks[i][3]:.2f} ± {looks[i][4]:.2f}" for i in (0, -1)
                ]
                rows.append([label, kind, *ends])
    table = markdown(["settings", "group", "at the start", "at the end"], rows)
    return (
        "Llama, the first seed; mean and standard deviation over layers, after "
        f"a twentieth of the run and at its end.\n\n{table}\n\n"
        "The paper: hidden layers 0.56 ± 0.14 at the start, 0.32 ± 0.16 at the "
        "end; embedding and head 0.70 ± 0.30, then 0.68 ± 0.32. Its alpha, "
        "which it does not print, decides how far below 1 they are."
    )


def noise(results, pictures):
    """Noise of the layers of each kind, in the middle of the run."""
    line = measured(results)[sweeps.PAPERS]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    rows, middle = [], len(line["looks"]) // 2
    for colour, (kind, printed) in zip(
        COLOURS, PRINTED_NOISE.items(), strict=True
    ):
        looks = np.array(line["noise"][kind], float)
        least, mean, largest = looks[:, :3].T
        style = {"color": colour}
        axes.plot(line["looks"], mean, "o-", label=kind.upper(), **style)
        axes.fill_between(line["looks"], least, largest, alpha=0.2, **style)
        ours = (largest[middle], least[middle], mean[middle])
        rows.append(
            [
                kind.upper(),
                *(f"{x:.3g}" for x in ours),
                f"{ours[0] / ours[1]:.1f}",
                *(f"{x:g}" for x in printed),
                f"{printed[0] / printed[1]:.1f}",
            ]
        )
    axes.set_xlabel("step")
    axes.set_ylabel("noise sqrt(H) (units of the dual norm)")
    axes.set_yscale("log")
    axes.set_title("line: mean, band: least and largest layer")
    axes.legend()
    save(figure, [axes], pictures / "noise.png")
    columns = ("max", "min", "mean", "max/min")
    head = ["block", *columns, *(f"paper: {name}" for name in columns)]
    return (
        "Llama, the paper's settings, the first seed, in the middle of the "
        f"run.\n\n{markdown(head, rows)}\n\n"
        "![Noise of the layers over training](paper/noise.png)\n\n"
        "The paper's units are those of a randomized SVD of rank unsaid."
    )


def references(results, pictures):
    """Option I against Option II."""
    table = comparison([sweeps.REFERENCES], results)
    return (
        f"At Option I's best rate.\n\n{table}\n\n"
        "The paper compares the two under a fixed budget in a figure, and runs "
        "Option I."
    )


def cnn(results, pictures):
    """Accuracies of the CNN."""
    rows = []
    for label, run in sweeps.CNN.decide(results)[0]:
        accuracies = [
            100 * (1 - loss)
            for seed in sweeps.SEEDS
            if (loss := results.loss(run.replace(seed=seed))) is not None
        ]
        rate = f"{run.learning_rate:g}"
        rows.append((np.mean(accuracies), label, rate, accuracies))
    cells = [
        [label, rate, with_interval(accuracies, 2)]
        for _, label, rate, accuracies in sorted(rows, reverse=True)
    ]
    return (
        f"{markdown(['optimizer', 'best rate', 'test accuracy, %'], cells)}\n\n"
        "The rates are tuned on the first seed's test images, of which there "
        "are 360: one is 0.28 %. The head, a matrix, moves with the "
        "convolutions.\n\nThe paper: LANTON's accuracy on CIFAR-100 is "
        "highest, near its best after some 70 epochs (figures)."
    )


def theory(results, pictures):
    """The theorem on a quadratic."""
    result = json.loads(THEORY.read_text())
    return (
        f"```\n{theory_table(result)}\n```\n\n"
        "The last statement does not reproduce on this problem: at the same "
        "setting the adapted rates by themselves lose. The head of "
        "`experiments/paper/theory.py` says what is tested, and what of it was "
        "derived here because the paper's proofs were not at hand."
    )


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


def defaults(results, pictures):
    """What single settings do."""
    grids = "\n\n".join(grid_table(one, results) for one in sweeps.DEFAULTS)
    return (
        "One change to the settings of Lanton here at a time, and other "
        "optimizers, on prose of the English Wikipedia. They were chosen on "
        f"this text. Losses by rate.\n\n{grids}"
    )


SECTIONS = {
    "Validation loss": losses,
    "Robustness to the base learning rate": base_rate,
    "Robustness to the batch size": batch_size,
    "Effective learning rates": effective_rates,
    "Noise heterogeneity": noise,
    "Option I against Option II": references,
    "The CNN": cnn,
    "Theory": theory,
    "What the defaults were made of": defaults,
}


def page(results, pictures):
    """The page's text; pictures are written on the way."""
    parts = [HEAD]
    for title, write in SECTIONS.items():
        parts += [f"## {title}", write(results, pictures)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


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
    (args.docs / "paper.md").write_text(page(results, pictures))
    print(args.docs / "paper.md")


if __name__ == "__main__":
    main()

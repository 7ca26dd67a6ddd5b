"""The sections on noise and learning rates within a run."""

import numpy as np

from experiments.paper.report.parts import label
from experiments.paper.report.parts import quotient
from experiments.paper.report.parts import save
from experiments.paper.report.parts import spread
from experiments.paper.report.parts import subplots
from experiments.paper.report.parts import table
from experiments.paper.report.parts import wins

# Largest, smallest and mean noise at step 5000 of the 1.1B Llama.
PRINTED_NOISE = {
    "qk": (0.026, 0.003, 0.014),
    "vo": (0.117, 0.009, 0.046),
    "mlp": (0.107, 0.018, 0.038),
}


def effective_rates(result, pictures):
    from keras_lanton.tools.plots import STYLES  # which imports Keras

    figure, panels = subplots(len(result))
    rows = []
    for axes, (method, found) in zip(panels, result.items(), strict=True):
        for k, name in enumerate(("hidden", "embedding", "vector")):
            mean, std = (np.array(found[name][x]) for x in ("mean", "std"))
            steps = found["step"][: len(mean)]
            colour, marker = STYLES[k]
            axes.plot(steps, mean, color=colour, marker=marker, label=name)
            axes.fill_between(
                steps, mean - std, mean + std, color=colour, alpha=0.2
            )
            first, last = (f"{mean[i]:.2f} ± {std[i]:.2f}" for i in (0, -1))
            rows.append([label(method), name, first, last])
        axes.set_title(f"{label(method)} (band: deviation)")
        axes.set_xlabel("step")
        axes.set_ylabel("learning rate / base rate")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    save(figure, pictures / "effective_rates.png")
    start = result["lanton_paper"]["hidden"]["mean"][0]
    return [
        "Llama, the first seed; mean and standard deviation over layers.",
        table(["settings", "group", "at the start", "at the end"], rows),
        "![Learning rates over the base rate](paper/effective_rates.png)",
        "The paper: hidden layers 0.56 ± 0.14 at the start, 0.32 ± 0.16 at "
        "the end; embedding and head 0.70 ± 0.30, then 0.68 ± 0.32.",
        f"Here, with the paper's settings: hidden layers {start:.2f} at the "
        "start; alpha, which the paper does not print, decides how far below "
        "1 they are.",
    ]


def noise(result, pictures):
    from keras_lanton.tools.plots import STYLES  # which imports Keras

    figure, (axes,) = subplots(1)
    rows = []
    names = {"qk": "QK", "vo": "VO", "mlp": "MLP"}
    middle = len(result["step"]) // 2
    for k, (block, name) in enumerate(names.items()):
        colour, marker = STYLES[k]
        one = {key: np.array(v) for key, v in result[block].items()}
        steps = result["step"]
        axes.plot(steps, one["mean"], color=colour, marker=marker, label=name)
        axes.fill_between(
            steps, one["min"], one["max"], color=colour, alpha=0.2
        )
        ours = [one[key][middle] for key in ("max", "min", "mean")]
        rows.append(
            [
                name,
                *(f"{x:.3g}" for x in ours),
                f"{quotient(*ours[:2]):.1f}",
                *(f"{x:g}" for x in PRINTED_NOISE[block]),
                f"{PRINTED_NOISE[block][0] / PRINTED_NOISE[block][1]:.1f}",
            ]
        )
    axes.set_xlabel("step")
    axes.set_title("line: mean, band: least and largest layer")
    axes.set_ylabel("noise sqrt(H) (units of the dual norm)")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, pictures / "noise.png")
    columns = ("max", "min", "mean", "max/min")
    head = ["block", *columns, *(f"paper: {name}" for name in columns)]
    spans = [
        quotient(result[b]["max"][middle], result[b]["min"][middle])
        for b in names
    ]
    return [
        "Llama, the paper's settings, the first seed, in the middle of the "
        "run.",
        table(head, rows),
        "![Noise of the layers over training](paper/noise.png)",
        "The paper's units are those of a randomized SVD of rank unsaid; its "
        "layers of one kind differ by 6 to 13 times.",
        f"Here they differ by {min(spans):.1f} to {max(spans):.1f} times, in "
        "a model of four blocks.",
    ]


def references(result, pictures):
    rows = [[name, spread(final)] for name, final in result.items()]
    k, n = wins(
        result["Option I"], result["Option II, two batches, half the steps"]
    )
    return [
        "GPT-2, equal numbers of samples, at Option I's best rate.",
        table(["noise sample", "validation loss"], rows),
        "The paper compares the two under a fixed budget in a figure, and "
        "runs Option I.",
        f"Here: Option I is below Option II with half the steps in {k} of "
        f"{n} seeds.",
    ]


def bounds(result, pictures):
    from experiments.paper import theory  # which imports Keras

    theory.plot(result, pictures / "theory.png")
    return [
        "```\n" + theory.table(result).strip() + "\n```",
        "![Bounds of the lemmas and rates of convergence](paper/theory.png)",
        "The head of `experiments/paper/theory.py` says what is tested, and "
        "what of it was derived here because the paper's proofs were not at "
        "hand.",
    ]

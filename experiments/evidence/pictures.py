"""The picture of docs/evidence.md, from the results that there are."""

import dataclasses
import math

from experiments.evidence import questions
from experiments.evidence import statistics
from experiments.evidence import trials
from experiments.styles import STYLES

QUESTION = "Which optimizer ends lowest?"
OTHER = "#666666"  # what is no optimizer of its own
# Names of `STYLES`; where two share one, the first has its colour.
STYLE_OF = {
    "lanton_signal": "lanton",
    "adamw_tables": "adamw",
    "keras_muon": "keras_muon",
    "d_muon": "d_muon",
    "scion": "scion",
}


def final_table():
    """The table that the picture shows."""
    (question,) = (q for q in questions.QUESTIONS if q.title == QUESTION)
    return question.tables[0]


def final_losses(read):
    """By label: losses of the seeds that every row has.

    Args:
        read: Function of a trial: its result, or None.
    """
    table = final_table()
    found = {}
    for label, trial in table.rows(read):
        by_seed = {
            seed: trials.loss_of(result)
            for seed in table.seeds
            if (result := read(dataclasses.replace(trial, seed=seed)))
        }
        if by_seed:
            found[label] = by_seed
    if not found:
        return {}
    shared = set.intersection(*map(set, found.values()))
    return {
        label: [by_seed[seed] for seed in sorted(shared)]
        for label, by_seed in found.items()
        if shared
    }


def colours():
    """Colours by label."""
    return {
        questions.CONTESTANTS[name][0]: STYLES[style][1]
        for name, style in STYLE_OF.items()
    }


def draw(read, path):
    """Draw the final losses; nothing without results.

    Args:
        read: Function of a trial: its result, or None.
        path: Of the PNG.
    """
    losses = final_losses(read)
    if not losses:
        return
    import matplotlib

    matplotlib.use("agg")  # draws to a file, needs no display
    from matplotlib import pyplot

    rows = sorted(losses.items(), key=lambda row: -sum(row[1]) / len(row[1]))
    by_label = colours()
    height = 1.1 + 0.42 * len(rows)
    figure, axes = pyplot.subplots(figsize=(7.2, height), layout="constrained")
    for y, (label, values) in enumerate(rows):
        mean, half = statistics.interval(values)
        half = half if math.isfinite(half) else 0.0
        colour = by_label.get(label, OTHER)
        axes.errorbar(
            mean, y, xerr=half, color=colour, capsize=4, marker="o", ms=7
        )
        axes.plot(values, [y] * len(values), "|", color=colour, ms=12)
        axes.annotate(
            f"{mean:.3f}",
            (mean, y),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), [r[0].replace("`", "") for r in rows])
    axes.set_ylim(-0.6, len(rows) - 0.3)
    count = len(rows[0][1])
    axes.set_xlabel(
        "validation loss at the end, nats per token (lower is better)\n"
        f"bars: 95 % interval of the mean over {count} seeds; "
        "ticks: the seeds"
    )
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, facecolor="white")
    pyplot.close(figure)

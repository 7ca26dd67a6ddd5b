"""The pictures of docs/evidence.md, from the results that there are."""

import dataclasses
import math
import textwrap

from experiments.evidence import questions
from experiments.evidence import statistics
from experiments.evidence import trials
from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.questions.common import BY_FAN_IN
from experiments.styles import STYLES

FINALS = "Which optimizer ends lowest?"
WIDTHS = "Does the best rate change with the width?"
OTHER = "#666666"  # contestants without a style
# From light to dark; ColorBrewer's "Blues".
COLOUR_OF = {
    "32": "#9ecae1",
    "64": "#6baed6",
    "128": "#3182bd",
    "256": "#08519c",
    "512": "#08306b",
}
LONGEST_LINE = 30  # characters of a label
# What the others are compared with.
BASES = tuple(
    CONTESTANTS[name][0] for name in ("lanton_defaults", "lanton_signal")
)
SHOWN_AS = {BASES[1]: "Lanton (base), tuned"}  # labels of the picture
# Names of `STYLES`; where two share one, the first has its colour.
STYLE_OF = {
    "lanton_defaults": "lanton",
    "lanton_signal": "lanton",
    "lanton_paper": "lanton_paper",
    "adamw_tables": "adamw",
    "keras_muon": "keras_muon",
    "d_muon": "d_muon",
    "scion": "scion",
}


def tables_of(title):
    """The tables of a question; none where it is not asked."""
    return [
        table
        for question in questions.QUESTIONS
        if question.title == title
        for table in question.tables
    ]


def final_table():
    """The table that the picture shows; None where it is not asked for."""
    return next(iter(tables_of(FINALS)), None)


def final_losses(read):
    """By label: losses by seed, of the rows that have any.

    Args:
        read: Function of a trial: its result, or None.
    """
    table = final_table()
    found = {
        label: {
            seed: trials.loss_of(result)
            for seed in table.seeds
            if (result := read(dataclasses.replace(trial, seed=seed)))
        }
        for label, trial in (table.rows(read) if table else ())
    }
    return {label: by_seed for label, by_seed in found.items() if by_seed}


def less(losses, base):
    """Differences, seed by seed, over the seeds that both have.

    A seed moves all optimizers alike, by more than they differ.

    Args:
        losses: By seed.
        base: By seed.
    """
    return [losses[s] - base[s] for s in sorted(losses.keys() & base.keys())]


def by_difference(losses, base):
    """Differences to a base by label, from the lowest mean to the highest.

    Args:
        losses: From `final_losses`.
        base: A label. Labels that share no seed with it are left out.
    """
    found = {label: less(one, losses[base]) for label, one in losses.items()}
    rows = [(label, values) for label, values in found.items() if values]
    return dict(sorted(rows, key=lambda row: sum(row[1]) / len(row[1])))


def colours():
    """Colours by label."""
    return {
        CONTESTANTS[name][0]: STYLES[style][1]
        for name, style in STYLE_OF.items()
    }


def draw_finals(read, path):
    """Draw the final losses less those of `Lanton()`; nothing without them.

    Args:
        read: Function of a trial: its result, or None.
        path: Of the PNG.
    """
    losses = final_losses(read)
    base = next((base for base in BASES if base in losses), None)
    if base is None:
        return
    pyplot = load_pyplot()
    rows = [*by_difference(losses, base).items()][::-1]
    height = 1.6 + 0.42 * len(rows)
    figure, axes = pyplot.subplots(figsize=(7.2, height), layout="constrained")
    by_label = colours()
    for y, (label, values) in enumerate(rows):
        draw_row(axes, y, values, by_label.get(label, OTHER))
    seeds = max(len(values) for _, values in rows)
    axes.set_yticks(range(len(rows)), [named(*row, seeds) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.3)
    axes.set_xlabel(
        "final validation loss less that of\n"
        f"{base.replace('`', '')}, nats per token\n"
        "(further right is worse)\n"
        f"point: mean of {seeds} seed{'s' * (seeds > 1)};\n"
        "bar: its 95 % interval; ticks: the seeds"
    )
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, facecolor="white")
    pyplot.close(figure)


def named(label, values, seeds):
    """The label of a row, with its number of seeds where that is another."""
    label = SHOWN_AS.get(label, label).replace("`", "")
    label = textwrap.fill(label, LONGEST_LINE)
    return label if len(values) == seeds else f"{label} ({len(values)})"


def draw_row(axes, y, values, colour):
    """The differences of one optimizer, their mean and its interval."""
    mean, half = statistics.interval(values)
    if math.isfinite(half):
        axes.errorbar(mean, y, xerr=half, color=colour, capsize=4)
    axes.plot(values, [y] * len(values), "|", color=colour, ms=12)
    axes.plot(mean, y, "o", color=colour, ms=7)
    axes.annotate(
        f"{mean:+.3f}" if any(values) else "0",
        (mean, y),
        xytext=(0, 9),
        textcoords="offset points",
        ha="center",
        fontsize=9,
    )


def draw_widths(read, path):
    """Draw losses by rate: a panel for each optimizer, a curve for each width.

    Without the optimizer that is close to `Lanton()`, which has a panel, and
    of the first seed.

    Args:
        read: Function of a trial: its result, or None.
        path: Of the PNG.
    """
    found = {
        table.caption.split(", GPT-2")[0]: table.losses(read)
        for table in tables_of(WIDTHS)
        if len(table.seeds) == 1 and not table.caption.startswith(BY_FAN_IN)
    }
    found = {caption: losses for caption, losses in found.items() if losses}
    if not found:
        return
    pyplot = load_pyplot()
    figure, panels = pyplot.subplots(
        1,
        len(found),
        figsize=(3.3 * len(found), 3.4),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (caption, losses) in zip(panels[0], found.items(), strict=True):
        draw_curves(axes, losses)
        title = caption.replace("`", "").replace(", ", ",\n", 1)
        axes.set_title(title, fontsize=9)
    panels[0][0].set_ylabel("loss above the lowest of the width")
    curves = {
        curve.get_label(): curve for axes in panels[0] for curve in axes.lines
    }
    panels[0][0].legend(
        handles=[
            curves[label]
            for label in map(labelled, COLOUR_OF)
            if label in curves
        ],
        fontsize=8,
    )
    figure.savefig(path, dpi=120, facecolor="white")
    pyplot.close(figure)


def labelled(width):
    """The label of the curves of a width."""
    return f"width {width}"


def draw_curves(axes, losses):
    """Losses by rate above the lowest of each width, one curve a width."""
    for width, by_rate in losses.items():
        lowest = min(by_rate.values())
        above = [loss - lowest for loss in by_rate.values()]
        style = {"color": COLOUR_OF[width], "label": labelled(width)}
        axes.plot(list(by_rate), above, "o-", **style)
    rates = sorted({rate for by_rate in losses.values() for rate in by_rate})
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates], fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(-0.01, 0.3)
    axes.set_xlabel("peak learning rate")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def load_pyplot():
    """Matplotlib's pyplot, which draws to files and needs no display."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot

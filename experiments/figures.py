"""The pictures of docs/results.md, from the results that there are."""

import math

import matplotlib
from matplotlib.figure import Figure

from experiments.search import label_of
from experiments.styles import STYLES
from experiments.tables import by_value
from experiments.tables import compared
from experiments.tables import differences
from experiments.tables import interval

OTHER = "#666666"  # optimizers without a style
# From light to dark; ColorBrewer's "Blues".
COLOURS = {
    "XS": "#9ecae1",
    "S": "#6baed6",
    "M": "#3182bd",
    "L": "#08519c",
}


def colour_of(run):
    """The colour of a run's optimizer."""
    name = run.optimizer.removesuffix("_tables")
    return STYLES[name][1] if name in STYLES else OTHER


def plain(label):
    """A label without Markdown."""
    return label.replace("`", "")


def draw_finals(table, results, path):
    """Draw final losses less those of the reference; nothing without them.

    Of each other optimizer at its strongest, not of variants without noise,
    nor of AdamW with one rate for all. It is drawn as wide as a phone shows it.
    """
    frame, runs = compared(table, results)
    if table.reference not in frame:
        return
    above = differences(frame, table.reference).drop(columns=table.reference)
    above = above[
        [x for x in above if "noise=None" not in x and x != label_of("adamw")]
    ]
    order = above.mean().sort_values(ascending=False).index
    figure = Figure(
        figsize=(4.4, 1.1 + 0.55 * len(order)), layout="constrained"
    )
    axes = figure.subplots()
    axes.axvline(0.0, color="black", lw=1)
    for y, label in enumerate(order):
        values = above[label].dropna()
        draw_row(axes, y, values, colour_of(runs[label]))
        counted = "" if len(values) == len(frame) else f" ({len(values)})"
        told = {"textcoords": "offset points", "fontsize": 9}
        # Right of the line at 0, and at the right edge.
        axes.annotate(plain(label) + counted, (0.0, y), (4, 8), **told)
        axes.annotate(
            f"{values.mean():+.3f}",
            (1.0, y),
            (-4, 8),
            xycoords=axes.get_yaxis_transform(),
            ha="right",
            **told,
        )
    axes.set_yticks([])
    axes.set_ylim(-0.4, len(order) - 0.3)
    axes.set_xlabel(
        f"final loss above that of {plain(table.reference)},\n"
        f"nats per token: mean of {len(frame)} seeds,\n"
        "95 % interval, each seed"
    )
    save(figure, [axes], path)


def draw_row(axes, y, values, colour):
    """The differences of one optimizer, their mean and its interval."""
    mean, half = interval(values)
    if math.isfinite(half):
        axes.errorbar(mean, y, xerr=half, color=colour, capsize=4)
    axes.plot(values, [y] * len(values), "|", color=colour, ms=12)
    axes.plot(mean, y, "o", color=colour, ms=7)


def draw_widths(grids, results, path):
    """Draw losses by rate: a panel for an optimizer, a curve for a width."""
    frames = {grid.caption: by_value(grid, results) for grid in grids}
    frames = {name: frame for name, frame in frames.items() if len(frame)}
    if not frames:
        return
    size = (3.3 * len(frames), 3.4)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(frames), sharey=True, squeeze=False)[0]
    for axes, (caption, frame) in zip(panels, frames.items(), strict=True):
        for size_name, losses in frame.iterrows():
            known = losses.dropna()
            style = {"color": COLOURS[size_name], "label": size_name}
            axes.plot(known.index, known - known.min(), "o-", **style)
        axes.set_xscale("log")
        rates = list(frame.columns)
        axes.set_xticks(rates, [f"{r:g}" for r in rates], fontsize=8)
        axes.minorticks_off()
        axes.set_ylim(-0.01, 0.3)
        axes.set_xlabel("peak learning rate")
        title = plain(caption.split(", GPT-2")[0]).replace(", ", ",\n", 1)
        axes.set_title(title, fontsize=9)
    panels[0].set_ylabel("loss above the lowest of the width")
    panels[0].legend(title="width", fontsize=8)
    save(figure, panels, path)


def save(figure, panels, path):
    """Write a PNG without the upper and right lines."""
    for axes in panels:
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"savefig.facecolor": "white"}):
        figure.savefig(path, dpi=120)

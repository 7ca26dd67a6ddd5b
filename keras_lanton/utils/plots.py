"""Pictures of noise and learning rates; needs matplotlib."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np

# Tol's colors, which color-blind readers tell apart, and markers for those who
# see none. No optimizer has them in the pictures of `experiments`.
STYLES = (
    ("#332288", "o"),
    ("#AA4499", "s"),
    ("#117733", "^"),
)
FONT_SIZE = 10.0  # points
AXES_HEIGHT = 0.8  # of a figure with one row of panels
ROLES = {"hidden": "hidden", "embedding": "embedding", "vector": "vector"}
BLOCKS = {"qk": "QK", "vo": "VO", "mlp": "MLP"}

Band = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def draw_noise(
    steps: np.ndarray,
    noise: np.ndarray,
    ratio: np.ndarray,
    *,
    roles: Sequence[str],
    blocks: Sequence[str],
    over_signal: bool = False,
) -> Any:
    """Noise of the groups, its spread within blocks, and the layers' rates.

    Args:
        steps: `(records,)`.
        noise: sqrt(H), `(records, matrices)`.
        ratio: Rates over the base rate, `(records, matrices)`.
        roles: Group of each matrix.
        blocks: Kind of block of each matrix.
        over_signal: Whether the noise has no unit: it is over the signal.

    Returns:
        A `matplotlib.figure.Figure` of three panels.

    Raises:
        ImportError: Without matplotlib.

    References:
        Hao et al., arXiv 2510.14009.
    """
    figure = new_figure(width=15)
    # Else labels and the next panel's axis touch.
    figure.get_layout_engine().set(wspace=0.04)
    groups, within, rates = figure.subplots(1, 3)
    draw_bands(groups, steps, noise, roles, ROLES, extremes)
    groups.set_title("Noise by role (line: mean, band: range)")
    kinds = {b: name for b, name in BLOCKS.items() if b in blocks}
    if set(kinds) == {"mlp"}:  # no transformer
        kinds = {"mlp": "hidden"}
    draw_bands(within, steps, noise, blocks, kinds, extremes)
    within.set_title(f"Spread within {', '.join(kinds.values())}")
    for axes in (groups, within):
        axes.set_ylabel(
            "noise / signal"
            if over_signal
            else "noise sqrt(H) (units of the dual norm)"
        )
        if np.any(noise > 0):
            axes.set_yscale("log")
    draw_bands(rates, steps, ratio, roles, ROLES, deviation)
    draw_range(rates, steps, ratio, roles, ROLES)
    rates.set_title("Rates (line: mean, band: deviation, dots: range)")
    rates.set_ylabel("learning rate / base rate")
    rates.set_ylim(bottom=0)
    rates.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    for axes in (groups, within, rates):
        label_ends(axes)
    return figure


def new_figure(width: float, height: float = 4.5) -> Any:
    """A figure of its own, in inches, that needs no display.

    Raises:
        ImportError: Without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib: `pip install matplotlib`."
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def label_ends(axes: Any) -> None:
    """Writes the label of each line at its right end, in place of a legend.

    Call it last: it reads the limits of the axes.

    Args:
        axes: `matplotlib.axes.Axes`. A line without a label is left out.
    """
    axes.get_ylim()  # matplotlib sets automatic limits when they are read
    lines = [
        line
        for line in axes.get_lines()
        if line.get_label()[:1] not in ("", "_")
    ]
    place = axes.transScale + axes.transLimits
    ends = [place.transform(line.get_xydata()[-1])[1] for line in lines]
    height = 72 * AXES_HEIGHT * axes.figure.get_figheight()
    rows = max((1 + line.get_label().count("\n") for line in lines), default=1)
    free = spaced(ends, 1.3 * rows * FONT_SIZE / height)
    for line, end in zip(lines, free, strict=True):
        axes.annotate(
            line.get_label(),
            (1.0, end),
            xycoords="axes fraction",
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=FONT_SIZE,
            color=darker(line.get_color()),
            verticalalignment="center",
            annotation_clip=False,
        )


def spaced(places: Sequence[float], gap: float) -> np.ndarray:
    """The places, moved until neighbors are a gap apart; their order stays.

    Args:
        places: `(n,)`.
        gap: Least distance, in the unit of the places.

    Returns:
        `(n,)`. Crowded places keep their mean.
    """
    order = np.argsort(places, kind="stable")
    # Steps of one gap taken away, spaced places only have to rise: pool those
    # that fall into their mean.
    steps = gap * np.arange(len(order))
    pools: list[list[float]] = []
    for place in np.asarray(places, float)[order] - steps:
        pools.append([place])
        while len(pools) > 1 and np.mean(pools[-1]) < np.mean(pools[-2]):
            pools[-2:] = [pools[-2] + pools[-1]]
    moved = np.empty(len(order))
    means = [np.mean(pool) for pool in pools for _ in pool]
    moved[order] = np.array(means) + steps
    return moved


def darker(color: Any) -> tuple[float, ...]:
    """A color of a line, for text on white: a light one would be hard to read.

    Returns:
        Red, green and blue, from 0 to 1.
    """
    from matplotlib.colors import to_rgb

    return tuple(0.75 * part for part in to_rgb(color))


def draw_bands(
    axes: Any,
    steps: np.ndarray,
    values: np.ndarray,
    kinds: Sequence[str],
    names: dict[str, str],
    band: Band,
) -> None:
    """Draws a line and a band for each kind of column, in its own style.

    It leaves out zeros, which stand for matrices without a measurement.
    """
    values = np.where(values > 0, values, np.nan)
    for name, mine, color, marker in of_each_kind(values, kinds, names):
        known = ~np.isnan(mine).all(1)
        middle, low, high = band(mine[known])
        axes.plot(
            steps[known],
            middle,
            color=color,
            marker=marker,
            markersize=4,
            markevery=max(1, len(steps) // 12),
            label=f"{name}\n{counted(mine.shape[1])}",
        )
        axes.fill_between(
            steps[known], low, high, color=color, alpha=0.2, linewidth=0
        )
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)


def counted(layers: int) -> str:
    """A number of layers, with its noun."""
    return "1 layer" if layers == 1 else f"{layers} layers"


def draw_range(
    axes: Any,
    steps: np.ndarray,
    values: np.ndarray,
    kinds: Sequence[str],
    names: dict[str, str],
) -> None:
    """Dotted lines at the least and the largest of each kind of column."""
    for _, mine, color, _ in of_each_kind(values, kinds, names):
        for line in (mine.min(1), mine.max(1)):
            axes.plot(steps, line, color=color, linestyle=":", linewidth=1)


def of_each_kind(
    values: np.ndarray, kinds: Sequence[str], names: dict[str, str]
) -> Iterator[tuple[str, np.ndarray, str, str]]:
    """Name, columns, color and marker of each kind that there is."""
    for (kind, name), style in zip(names.items(), STYLES, strict=False):
        mine = values[:, np.array(kinds) == kind]
        if mine.shape[1]:
            yield name, mine, *style


def extremes(
    values: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, least and largest of each row's known values."""
    return (
        np.nanmean(values, 1),
        np.nanmin(values, 1),
        np.nanmax(values, 1),
    )


def deviation(
    values: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of each row, and one standard deviation to both sides."""
    mean, std = np.nanmean(values, 1), np.nanstd(values, 1)
    return mean, np.maximum(mean - std, 0), mean + std

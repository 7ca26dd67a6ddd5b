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
    """Noise of the groups, its spread within blocks, and the matrices' rates.

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
        axes.legend()
    return figure


def new_figure(width: float) -> Any:
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
    return Figure(figsize=(width, 4.5), layout="constrained")


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
            label=f"{name}, {counted(mine.shape[1])}",
        )
        axes.fill_between(
            steps[known], low, high, color=color, alpha=0.2, linewidth=0
        )
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)


def counted(matrices: int) -> str:
    """A number of matrices, with its noun."""
    return "1 matrix" if matrices == 1 else f"{matrices} matrices"


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

"""The table that `optimizer.summary()` prints."""

import io
import math
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import rich.box
import rich.console
import rich.table
import rich.text

from keras_lanton.roles import ROLES
from keras_lanton.roles import Layer


def print_summary(
    layers: Sequence[Layer],
    print_fn: Callable[[str], Any] | None = None,
    *,
    steps: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Prints role and matrix view of every variable, like `model.summary()`.

    Args:
        layers: The records, in the order to print.
        print_fn: Called once with the whole text. Defaults to `None`, which
            prints to the terminal.
        steps: Of each layer the size of its steps; none or all empty for no
            such column.
        notes: Lines below the totals.
    """
    table = _table(layers, steps if any(steps) else ())
    text = io.StringIO()
    if print_fn is None:
        console = rich.console.Console(highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, 110)
    else:
        # Plain text of a fixed width, whatever the terminal is.
        console = rich.console.Console(
            file=text, highlight=False, color_system=None, width=120
        )
    console.print(table)
    lines = [*_totals(layers), *notes, *_doubts(layers)]
    console.print("\n".join(f" {line}" for line in lines), markup=False)
    if print_fn is not None:
        print_fn(text.getvalue())


def _table(layers: Sequence[Layer], steps: Sequence[str]) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    table.add_column("Variable (path)", overflow="fold")
    table.add_column("Shape")
    table.add_column("Role")
    table.add_column("Matrices", justify="right")
    if steps:
        table.add_column("Step RMS / rate", justify="right")
    table.add_column("Param #", justify="right")
    for i, layer in enumerate(layers):
        matrices = f"{layer.batch} x " if layer.batch > 1 else ""
        cells = (
            _wrapped(layer.path),
            str(layer.shape),
            layer.role + (" (guess)" if layer.guessed else ""),
            f"{matrices}({layer.d_in} x {layer.d_out})",
            *steps[i : i + 1],
            f"{math.prod(layer.shape):,}",
        )
        table.add_row(*(rich.text.Text(cell) for cell in cells))
    return table


def _wrapped(path: str, width: int = 32) -> str:
    """The path in lines that break behind a slash, where they are long."""
    lines = [""]
    for part in re.findall(r"[^/]*/?", path):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _totals(layers: Sequence[Layer]) -> list[str]:
    lines = []
    for role in ROLES:
        mine = [layer for layer in layers if layer.role == role]
        matrices = sum(layer.batch for layer in mine)
        size = sum(math.prod(layer.shape) for layer in mine)
        kind = "vectors" if role == "vector" else "matrices"
        lines.append(
            f"{role}: {size:,} params, {len(mine)} variables, {matrices} {kind}"
        )
    return lines


def _doubts(layers: Sequence[Layer]) -> list[str]:
    """What to do about views that are guesses."""
    guesses = [layer.path for layer in layers if layer.guessed]
    if not guesses:
        return []
    return [
        f"guess: of {', '.join(guesses)} the last axis is taken as output. "
        "Before the first step, `read_roles(model)` reads views from the "
        "model's layers, and `assign_role` sets them by hand."
    ]


def describe_memory(
    parts: Mapping[str, int], *, total: int, weights: int
) -> str:
    """One line on the memory of the state.

    Args:
        parts: Bytes of what is worth naming, by name.
        total: Bytes of all of it.
        weights: Bytes of the trainable weights.
    """
    large = {n: size for n, size in parts.items() if size > total / 100}
    named = ", ".join(f"{n} {in_units(size)}" for n, size in large.items())
    times = f"{total / weights:.2f} times the weights" if weights else ""
    return f"state: {in_units(total)}, {times}: {named}"


def count_bytes(variables: Iterable[Any]) -> int:
    """Bytes of Keras variables."""
    return sum(
        math.prod(variable.shape) * bytes_of(str(variable.dtype))
        for variable in variables
    )


def bytes_of(dtype: str) -> int:
    """Bytes of one number of a dtype by its name; of a boolean 1."""
    bits = re.search(r"\d+", dtype.removeprefix("<dtype: "))
    return max(1, int(bits[0]) // 8) if bits else 1


def in_units(size: float) -> str:
    """Bytes as text, in steps of 1024."""
    power = min(int(math.log(max(size, 1), 1024)), len(UNITS) - 1)
    number = size / 1024**power
    return f"{number:,.{min(power, 1)}f} {UNITS[power]}"


UNITS = ("bytes", "KiB", "MiB", "GiB")

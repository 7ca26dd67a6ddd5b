"""The table that `optimizer.summary()` prints."""

import io
import math
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import ml_dtypes
import numpy as np
import rich.box
import rich.console
import rich.table
import rich.text

from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import in_words
from keras_lanton.types import ROLES

WIDTH = 32  # of the column of paths
NAMED = 3  # paths of a line that are written out


def print_summary(
    specs: Sequence[VariableSpec],
    print_fn: Callable[[str], Any] | None = None,
    *,
    steps: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Prints role and matrix view of every variable, like `model.summary()`.

    Args:
        specs: The specs, in the order to print.
        print_fn: Called once with the whole text. Defaults to `None`, which
            prints to the terminal.
        steps: The size of each variable's updates; none or all empty for no
            such column.
        notes: Lines below the totals.
    """
    table = _table(specs, steps if any(steps) else ())
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
    lines = [*_totals(specs), *notes, *_doubts(specs)]
    console.print("\n".join(f" {line}" for line in lines), markup=False)
    if print_fn is not None:
        print_fn(text.getvalue())


def _table(
    specs: Sequence[VariableSpec], steps: Sequence[str]
) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    table.add_column("Variable (path)", overflow="fold")
    table.add_column("Shape")
    table.add_column("Role")
    table.add_column("Matrices", justify="right")
    if steps:
        table.add_column("Update RMS / rate", justify="right")
    table.add_column("Param #", justify="right")
    for i, spec in enumerate(specs):
        cells = (
            _wrapped(spec.path),
            str(spec.shape),
            spec.role + (" (guess)" if spec.guessed else ""),
            ", ".join(map(_matrices, spec.pieces)),
            *steps[i : i + 1],
            f"{math.prod(spec.shape):,}",
        )
        table.add_row(*(rich.text.Text(cell) for cell in cells))
    return table


def _matrices(spec: VariableSpec) -> str:
    count = f"{spec.batch} x " if spec.batch > 1 else ""
    return f"{count}({spec.d_in} x {spec.d_out})"


def _wrapped(path: str) -> str:
    """The path in lines that break behind a slash, where they are long."""
    lines = [""]
    for part in re.findall(r"[^/]*/?", path):
        if lines[-1] and len(lines[-1] + part) > WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _totals(specs: Sequence[VariableSpec]) -> list[str]:
    lines = []
    for role in ROLES:
        mine = [spec for spec in specs if spec.role == role]
        matrices = sum(spec.batch for spec in mine)
        size = sum(math.prod(spec.shape) for spec in mine)
        kind = "vectors" if role == "vector" else "matrices"
        lines.append(
            f"{role}: {size:,} params, {len(mine)} variables, {matrices} {kind}"
        )
    return lines


def _doubts(specs: Sequence[VariableSpec]) -> list[str]:
    """Lines that say what each guess is taken as, and advice."""
    lines = [
        f"guess: {spec.path} {spec.shape} is taken as {in_words(spec)}."
        for spec in specs
        if spec.guessed
    ]
    advice = (
        "Before the first step, `read_roles(model)` reads what the model's "
        "layers tell, and `assign_role` sets roles and views by hand."
    )
    return [*lines, advice] if lines else []


def describe_multipliers(
    specs: Sequence[VariableSpec], factors: Sequence[float]
) -> list[str]:
    """Lines on the variables whose rate is not the base rate.

    Args:
        specs: Of the variables.
        factors: On the rate, one per variable.
    """
    paths: dict[float, list[str]] = {}
    for spec, factor in zip(specs, factors, strict=True):
        paths.setdefault(factor, []).append(spec.path)
    lines = []
    for factor, some in sorted(paths.items()):
        if factor != 1.0:
            told = f"{factor:g} times the rate" if factor else "frozen"
            more = len(some) - NAMED
            rest = f" and {more} more" if more > 0 else ""
            lines.append(f"{told}: {', '.join(some[:NAMED])}{rest}")
    return lines


def describe_memory(
    parts: Mapping[str, int], *, total: int, weights: int
) -> str:
    """One line on the memory of the state.

    Args:
        parts: Bytes of the parts of the state, by name.
        total: Bytes of the whole state.
        weights: Bytes of the trainable weights.
    """
    large = {n: size for n, size in parts.items() if size > total / 100}
    named = ", ".join(f"{n} {in_units(size)}" for n, size in large.items())
    times = f"{total / weights:.2f} times the weights" if weights else ""
    return f"state: {in_units(total)}, {times}: {named}"


def count_bytes(variables: Iterable[Any]) -> int:
    """Bytes of Keras variables."""
    return sum(
        math.prod(variable.shape) * bytes_of(variable.dtype)
        for variable in variables
    )


def bytes_of(dtype: Any) -> int:
    """Bytes of one number of a dtype.

    Args:
        dtype: A dtype of any backend, or its name.
    """
    name = keras.backend.standardize_dtype(dtype)
    # The dtypes that NumPy lacks: bfloat16, float8, int4.
    return int(np.dtype(getattr(ml_dtypes, name, name)).itemsize)


def in_units(size: float) -> str:
    """Bytes as text, in steps of 1024."""
    power = min(int(math.log(max(size, 1), 1024)), len(UNITS) - 1)
    number = size / 1024**power
    return f"{number:,.{min(power, 1)}f} {UNITS[power]}"


UNITS = ("bytes", "KiB", "MiB", "GiB")

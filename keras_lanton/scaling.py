"""The bytes that a step of Lanton moves between devices.

`python -m keras_lanton.scaling --model llama-1.1b --devices 64` prints it.

A model of the collectives that JAX compiles, compared with counted ones in
tests/test_scaling.py. Bytes are those of the results of collectives on one
device, in one step of the optimizer; what Keras moves for the gradients is
given beside them.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras_lanton.backends.functional import Devices
from keras_lanton.backends.functional import reduces
from keras_lanton.orthogonalization.batching import largest_size
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.spec import assigned_spec
from keras_lanton.variables.stacks import Stack
from keras_lanton.variables.stacks import equal_stacks

LAYOUTS = ("data", "model")


def gpt2(layers: int, width: int) -> list[VariableSpec]:
    """GPT-2's weights, tied head, as KerasHub lays them out.

    Args:
        layers: Number of blocks.
        width: Width of the model; heads have 64.
    """
    heads = (width // 64, 64)
    found = [
        assigned_spec("tokens", (50257, width), "embedding"),
        assigned_spec("positions", (1024, width), "embedding"),
        *_vectors(2, width),
    ]
    for _ in range(layers):
        found += _attention(width, heads, heads)
        found += [
            assigned_spec("up", (width, 4 * width), "hidden"),
            assigned_spec("down", (4 * width, width), "hidden"),
            *_vectors(9, width),
            *_vectors(1, 4 * width),
        ]
    return found


def llama(
    layers: int, width: int, feed_forward: int, key_value_heads: int
) -> list[VariableSpec]:
    """Llama's weights, untied head, as KerasHub lays them out.

    Args:
        layers: Number of blocks.
        width: Width of the model; heads have 64.
        feed_forward: Inner width of the MLPs.
        key_value_heads: Number of heads of keys and values.
    """
    queries, others = (width // 64, 64), (key_value_heads, 64)
    found = [
        assigned_spec("tokens", (32000, width), "embedding"),
        assigned_spec("head", (width, 32000), "embedding", input_axes=0),
        *_vectors(1, width),
    ]
    for _ in range(layers):
        found += _attention(width, queries, others)
        found += [
            assigned_spec("gate", (width, feed_forward), "hidden"),
            assigned_spec("up", (width, feed_forward), "hidden"),
            assigned_spec("down", (feed_forward, width), "hidden"),
            *_vectors(2, width),
        ]
    return found


def _attention(
    width: int, queries: tuple[int, int], others: tuple[int, int]
) -> list[VariableSpec]:
    into = [
        assigned_spec(name, (width, *heads), "hidden", 0, (1, 2))
        for name, heads in (
            ("query", queries),
            ("key", others),
            ("value", others),
        )
    ]
    return [*into, assigned_spec("out", (*queries, width), "hidden", (0, 1), 2)]


def _vectors(count: int, width: int) -> list[VariableSpec]:
    return [assigned_spec("vector", (width,), "vector")] * count


MODELS = {
    "gpt2-small": lambda: gpt2(12, 768),
    "gpt2-medium": lambda: gpt2(24, 1024),
    "llama-0.5b": lambda: llama(15, 1280, 5120, 20),
    "llama-1.1b": lambda: llama(22, 2048, 5632, 4),
    "llama-2b": lambda: llama(26, 2560, 7040, 5),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """All hidden matrices of one shape.

    Args:
        rows: Short side of each matrix.
        columns: Long side of each matrix.
        matrices: Number of matrices.
        stacks: Number of stacks that are worked on one after the other.
        turns: Matrices that the busiest device works on, one after the other.
        moved_bytes: Bytes that are moved on one device.
        flops: Operations of Newton-Schulz on the busiest device.
    """

    rows: int
    columns: int
    matrices: int
    stacks: int
    turns: int
    moved_bytes: int
    flops: float


def views(
    specs: Sequence[VariableSpec],
    devices: int,
    *,
    layout: str = "data",
    steps: int = 5,
    interval: int = 10,
    max_temporary_bytes: int = 2**29,
) -> list[View]:
    """Cost of one step, by the shape of the matrices.

    Args:
        specs: All variables of a model.
        devices: Number of devices, at least 1.
        layout: `"data"`: every device has all weights; `"model"`: each has
            its part of every kernel's columns or rows.
        steps: Newton-Schulz steps, as in `NewtonSchulz`.
        interval: Steps from one measurement of a matrix to the next.
        max_temporary_bytes: Memory for one stack on each device.

    Raises:
        ValueError: For a wrong argument.
    """
    if layout not in LAYOUTS:
        raise ValueError(
            f"`layout` must be one of {LAYOUTS}. Received: layout={layout!r}"
        )
    if devices < 1:
        raise ValueError(
            f"`devices` must be at least 1. Received: devices={devices!r}"
        )
    split = layout == "model"
    shared = Devices(count=devices, split=split) if devices > 1 else None
    found = []
    for whole in equal_stacks(specs, ("hidden",)):
        size = largest_size(whole, max_temporary_bytes, shared)
        stacks = whole.cut(size, whole_variables=True)
        turns = sum(math.ceil(len(stack) / devices) for stack in stacks)
        area = 4 * whole.rows * whole.columns
        moved = 0.0
        if shared and split:
            # In and out, of a device's part; once more each way where rows
            # are split and not columns; and what is measured, whole, twice.
            transposed = sum(len(p) for p in whole.parts if p.transposed)
            moved = (2 * turns * devices + 2 * transposed) * area / devices
            moved += 2 * math.ceil(len(whole) / interval) * area
        elif shared:
            moved = area * sum(
                len(stack)
                if reduces(len(stack), devices)
                else math.ceil(len(stack) / devices) * devices
                for stack in stacks
            )
        found.append(
            View(
                rows=whole.rows,
                columns=whole.columns,
                matrices=len(whole),
                stacks=len(stacks),
                turns=turns,
                moved_bytes=round(moved),
                flops=turns * steps * _row_flops(whole),
            )
        )
    return found


def _row_flops(stack: Stack) -> float:
    """Operations of one Newton-Schulz step, in the standard form."""
    s, long = stack.rows, stack.columns
    return 2.0 * (2 * s * s * long + s**3)


def report(
    specs: Sequence[VariableSpec], devices: int, layout: str, **options: Any
) -> str:
    """A table of `views`, and what it amounts to.

    Args:
        specs: All variables of a model.
        devices: Number of devices.
        layout: See `views`.
        **options: More arguments of `views`.
    """
    found = views(specs, devices, layout=layout, **options)
    lines = [
        f"{'matrix':>14} {'matrices':>9} {'stacks':>7} {'per device':>11} "
        f"{'moved, MB':>10} {'TFLOP':>8}"
    ]
    lines += [
        f"{f'{v.rows} x {v.columns}':>14} {v.matrices:>9} {v.stacks:>7} "
        f"{v.turns:>11} {v.moved_bytes / 1e6:>10.1f} {v.flops / 1e12:>8.3f}"
        for v in found
    ]
    weights = 4 * sum(math.prod(spec.shape) for spec in specs)
    matrices = 4 * sum(v.matrices * v.rows * v.columns for v in found)
    moved = sum(v.moved_bytes for v in found)
    alone = sum(v.matrices * v.flops / max(v.turns, 1) for v in found)
    busiest = sum(v.flops for v in found)
    least = min(found, key=lambda v: v.matrices)
    lines += [
        f"Weights {weights / 1e6:,.0f} MB in float32, hidden matrices "
        f"{matrices / 1e6:,.0f} MB.",
        f"Lanton moves {moved / 1e6:,.1f} MB per device and step, "
        f"{moved / matrices:.2f} times the matrices.",
        f"Gradients, data parallel: {weights * (devices > 1) / 1e6:,.1f} MB "
        "per device and step, moved by Keras.",
        f"Newton-Schulz: {busiest / 1e12:.3f} TFLOP on the busiest device, "
        f"{alone / busiest:.1f} times less than on one ({devices} devices).",
        f"Devices beyond {least.matrices} have no matrix "
        f"{least.rows} x {least.columns} to work on; beyond "
        f"{max(v.matrices for v in found)} more devices gain nothing.",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_lanton.scaling",
        description="Bytes that a step of Lanton moves between devices on JAX.",
    )
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--devices", type=int, required=True, metavar="N")
    parser.add_argument("--layout", choices=LAYOUTS, default="data")
    parser.add_argument(
        "--max-temporary-bytes", type=int, default=2**29, metavar="BYTES"
    )
    args = parser.parse_args(argv)
    for name in ("devices", "max_temporary_bytes"):
        if getattr(args, name) < 1:
            option = "--" + name.replace("_", "-")
            parser.error(
                f"{option} must be at least 1. Received: {getattr(args, name)}"
            )
    print(
        report(
            MODELS[args.model](),
            args.devices,
            args.layout,
            max_temporary_bytes=args.max_temporary_bytes,
        )
    )


if __name__ == "__main__":
    main()

"""The bytes that Lanton sends between devices, and those of its state.

`python -m keras_lanton.scaling --model llama-1.1b --devices 64` prints the
first, `python -m keras_lanton.scaling --memory` the second, model by model.

The bytes come from a model of the collectives that JAX compiles;
tests/test_scaling.py compares them with counted ones. They are the bytes of
the results of collectives on one device, in one step of the optimizer. Keras
also sends the gradients, which `report` lists separately.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_lanton.backends import Devices
from keras_lanton.backends.reference import reduces
from keras_lanton.core.layout import VariableLayout
from keras_lanton.core.matrices import Stack
from keras_lanton.core.matrices import equal_stacks
from keras_lanton.fast.batching import largest_size
from keras_lanton.fast.spectral import FastSpectral
from keras_lanton.lanton import Lanton
from keras_lanton.optimizer.state import Buffer
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.table import bytes_of
from keras_lanton.settings import NewtonSchulz
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.tools.presets import PRESETS
from keras_lanton.tools.presets import llama

LAYOUTS = ("data", "model")


MODELS = {
    "gpt2-small": PRESETS["gpt2_base_en"],
    "gpt2-medium": PRESETS["gpt2_medium_en"],
    "llama-0.5b": lambda: llama(15, 1280, 5120, 20),
    "llama-1.1b": lambda: llama(22, 2048, 5632, 4),
    "llama-2b": lambda: llama(26, 2560, 7040, 5),
    **PRESETS,
}
# What the table of memory compares, besides AdamW.
STATES: dict[str, dict[str, Any]] = {
    "Lanton()": {},
    "momentum": {"noise": NoiseAdaptiveRate(reference="momentum")},
    "+ bfloat16": {
        "noise": NoiseAdaptiveRate(reference="momentum"),
        "momentum_dtype": "bfloat16",
    },
    "+ int8": {
        "noise": NoiseAdaptiveRate(reference="momentum"),
        "momentum_dtype": "int8",
    },
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """The hidden matrices that one matrix view gives: all of one shape.

    Args:
        rows: Short side of each matrix.
        columns: Long side of each matrix.
        matrices: Number of matrices.
        stacks: Number of stacks, which are orthogonalized one by one.
        turns: Number of matrices on the busiest device.
        moved_bytes: Bytes of the results of collectives on one device.
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
    norm = FastSpectral(rows=(), devices=shared)
    found = []
    for whole in equal_stacks(specs, {"hidden": norm.orientation}):
        each = norm.temporary_bytes(whole.rows, whole.columns)
        size = largest_size(max_temporary_bytes, each)
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
    """A table of `views`, and its totals.

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


def state_bytes(
    specs: Sequence[VariableSpec], optimizer: Lanton, dtype: str = "float32"
) -> int:
    """The size of an optimizer's state, without making it.

    Args:
        specs: All variables of a model.
        optimizer: A new one, that is used for nothing else.
        dtype: Of the weights.

    Raises:
        ValueError: If the optimizer is built.
    """
    if optimizer.built:
        raise ValueError(
            "`optimizer` must not be built. Received: an optimizer built on "
            f"{len(optimizer.layers)} variables"
        )
    layout = VariableLayout(
        all_specs=tuple(specs),
        updated=tuple(range(len(specs))),
        decayed=(True,) * len(specs),
        rate_multipliers=(1.0,) * len(specs),
    )
    weights = [keras.KerasTensor(spec.shape, dtype) for spec in specs]
    found = 0
    for made in optimizer.lay_out_work(layout, weights).values():
        for one in made if isinstance(made, list) else [made]:
            found += _bytes(one)
    for name in optimizer.slot_dtypes:
        for i in layout.whole_with_roles(optimizer.slot_roles.get(name)):
            kind = optimizer.slot_dtype(name, specs[i]) or dtype
            found += _bytes(Buffer(specs[i].shape, kind))
    # last_step, and the counts of skipped steps
    counts = Buffer((layout.matrices + 2,), "int32")
    return found + _bytes(counts)


def _bytes(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * bytes_of(buffer.dtype)


def memory_table(names: Sequence[str] = tuple(PRESETS)) -> str:
    """The state of optimizers on some models, in GB, weights in float32.

    Args:
        names: Keys of `MODELS`.
    """
    head = ["weights", "AdamW", *STATES]
    lines = [f"{'':>22}" + "".join(f"{name:>11}" for name in head)]
    for name in names:
        specs = MODELS[name]()
        weights = 4 * sum(math.prod(spec.shape) for spec in specs)
        sizes = [weights, 2 * weights]
        for options in STATES.values():
            part = NewtonSchulz(shard=False)
            optimizer = Lanton(newton_schulz=part, **options)
            sizes.append(state_bytes(specs, optimizer))
        cells = "".join(f"{size / 1e9:>11.2f}" for size in sizes)
        lines.append(f"{name:>22}" + cells)
    return "\n".join(
        [
            *lines,
            "State in GB (10^9 bytes), weights in float32. `momentum`: "
            "NoiseAdaptiveRate(reference='momentum');",
            "`+ bfloat16`, `+ int8`: the same with that `momentum_dtype`.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_lanton.scaling",
        description="Bytes that a step of Lanton moves between devices on JAX, "
        "or bytes of its state.",
    )
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--devices", type=int, metavar="N")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="the size of the state, of --model or of all presets",
    )
    parser.add_argument("--layout", choices=LAYOUTS, default="data")
    parser.add_argument(
        "--max-temporary-bytes", type=int, default=2**29, metavar="BYTES"
    )
    args = parser.parse_args(argv)
    if args.memory:
        print(memory_table((args.model,) if args.model else tuple(PRESETS)))
        return
    if args.model is None or args.devices is None:
        parser.error("--model and --devices are required, or --memory")
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

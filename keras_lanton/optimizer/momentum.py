"""The momentum in the state: as tensors, or in int8 by blocks."""

import dataclasses
import math
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.optimizer.rounding import random_bits
from keras_lanton.optimizer.rounding import uniform
from keras_lanton.optimizer.state import Buffer
from keras_lanton.roles.matrix_view import MatrixView
from keras_lanton.types import State
from keras_lanton.types import Tensor

LARGEST = 127  # of int8
BLOCKS = range(128, 15, -1)  # entries of a block: the longest that fits
FEWEST = 4096  # entries of a variable, else int8 saves nothing


def block_length(view: MatrixView) -> int | None:
    """Entries along the last axis that share a scale; None for no int8.

    They are of one matrix.
    """
    if math.prod(view.shape) < FEWEST:
        return None
    numbers = view.matrix_numbers
    length = view.shape[-1]
    if numbers.shape[-1] > 1:
        same = np.equal(numbers, numbers[..., :1]).sum(axis=-1)
        length = int(same.min())
    return next((n for n in BLOCKS if length % n == 0), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Momentum:
    """Reads the momentum from the state, and writes it to it.

    In int8 a block of entries b has a scale s = max |b| / 127 in float32, and
    its entries are b / s, rounded stochastically. Every step rounds
    0.9 b + 0.1 g; to the nearest, it would lose small changes for good.

    Args:
        blocks: Block length of each variable in int8; None of the others.
    """

    blocks: tuple[int | None, ...]

    @property
    def scales(self) -> list[int]:
        """Positions of the variables that have scales."""
        return [i for i, length in enumerate(self.blocks) if length]

    def buffers(self, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Shapes and dtypes of the scales, by name."""
        if not self.scales:
            return {}
        made = []
        for i in self.scales:
            *rest, last = shapes[i]
            count = last // (self.blocks[i] or last)
            made.append(Buffer((*rest, count), "float32"))
        return {"momentum_scale": made}

    def read(self, state: State, kept: Collection[int] = ()) -> list[Tensor]:
        """The momentum, in float32 where the state has less.

        Args:
            state: Has `"momentum"` and, with int8, `"momentum_scale"`.
            kept: Positions of what stays in half precision.
        """
        held = state["momentum"]
        dtypes = [
            "float32" if _is_half(x) and i not in kept else x.dtype
            for i, x in enumerate(held)
        ]
        found = list(backend.cast_each(held, dtypes))
        for k, i in enumerate(self.scales):
            found[i] = dequantize(found[i], state["momentum_scale"][k])
        return found

    def write(
        self, B: Sequence[Tensor], state: State, c: Sequence[Any], t: Tensor
    ) -> State:
        """The part of the state that changes.

        Args:
            B: The momentum after a step.
            state: The state before.
            c: 1 - b1, or 0 without a gradient: scalars, one per variable, or
                tensors for their entries.
            t: Number of the step, int32 scalar.
        """
        if not self.scales:
            return {"momentum": list(B)}
        B, scales = list(B), list(state["momentum_scale"])
        for k, i in enumerate(self.scales):
            bits = random_bits(tuple(B[i].shape), t=t, number=i)
            found = quantize(B[i], self.blocks[i] or 1, uniform(bits))
            old = state["momentum"][i], scales[k]
            moved = c[i] != 0
            of_blocks = moved
            if len(getattr(moved, "shape", ())) and moved.shape[-1] > 1:
                of_blocks = moved[..., :: self.blocks[i]]
            # Else it would be rounded again, which changes it.
            B[i] = backend.where(moved, found[0], old[0])
            scales[k] = backend.where(of_blocks, found[1], old[1])
        return {"momentum": B, "momentum_scale": scales}


def quantize(B: Tensor, length: int, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor in int8, by blocks of its last axis.

    Args:
        B: `(..., n)`.
        length: Of a block, a divisor of n.
        uniform: Numbers in [0, 1), of the shape of B; 0.5 for the nearest.

    Returns:
        `(..., n)` int8, and the scales `(..., n / length)` float32.
    """
    shape = tuple(B.shape)
    blocks = _in_blocks(ops.cast(B, "float32"), shape[-1] // length)
    scale = ops.max(ops.abs(blocks), axis=-1) / LARGEST
    unit = backend.where(scale == 0, 1.0, scale)
    numbers = blocks / ops.expand_dims(unit, -1)
    numbers = ops.floor(numbers + ops.reshape(uniform, numbers.shape))
    numbers = backend.clip(numbers, -LARGEST, LARGEST)
    return ops.reshape(ops.cast(numbers, "int8"), shape), scale


def dequantize(numbers: Tensor, scale: Tensor) -> Tensor:
    """Inverse of `quantize`, up to the rounding.

    Args:
        numbers: `(..., n)` int8.
        scale: `(..., blocks)` float32.

    Returns:
        `(..., n)` float32.
    """
    blocks = _in_blocks(ops.cast(numbers, "float32"), scale.shape[-1])
    return ops.reshape(blocks * ops.expand_dims(scale, -1), numbers.shape)


def _in_blocks(x: Tensor, count: int) -> Tensor:
    """`(..., n)` as `(..., count, n / count)`."""
    *rest, last = x.shape
    return ops.reshape(x, (*rest, count, last // count))


def _is_half(x: Tensor) -> bool:
    return str(x.dtype).rstrip("'>").endswith("float16")

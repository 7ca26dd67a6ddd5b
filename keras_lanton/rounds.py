"""Which matrices are measured on which step.

In every `interval` steps each matrix is measured once. Staggered, a part of
each stack on every step: then no step is longer than another, and of the
previous gradient only the part is kept that the next step measures.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.roles import Layer
from keras_lanton.stacks import Stack
from keras_lanton.stacks import equal_stacks
from keras_lanton.stacks import largest_size
from keras_lanton.stacks import positions

Tensor = Any


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One stack, measured in shares.

    Share i is measured on the steps t with (t - first - offset) mod interval
    equal to i, where `first` is the first step that can measure at all.

    Args:
        size: Matrices in each share; the last one is filled up with zeros.
        shares: Parts of the stack.
        offset: Steps by which this round starts late.
        matrices: `(shares + 1, size)` int32: positions of the shares'
            matrices among those of all layers; where a share is filled up,
            and in the last row, the number of all matrices.
    """

    size: int
    shares: tuple[Stack, ...]
    offset: int
    matrices: np.ndarray

    @property
    def role(self) -> str:
        """Of all of its matrices."""
        return self.shares[0].role

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a share."""
        return self.size, self.shares[0].rows, self.shares[0].columns

    def gather(self, i: int, tensors: Sequence[Tensor]) -> Tensor:
        """Share i of the layers' tensors, `shape`, filled up with zeros."""
        share = self.shares[i].gather(tensors)
        missing = self.size - len(self.shares[i])
        if not missing:
            return share
        return ops.pad(share, ((0, missing), (0, 0), (0, 0)))


def make_rounds(
    layers: Sequence[Layer],
    *,
    interval: int,
    staggered: bool,
    max_bytes: int,
) -> list[Round]:
    """Rounds of all matrices, with steps of even work.

    Args:
        layers: The layers at hand.
        interval: Steps of a round.
        staggered: Whether shares are measured on different steps.
        max_bytes: What one share may need in temporaries.

    Returns:
        One round per stack of equal views, more where the stack is so large
        that a share would need more than `max_bytes`.
    """
    count = sum(layer.batch for layer in layers)
    steps = interval if staggered else 1
    stacks = [
        piece
        for stack in equal_stacks(layers)
        for piece in stack.cut(steps * largest_size(stack, max_bytes))
    ]
    # The most expensive first, each where the steps have the least to do.
    load = np.zeros(min(steps, count))
    rounds: dict[int, Round] = {}
    costs = [_cost(stack) * len(stack) for stack in stacks]
    for i in np.argsort(costs, kind="stable")[::-1]:
        stack = stacks[i]
        size = math.ceil(len(stack) / len(load))
        shares = stack.cut(size)
        added = np.zeros_like(load)
        added[: len(shares)] = [_cost(stack) * len(s) for s in shares]
        peaks = [np.max(load + np.roll(added, k)) for k in range(len(load))]
        offset = int(np.argmin(peaks))
        load += np.roll(added, offset)
        table = np.full((len(shares) + 1, size), count, "int32")
        for row, share in zip(table, shares, strict=False):
            row[: len(share)] = positions(share, layers)
        rounds[int(i)] = Round(
            size=size, shares=tuple(shares), offset=offset, matrices=table
        )
    return [rounds[i] for i in range(len(stacks))]


def _cost(stack: Stack) -> float:
    """Of measuring one matrix, in multiply-adds or so."""
    area = stack.rows * stack.columns
    return float(area * stack.rows if stack.role == "hidden" else area)

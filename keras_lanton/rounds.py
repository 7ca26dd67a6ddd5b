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
from keras_lanton.stacks import largest_size
from keras_lanton.stacks import positions

Tensor = Any

# Size up to which a stack is gathered whole where steps are compiled.
SMALL_BYTES = 2**22


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One stack, measured in shares.

    Share i is measured on the steps t with (t - first - offset) mod interval
    equal to i, where `first` is the first step that can measure at all.

    Args:
        size: Matrices in each share; the last one is filled up with zeros.
        stack: The stack.
        shares: Its parts.
        offset: Steps by which this round starts late.
        pauses: Whether there are steps on which no share is measured.
        is_small: Whether the whole stack is gathered as fast as a share
            chosen.
    """

    size: int
    stack: Stack
    shares: tuple[Stack, ...]
    offset: int
    pauses: bool
    is_small: bool

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
        return _filled_up(share, self.size - len(self.shares[i]))

    def gather_all(self, tensors: Sequence[Tensor]) -> Tensor:
        """All shares of the layers' tensors, `(shares, *shape)`."""
        whole = self.stack.gather(tensors)
        count = len(self.shares)
        whole = _filled_up(whole, count * self.size - len(self.stack))
        return ops.reshape(whole, (count, *self.shape))


def _filled_up(stack: Tensor, missing: int) -> Tensor:
    """The stack with zeros behind it."""
    if not missing:
        return stack
    return ops.pad(stack, ((0, missing), (0, 0), (0, 0)))


def make_rounds(
    stacks: Sequence[Stack],
    *,
    interval: int,
    staggered: bool,
    max_bytes: int,
    small_bytes: int = SMALL_BYTES,
) -> list[Round]:
    """Rounds of all matrices, with steps of even work.

    Args:
        stacks: Of equal views.
        interval: Steps of a round.
        staggered: Whether shares are measured on different steps.
        max_bytes: What one share may need in temporaries.
        small_bytes: Size of a stack up to which it is gathered whole.

    Returns:
        One round per stack of equal views, more where the stack is so large
        that a share would need more than `max_bytes`.
    """
    count = sum(map(len, stacks))
    steps = interval if staggered else 1
    stacks = [
        piece
        for stack in stacks
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
        rounds[int(i)] = Round(
            size=size,
            stack=stack,
            shares=tuple(shares),
            offset=offset,
            pauses=len(shares) < interval,
            is_small=4 * len(stack) * stack.rows * stack.columns <= small_bytes,
        )
    return [rounds[i] for i in range(len(stacks))]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """Where each of all matrices is measured, `(matrices,)` int32 each.

    Args:
        rounds: Its round; those that are in none point to one.
        shares: Its share of that round; -1 if it is in none.
        slots: Its place in the shares of all rounds, one behind the other.
    """

    rounds: np.ndarray
    shares: np.ndarray
    slots: np.ndarray


def find_places(rounds: Sequence[Round], layers: Sequence[Layer]) -> Places:
    """Where the layers' matrices are measured."""
    count = sum(layer.batch for layer in layers)
    found = np.zeros((3, count), "int32")
    found[1] = -1
    start = 0
    for k, r in enumerate(rounds):
        numbers = np.arange(len(r.stack))
        found[:, positions(r.stack, layers)] = (
            np.full_like(numbers, k),
            numbers // r.size,
            start + numbers % r.size,
        )
        start += r.size
    return Places(rounds=found[0], shares=found[1], slots=found[2])


def _cost(stack: Stack) -> float:
    """Of measuring one matrix, in multiply-adds or so."""
    area = stack.rows * stack.columns
    return float(area * stack.rows if stack.role == "hidden" else area)

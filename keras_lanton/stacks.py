"""Matrices of equal view as one stack, whatever variables they come from.

Hidden matrices are laid down with their short side first, so that a kernel
(768, 3072) and one of (3072, 768) are in the same stack. A stack can be cut
into smaller ones, so that what is made of it fits into memory.
"""

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.backends.functional import Devices
from keras_lanton.forms import useful_bytes
from keras_lanton.roles import ROLES
from keras_lanton.roles import Layer
from keras_lanton.views import from_matrices
from keras_lanton.views import to_matrices

backend = backends.load()

Tensor = Any
Tensors = Sequence[Tensor] | Mapping[int, Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Consecutive matrices of one layer.

    Args:
        index: Position of the layer among all layers at hand.
        layer: The layer.
        start: First of the matrices.
        stop: Behind the last one.
    """

    index: int
    layer: Layer
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def flipped(self) -> bool:
        """Whether the matrices lie in the stack transposed."""
        layer = self.layer
        return layer.role == "hidden" and layer.d_in > layer.d_out

    def matrices(self, tensor: Tensor) -> Tensor:
        """Of a tensor of the layer's shape: `(n, rows, columns)`."""
        whole = to_matrices(tensor, self.layer)
        if len(self) < self.layer.batch:
            whole = whole[self.start : self.stop]
        return ops.swapaxes(whole, -2, -1) if self.flipped else whole

    def tensor(self, matrices: Tensor) -> Tensor:
        """Inverse of `matrices`, for a part that is its whole layer."""
        if self.flipped:
            matrices = ops.swapaxes(matrices, -2, -1)
        return from_matrices(matrices, self.layer)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """Matrices `(rows, columns)` of equal role, from one or more layers.

    Args:
        role: The role of all of them.
        rows: Rows of each matrix; for hidden matrices the short side.
        columns: Columns of each.
        parts: Where they come from, in order.
    """

    role: str
    rows: int
    columns: int
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def indices(self) -> list[int]:
        """Positions of the layers."""
        return [part.index for part in self.parts]

    def gather(self, tensors: Tensors) -> Tensor:
        """The stack `(n, rows, columns)`.

        Args:
            tensors: One per layer at hand, of the layer's shape, by position.
        """
        found = [part.matrices(tensors[part.index]) for part in self.parts]
        return found[0] if len(found) == 1 else ops.concatenate(found)

    def scatter(self, whole: Tensor) -> list[Tensor]:
        """Inverse of `gather`, for a stack of whole layers.

        Args:
            whole: `(n, rows, columns)`.

        Returns:
            One tensor per part, of the layer's shape.
        """
        pieces = backend.pieces(whole, list(map(len, self.parts)))
        return [
            part.tensor(piece)
            for part, piece in zip(self.parts, pieces, strict=True)
        ]

    def cut(self, size: int, *, whole_layers: bool = False) -> list["Stack"]:
        """The same matrices as few stacks of at most `size` each, about even.

        Even ones share their compiled code.

        Args:
            size: Number of matrices, at least 1.
            whole_layers: Whether no layer may be cut; a stack may then be
                longer, where a layer alone is.
        """
        even = math.ceil(len(self) / math.ceil(len(self) / size))
        unit = max(map(len, self.parts)) if whole_layers else 1
        size = min(size, math.ceil(even / unit) * unit)
        pieces: list[list[Part]] = [[]]
        for part in self.parts:
            start = part.start
            while start < part.stop:
                room = size - sum(map(len, pieces[-1]))
                wanted = part.stop - start
                if whole_layers and wanted > room and pieces[-1]:
                    room = 0
                if room <= 0:
                    pieces.append([])
                    continue
                stop = start + (wanted if whole_layers else min(wanted, room))
                pieces[-1].append(
                    dataclasses.replace(part, start=start, stop=stop)
                )
                start = stop
        return [dataclasses.replace(self, parts=tuple(p)) for p in pieces]

    @property
    def temporary_bytes(self) -> int:
        """What one matrix of the stack needs while it is worked on.

        A hidden one: itself, its normalized copy and the result, and R, R^2,
        Z, Q and one more of the short side. Any other: itself and its step.
        """
        area = self.rows * self.columns
        if self.role == "hidden":
            return 4 * (3 * area + 5 * self.rows**2)
        return 4 * 2 * area


def equal_stacks(
    layers: Sequence[Layer], roles: Sequence[str] = ROLES
) -> list[Stack]:
    """All matrices of the layers, as few stacks as there are views.

    Args:
        layers: The layers at hand.
        roles: Of the layers that are wanted.

    Returns:
        Stacks, in the order in which their first layers occur.
    """
    found: dict[tuple[str, int, int], list[Part]] = {}
    for i, layer in enumerate(layers):
        if layer.role not in roles:
            continue
        rows, columns = layer.d_in, layer.d_out
        if layer.role == "hidden":
            rows, columns = sorted((rows, columns))
        part = Part(index=i, layer=layer, start=0, stop=layer.batch)
        found.setdefault((layer.role, rows, columns), []).append(part)
    return [
        Stack(role=role, rows=rows, columns=columns, parts=tuple(parts))
        for (role, rows, columns), parts in found.items()
    ]


def largest_size(
    stack: Stack, max_bytes: float, devices: Devices | None = None
) -> int:
    """Number of the stack's matrices that may be worked on at once.

    Args:
        stack: The stack.
        max_bytes: What that may need on each device.
        devices: That share out the work. Unless weights are split over them,
            each has the stack and all of the results too.
    """
    needed: float = stack.temporary_bytes
    if devices is not None and stack.role == "hidden":
        needed /= devices.count
        if not devices.split:
            needed += 4 * 2 * stack.rows * stack.columns
    return max(1, int(max_bytes // needed))


def useful_size(stack: Stack, devices: Devices | None = None) -> float:
    """Number of matrices from which a stack gains nothing by more of them.

    Args:
        stack: The stack.
        devices: That share out the work.
    """
    each = max(1.0, useful_bytes(stack.rows) / stack.temporary_bytes)
    return each if devices is None else each * devices.count


def positions(stack: Stack, layers: Sequence[Layer]) -> np.ndarray:
    """Of the stack's matrices, among those of all layers: `(n,)` int32."""
    starts = np.cumsum([0, *(layer.batch for layer in layers)])
    return np.concatenate(
        [
            np.arange(part.start, part.stop) + starts[part.index]
            for part in stack.parts
        ]
    ).astype("int32")

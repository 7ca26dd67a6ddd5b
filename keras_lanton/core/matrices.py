"""A tensor as matrices, and matrices of equal view as one stack.

A stack holds hidden matrices with their short side first, so that a kernel
(768, 3072) and one of (3072, 768) are in the same stack. It holds others in the
order in which they are stored, since the columns of an embedding are far from
each other there. If a norm allows neither, it holds them as (d_in, d_out). A
stack can be cut into smaller ones, so that what is made of it fits into memory.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.roles.matrix_view import MatrixView
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.types import Tensor

Tensors = Sequence[Tensor] | Mapping[int, Tensor]
# How the matrices of a role lie in their stacks.
SHORT_FIRST, AS_STORED, AS_GIVEN = "short_first", "as_stored", "as_given"
ORIENTATIONS = {
    "hidden": SHORT_FIRST,
    "embedding": AS_STORED,
    "vector": AS_STORED,
}


def to_matrices(
    tensor: Tensor, view: MatrixView, *, transposed: bool = False
) -> Tensor:
    """The tensor's stack of matrices.

    Args:
        tensor: Tensor of shape `view.shape`.
        view: The axes.
        transposed: Whether the matrices are wanted as (d_out, d_in).

    Returns:
        Tensor of shape `(view.batch, view.d_in, view.d_out)`, or transposed,
        same dtype.
    """
    if transposed and view.output_blocks == 1:
        return to_matrices(tensor, view.transposed)
    if transposed:
        return ops.swapaxes(to_matrices(tensor, view), -2, -1)
    if view.order != tuple(range(len(view.shape))):
        tensor = backend.transpose(tensor, view.order)
    if view.output_blocks == 1:
        return backend.reshape(tensor, (view.batch, view.d_in, view.d_out))
    *outer, last = (view.shape[axis] for axis in view.output_axes)
    outer_size = math.prod(outer)
    width = last // view.output_blocks
    stacks = view.batch // view.output_blocks
    tensor = backend.reshape(
        tensor, (stacks, view.d_in * outer_size, view.output_blocks, width)
    )
    tensor = backend.transpose(tensor, (0, 2, 1, 3))
    return backend.reshape(tensor, (view.batch, view.d_in, view.d_out))


def from_matrices(
    matrices: Tensor, view: MatrixView, *, transposed: bool = False
) -> Tensor:
    """The tensor whose stack of matrices this is: inverse of `to_matrices`.

    Args:
        matrices: Tensor of shape `(view.batch, view.d_in, view.d_out)`, or
            transposed.
        view: The axes.
        transposed: Whether the matrices are (d_out, d_in).

    Returns:
        Tensor of shape `view.shape`, same dtype.
    """
    if transposed and view.output_blocks == 1:
        return from_matrices(matrices, view.transposed)
    if transposed:
        return from_matrices(ops.swapaxes(matrices, -2, -1), view)
    if view.output_blocks != 1:
        *outer, last = (view.shape[axis] for axis in view.output_axes)
        rows = view.d_in * math.prod(outer)
        width = last // view.output_blocks
        stacks = view.batch // view.output_blocks
        matrices = backend.reshape(
            matrices, (stacks, view.output_blocks, rows, width)
        )
        matrices = backend.transpose(matrices, (0, 2, 1, 3))
    permuted = tuple(view.shape[axis] for axis in view.order)
    tensor = backend.reshape(matrices, permuted)
    if view.order == tuple(range(len(view.shape))):
        return tensor
    inverse = sorted(range(len(view.order)), key=view.order.__getitem__)
    return backend.transpose(tensor, inverse)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StackPart:
    """Consecutive matrices of one variable.

    Args:
        index: Position of the variable among all variables at hand.
        spec: The variable's spec.
        start: Number of the first matrix.
        stop: Number after the last one.
        transposed: Whether the matrices are (d_out, d_in) in the stack.
    """

    index: int
    spec: VariableSpec
    start: int
    stop: int
    transposed: bool

    def __len__(self) -> int:
        return self.stop - self.start

    def matrices(self, tensor: Tensor) -> Tensor:
        """The matrices `(n, rows, columns)` of a tensor of the spec's shape."""
        whole = to_matrices(tensor, self.spec.view, transposed=self.transposed)
        if len(self) < self.spec.batch:
            whole = whole[self.start : self.stop]
        return whole

    def tensor(self, matrices: Tensor) -> Tensor:
        """Inverse of `matrices`, for a part that is its whole variable."""
        return from_matrices(
            matrices, self.spec.view, transposed=self.transposed
        )


def is_transposed(spec: VariableSpec, orientation: str) -> bool:
    """Returns whether a variable's matrices are (d_out, d_in) in their stack.

    Args:
        spec: The variable's spec.
        orientation: How matrices of its role lie in stacks.
    """
    if orientation == SHORT_FIRST:
        return spec.d_in > spec.d_out
    return orientation == AS_STORED and spec.view.lies_transposed


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Stack:
    """Matrices `(rows, columns)` of equal role, from one or more variables.

    Args:
        role: The role of all of them.
        rows: Rows of each matrix; with the short side first, the short side.
        columns: Columns of each.
        parts: Their variables, in order.
        transposed: Whether all matrices are (d_out, d_in); with the short
            side first, each part says so.
        owners: The process that works on each part; None: each on all.
        process: The number of this process.
    """

    role: str
    rows: int
    columns: int
    parts: tuple[StackPart, ...]
    transposed: bool = False
    owners: tuple[int, ...] | None = None
    process: int = 0

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def indices(self) -> list[int]:
        """Positions of the variables."""
        return [part.index for part in self.parts]

    def gather(self, tensors: Tensors) -> Tensor:
        """The stack `(n, rows, columns)`.

        Args:
            tensors: One per variable at hand, of its shape, by position.
        """
        found = [part.matrices(tensors[part.index]) for part in self.parts]
        return found[0] if len(found) == 1 else backend.concatenate(found)

    def scatter(self, whole: Tensor) -> list[Tensor]:
        """Inverse of `gather`, for a stack of whole variables.

        Args:
            whole: `(n, rows, columns)`.

        Returns:
            One tensor per part, of the variable's shape.
        """
        pieces = backend.pieces(whole, list(map(len, self.parts)))
        return [
            part.tensor(piece)
            for part, piece in zip(self.parts, pieces, strict=True)
        ]

    def dealt_out(self, count: int, process: int) -> "Stack":
        """The same stack, its parts dealt out evenly to processes."""
        starts = np.cumsum([0, *map(len, self.parts)])[:-1]
        owners = tuple((starts * count // len(self)).tolist())
        return dataclasses.replace(self, owners=owners, process=process)

    @functools.cached_property
    def mine(self) -> "Stack":
        """The parts that this process works on.

        One that has none works on zeros in the place of the first part.
        """
        if self.owners is None:
            return self
        pairs = zip(self.parts, self.owners, strict=True)
        mine = tuple(part for part, owner in pairs if owner == self.process)
        parts = mine or self.parts[:1]
        return dataclasses.replace(self, parts=parts, owners=None)

    def of_mine(self, x: Tensor) -> Tensor:
        """The entries of `mine`.

        Args:
            x: One entry for each matrix of the stack, or more after them.
        """
        if self.owners is None:
            return x
        first = self.parts.index(self.mine.parts[0])
        start = sum(map(len, self.parts[:first]))
        return x[start : start + len(self.mine)]

    def cut(self, size: int, *, whole_variables: bool = False) -> list["Stack"]:
        """The same matrices as few stacks of at most `size` each.

        The stacks are about equally long: equal ones share compiled code.

        Args:
            size: Number of matrices, at least 1.
            whole_variables: Whether no variable may be cut; a stack may then
                be longer, where one variable alone is.
        """
        even = math.ceil(len(self) / math.ceil(len(self) / size))
        unit = max(map(len, self.parts)) if whole_variables else 1
        size = min(size, math.ceil(even / unit) * unit)
        divide = _whole if whole_variables else _split
        return [
            dataclasses.replace(self, parts=tuple(parts))
            for parts in divide(self.parts, size)
        ]


def _whole(parts: Sequence[StackPart], size: int) -> list[list[StackPart]]:
    """The parts in turn, whole, in lists of at most `size` or of one part."""
    pieces: list[list[StackPart]] = [[]]
    for part in parts:
        if pieces[-1] and sum(map(len, pieces[-1])) + len(part) > size:
            pieces.append([])
        pieces[-1].append(part)
    return pieces


def _split(parts: Sequence[StackPart], size: int) -> list[list[StackPart]]:
    """The parts in turn, cut into lists of `size` matrices."""
    pieces: list[list[StackPart]] = [[]]
    room = size
    for part in parts:
        start = part.start
        while start < part.stop:
            if room == 0:
                pieces.append([])
                room = size
            stop = min(start + room, part.stop)
            pieces[-1].append(dataclasses.replace(part, start=start, stop=stop))
            room -= stop - start
            start = stop
    return pieces


def equal_stacks(
    specs: Sequence[VariableSpec],
    orientations: Mapping[str, str] = ORIENTATIONS,
) -> list[Stack]:
    """All matrices of some variables, as few stacks as there are views.

    Args:
        specs: The variables at hand.
        orientations: How matrices lie, of each role that is wanted.

    Returns:
        Stacks, in the order in which their first variables occur.
    """
    found: dict[tuple[str, int, int, bool], list[StackPart]] = {}
    for i, spec in enumerate(specs):
        if spec.role not in orientations:
            continue
        orientation = orientations[spec.role]
        transposed = is_transposed(spec, orientation)
        rows, columns = spec.d_in, spec.d_out
        if transposed:
            rows, columns = columns, rows
        all_alike = transposed and orientation != SHORT_FIRST
        found.setdefault((spec.role, rows, columns, all_alike), []).append(
            StackPart(
                index=i,
                spec=spec,
                start=0,
                stop=spec.batch,
                transposed=transposed,
            )
        )
    return [
        Stack(
            role=role,
            rows=rows,
            columns=columns,
            parts=tuple(parts),
            transposed=transposed,
        )
        for (role, rows, columns, transposed), parts in found.items()
    ]


def positions(stack: Stack, specs: Sequence[VariableSpec]) -> np.ndarray:
    """Positions of a stack's matrices among those of all variables.

    Returns:
        `(n,)` int32.
    """
    starts = np.cumsum([0, *(spec.batch for spec in specs)])
    return np.concatenate(
        [
            np.arange(part.start, part.stop) + starts[part.index]
            for part in stack.parts
        ]
    ).astype("int32")

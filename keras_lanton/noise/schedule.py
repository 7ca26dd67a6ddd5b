"""The schedule of measurements: which matrices are measured on which step.

In every `interval` steps each matrix is measured once. Staggered, a chunk of
each group on every step: then no step is longer than another, and of the
previous gradient only the chunk is kept that the next step measures.
"""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_lanton.norms.norms import Norm
from keras_lanton.norms.norms import norm_of
from keras_lanton.orthogonalization.batching import is_gathered_whole
from keras_lanton.orthogonalization.batching import largest_size
from keras_lanton.types import Tensor
from keras_lanton.variables.layout import VariableLayout
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.stacks import Stack
from keras_lanton.variables.stacks import positions


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MeasurementGroup:
    """One stack of matrices, measured chunk by chunk.

    Chunk i is measured on the steps t with (t - first - offset) mod interval
    equal to i, where `first` is the first step that can measure at all.

    Args:
        size: Matrices in each chunk; the last one is zero-padded.
        stack: The stack.
        norm: Its norm, in the orientation of the stack.
        chunks: Its parts.
        offset: Steps by which this group starts late.
        pauses: Whether there are steps on which no chunk is measured.
        gathers_whole: Whether the whole stack is gathered as fast as a chosen
            chunk.
        has_lines: Whether the noise of rows and columns is measured too.
    """

    size: int
    stack: Stack
    norm: Norm
    chunks: tuple[Stack, ...]
    offset: int
    pauses: bool
    gathers_whole: bool
    has_lines: bool = False

    @property
    def role(self) -> str:
        """The role of all of its matrices."""
        return self.chunks[0].role

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a chunk."""
        return self.size, self.chunks[0].rows, self.chunks[0].columns

    @property
    def outputs(self) -> int:
        """The count of numbers that the measurement of a chunk gives.

        First a dual norm for each matrix; then, if rows and columns are
        measured, all rows of all matrices, and all columns.
        """
        lines = self.stack.rows + self.stack.columns if self.has_lines else 0
        return self.size * (1 + lines)

    def gather(self, i: int, tensors: Sequence[Tensor]) -> Tensor:
        """Chunk i of the variables' tensors, zero-padded to `shape`.

        Args:
            i: Number of the chunk.
            tensors: One per variable.
        """
        chunk = self.chunks[i].gather(tensors)
        return _zero_padded(chunk, self.size - len(self.chunks[i]))

    def gather_all(self, tensors: Sequence[Tensor]) -> Tensor:
        """All chunks of the variables' tensors, `(chunks, *shape)`.

        Args:
            tensors: One per variable.
        """
        whole = self.stack.gather(tensors)
        count = len(self.chunks)
        whole = _zero_padded(whole, count * self.size - len(self.stack))
        return ops.reshape(whole, (count, *self.shape))


def _zero_padded(stack: Tensor, missing: int) -> Tensor:
    """The stack with some matrices of zeros after it."""
    if not missing:
        return stack
    return ops.pad(stack, ((0, missing), (0, 0), (0, 0)))


def make_groups(
    stacks: Sequence[Stack],
    norms: Mapping[str, Norm],
    *,
    interval: int,
    staggered: bool,
    max_bytes: int,
    gathers_whole: Callable[[Stack], bool] = is_gathered_whole,
    line_roles: Sequence[str] = (),
) -> list[MeasurementGroup]:
    """Measurement groups of all matrices, with steps of even work.

    Args:
        stacks: Stacks of equal views.
        norms: Norm of each role, of matrices `(d_in, d_out)`.
        interval: Steps from one measurement of a matrix to the next.
        staggered: Whether chunks are measured on different steps.
        max_bytes: Memory for the temporaries of one chunk.
        gathers_whole: Whether a stack is gathered whole.
        line_roles: Roles whose rows and columns are measured, where their
            norms use them.

    Returns:
        One group per stack of equal views, more where the stack is so large
        that a chunk would need more than `max_bytes`.
    """
    count = sum(map(len, stacks))
    steps = interval if staggered else 1
    pieces: list[tuple[Stack, Norm]] = []
    for stack in stacks:
        norm = norm_of(norms, stack)
        each = norm.temporary_bytes(stack.rows, stack.columns)
        parts = stack.cut(steps * largest_size(max_bytes, each))
        pieces += [(part, norm) for part in parts]
    # The most expensive first, each where the steps have the least to do.
    load = np.zeros(min(steps, count))
    groups: dict[int, MeasurementGroup] = {}
    costs = [norm.dual_cost(s.rows, s.columns) for s, norm in pieces]
    totals = [cost * len(s) for (s, _), cost in zip(pieces, costs, strict=True)]
    for i in np.argsort(totals, kind="stable")[::-1]:
        stack, norm = pieces[i]
        size = math.ceil(len(stack) / len(load))
        chunks = stack.cut(size)
        offset, load = _place([costs[i] * len(c) for c in chunks], load)
        groups[int(i)] = MeasurementGroup(
            size=size,
            stack=stack,
            norm=norm,
            chunks=tuple(chunks),
            offset=offset,
            pauses=len(chunks) < interval,
            gathers_whole=gathers_whole(stack),
            has_lines=stack.role in line_roles and norm.uses_entry_noise,
        )
    return [groups[i] for i in range(len(pieces))]


def _place(costs: Sequence[float], load: np.ndarray) -> tuple[int, np.ndarray]:
    """The offset with the lowest peak load, and the load that follows.

    Args:
        costs: Of each chunk of a group.
        load: Of each step.
    """
    added = np.zeros_like(load)
    added[: len(costs)] = costs
    peaks = [np.max(load + np.roll(added, k)) for k in range(len(load))]
    offset = int(np.argmin(peaks))
    return offset, load + np.roll(added, offset)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """The place of each matrix in the groups, `(matrices,)` int32 each.

    A line is a row or a column of a matrix; lines of all matrices are kept in
    one row, `(lines,)`.

    Args:
        groups: Number of its group; 0 for matrices that are in none.
        chunks: Number of its chunk in the group; -1 for those in none.
        columns: Its place in the outputs of all groups, concatenated.
        line_matrices: Matrix of each line, `(lines,)`.
        line_columns: Place of each line in the outputs, `(lines,)`.
        first_lines: Number of each matrix' first row; its other rows follow,
            then its columns. -1 without lines.
    """

    groups: np.ndarray
    chunks: np.ndarray
    columns: np.ndarray
    line_matrices: np.ndarray
    line_columns: np.ndarray
    first_lines: np.ndarray


def find_placement(
    groups: Sequence[MeasurementGroup], specs: Sequence[VariableSpec]
) -> Placement:
    """The place of each of the variables' matrices in the groups.

    Args:
        groups: All measurement groups.
        specs: The variables.
    """
    count = sum(spec.batch for spec in specs)
    found = np.zeros((3, count), "int32")
    found[1] = -1
    first_lines = np.full(count, -1, "int32")
    line_matrices, line_columns = [_NO_LINES], [_NO_LINES]
    start = lines = 0
    for k, group in enumerate(groups):
        numbers = np.arange(len(group.stack))
        matrices = positions(group.stack, specs)
        found[:, matrices] = (
            np.full_like(numbers, k),
            numbers // group.size,
            start + numbers % group.size,
        )
        if group.has_lines:
            places = _line_places(group, start)
            length = places.shape[1]
            first_lines[matrices] = lines + length * numbers
            line_matrices.append(np.repeat(matrices, length))
            line_columns.append(places.ravel())
            lines += places.size
        start += group.outputs
    return Placement(
        groups=found[0],
        chunks=found[1],
        columns=found[2],
        line_matrices=np.concatenate(line_matrices),
        line_columns=np.concatenate(line_columns),
        first_lines=first_lines,
    )


_NO_LINES = np.zeros(0, "int32")


def _line_places(group: MeasurementGroup, start: int) -> np.ndarray:
    """Places of the lines of a group's matrices in the outputs.

    Args:
        group: The group.
        start: Place of the group's first output.

    Returns:
        `(matrices, rows + columns)` int32.
    """
    rows, columns = group.stack.rows, group.stack.columns
    numbers = np.arange(len(group.stack))[:, None] % group.size
    start_rows = start + group.size
    start_columns = start_rows + group.size * rows
    return np.concatenate(
        [
            start_rows + rows * numbers + np.arange(rows),
            start_columns + columns * numbers + np.arange(columns),
        ],
        axis=1,
    ).astype("int32")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lines:
    """The lines of a stack's matrices in the state.

    Args:
        matrices: Numbers of the matrices, `(n,)` int32.
        rows: Numbers of their rows, `(n, rows)` int32.
        columns: Numbers of their columns, `(n, columns)` int32.
    """

    matrices: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def lines_of(
    stack: Stack, matrices: np.ndarray, placement: Placement
) -> Lines | None:
    """Finds a stack's lines in the state; None where it has none.

    Args:
        stack: A stack.
        matrices: Numbers of its matrices, `(n,)`.
        placement: The place of all matrices.
    """
    first = placement.first_lines[matrices][:, None]
    if (first < 0).any():
        return None
    columns = first + stack.rows
    return Lines(
        matrices=matrices,
        rows=(first + np.arange(stack.rows)).astype("int32"),
        columns=(columns + np.arange(stack.columns)).astype("int32"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MeasurementPlan:
    """Everything that measuring needs to know of the variables.

    Args:
        layout: The variables.
        groups: The measurement groups.
        placement: The place of each matrix in the groups.
        chunk_counts: Number of chunks of each group, int32; also the due
            chunk of a group that pauses.
        dual_scale: Factor of each matrix from its norm's `dual` to the dual
            norm, `(matrices,)` float32.
    """

    layout: VariableLayout
    groups: tuple[MeasurementGroup, ...]
    placement: Placement
    chunk_counts: np.ndarray
    dual_scale: np.ndarray


def plan_measurements(
    layout: VariableLayout,
    groups: Sequence[MeasurementGroup],
    dual_scale: np.ndarray,
) -> MeasurementPlan:
    """The plan of some measurement groups.

    Args:
        layout: The variables.
        groups: The groups.
        dual_scale: See `MeasurementPlan`.
    """
    return MeasurementPlan(
        layout=layout,
        groups=tuple(groups),
        placement=find_placement(groups, layout.specs),
        chunk_counts=np.array([len(g.chunks) for g in groups], "int32"),
        dual_scale=dual_scale.astype("float32"),
    )

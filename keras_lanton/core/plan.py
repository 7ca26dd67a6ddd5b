"""The plan of a step: stacks, measurements, and arrays frozen at build.

All that follows from the variables alone is computed here, once. Each array
has one number for each matrix.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import Devices
from keras_lanton.backends import backend
from keras_lanton.core.layout import VariableLayout
from keras_lanton.core.matrices import Stack
from keras_lanton.core.matrices import Tensors
from keras_lanton.core.matrices import equal_stacks
from keras_lanton.core.matrices import positions
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import norm_of
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.types import Tensor

# Roles whose rows and columns are measured, where their norms use them.
WHITENED_ROLES = ("hidden", "embedding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseSlice:
    """The place of the noise of some matrices' rows and columns in the state.

    Args:
        index: Of the tensors in `"row_noise"` and `"col_noise"`.
        start: Number of the first matrix there.
        stop: Number after the last one.
    """

    index: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WorkStack:
    """Matrices that are updated together.

    Args:
        stack: The matrices.
        norm: Their norm, in the orientation of the stack.
        matrices: Positions of `stack.mine` among all matrices, `(n,)` int32.
        noise: Where the noise of their rows and columns is, or None.
    """

    stack: Stack
    norm: Norm
    matrices: np.ndarray
    noise: NoiseSlice | None


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
        offset: The number of steps by which the first measurement is late.
        pauses: Whether there are steps on which no chunk is measured.
        gathers_whole: Whether the whole stack is gathered as fast as a chosen
            chunk.
        whitened: The tensor in `"row_noise"` of its rows' noise; None where
            that is not measured.
    """

    size: int
    stack: Stack
    norm: Norm
    chunks: tuple[Stack, ...]
    offset: int
    pauses: bool
    gathers_whole: bool
    whitened: int | None

    @property
    def samples_lines(self) -> bool:
        """True if the samples tell the noise of rows and columns."""
        measured = self.whitened is not None
        return measured and not self.norm.from_every_gradient

    @property
    def is_dealt_out(self) -> bool:
        """True if each process measures matrices of its own."""
        return self.stack.owners is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a chunk."""
        return self.size, self.stack.rows, self.stack.columns

    @functools.cached_property
    def no_sample(self) -> tuple[np.ndarray, ...]:
        """Zeros in the place of a chunk's measures, float32.

        Dual norms of D and of B, `(size,)`, and where they are measured rows
        and columns, `(size, rows)` and `(size, columns)`.
        """
        size, rows, columns = self.shape
        shapes: list[tuple[int, ...]] = [(size,), (size,)]
        if self.samples_lines:
            shapes += [(size, rows), (size, columns)]
        return tuple(np.zeros(shape, "float32") for shape in shapes)

    @functools.cached_property
    def place_in_chunk(self) -> np.ndarray:
        """Place of each matrix in its chunk, `(n,)` int32."""
        return np.arange(len(self.stack), dtype="int32") % np.int32(self.size)

    def gather(self, i: int, tensors: Tensors) -> Tensor:
        """Chunk i of the variables' tensors, zero-padded to `shape`."""
        return self.padded(i, self.chunks[i].gather(tensors))

    def padded(self, i: int, entries: Tensor) -> Tensor:
        """With zeros for missing matrices, up to `size`.

        Args:
            i: Number of the chunk.
            entries: One for each of its matrices.
        """
        return _zero_padded(entries, self.size - len(self.chunks[i]))

    def gather_all(self, tensors: Tensors) -> Tensor:
        """All chunks of the variables' tensors, `(chunks, *shape)`."""
        whole = self.stack.gather(tensors)
        count = len(self.chunks)
        whole = _zero_padded(whole, count * self.size - len(self.stack))
        return ops.reshape(whole, (count, *self.shape))


def _zero_padded(stack: Tensor, missing: int) -> Tensor:
    """The stack with some entries of zeros after it."""
    if not missing:
        return stack
    return ops.pad(stack, ((0, missing), *[(0, 0)] * (len(stack.shape) - 1)))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """All that a step needs to know of the variables.

    Args:
        layout: The variables.
        stacks: Stacks that are updated together.
        groups: Stacks that are measured; empty without noise.
        whitened: Positions of the matrices of each tensor in `"row_noise"`,
            `(n,)` int32 each.
        by_adamw: Positions of the variables that AdamW updates.
        by_lmo: Whether an LMO updates a matrix, bool.
        step_scale: Minus the factor s on its norm's `lmo`, times its rate's
            multiplier; 0 where the role has no rule.
        rate_scale: Its rate over the base rate: the multiplier, times AdamW's
            `lr_ratio` where AdamW updates it.
        decay_scale: The same for the decay, 0 where nothing decays; one array
            for each role.
        dual_scale: Factor from its norm's `dual` to the dual norm.
        group_of: Number of its measurement group; 0 for those in none.
        chunk_of: Number of its chunk in the group; -1 for those in none.
        sample_of: Its place in the dual norms of all groups' chunks.
        from_every_gradient: Whether the noise of its rows and columns is
            measured on every step, bool.
        offsets: Of the groups, `(groups,)` int32.
        chunk_counts: Number of chunks of each group, likewise; also the due
            chunk of a group that pauses.
        rate_groups: The matrices that line 9 compares, one mask for each group
            of them.
    """

    layout: VariableLayout
    stacks: tuple[WorkStack, ...]
    groups: tuple[MeasurementGroup, ...]
    whitened: tuple[np.ndarray, ...]
    by_adamw: tuple[int, ...]
    by_lmo: np.ndarray
    step_scale: np.ndarray
    rate_scale: np.ndarray
    decay_scale: Mapping[str, np.ndarray]
    dual_scale: np.ndarray
    group_of: np.ndarray
    chunk_of: np.ndarray
    sample_of: np.ndarray
    from_every_gradient: np.ndarray
    offsets: np.ndarray
    chunk_counts: np.ndarray
    rate_groups: tuple[np.ndarray, ...]

    def gather(self, stack: Stack, tensors: Tensors) -> Tensor:
        """The matrices that this process works on, `(n, rows, columns)`.

        Args:
            stack: A stack.
            tensors: One per variable, or those of the stack by position.
        """
        indices, placements = stack.indices, self._placements(stack)
        found = backend.laid_out([tensors[i] for i in indices], placements)
        found = backend.to_owners(found, placements, stack.owners)
        whole = stack.mine.gather(dict(zip(indices, found, strict=True)))
        return whole if len(indices) == 1 else backend.whole(whole)

    def scatter(
        self, stack: Stack, found: Tensor, like: Sequence[Tensor]
    ) -> list[Tensor]:
        """Inverse of `gather`: what this process has of each variable.

        Args:
            stack: A stack of whole variables.
            found: `(n, rows, columns)`.
            like: Tensors shaped as what it has, one per variable.
        """
        return backend.from_owners(
            stack.mine.scatter(found),
            self._placements(stack),
            stack.owners,
            [x.shape for x in like],
        )

    def of_all(self, stack: Stack, found: Tensor) -> Tensor:
        """The results of all processes for their matrices, `(n, ...)`.

        Args:
            stack: A stack.
            found: One entry for each matrix of `stack.mine`.
        """
        if stack.owners is None:
            return found
        entries = backend.from_owners(
            backend.pieces(found, list(map(len, stack.mine.parts))),
            [None] * len(stack.parts),
            stack.owners,
            [(len(part), *found.shape[1:]) for part in stack.parts],
        )
        return backend.concatenate(entries)

    def _placements(self, stack: Stack) -> list[Any]:
        return [self.layout.placements[i] for i in stack.indices]

    def whole(self, tensors: Tensors) -> Tensors:
        """Tensors whose entries are brought together when one is read.

        Args:
            tensors: One per variable, or some by their positions; on PyTorch
                what this process has of each.
        """
        found: Tensors = backend.gathered(tensors, self.layout.placements)
        return found

    def of_stacks(self, x: Tensor) -> list[Tensor]:
        """The entries of each stack's matrices, `(n,)` each.

        Args:
            x: One number for each matrix, `(matrices,)`.
        """
        parts = [work.matrices for work in self.stacks]
        return _entries(x, parts, self._stack_order) if parts else []

    def of_whitened(self, x: Tensor) -> list[Tensor]:
        """The entries of the matrices of each tensor in `"row_noise"`.

        Args:
            x: One number for each matrix, `(matrices,)`.
        """
        return _entries(x, self.whitened, self._whitened_order)

    @functools.cached_property
    def _stack_order(self) -> np.ndarray:
        return np.concatenate([work.matrices for work in self.stacks])

    @functools.cached_property
    def _whitened_order(self) -> np.ndarray:
        return np.concatenate(self.whitened)

    def whitened_shapes(self) -> list[tuple[int, int, int]]:
        """Matrices, rows and columns of each tensor of the rows' noise."""
        shapes = {
            g.whitened: (g.stack.rows, g.stack.columns)
            for g in self.groups
            if g.whitened is not None
        }
        return [(len(m), *shapes[k]) for k, m in enumerate(self.whitened)]


def _entries(
    x: Tensor, parts: Sequence[np.ndarray], order: np.ndarray
) -> list[Tensor]:
    """The entries of x in each part, by one operation.

    Args:
        x: `(matrices,)`.
        parts: Positions in x, one array for each part.
        order: All of them, one part after the other.
    """
    found = backend.take(x, backend.constant(order))
    return backend.pieces(found, [len(part) for part in parts])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Limits on what a step works on at once; by default none.

    Args:
        max_bytes: Memory for the temporaries of one stack.
        cached_bytes: Likewise where matrices have `cached_from` rows or more
            and are updated: what fits into the cache.
        cached_from: Rows from which `cached_bytes` is a limit.
        gathered_bytes: Size of the largest stack that is gathered whole.
        devices: The devices that share out the work, or None.
    """

    max_bytes: float = math.inf
    cached_bytes: float = math.inf
    cached_from: int = 0
    gathered_bytes: float = 0.0
    devices: Devices | None = None

    def dealt_out(self, stack: Stack) -> Stack:
        """The stack, where each process works on variables of its own."""
        devices = self.devices
        if devices is None or devices.number is None:
            return stack
        return stack.dealt_out(devices.count, devices.number)


def make_plan(
    layout: VariableLayout,
    rules: Mapping[str, Rule],
    *,
    noise: NoiseAdaptiveRate | None = None,
    adamw: AuxiliaryAdamW | None = None,
    sizes: Sizes = Sizes(),
) -> Plan:
    """The plan of an optimizer's steps.

    Args:
        layout: The variables.
        rules: Rule of each role that has one.
        noise: Settings of the noise, or None.
        adamw: Settings of AdamW, or None.
        sizes: How much is worked on at once.
    """
    norms = {role: rule.norm for role, rule in rules.items()}
    stacks = equal_stacks(
        layout.specs, {role: norm.orientation for role, norm in norms.items()}
    )
    groups = [] if noise is None else make_groups(stacks, norms, noise, sizes)
    whitened = _whitened(groups, layout)
    return Plan(
        layout=layout,
        stacks=tuple(_work(layout, stacks, norms, sizes, whitened)),
        groups=tuple(groups),
        whitened=tuple(whitened),
        rate_groups=_rate_groups(layout, noise),
        **_arrays(layout, rules, adamw),
        **_group_arrays(groups, layout),
    )


def _work(
    layout: VariableLayout,
    stacks: Sequence[Stack],
    norms: Mapping[str, Norm],
    sizes: Sizes,
    whitened: Sequence[np.ndarray],
) -> Iterator[WorkStack]:
    """Parts of stacks that are updated at once, whole variables each."""
    for stack in stacks:
        norm = norm_of(norms, stack)
        each = norm.temporary_bytes(stack.rows, stack.columns)
        room = sizes.max_bytes
        if stack.rows >= sizes.cached_from:
            room = min(room, sizes.cached_bytes)
        size = _count_within(room, each, stack)
        for part in stack.cut(size, whole_variables=True):
            part = sizes.dealt_out(part)
            matrices = positions(part.mine, layout.specs)
            yield WorkStack(
                stack=part,
                norm=norm,
                matrices=matrices,
                noise=_find_slice(matrices, whitened),
            )


def _find_slice(
    matrices: np.ndarray, whitened: Sequence[np.ndarray]
) -> NoiseSlice | None:
    """The place of one stack's matrices in the state, or None."""
    for k, held in enumerate(whitened):
        if matrices[0] in held:
            start = held.tolist().index(matrices[0])
            return NoiseSlice(index=k, start=start, stop=start + len(matrices))
    return None


def _whitened(
    groups: Sequence[MeasurementGroup], layout: VariableLayout
) -> list[np.ndarray]:
    """Positions of the matrices of each tensor in `"row_noise"`."""
    parts: dict[int, list[np.ndarray]] = {}
    for group in groups:
        if group.whitened is not None:
            found = positions(group.stack, layout.specs)
            parts.setdefault(group.whitened, []).append(found)
    return [np.concatenate(parts[k]) for k in sorted(parts)]


def _arrays(
    layout: VariableLayout,
    rules: Mapping[str, Rule],
    adamw: AuxiliaryAdamW | None,
) -> dict[str, Any]:
    """The arrays of `Plan` that follow from the rules."""
    specs, of_matrix = layout.specs, layout.variable_of_matrix
    roles = [spec.role for spec in specs]
    adamw_roles = () if adamw is None else adamw.roles
    by_adamw = np.array([role in adamw_roles for role in roles], bool)
    multipliers = np.asarray(layout.rate_multipliers, "float64")
    lr_ratio = 1.0 if adamw is None else adamw.lr_ratio
    rate_scale = multipliers * np.where(by_adamw, lr_ratio, 1.0)

    def per_variable(number_of: Callable[[VariableSpec], float]) -> np.ndarray:
        return np.array([number_of(s) if s.role in rules else 0 for s in specs])

    def per_matrix(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.asarray(values, "float64")[of_matrix]
        return found.astype("float32")

    step_scale = per_variable(lambda s: rules[s.role].step_scale(s))
    return {
        "by_adamw": tuple(np.flatnonzero(by_adamw).tolist()),
        "by_lmo": ~by_adamw[of_matrix],
        "step_scale": per_matrix(-step_scale * multipliers),
        "rate_scale": per_matrix(rate_scale),
        "decay_scale": {
            role: per_matrix(
                rate_scale * layout.decayed * [one == role for one in roles]
            )
            for role in dict.fromkeys(roles)
        },
        "dual_scale": per_matrix(
            per_variable(
                lambda s: rules[s.role].norm.dual_scale(s.d_in, s.d_out)
            )
        ),
    }


def _group_arrays(
    groups: Sequence[MeasurementGroup], layout: VariableLayout
) -> dict[str, Any]:
    """The arrays of `Plan` that follow from the measurement groups."""
    group_of = np.zeros(layout.matrices, "int32")
    chunk_of = np.full(layout.matrices, -1, "int32")
    sample_of = np.zeros(layout.matrices, "int32")
    from_every_gradient = np.zeros(layout.matrices, bool)
    start = 0
    for k, group in enumerate(groups):
        matrices = positions(group.stack, layout.specs)
        group_of[matrices] = k
        chunk_of[matrices] = np.arange(len(matrices)) // group.size
        sample_of[matrices] = start + group.place_in_chunk
        from_every_gradient[matrices] = (
            group.whitened is not None and group.norm.from_every_gradient
        )
        start += group.size
    return {
        "group_of": group_of,
        "chunk_of": chunk_of,
        "sample_of": sample_of,
        "from_every_gradient": from_every_gradient,
        "offsets": np.array([g.offset for g in groups], "int32"),
        "chunk_counts": np.array([len(g.chunks) for g in groups], "int32"),
    }


def _rate_groups(
    layout: VariableLayout, noise: NoiseAdaptiveRate | None
) -> tuple[np.ndarray, ...]:
    """The matrices that line 9 compares: all, or those of each role."""
    if noise is None:
        return ()
    if noise.alpha_unit == "signal":
        return (np.ones(layout.matrices, bool),)
    return layout.role_masks


def make_groups(
    stacks: Sequence[Stack],
    norms: Mapping[str, Norm],
    noise: NoiseAdaptiveRate,
    sizes: Sizes = Sizes(),
) -> list[MeasurementGroup]:
    """Measurement groups of all matrices, with steps of even work.

    Args:
        stacks: Stacks of equal views.
        norms: Norm of each role, of matrices `(d_in, d_out)`.
        noise: Settings of the noise.
        sizes: How much is worked on at once.

    Returns:
        One group per stack of equal views, more where the stack is so large
        that a chunk would need more than `sizes.max_bytes`.
    """
    steps = noise.interval if noise.schedule == "staggered" else 1
    pieces: list[tuple[Stack, Norm, int | None]] = []
    whitened = 0
    for stack in stacks:
        norm = norm_of(norms, stack)
        each = norm.temporary_bytes(stack.rows, stack.columns)
        at_once = _count_within(sizes.max_bytes, each, stack)
        has_lines = (
            noise.within_matrices
            and stack.role in WHITENED_ROLES
            and norm.uses_entry_noise
        )
        place = whitened if has_lines else None
        pieces += [(p, norm, place) for p in stack.cut(steps * at_once)]
        whitened += has_lines
    # The most expensive first, each where the steps have the least to do.
    load = np.zeros(min(steps, sum(map(len, stacks))))
    groups: dict[int, MeasurementGroup] = {}
    costs = [norm.dual_cost(s.rows, s.columns) for s, norm, _ in pieces]
    totals = [
        cost * len(piece[0]) for piece, cost in zip(pieces, costs, strict=True)
    ]
    for i in np.argsort(totals, kind="stable")[::-1]:
        stack, norm, place = pieces[i]
        size = math.ceil(len(stack) / len(load))
        chunks = stack.cut(size)
        whole_bytes = 4 * len(stack) * stack.rows * stack.columns
        offset, load = _place([costs[i] * len(c) for c in chunks], load)
        groups[int(i)] = MeasurementGroup(
            size=size,
            stack=sizes.dealt_out(stack),
            norm=norm,
            chunks=tuple(map(sizes.dealt_out, chunks)),
            offset=offset,
            pauses=len(chunks) < noise.interval,
            gathers_whole=whole_bytes <= sizes.gathered_bytes,
            whitened=place,
        )
    return [groups[i] for i in range(len(pieces))]


def _count_within(room: float, each: float, stack: Stack) -> int:
    """The number of a stack's matrices that fit into `room` bytes, or 1."""
    return int(max(1, min(len(stack), room / each)))


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

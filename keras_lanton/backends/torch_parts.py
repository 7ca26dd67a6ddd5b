"""PyTorch: weights of which each process has a part, as DTensors.

Keras 3.16 splits variables so under `keras.distribution.ModelParallel`. A step
works on plain tensors: entry by entry on the parts. Where a matrix has to be
whole, one process gets the parts from the others, works on the matrix, and
sends each its part of the result.
"""

import functools
import itertools
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import torch

from keras_lanton.types import Tensor


class Layout(NamedTuple):
    """The layout of a tensor that is split over a mesh of processes.

    Args:
        mesh: The `DeviceMesh` of the processes.
        placements: One for each of its axes.
        shape: Of the whole tensor.
    """

    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[int, ...]


class Gathered(Mapping[int, Tensor]):
    """Tensors by their positions, made whole in all processes when read.

    All processes have to read the same ones, in the same order.

    Args:
        parts: What this process has: one per variable, or some by position.
        layouts: One per variable.
    """

    def __init__(self, parts: Any, layouts: Sequence[Layout | None]) -> None:
        self.parts, self.layouts = parts, layouts

    def __getitem__(self, i: int) -> Tensor:
        part, layout = self.parts[i], self.layouts[i]
        if layout is None:
            return part
        strides = torch.empty(layout.shape, device="meta").stride()
        split = _tensor_module().DTensor.from_local(
            part,
            layout.mesh,
            layout.placements,
            run_check=False,
            shape=torch.Size(layout.shape),
            stride=strides,
        )
        return split.full_tensor()

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.layouts)))

    def __len__(self) -> int:
        return len(self.layouts)


class Exchange:
    """Tensors of one dtype that processes send each other, by one all-to-all.

    Args:
        like: A tensor of their dtype and device.
    """

    def __init__(self, like: Tensor) -> None:
        count = torch.distributed.get_world_size()
        self.like = like
        self.sent: list[list[Tensor]] = [[] for _ in range(count)]
        self.shapes: list[list[tuple[int, ...]]] = [[] for _ in range(count)]

    def send(self, process: int, tensor: Tensor) -> None:
        """Notes a tensor for a process."""
        self.sent[process].append(tensor.reshape(-1))

    def expect(self, process: int, shape: Sequence[int]) -> None:
        """Notes the shape of the next tensor from a process."""
        self.shapes[process].append(tuple(shape))

    def run(self) -> None:
        """Sends all of them, and waits for those of the others."""
        given = [sum(x.numel() for x in some) for some in self.sent]
        sizes = [[math.prod(shape) for shape in some] for some in self.shapes]
        flat = torch.cat([self.like.new_empty(0), *itertools.chain(*self.sent)])
        self.sent.clear()
        found = self.like.new_empty(sum(map(sum, sizes)))
        torch.distributed.all_to_all_single(
            found, flat, [sum(some) for some in sizes], given
        )
        pieces = iter(found.split(list(itertools.chain(*sizes))))
        self._received = [
            iter([next(pieces).reshape(shape) for shape in some])
            for some in self.shapes
        ]

    def received(self, process: int) -> Tensor:
        """The next tensor from a process."""
        return next(self._received[process])


class TorchParts:
    """The backend's methods for such weights; see the reference."""

    def check_whole(self, variables: Sequence[Any], model: Any = None) -> None:
        """See the reference: DTensors that Keras has not made.

        Args:
            variables: Keras variables.
            model: A model whose parameters are checked too: `fully_shard`
                leaves Keras' variables as they are.

        Raises:
            ValueError: For such a DTensor.
        """
        named: Iterator[tuple[str, Tensor]] = (
            (v.path, v.value)
            for v in variables
            if getattr(v, "_layout", None) is None
        )
        if model is not None:
            known = {id(v.value) for v in model.variables}
            others = (
                (path, x)
                for path, x in model.named_parameters()
                if id(x) not in known
            )
            named = itertools.chain(named, others)
        for path, tensor in named:
            if is_split(tensor):
                raise ValueError(
                    "Weights are split between processes by "
                    "`keras.distribution.ModelParallel` of Keras 3.16 alone. "
                    "`fully_shard` and `distribute_tensor` make DTensors that "
                    "Keras does not know: docs/guides/several_machines.md. "
                    f"Received: {path!r}, a DTensor with placements="
                    f"{tensor.placements}"
                )

    def layouts(self, variables: Sequence[Any]) -> list[Layout | None]:
        """The layout of each variable; None for a whole one."""
        # One by one: of a variable without a value, `value` makes one.
        return [
            layout_of(v.value if isinstance(v, keras.Variable) else v)
            for v in variables
        ]

    def holds_parts(self, layouts: Sequence[Layout | None]) -> bool:
        return any(layout is not None for layout in layouts)

    def gathered(self, tensors: Any, layouts: Sequence[Layout | None]) -> Any:
        if not self.holds_parts(layouts):
            return tensors
        return Gathered(tensors, layouts)

    def to_owners(
        self,
        parts: Sequence[Tensor],
        layouts: Sequence[Layout | None],
        owners: Sequence[int] | None,
    ) -> list[Tensor]:
        """See the reference: processes send their parts to the owner."""
        if owners is None:
            whole = self.gathered(parts, layouts)
            return [whole[i] for i in range(len(parts))]
        here = torch.distributed.get_rank()
        dtype = functools.reduce(torch.promote_types, (x.dtype for x in parts))
        parts = [x.to(dtype) for x in parts]
        given = list(zip(parts, layouts, owners, strict=True))
        exchange = Exchange(parts[0])
        for x, layout, owner in given:
            holders = _holders(layout, owner)
            if here in holders:
                exchange.send(owner, x)
            if here == owner:
                for holder in holders:
                    exchange.expect(holder, _part_shape(layout, holder, x))
        exchange.run()
        found = []
        for x, layout, owner in given:
            shape = x.shape if layout is None else layout.shape
            if here == owner:
                whole = x.new_empty(shape)
                for holder in _holders(layout, owner):
                    whole[_extent(layout, holder)] = exchange.received(holder)
            else:
                whole = x.new_zeros(()).expand(shape)
            found.append(whole)
        return found

    def from_owners(
        self,
        wholes: Sequence[Tensor],
        layouts: Sequence[Layout | None],
        owners: Sequence[int] | None,
        shapes: Sequence[tuple[int, ...]],
    ) -> list[Tensor]:
        """See the reference: the owner sends each process its part."""
        if owners is None:
            pairs = zip(wholes, layouts, strict=True)
            return [self.part(whole, layout) for whole, layout in pairs]
        here = torch.distributed.get_rank()
        exchange, mine = Exchange(wholes[0]), iter(wholes)
        for shape, layout, owner in zip(shapes, layouts, owners, strict=True):
            exchange.expect(owner, shape)
            if here == owner:
                whole = next(mine)
                for process in range(torch.distributed.get_world_size()):
                    exchange.send(process, whole[_extent(layout, process)])
        exchange.run()
        return [exchange.received(owner) for owner in owners]

    def part(self, whole: Tensor, layout: Layout | None) -> Tensor:
        """See the reference: nothing is sent."""
        if layout is None:
            return whole
        split = _tensor_module().distribute_tensor(
            whole, layout.mesh, layout.placements, src_data_rank=None
        )
        return split.to_local()

    def part_of_numbers(
        self, numbers: np.ndarray, layout: Layout | None
    ) -> np.ndarray:
        if layout is None or numbers.size == 1:
            return numbers
        whole = np.ascontiguousarray(np.broadcast_to(numbers, layout.shape))
        part = self.part(torch.from_numpy(whole), layout).numpy()
        # One entry along an axis along which all are equal.
        equal = tuple(slice(0, n if n == 1 else None) for n in numbers.shape)
        return np.ascontiguousarray(part[equal])

    def parts_of_gradients(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> list[Tensor]:
        """See the reference; sums of parts are added up."""
        if not in_process_group():
            return list(gradients)
        layouts = self.layouts(variables)
        return [
            self._part_of_gradient(g, layout)
            for g, layout in zip(gradients, layouts, strict=True)
        ]

    def _part_of_gradient(self, g: Tensor, layout: Layout | None) -> Tensor:
        if not is_split(g):
            return self.part(g, layout)
        if layout is None:
            return g.full_tensor()
        return g.redistribute(layout.mesh, layout.placements).to_local()

    def largest_by_number(
        self, part: Tensor, numbers: np.ndarray, count: int
    ) -> Tensor:
        found = part.new_zeros(count, dtype=torch.float32)
        if not part.numel():
            return found
        axes = [axis for axis, n in enumerate(numbers.shape) if n == 1]
        largest = part.float().abs().amax(axes, keepdim=True)
        index = torch.from_numpy(numbers.astype("int64")).to(part.device)
        return found.scatter_reduce(
            0, index.flatten(), largest.flatten(), "amax"
        )

    def largest_of_parts(
        self, largest: Tensor, layouts: Sequence[Layout | None]
    ) -> Tensor:
        """See the reference: a maximum may lose a NaN."""
        if not self.holds_parts(layouts):
            return largest
        largest = torch.nan_to_num(largest, nan=torch.inf, posinf=torch.inf)
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        return largest

    def assign_parts(
        self,
        assign: Callable[[Any, Tensor], None],
        variables: Sequence[Any],
        new: Sequence[Tensor],
    ) -> None:
        """See the reference: in one call; Keras would take parts for wholes."""
        torch._foreach_copy_(local_parts(variables), list(new))


def is_split(x: Any) -> bool:
    """Returns whether this is a DTensor: importing that takes seconds."""
    return hasattr(x, "placements")


def in_process_group() -> bool:
    """Returns whether this process is one of a group, as DTensors need."""
    here = torch.distributed
    return bool(here.is_available() and here.is_initialized())


def local_parts(values: Sequence[Any]) -> list[Any]:
    """The tensors of variables, of DTensors the part that this process has.

    A part is in the same memory. Other values are left as they are.
    """
    found = [v.value if isinstance(v, keras.Variable) else v for v in values]
    return [x.to_local() if is_split(x) else x for x in found]


def layout_of(x: Tensor) -> Layout | None:
    """Returns the layout of a tensor; None for a whole one."""
    if not is_split(x):
        return None
    return Layout(x.device_mesh, tuple(x.placements), tuple(x.shape))


@functools.lru_cache
def _coordinates(mesh: Any, process: int) -> tuple[int, ...]:
    """The place of a process in a mesh."""
    return tuple((mesh.mesh == process).nonzero()[0].tolist())


@functools.lru_cache(maxsize=4096)
def _holders(layout: Layout | None, owner: int) -> tuple[int, ...]:
    """The processes nearest to the owner whose parts make up the whole."""
    if layout is None:
        return (owner,)
    place = _coordinates(layout.mesh, owner)
    chosen = tuple(
        slice(None) if placement.is_shard() else number
        for placement, number in zip(layout.placements, place, strict=True)
    )
    return tuple(layout.mesh.mesh[chosen].flatten().tolist())


@functools.lru_cache(maxsize=4096)
def _extent(layout: Layout | None, process: int) -> tuple[Any, ...]:
    """The part of a tensor that a process has."""
    if layout is None:
        return (...,)
    found = [slice(0, length) for length in layout.shape]
    place = _coordinates(layout.mesh, process)
    for count, number, placement in zip(
        layout.mesh.shape, place, layout.placements, strict=True
    ):
        if placement.is_shard():
            start, stop = found[placement.dim].start, found[placement.dim].stop
            length = -(-(stop - start) // count)
            first = min(start + number * length, stop)
            found[placement.dim] = slice(first, min(first + length, stop))
    return tuple(found)


def _part_shape(
    layout: Layout | None, process: int, like: Tensor
) -> tuple[int, ...]:
    """The shape of a process' part; of a whole tensor, that of `like`."""
    if layout is None:
        return tuple(like.shape)
    return tuple(x.stop - x.start for x in _extent(layout, process))


def _tensor_module() -> Any:
    """`torch.distributed.tensor`, which takes seconds to import."""
    from torch.distributed import tensor

    return tensor

"""PyTorch: weights of which each process has a part, as DTensors.

Keras 3.16 splits variables so under `keras.distribution.ModelParallel`. A step
works on plain tensors: entry by entry on the parts, and on whole tensors where
a matrix has to be whole, which are brought together when they are read.
"""

import itertools
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
    """Whole tensors by their positions, brought together when they are read.

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
        """See the reference."""
        return any(layout is not None for layout in layouts)

    def gathered(self, tensors: Any, layouts: Sequence[Layout | None]) -> Any:
        """See the reference."""
        if not self.holds_parts(layouts):
            return tensors
        return Gathered(tensors, layouts)

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
        """See the reference."""
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

    def largest_of_parts(
        self, largest: Tensor, layouts: Sequence[Layout | None]
    ) -> Tensor:
        """See the reference: a maximum may lose a NaN."""
        if not self.holds_parts(layouts):
            return largest
        largest = torch.nan_to_num(largest, nan=torch.inf, posinf=torch.inf)
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        return largest

    def assign_part(
        self, assign: Callable[[Any, Tensor], None], variable: Any, new: Tensor
    ) -> None:
        """See the reference: Keras would take it for the whole."""
        if is_split(variable.value):
            variable.value.to_local().copy_(new)
        else:
            assign(variable, new)


def is_split(x: Any) -> bool:
    """Returns whether this is a DTensor: importing that takes seconds."""
    return hasattr(x, "placements")


def layout_of(x: Tensor) -> Layout | None:
    """Returns the layout of a tensor; None for a whole one."""
    if not is_split(x):
        return None
    return Layout(x.device_mesh, tuple(x.placements), tuple(x.shape))


def _tensor_module() -> Any:
    """`torch.distributed.tensor`, which takes seconds to import."""
    from torch.distributed import tensor

    return tensor

"""The reference of all backends: what Keras' own operations can do.

`Backend` has every function that the package uses beside `keras.ops`; those of
tensors alone are `Arithmetic`. A backend overrides what it does otherwise or
faster. It must write the abstract methods, which Keras has no public operation
for.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends.arithmetic import Arithmetic
from keras_lanton.types import Tensor

# Below every number that is measured, which XLA does not know.
NO_MEASURE = -1e30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices that share out the work on stacks of matrices.

    Args:
        count: Number of devices.
        split: Whether any weight is split over them.
        mesh: JAX's mesh of them.
        number: Of this process, where each works on variables of its own.
    """

    count: int
    split: bool = False
    mesh: Any = None
    number: int | None = None


class Backend(Arithmetic, abc.ABC):
    """The functions of tensors that backends do differently."""

    # Whether steps run eagerly: conditions are Python's, work is in place.
    EAGER = False
    # Whether `lerp` of half precision is in float32, and rounded once.
    SUMS_HALF_IN_FLOAT32 = False
    # Whether Keras' own hook has to run first: it sums over the replicas.
    SUMS_OVER_REPLICAS = False

    # What each backend has to write.

    @abc.abstractmethod
    def device(self) -> str:
        """The default device's kind: `"cpu"`, `"gpu"` or `"tpu"`."""

    @abc.abstractmethod
    def cond(
        self,
        predicate: Tensor,
        on_true: Callable[[], Any],
        on_false: Callable[[], Any],
    ) -> Any:
        """One of two functions without arguments, by a boolean scalar."""

    @abc.abstractmethod
    def replace_if(
        self, predicate: Tensor, replace: Callable[..., Any], *old: Any
    ) -> Any:
        """`replace(*old)`, or `old` where the predicate is false."""

    @abc.abstractmethod
    def switch(
        self, index: Tensor, branches: Sequence[Callable[[], Any]]
    ) -> Any:
        """One of several functions without arguments, by an integer scalar."""

    @abc.abstractmethod
    def each(self, function: Callable[[Any], Tensor], stack: Any) -> Tensor:
        """The function of each entry of a stack, in turn.

        Args:
            function: Function to float32.
            stack: A tensor, or a tuple of tensors of one length.
        """

    @abc.abstractmethod
    def bitcast(self, x: Tensor, dtype: str) -> Tensor:
        """The same bits as another dtype of 32 bits."""

    # The machine.

    def list_devices(self) -> list[str]:
        """All devices by their names."""
        return [self.device()]

    def tensorfloat32(self) -> bool:
        """Returns whether float32 products may be rounded to TensorFloat-32."""
        return False

    def full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Products of float32 stay in float32, where that can be set."""
        return contextlib.nullcontext()

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing within is recorded for gradients."""
        return contextlib.nullcontext()

    def for_compiler(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """`update_variables`, as a compiler of the backend can take it."""
        return update

    def closes_window(self, micro_steps: Any, steps: int | None) -> Any:
        """Returns whether a window of accumulation closes here; None if always.

        Args:
            micro_steps: The variable that counts them.
            steps: `gradient_accumulation_steps`.
        """
        return None  # Keras calls the update only there

    def dense(self, gradient: Tensor | None) -> Tensor | None:
        """The sparse gradient of a lookup as a dense tensor."""
        return gradient

    def share_out(
        self,
        function: Callable[[Tensor], Tensor],
        stack: Tensor,
        devices: Devices,
    ) -> Tensor:
        """A function of each entry of a stack, each device on its own entries.

        Args:
            function: Function of `(n, ...)` to `(n, ...)`, entry by entry.
            stack: `(n, ...)`.
            devices: From `devices`.
        """
        raise NotImplementedError

    # Numbers and tensors.

    def devices(
        self, variables: Sequence[Any], wanted: bool | None
    ) -> Devices | None:
        """None: work is not shared out between devices.

        Raises:
            ValueError: If it is asked for.
        """
        if wanted:
            raise ValueError(
                "`shard` of `NewtonSchulz` needs the jax or the torch backend. "
                "Received: shard=True"
            )
        return None

    def check_whole(self, variables: Sequence[Any], model: Any = None) -> None:
        """ValueError for weights that no step can take whole: none here.

        Args:
            variables: Keras variables.
            model: A model whose parameters are checked too.
        """

    def half_is_faster(self) -> bool:
        """Returns whether the CPU multiplies bfloat16 faster than float32.

        Not where XLA multiplies them: with AVX512_BF16 Newton-Schulz took 1.0
        to 1.5 times as long on JAX.
        """
        return False

    def value_of(self, function: Callable[[Any], Any], count: int) -> Any:
        """A function of a count, such as a schedule."""
        return function(count)

    def layouts(self, variables: Sequence[Any]) -> list[Any]:
        """The layout of each variable on devices; None for no other."""
        return [None] * len(variables)

    def laid_out(
        self, tensors: Sequence[Tensor], layouts: Sequence[Any]
    ) -> list[Tensor]:
        """The tensors as they are."""
        return list(tensors)

    def holds_parts(self, layouts: Sequence[Any]) -> bool:
        """Returns whether a process sees its parts of some tensors alone."""
        return False

    def gathered(self, tensors: Any, layouts: Sequence[Any]) -> Any:
        """Whole tensors of the parts that the processes have.

        Args:
            tensors: One per variable, or some by their positions.
            layouts: One per variable, from `layouts`.
        """
        return tensors

    def to_owners(
        self,
        parts: Sequence[Tensor],
        layouts: Sequence[Any],
        owners: Sequence[int] | None,
    ) -> list[Tensor]:
        """Whole tensors, each in the process that works on it.

        Args:
            parts: What this process has of each.
            layouts: One per tensor, from `layouts`.
            owners: The process of each; None: all of them.

        Returns:
            One per tensor, of one dtype; zeros where another process owns it.
        """
        return list(parts)

    def from_owners(
        self,
        wholes: Sequence[Tensor],
        layouts: Sequence[Any],
        owners: Sequence[int] | None,
        shapes: Sequence[tuple[int, ...]],
    ) -> list[Tensor]:
        """The parts that this process has: inverse of `to_owners`.

        Args:
            wholes: Those that this process owns, in order; one of any, to
                name the dtype, if it owns none.
            layouts: One per tensor, from `layouts`.
            owners: The process of each; None: all have them.
            shapes: Of what this process has of each.
        """
        return list(wholes)

    def part_of_numbers(self, numbers: np.ndarray, layout: Any) -> np.ndarray:
        """The same of an array that broadcasts to the tensor."""
        return numbers

    def parts_of_gradients(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> list[Tensor]:
        """The parts that this process has, each placed as its variable."""
        return list(gradients)

    def largest_by_number(
        self, part: Tensor, numbers: np.ndarray, count: int
    ) -> Tensor:
        """The largest magnitudes in a part of several matrices.

        Args:
            part: What this process has of them.
            numbers: Of the matrix of each entry, int32; broadcasts to `part`.
            count: Number of the matrices.

        Returns:
            `(count,)` float32; 0 where this process has no entry.
        """
        raise NotImplementedError

    def largest_of_parts(
        self, largest: Tensor, layouts: Sequence[Any]
    ) -> Tensor:
        """The largest numbers of all processes, infinite for NaN."""
        return largest

    def assign_parts(
        self,
        assign: Callable[[Any, Tensor], None],
        variables: Sequence[Any],
        new: Sequence[Tensor],
    ) -> None:
        """Assigns this process' parts of variables, by Keras' `assign`."""
        for variable, tensor in zip(variables, new, strict=True):
            assign(variable, tensor)

    def to_host(self, *tensors: Tensor) -> list[Tensor]:
        """Copies small tensors to the host: reading them there waits for none.

        Returns:
            Tensors of their shapes and dtypes.
        """
        return list(tensors)

    def on_device(self, x: Tensor) -> Tensor:
        """Copies a small tensor of `to_host` to the device, without waiting."""
        return ops.convert_to_tensor(x)

    def on_host(self) -> contextlib.AbstractContextManager[Any]:
        """Operations on tensors from `to_host` stay there."""
        return contextlib.nullcontext()

    def constant(self, array: Any) -> Tensor:
        """A NumPy array as a tensor of its dtype, in 32 bits.

        Keras chooses a dtype of its own: where `keras.config.floatx()` is
        `"bfloat16"`, JAX would have floats for integers and masks.
        """
        array = np.asarray(array)
        dtype = array.dtype.name.replace("64", "32")
        return ops.convert_to_tensor(array.astype(dtype, copy=False), dtype)

    def unpack(self, *vectors: Tensor) -> list[list[Any]]:
        """The entries of each of some vectors of one length as scalars."""
        return [list(ops.unstack(x, num=x.shape[0])) for x in vectors]

    def unpack_places(
        self, places: Sequence[np.ndarray], *vectors: Tensor
    ) -> list[list[Any]]:
        """The entries of each of some vectors at some places.

        Args:
            places: Positions in the vectors, arrays of int32 of any shapes;
                each position is in one of them.
            *vectors: Of one length.

        Returns:
            For each vector one scalar or tensor for each of the places: a
            scalar where there is one position.
        """
        if all(place.size == 1 for place in places):
            return self.unpack(*vectors)
        firsts = self.constant(np.array([p.flat[0] for p in places], "int32"))
        scalars = self.unpack(*(self.take(x, firsts) for x in vectors))
        return [
            [
                scalar
                if place.size == 1
                else self.take(vector, self.constant(place))
                for scalar, place in zip(row, places, strict=True)
            ]
            for row, vector in zip(scalars, vectors, strict=True)
        ]

    def whole(self, stack: Tensor) -> Tensor:
        """A stack of joined tensors, as an array that is in memory."""
        return stack

    def after(self, earlier: Tensor, value: Tensor) -> Tensor:
        """The value, as a result that XLA cannot compute before `earlier`.

        XLA copies a tensor that a conditional reads and a later operation
        overwrites, unless the later one has to wait for the conditional.

        Args:
            earlier: Numbers above -1e30, or NaN; float32.
            value: A tensor.
        """
        never = ops.min(earlier) < NO_MEASURE
        return self.where(never, ops.zeros_like(value), value)

    def as_tensors(self, values: Sequence[Any]) -> list[Tensor]:
        """Tensors of variables, tensors or arrays."""
        return [ops.convert_to_tensor(value) for value in values]


def reduces(count: int, devices: int) -> bool:
    """Returns whether results of a few devices go to all by an all-reduce.

    An all-gather moves one result for every device, also for those that have
    none; an all-reduce moves each result twice.
    """
    return -(-count // devices) * devices > 2 * count

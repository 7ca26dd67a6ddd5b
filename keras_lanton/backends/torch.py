"""PyTorch: plain Python conditionals, tensors overwritten in place.

Keras makes a tensor of each number, which is copied to the device, and PyTorch
waits for a GPU when it copies to it. Here numbers are arguments of the
operations.
"""

import contextlib
import contextvars
import functools
import timeit
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from keras_lanton.backends.reference import Backend
from keras_lanton.backends.reference import Devices
from keras_lanton.backends.torch_arithmetic import TorchArithmetic
from keras_lanton.backends.torch_parts import TorchParts
from keras_lanton.backends.torch_parts import in_process_group
from keras_lanton.backends.torch_parts import local_parts
from keras_lanton.types import Tensor

# Keras' default device while a step runs. To ask Keras takes as long as a small
# operation.
_DEVICE: contextvars.ContextVar[torch.device | None] = contextvars.ContextVar(
    "device", default=None
)


class TorchBackend(TorchParts, TorchArithmetic, Backend):
    """The functions that PyTorch does otherwise, or faster."""

    EAGER = True
    SUMS_HALF_IN_FLOAT32 = True

    def __init__(self) -> None:
        self._constants: dict[tuple[int, str], Tensor] = {}

    def for_compiler(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Outside of torch.compile, which would trace every bucket."""
        disabled: Callable[..., Any] = torch.compiler.disable(update)
        return disabled

    def after(self, earlier: Tensor, value: Tensor) -> Tensor:
        """See the reference: PyTorch does one thing after the other."""
        return value

    def cond(
        self,
        predicate: Tensor,
        on_true: Callable[[], Any],
        on_false: Callable[[], Any],
    ) -> Any:
        # `keras.ops.cond` names an op at each call, which torch.compile takes
        # for new code each time.
        return on_true() if bool(predicate) else on_false()

    def each(
        self,
        function: Callable[[Any], Tensor],
        stack: Tensor | tuple[Tensor, ...],
    ) -> Tensor:
        """The function of each entry of a stack, or of a tuple of stacks.

        To float32, in turn.
        """
        together = isinstance(stack, tuple)
        found, count = None, len(stack[0] if together else stack)
        for i, entry in enumerate(
            zip(*stack, strict=True) if together else stack
        ):
            value = function(entry)
            if count == 1:
                return value[None]
            if found is None:
                found = value.new_empty((count, *value.shape))
            found[i] = value
        return found

    def replace_if(
        self, predicate: Tensor, replace: Callable[..., Any], *old: Any
    ) -> Any:
        return replace(*old) if bool(predicate) else old

    def devices(
        self, variables: Sequence[Any], wanted: bool | None
    ) -> Devices | None:
        """The processes that share out work; None for one process.

        Args:
            variables: Keras variables.
            wanted: Whether to share out work; None: where weights are split.
        """
        split = self.holds_parts(self.layouts(variables))
        wanted = split if wanted is None else wanted
        if not wanted or not in_process_group():
            return None
        count = torch.distributed.get_world_size()
        number = torch.distributed.get_rank() if split else None
        some = Devices(count=count, split=split, number=number)
        return some if count > 1 else None

    def share_out(
        self,
        function: Callable[[Tensor], Tensor],
        stack: Tensor,
        devices: Devices,
    ) -> Tensor:
        """A function of each entry, each process on entries of its own.

        Args:
            function: Function of `(n, ...)` to `(n, ...)`, entry by entry.
            stack: `(n, ...)`, equal on all processes.
            devices: From `devices`.
        """
        count, share = len(stack), -(-len(stack) // devices.count)
        start = share * torch.distributed.get_rank()
        mine = stack[start : start + share]
        missing = share - len(mine)
        if missing:
            mine = torch.cat([mine, mine.new_zeros(missing, *stack.shape[1:])])
        found = function(mine).contiguous()
        whole = found.new_empty((share * devices.count, *found.shape[1:]))
        gather = getattr(torch.distributed, "all_gather_single", None)
        # The older name, which PyTorch 2.13 warns of.
        gather = gather or torch.distributed.all_gather_into_tensor
        gather(whole, found)
        return whole[:count]

    @contextlib.contextmanager
    def no_grad(self) -> Iterator[None]:
        """No autograd for callers that step outside `fit`, and no autocast."""
        device = _default_device()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_known_device(device))
            stack.enter_context(torch.no_grad())
            for kind in {"cpu", device.type}:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def switch(
        self, index: Tensor, branches: Sequence[Callable[[], Any]]
    ) -> Any:
        return branches[int(index)]()

    def dense(self, gradient: Tensor | None) -> Tensor | None:
        if isinstance(gradient, torch.Tensor) and gradient.is_sparse:
            return gradient.to_dense()
        return gradient

    def to_host(self, *tensors: Tensor) -> list[Tensor]:
        """See the reference: one copy, so that a GPU is waited for once."""
        if self.device() == "cpu":
            return list(tensors)
        # Reinterpreted, not rounded; no GPU of Apple's has float64.
        bits = [x.reshape(-1).view(torch.int32) for x in tensors]
        copied = torch.cat(bits).cpu().split([len(one) for one in bits])
        return [
            one.view(x.dtype).reshape(x.shape)
            for one, x in zip(copied, tensors, strict=True)
        ]

    def on_host(self) -> contextlib.AbstractContextManager[Any]:
        if self.device() == "cpu":
            return contextlib.nullcontext()
        return _host()

    def on_device(self, x: Tensor) -> Tensor:
        """See the reference: from memory that a GPU reads by itself."""
        return _to_default_device(x)

    def constant(self, array: Any) -> Tensor:
        """See the reference: copied to each device once, while it lives.

        PyTorch waits for a GPU when it copies to it.
        """
        if torch.compiler.is_compiling() or not isinstance(array, np.ndarray):
            return super().constant(array)
        key = id(array), str(_default_device())
        if key not in self._constants:
            self._constants[key] = super().constant(array.copy())
            weakref.finalize(array, self._constants.pop, key, None)
        return self._constants[key]

    def unpack(self, *vectors: Tensor) -> list[list[Any]]:
        """The entries of each of some vectors of one length as numbers."""
        entries: list[list[Any]] = torch.stack(vectors).tolist()
        return entries

    def unpack_places(
        self, places: Sequence[np.ndarray], *vectors: Tensor
    ) -> list[list[Any]]:
        """See the reference: a number wherever all entries are equal."""
        rows = self.unpack(*vectors)
        if all(place.size == 1 for place in places):
            return rows
        return [
            [_at(place, vector, numbers) for place in places]
            for vector, numbers in zip(vectors, rows, strict=True)
        ]

    def as_tensors(self, values: Sequence[Any]) -> list[Tensor]:
        """See the reference: without the checks that Keras makes.

        DTensors give the part that this process has, in the same memory.
        """
        device = _default_device()
        return [
            x
            if isinstance(x, torch.Tensor) and x.device == device
            else ops.convert_to_tensor(x)
            for x in local_parts(values)
        ]

    def bitcast(self, x: Tensor, dtype: str) -> Tensor:
        return x.contiguous().view(getattr(torch, dtype))

    def device(self) -> str:
        """The kind of Keras' default device: `"cpu"` or `"gpu"`."""
        return _device_kind()

    def list_devices(self) -> list[str]:
        """All GPUs, each with the name of its kind; else where tensors are."""
        return [
            f"cuda:{i} ({torch.cuda.get_device_name(i)})"
            for i in range(torch.cuda.device_count())
        ] or [str(ops.zeros(()).device)]

    def half_is_faster(self) -> bool:
        """See the reference: by trying, some milliseconds, once."""
        return _half_is_faster()

    def tensorfloat32(self) -> bool:
        return bool(torch.get_float32_matmul_precision() != "highest")

    @contextlib.contextmanager
    def full_precision(self) -> Iterator[None]:
        """Products of float32 stay in float32."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def _default_device() -> torch.device:
    """Keras' default device now."""
    device: torch.device = _DEVICE.get() or ops.empty(()).device
    return device


@contextlib.contextmanager
def _known_device(device: torch.device) -> Iterator[None]:
    """Within this context it is Keras' default device."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)


@contextlib.contextmanager
def _host() -> Iterator[None]:
    """Within this context Keras' default device is the CPU."""
    with keras.device("cpu"), _known_device(torch.device("cpu")):
        yield


def _at(place: np.ndarray, vector: Tensor, numbers: Sequence[Any]) -> Any:
    """The entries at consecutive positions: one number if all are equal."""
    equal = set(numbers[place.flat[0] : place.flat[-1] + 1])
    if len(equal) == 1:
        return equal.pop()
    index = torch.from_numpy(place.astype("int64")).to(vector.device)
    return _to_default_device(vector[index])


def _to_default_device(x: Tensor) -> Tensor:
    """From memory that a GPU reads by itself, without waiting."""
    device = _default_device()
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


@functools.cache
def _device_kind() -> str:
    return "cpu" if ops.zeros(()).device.type == "cpu" else "gpu"


@functools.cache
def _half_is_faster() -> bool:
    """Returns whether bfloat16 products take less time than float32's.

    The limit of 1.5 leaves room: with AVX512_BF16 they take less than a third,
    so that timing does not decide otherwise from run to run.
    """
    times = []
    for dtype in (torch.float32, torch.bfloat16):
        X = torch.ones((512, 512), dtype=dtype, device="cpu")
        square = functools.partial(torch.matmul, X, X)
        times.append(min(timeit.repeat(square, number=1, repeat=5)))
    return times[0] > 1.5 * times[1]

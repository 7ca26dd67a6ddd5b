"""PyTorch: plain Python conditionals, tensors overwritten in place.

Keras makes a tensor of each number, which is copied to the device, and PyTorch
waits for a GPU when it copies to it. Here numbers are arguments of the
operations.
"""

import contextlib
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

from keras_lanton.backends import reference
from keras_lanton.backends.reference import Backend
from keras_lanton.backends.reference import Devices
from keras_lanton.types import Tensor

BLOCK = 2**17  # entries, of which a few blocks fit into a core's cache
# Entries of weights that have a copy in float32 at a time, by device. A GPU
# waits for Python, so it has fewer and larger calls.
AT_ONCE = {"cpu": 2**20, "gpu": 2**24}
SMALL = 2**16  # entries up to which tensors are joined for one operation
# Between these, the squares that make up a norm are finite and not zero in
# float32.
SAFE_NORMS = (1e-12, 1e18)


class TorchBackend(Backend):
    """The functions that PyTorch does otherwise, or faster."""

    EAGER = True

    def __init__(self) -> None:
        self._constants: dict[tuple[int, str], Tensor] = {}

    def eager(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Outside of torch.compile, which would trace every bucket."""
        disabled: Callable[..., Any] = torch.compiler.disable(function)
        return disabled

    def where(self, condition: Any, x: Any, y: Any) -> Tensor:
        """See the reference: numbers are arguments of the operations."""
        if isinstance(condition, bool):
            return x if condition else y
        if not isinstance(condition, torch.Tensor):
            condition = ops.convert_to_tensor(condition)
        if not isinstance(y, torch.Tensor):
            return x.masked_fill(~condition, y)
        if not isinstance(x, torch.Tensor):
            return y.masked_fill(condition, x)
        return torch.where(condition, x, y)

    def divisor(self, x: Tensor) -> Tensor:
        """See the reference."""
        return x.masked_fill(x == 0, 1.0)

    def maximum(self, x: Tensor, y: Any) -> Tensor:
        """See the reference."""
        if isinstance(y, torch.Tensor):
            return torch.maximum(x, y)
        return torch.clamp(x, min=y)

    def minimum(self, x: Tensor, y: Any) -> Tensor:
        """See the reference."""
        if isinstance(y, torch.Tensor):
            return torch.minimum(x, y)
        return torch.clamp(x, max=y)

    def clip(self, x: Tensor, x_min: float, x_max: float) -> Tensor:
        """See the reference."""
        return torch.clamp(x, x_min, x_max)

    def power(self, x: float, y: Tensor) -> Tensor:
        """See the reference."""
        return torch.pow(x, y)

    def take(self, x: Tensor, indices: Tensor) -> Tensor:
        """See the reference."""
        return x[indices]

    def after(self, earlier: Tensor, value: Tensor) -> Tensor:
        """See the reference: PyTorch does one thing after the other."""
        return value

    def cond(
        self,
        predicate: Tensor,
        on_true: Callable[[], Any],
        on_false: Callable[[], Any],
    ) -> Any:
        """One of two functions without arguments, by a boolean scalar."""
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
        """`replace(*old)`, or `old` where the predicate is false."""
        return replace(*old) if bool(predicate) else old

    def devices(
        self, variables: Sequence[Any], wanted: bool | None
    ) -> Devices | None:
        """The processes that share out work; None for one process.

        Args:
            variables: Keras variables.
            wanted: Whether to share out work; None is the same as False.
        """
        here = torch.distributed
        if not wanted or not (here.is_available() and here.is_initialized()):
            return None
        count = here.get_world_size()
        return Devices(count=count) if count > 1 else None

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
        kinds = {"cpu", _default_device().type}
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def switch(
        self, index: Tensor, branches: Sequence[Callable[[], Any]]
    ) -> Any:
        """One of several functions without arguments, by an integer scalar."""
        return branches[int(index)]()

    def dense(self, gradient: Tensor | None) -> Tensor | None:
        """The sparse gradient of a lookup as a dense tensor."""
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
        """See the reference."""
        if self.device() == "cpu":
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = keras.device("cpu")
        return context

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

    def add_products(
        self,
        C: Tensor,
        factors: Sequence[tuple[Tensor, Tensor]],
        *,
        beta: float,
        alpha: float,
    ) -> Tensor:
        """The sum beta C + alpha (A_1 B_1 + A_2 B_2 + ...) of each matrix.

        Matrices `(s, k)` or `(batch, s, k)`, without a pass for each sum.
        """
        add = torch.addmm if C.ndim == 2 else torch.baddbmm
        for A, B in factors:
            C = add(C, A, B, beta=beta, alpha=alpha)
            beta = 1.0
        return C

    def add_to_diagonal_(self, A: Tensor, factor: float) -> Tensor:
        """See the reference: in the place of A."""
        A.diagonal(dim1=-2, dim2=-1).add_(factor)
        return A

    def scale_(self, X: Tensor, factor: Tensor | float) -> Tensor:
        """The product factor X, in the place of X."""
        return X.mul_(factor)

    def unit_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See the reference: on a CPU with one new tensor instead of four."""
        if X.device.type == "cpu":
            X = X.float()
            norms = _frobenius_norms(X)
            inverse = torch.where(norms > 0, norms, 1.0).reciprocal()
            if bool(((inverse > 1e-30) & (inverse < 1e30)).all()):
                return X * inverse.float(), norms.float()  # below 1e30
        scale, X = _below_one(X)
        norms = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True)
        X.mul_(norms.masked_fill(norms == 0, 1.0).reciprocal())
        return X, (scale * norms).clamp(max=reference.LARGEST)

    def frobenius_norm(self, X: Tensor) -> Tensor:
        """See the reference: on a CPU without a new tensor."""
        if X.device.type == "cpu" and X.dtype == torch.float32:
            return _frobenius_norms(X).clamp(max=reference.LARGEST).float()
        scale, X = _below_one(X)
        norms = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True)
        return (scale * norms).clamp(max=reference.LARGEST)

    def shrunk_signs(
        self,
        X: Tensor,
        noisy: Tensor,
        inverse: Tensor,
        rows: Tensor,
        columns: Tensor,
    ) -> Tensor:
        """See the reference: on a CPU a block after the other.

        All that is done to a block is done in the processor's cache.
        """
        if X.device.type != "cpu":
            return super().shrunk_signs(X, noisy, inverse, rows, columns)
        found = torch.empty_like(X, dtype=torch.float32)
        for x, is_noisy, inv, r, c, out in zip(
            X, noisy, inverse, rows, columns, found, strict=True
        ):
            if not bool(is_noisy):
                torch.sign(x.float(), out=out)
            elif x.stride(0) < x.stride(1):
                _shrink_signs(x.T, float(inv), c.T, r.T, out.T)
            else:
                _shrink_signs(x, float(inv), r, c, out)
        return found

    def pieces(self, stack: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """A tensor cut into consecutive pieces along its first axis."""
        return list(torch.split(stack, list(sizes)))

    def lerp(
        self,
        starts: Sequence[Tensor],
        ends: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """See the reference: a call for all tensors of one weight."""
        found: list[Any] = [None] * len(weights)
        for weight, chosen, old, new in _by_weight(starts, ends, weights):
            if isinstance(weight, torch.Tensor):
                mixed = [_lerp_where(old[0], new[0], weight)]
            elif weight == 0.0:
                mixed = [x.clone() for x in old]
            else:
                mixed = torch._foreach_lerp(old, new, weight)
            for i, x in zip(chosen, mixed, strict=True):
                found[i] = x
        return found

    def lerp_(
        self,
        starts: Sequence[Tensor],
        ends: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """See the reference: in the place of `starts`."""
        for weight, _, old, new in _by_weight(starts, ends, weights):
            if isinstance(weight, torch.Tensor):
                old[0].copy_(_lerp_where(old[0], new[0], weight))
            elif weight != 0.0:
                torch._foreach_lerp_(old, new, weight)
        return list(starts)

    def as_tensors(self, values: Sequence[Any]) -> list[Tensor]:
        """See the reference: without the checks that Keras makes."""
        device = _default_device()
        found = [
            v.value if isinstance(v, keras.Variable) else v for v in values
        ]
        return [
            x
            if isinstance(x, torch.Tensor) and x.device == device
            else ops.convert_to_tensor(x)
            for x in found
        ]

    def cast_each(
        self, tensors: Sequence[Tensor], dtypes: Sequence[Any]
    ) -> list[Tensor]:
        """See the reference: a call for all that change."""
        found = list(tensors)
        wanted = [
            getattr(torch, d) if isinstance(d, str) else d for d in dtypes
        ]
        changed = [i for i, x in enumerate(found) if x.dtype != wanted[i]]
        if changed:
            new = [torch.empty_like(found[i], dtype=wanted[i]) for i in changed]
            torch._foreach_copy_(new, [found[i] for i in changed])
            for i, x in zip(changed, new, strict=True):
                found[i] = x
        return found

    def store_(
        self, old: Sequence[Tensor], new: Sequence[Tensor]
    ) -> list[Tensor]:
        """See the reference: in place where the dtype is another."""
        found = list(new)
        changed = [i for i, x in enumerate(found) if x.dtype != old[i].dtype]
        if changed:
            held = [old[i] for i in changed]
            torch._foreach_copy_(held, [found[i] for i in changed])
            for i, x in zip(changed, held, strict=True):
                found[i] = x
        return found

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """See the reference: without Keras' search for symbolic tensors."""
        return x.reshape(shape)

    def scale_each_(
        self, tensors: Sequence[Tensor], factors: Sequence[Any]
    ) -> list[Tensor]:
        """The products factor x, in the place of `tensors`."""
        tensors, factors = list(tensors), list(factors)
        for i, factor in enumerate(factors):
            if not isinstance(factor, float):
                tensors[i].mul_(factor)
                factors[i] = 1.0
        if tensors:
            torch._foreach_mul_(tensors, factors)
        return tensors

    def mean_roots_(
        self,
        roots: Sequence[Tensor],
        tensors: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """See the reference: in the place of `roots`."""
        small: list[list[Tensor]] = [[], []]
        for weight, _, old, new in _by_weight(roots, tensors, weights):
            if isinstance(weight, float):
                if weight == 0.0:
                    continue
                torch._foreach_mul_(old, (1.0 - weight) ** 0.5)
                new = torch._foreach_mul(new, weight**0.5)
            else:
                old[0].mul_((1.0 - weight) ** 0.5)
                new = [_where_used(weight, new[0]) * weight**0.5]
            # A GPU waits for Python: there one operation for all small ones.
            for r, x in zip(old, new, strict=True):
                if r.device.type == "cpu" or r.numel() > SMALL:
                    torch.hypot(r, x, out=r)
                else:
                    small[0].append(r)
                    small[1].append(x)
        if small[0]:
            torch._foreach_copy_(small[0], _hypot_together(*small))
        return list(roots)

    def mean_roots(
        self, roots: Sequence[Tensor], tensors: Sequence[Tensor], weight: float
    ) -> list[Tensor]:
        """See the reference: a few operations for all tensors."""
        if not roots:
            return []
        X = torch._foreach_mul(list(roots), (1.0 - weight) ** 0.5)
        Y = torch._foreach_mul(list(tensors), weight**0.5)
        return _hypot_together(X, Y)

    def adam_directions(
        self,
        m: Sequence[Tensor],
        roots: Sequence[Tensor],
        debiasing: Sequence[Any],
        *,
        epsilon: float,
        epsilon_before_debiasing: bool = False,
    ) -> list[Tensor]:
        """See the reference: a call for all tensors."""
        bias, divisor = debiasing
        if not m or isinstance(bias, torch.Tensor):
            return super().adam_directions(
                m,
                roots,
                debiasing,
                epsilon=epsilon,
                epsilon_before_debiasing=epsilon_before_debiasing,
            )
        if epsilon_before_debiasing:
            below = torch._foreach_add(list(roots), epsilon)
            found = torch._foreach_div(list(m), below)
            torch._foreach_mul_(found, divisor / bias)
            return list(found)
        below = torch._foreach_div(list(roots), divisor)
        torch._foreach_add_(below, epsilon)
        found = torch._foreach_div(list(m), bias)
        torch._foreach_div_(found, below)
        return list(found)

    def update_(
        self,
        X: Sequence[Tensor],
        steps: Sequence[Tensor],
        decay_factors: Sequence[Any],
        *,
        cautious: bool = False,
        casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
    ) -> list[Tensor]:
        """The sums decay_factor x + step, in the place of `X`."""
        X, steps = list(X), list(steps)
        if cautious or casts is not None:
            return super().update_(
                X, steps, decay_factors, cautious=cautious, casts=casts
            )
        if X and all(x.dtype == torch.float32 for x in X):
            self.scale_each_(X, decay_factors)
            torch._foreach_add_(X, steps)
            return X
        # Some at a time: copies of all in float32 would take memory.
        for some in _shares(X, AT_ONCE[self.device()]):
            held = X[some]
            wide = self.cast_each(
                held, [_at_least_float32(x.dtype) for x in held]
            )
            self.scale_each_(wide, decay_factors[some])
            torch._foreach_add_(wide, steps[some])
            self.store_(held, wide)
        return X

    def bitcast(self, x: Tensor, dtype: str) -> Tensor:
        """The same bits as another dtype of 32 bits."""
        return x.contiguous().view(getattr(torch, dtype))

    def largest_entries(self, tensors: Sequence[Tensor]) -> Tensor:
        """See the reference: a call for all tensors."""
        found = list(torch._foreach_norm(list(tensors), float("inf")))
        return torch.stack(self.cast_each(found, ["float32"] * len(found)))

    def largest_of_each(self, stack: Tensor) -> Tensor:
        """See the reference."""
        largest = torch.linalg.vector_norm(stack, float("inf"), dim=(-2, -1))
        return largest.float()

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
        """Returns whether float32 products may be rounded to TensorFloat-32."""
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
    device: torch.device = ops.empty(()).device
    return device


def _at(place: np.ndarray, vector: Tensor, numbers: Sequence[Any]) -> Any:
    """The entries at consecutive positions: one number if all are equal."""
    equal = set(numbers[place.flat[0] : place.flat[-1] + 1])
    if len(equal) == 1:
        return equal.pop()
    index = torch.from_numpy(place.astype("int64")).to(vector.device)
    return _to_default_device(vector[index])


def _frobenius_norms(X: Tensor) -> Tensor:
    """Norms of matrices of float32 `(..., m, n)`: `(..., 1, 1)` float64.

    The lines that lie in memory first: sums of so few squares are exact to
    rounding in float32, and no copy in float64 is made.
    """
    norm = torch.linalg.vector_norm
    line = -1 if X.stride(-1) <= X.stride(-2) else -2
    lines = norm(X, dim=line, keepdim=True)
    norms = norm(lines, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    if bool(((norms > SAFE_NORMS[0]) & (norms < SAFE_NORMS[1])).all()):
        return norms
    # In float64 the squares of float32 entries are finite and not zero.
    return norm(X, dim=(-2, -1), keepdim=True, dtype=torch.float64)


def _below_one(X: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entries of matrices, `(..., 1, 1)`, and X over them.

    A new tensor of float32, in two passes, of which a GPU waits for none.
    """
    X = X.float() if X.dtype == torch.float64 else X
    largest = torch.linalg.vector_norm(
        X, float("inf"), dim=(-2, -1), keepdim=True, dtype=torch.float32
    )
    scale = largest.clamp(max=reference.LARGEST_DIVISOR)
    return scale, X / scale.masked_fill(scale == 0, 1.0)


def _shrink_signs(
    X: Tensor,
    inverse: float,
    rows: Tensor,
    columns: Tensor,
    out: Tensor,
) -> None:
    """Writes `shrunk_signs` of one matrix to `out`."""
    size = max(1, BLOCK // X.shape[1])
    largest = reference.LARGEST_SQUARED
    for x, r, block in zip(
        X.split(size), rows.split(size), out.split(size), strict=True
    ):
        x = (x.float() * inverse).clamp_(-largest, largest)
        root = torch.addcmul(r * columns, x, x).rsqrt_()
        torch.mul(x, root, out=block)


def _by_weight(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> Iterator[tuple[Any, list[int], list[Tensor], list[Tensor]]]:
    """Each weight with the positions, the starts and the ends that have it.

    A tensor is the weight of one tensor, whose dtype it gets.
    """
    positions: dict[Any, list[int]] = {}
    for i, weight in enumerate(weights):
        # Tensors are keys by their identity.
        positions.setdefault(weight, []).append(i)
    for weight, chosen in positions.items():
        if isinstance(weight, torch.Tensor):
            weight = weight.to(starts[chosen[0]].dtype)
        yield (
            weight,
            chosen,
            [starts[i] for i in chosen],
            [ends[i] for i in chosen],
        )


def _hypot_together(X: Sequence[Tensor], Y: Sequence[Tensor]) -> list[Tensor]:
    """sqrt(x^2 + y^2) of each pair, by one operation."""
    flat = torch.hypot(*(torch.cat([x.reshape(-1) for x in Z]) for Z in (X, Y)))
    found = flat.split([x.numel() for x in X])
    return [x.view(y.shape) for x, y in zip(found, X, strict=True)]


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _shares(tensors: Sequence[Tensor], entries: int) -> Iterator[slice]:
    """Consecutive tensors of so many entries together, or one of more."""
    start, total = 0, 0
    for i, x in enumerate(tensors):
        total += x.numel()
        if total > entries and i > start:
            yield slice(start, i)
            start, total = i, x.numel()
    if tensors:
        yield slice(start, len(tensors))


def _lerp_where(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Start where the weight is 0, whatever the end holds."""
    return torch.where(weight != 0, torch.lerp(start, end, weight), start)


def _where_used(weight: Tensor, x: Tensor) -> Tensor:
    """0 where the weight is: 0 times NaN is NaN."""
    return torch.where(weight != 0, x, torch.zeros_like(x))


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

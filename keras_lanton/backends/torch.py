"""PyTorch: plain Python conditionals, tensors overwritten in place."""

import contextlib
import functools
import timeit
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from keras_lanton.backends import functional
from keras_lanton.backends.functional import Devices
from keras_lanton.backends.functional import clip as clip
from keras_lanton.backends.functional import laid_out as laid_out
from keras_lanton.backends.functional import layouts as layouts
from keras_lanton.backends.functional import maximum as maximum
from keras_lanton.backends.functional import minimum as minimum
from keras_lanton.backends.functional import power as power
from keras_lanton.backends.functional import take as take
from keras_lanton.backends.functional import value_of as value_of
from keras_lanton.backends.functional import where as where
from keras_lanton.types import Tensor

EAGER = True
BLOCK = 2**17  # entries, of which a few blocks fit into a core's cache
# Entries of weights that have a copy in float32 at a time, by device. A GPU
# waits for Python, so it has fewer and larger calls.
AT_ONCE = {"cpu": 2**20, "gpu": 2**24}
SMALL = 2**16  # entries up to which tensors are joined for one operation
# Between these, the squares that make up a norm are finite and not zero in
# float32.
SAFE_NORMS = (1e-12, 1e18)
SUMS_OVER_REPLICAS = False


def cond(
    predicate: Tensor, on_true: Callable[[], Any], on_false: Callable[[], Any]
) -> Any:
    """One of two functions without arguments, by a boolean scalar."""
    # `keras.ops.cond` names an op at each call, which torch.compile takes for
    # new code each time.
    return on_true() if bool(predicate) else on_false()


def after(earlier: Tensor, value: Tensor) -> Tensor:
    """PyTorch does one thing after the other as it is."""
    return value


def each(
    function: Callable[[Any], Tensor], stack: Tensor | tuple[Tensor, ...]
) -> Tensor:
    """The function of each entry of a stack, or of a tuple of stacks.

    To float32, in turn.
    """
    together = isinstance(stack, tuple)
    found, count = None, len(stack[0] if together else stack)
    for i, entry in enumerate(zip(*stack, strict=True) if together else stack):
        value = function(entry)
        if count == 1:
            return value[None]
        if found is None:
            found = value.new_empty((count, *value.shape))
        found[i] = value
    return found


def is_compiled(tensor: Tensor) -> bool:
    """Tensors have values on PyTorch."""
    return False


def replace_if(
    predicate: Tensor, replace: Callable[..., Any], *old: Any
) -> Any:
    """`replace(*old)`, or `old` where the predicate is false."""
    return replace(*old) if bool(predicate) else old


def devices(variables: Sequence[Any], wanted: bool | None) -> Devices | None:
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
    function: Callable[[Tensor], Tensor],
    stack: Tensor,
    devices: Devices,
) -> Tensor:
    """A function of each entry of a stack, each process on entries of its own.

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
def no_grad() -> Iterator[None]:
    """Turns autograd off for callers that step outside `fit`, and autocast."""
    kinds = {"cpu", _default_device().type}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def switch(index: Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
    """One of several functions without arguments, by an integer scalar."""
    return branches[int(index)]()


def dense(gradient: Tensor | None) -> Tensor | None:
    """The sparse gradient of a lookup as a dense tensor."""
    if isinstance(gradient, torch.Tensor) and gradient.is_sparse:
        return gradient.to_dense()
    return gradient


# Outside the graphs of torch.compile, which would trace every bucket anew.
eager: Callable[..., Any] = torch.compiler.disable


def to_host(*tensors: Tensor) -> list[Tensor]:
    """`functional.to_host`: one copy, so that a GPU is waited for once."""
    if device() == "cpu":
        return list(tensors)
    # Reinterpreted, not rounded; no GPU of Apple's has float64.
    bits = [x.reshape(-1).view(torch.int32) for x in tensors]
    copied = torch.cat(bits).cpu().split([len(one) for one in bits])
    return [
        one.view(x.dtype).reshape(x.shape)
        for one, x in zip(copied, tensors, strict=True)
    ]


def on_host() -> contextlib.AbstractContextManager[Any]:
    """`functional.on_host`."""
    if device() == "cpu":
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = keras.device("cpu")
    return context


def on_device(x: Tensor) -> Tensor:
    """`functional.on_device`: from memory that a GPU reads by itself."""
    device = _default_device()
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def _default_device() -> torch.device:
    """Keras' default device now."""
    device: torch.device = ops.empty(()).device
    return device


def constant(array: Any) -> Tensor:
    """`functional.constant`, copied to each device once.

    PyTorch waits for a GPU when it copies to it.
    """
    array = np.asarray(array)
    if torch.compiler.is_compiling():
        return functional.constant(array)
    return _constant(
        array.tobytes(), array.dtype.str, array.shape, _default_device()
    )


@functools.lru_cache(maxsize=4096)
def _constant(
    data: bytes, dtype: str, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """The tensor of `constant` on a device, which Keras takes by default."""
    return functional.constant(np.frombuffer(data, dtype).reshape(shape).copy())


def unpack(*vectors: Tensor) -> list[list[Any]]:
    """The entries of each of some vectors of one length as numbers."""
    entries: list[list[Any]] = torch.stack(vectors).tolist()
    return entries


def unpack_places(
    places: Sequence[np.ndarray], *vectors: Tensor
) -> list[list[Any]]:
    """`functional.unpack_places`: a number wherever all entries are equal."""
    rows = unpack(*vectors)
    if all(place.size == 1 for place in places):
        return rows
    return [
        [_at(place, vector, numbers) for place in places]
        for vector, numbers in zip(vectors, rows, strict=True)
    ]


def _at(place: np.ndarray, vector: Tensor, numbers: Sequence[Any]) -> Any:
    """The entries at consecutive positions: one number if all are equal."""
    equal = set(numbers[place.flat[0] : place.flat[-1] + 1])
    if len(equal) == 1:
        return equal.pop()
    index = torch.from_numpy(place.astype("int64")).to(vector.device)
    return on_device(vector[index])


def add_products(
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


def scale_(X: Tensor, factor: Tensor | float) -> Tensor:
    """The product factor X, in the place of X."""
    return X.mul_(factor)


def unit_norm(X: Tensor) -> tuple[Tensor, Tensor]:
    """`functional.unit_norm`, on a CPU with one new tensor instead of four."""
    if X.device.type == "cpu":
        X = X.float()
        norms = _frobenius_norms(X)
        inverse = torch.where(norms > 0, norms, 1.0).reciprocal()
        if bool(((inverse > 1e-30) & (inverse < 1e30)).all()):
            return X * inverse.float(), norms.float()  # below 1e30
    return functional.unit_norm(X)


def frobenius_norm(X: Tensor) -> Tensor:
    """`functional.frobenius_norm`, on a CPU without a new tensor."""
    if X.device.type == "cpu" and X.dtype == torch.float32:
        return _frobenius_norms(X).clamp(max=functional.LARGEST).float()
    return functional.frobenius_norm(X)


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


def shrunk_signs(
    X: Tensor,
    noisy: Tensor,
    inverse: Tensor,
    rows: Tensor,
    columns: Tensor,
) -> Tensor:
    """`functional.shrunk_signs`, on a CPU a block after the other.

    All that is done to a block is done in the processor's cache.
    """
    if X.device.type != "cpu":
        return functional.shrunk_signs(X, noisy, inverse, rows, columns)
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


def _shrink_signs(
    X: Tensor,
    inverse: float,
    rows: Tensor,
    columns: Tensor,
    out: Tensor,
) -> None:
    """Writes `functional.shrunk_signs` of one matrix to `out`."""
    size = max(1, BLOCK // X.shape[1])
    largest = functional.LARGEST_SQUARED
    for x, r, block in zip(
        X.split(size), rows.split(size), out.split(size), strict=True
    ):
        x = (x.float() * inverse).clamp_(-largest, largest)
        root = torch.addcmul(r * columns, x, x).rsqrt_()
        torch.mul(x, root, out=block)


def pieces(stack: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """A tensor cut into consecutive pieces along its first axis."""
    return list(torch.split(stack, list(sizes)))


def lerp(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> list[Tensor]:
    """The sums start + weight (end - start): new tensors.

    Args:
        starts: Tensors.
        ends: Tensors of their shapes and dtypes.
        weights: Numbers or tensors, one per tensor.
    """
    found: list[Any] = [None] * len(weights)
    for weight, chosen, *pair in _by_weight(starts, ends, weights):
        for i, x in zip(
            chosen, torch._foreach_lerp(*pair, weight), strict=True
        ):
            found[i] = x
    return found


def lerp_(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> list[Tensor]:
    """`lerp`, in the place of `starts`."""
    for weight, _, *pair in _by_weight(starts, ends, weights):
        torch._foreach_lerp_(*pair, weight)
    return list(starts)


def _by_weight(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> Iterator[tuple[Any, list[int], list[Tensor], list[Tensor]]]:
    """Each weight with the positions, the starts and the ends that have it.

    A tensor is given as a list of one, as PyTorch takes it for many tensors.
    """
    positions: dict[Any, list[int]] = {}
    for i, weight in enumerate(weights):
        # Tensors are keys by their identity.
        positions.setdefault(weight, []).append(i)
    for weight, chosen in positions.items():
        if isinstance(weight, torch.Tensor):
            weight = [weight.to(starts[chosen[0]].dtype)]
        yield (
            weight,
            chosen,
            [starts[i] for i in chosen],
            [ends[i] for i in chosen],
        )


def as_tensors(values: Sequence[Any]) -> list[Tensor]:
    """`functional.as_tensors`, without Keras' many looks at a tensor."""
    device = _default_device()
    found = [v.value if isinstance(v, keras.Variable) else v for v in values]
    return [
        x
        if isinstance(x, torch.Tensor) and x.device == device
        else ops.convert_to_tensor(x)
        for x in found
    ]


def cast_each(tensors: Sequence[Tensor], dtypes: Sequence[Any]) -> list[Tensor]:
    """`functional.cast_each`, a call for all that change."""
    found = list(tensors)
    wanted = [getattr(torch, d) if isinstance(d, str) else d for d in dtypes]
    changed = [i for i, x in enumerate(found) if x.dtype != wanted[i]]
    if changed:
        new = [torch.empty_like(found[i], dtype=wanted[i]) for i in changed]
        torch._foreach_copy_(new, [found[i] for i in changed])
        for i, x in zip(changed, new, strict=True):
            found[i] = x
    return found


def store_(old: Sequence[Tensor], new: Sequence[Tensor]) -> list[Tensor]:
    """`functional.store_`, in place where the dtype is another."""
    found = list(new)
    changed = [i for i, x in enumerate(found) if x.dtype != old[i].dtype]
    if changed:
        held = [old[i] for i in changed]
        torch._foreach_copy_(held, [found[i] for i in changed])
        for i, x in zip(changed, held, strict=True):
            found[i] = x
    return found


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`functional.reshape`, without Keras' search for symbolic tensors."""
    return x.reshape(shape)


def scale_each_(
    tensors: Sequence[Tensor], factors: Sequence[Any]
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
    roots: Sequence[Tensor], tensors: Sequence[Tensor], weights: Sequence[Any]
) -> list[Tensor]:
    """`functional.mean_roots_`, in the place of `roots`."""
    small: list[list[Tensor]] = [[], []]
    for weight, _, old, new in _by_weight(roots, tensors, weights):
        if isinstance(weight, float):
            if weight == 0.0:
                continue
            torch._foreach_mul_(old, (1.0 - weight) ** 0.5)
            new = torch._foreach_mul(new, weight**0.5)
        else:
            old[0].mul_((1.0 - weight[0]) ** 0.5)
            new = [new[0] * weight[0] ** 0.5]
        # A GPU waits for Python: there one operation for all small ones.
        for r, x in zip(old, new, strict=True):
            if r.device.type == "cpu" or r.numel() > SMALL:
                torch.hypot(r, x, out=r)
            else:
                small[0].append(r)
                small[1].append(x)
    if small[0]:
        _hypot_together_(*small)
    return list(roots)


def _hypot_together_(X: Sequence[Tensor], Y: Sequence[Tensor]) -> None:
    """Each x becomes sqrt(x^2 + y^2), by one operation."""
    flat = torch.hypot(*(torch.cat([x.reshape(-1) for x in Z]) for Z in (X, Y)))
    found = flat.split([x.numel() for x in X])
    torch._foreach_copy_(
        list(X), [x.view(y.shape) for x, y in zip(found, X, strict=True)]
    )


def adam_directions(
    m: Sequence[Tensor],
    roots: Sequence[Tensor],
    debiasing: Sequence[Any],
    *,
    epsilon: float,
    epsilon_before_debiasing: bool = False,
) -> list[Tensor]:
    """`functional.adam_directions`, a call for all tensors."""
    bias, divisor = debiasing
    if not m or isinstance(bias, torch.Tensor):
        return functional.adam_directions(
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
        return functional.update_(
            X, steps, decay_factors, cautious=cautious, casts=casts
        )
    if X and all(x.dtype == torch.float32 for x in X):
        scale_each_(X, decay_factors)
        torch._foreach_add_(X, steps)
        return X
    # Some at a time: copies of all in float32 would take memory.
    for some in _shares(X, AT_ONCE[device()]):
        held = X[some]
        wide = cast_each(held, [_at_least_float32(x.dtype) for x in held])
        scale_each_(wide, decay_factors[some])
        torch._foreach_add_(wide, steps[some])
        store_(held, wide)
    return X


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


def bitcast(x: Tensor, dtype: str) -> Tensor:
    """The same bits as another dtype of 32 bits."""
    return x.contiguous().view(getattr(torch, dtype))


def largest_entries(tensors: Sequence[Tensor]) -> Tensor:
    """`functional.largest_entries`, a call for all tensors."""
    found = list(torch._foreach_norm(list(tensors), float("inf")))
    return torch.stack(cast_each(found, ["float32"] * len(found)))


def largest_of_each(stack: Tensor) -> Tensor:
    """`functional.largest_of_each`."""
    largest = torch.linalg.vector_norm(stack, float("inf"), dim=(-2, -1))
    return largest.float()


@functools.cache
def device() -> str:
    """The kind of Keras' default device: `"cpu"` or `"gpu"`."""
    return "cpu" if ops.zeros(()).device.type == "cpu" else "gpu"


def list_devices() -> list[str]:
    """All GPUs, each with the name of its kind; else where tensors are."""
    return [
        f"cuda:{i} ({torch.cuda.get_device_name(i)})"
        for i in range(torch.cuda.device_count())
    ] or [str(ops.zeros(()).device)]


@functools.cache
def half_is_faster() -> bool:
    """`functional.half_is_faster`, by trying: some milliseconds, once.

    The limit of 1.5 leaves room: with AVX512_BF16 it is more than three times
    as fast, so that timing does not decide otherwise from run to run.
    """
    times = []
    for dtype in (torch.float32, torch.bfloat16):
        X = torch.ones((512, 512), dtype=dtype, device="cpu")
        square = functools.partial(torch.matmul, X, X)
        times.append(min(timeit.repeat(square, number=1, repeat=5)))
    return times[0] > 1.5 * times[1]


def replicas() -> int:
    """One: a step is called once, whatever the number of devices."""
    return 1


def tensorfloat32() -> bool:
    """Returns whether float32 products may be rounded to TensorFloat-32."""
    return bool(torch.get_float32_matmul_precision() != "highest")


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 stay in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gpu_product(A: Tensor, B: Tensor) -> Tensor:
    """A B where it is symmetric, by a Triton kernel."""
    from keras_lanton.backends import triton_kernels

    if A.shape[-2] < triton_kernels.MIN_SIDE or not triton_kernels.available(A):
        return torch.matmul(A, B)
    return triton_kernels.symmetric_product(A, B)


class OptimizerHooks:
    """Differences of the base class on PyTorch."""

    def _is_update_step(self) -> None:
        """Keras calls the update only where a window closes."""

"""The reference of what the backends do faster: work on many tensors, matrices.

Functions whose name ends in `_` may overwrite their first argument; here they
return new tensors, on PyTorch they overwrite.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends.elementwise import clip as clip
from keras_lanton.backends.elementwise import maximum as maximum
from keras_lanton.backends.elementwise import minimum as minimum
from keras_lanton.backends.elementwise import power as power
from keras_lanton.backends.elementwise import take as take
from keras_lanton.backends.elementwise import where as where
from keras_lanton.types import Tensor

# Dividing by more than this multiplies by a reciprocal that may count as zero.
LARGEST_DIVISOR = 2.0**126
# The square of this is finite.
LARGEST_SQUARED = 1e15
LARGEST = float(np.finfo("float32").max)
# No measure is as small; XLA does not know that.
NO_MEASURE = -1e30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices that share out the work on stacks of matrices.

    Args:
        count: Number of devices.
        split: Whether any weight is split over them.
        mesh: JAX's mesh of them.
    """

    count: int
    split: bool = False
    mesh: Any = None


def reduces(count: int, devices: int) -> bool:
    """Returns whether results of a few devices go to all by an all-reduce.

    An all-gather moves one result for every device, also for those that have
    none; an all-reduce moves each result twice.

    Args:
        count: Number of results.
        devices: Number of devices.
    """
    return -(-count // devices) * devices > 2 * count


def devices(variables: Sequence[Any], wanted: bool | None) -> None:
    """None: work is not shared out between devices.

    Args:
        variables: Keras variables.
        wanted: Whether to share out work.

    Raises:
        ValueError: If it is asked for.
    """
    if wanted:
        raise ValueError(
            "`shard` of `NewtonSchulz` needs the jax or the torch backend. "
            "Received: shard=True"
        )


def half_is_faster() -> bool:
    """Returns whether the CPU multiplies bfloat16 faster than float32.

    Not where XLA multiplies them: with AVX512_BF16 Newton-Schulz took 1.0 to
    1.5 times as long on JAX (benchmarks/polar.py).
    """
    return False


def value_of(function: Callable[[Any], Any], count: int) -> Any:
    """A function of a count, such as a schedule."""
    return function(count)


def layouts(variables: Sequence[Any]) -> list[None]:
    """None for each variable: it lies where it lies."""
    return [None] * len(variables)


def laid_out(tensors: Sequence[Tensor], layouts: Sequence[Any]) -> list[Tensor]:
    """The tensors as they are."""
    return list(tensors)


def to_host(*tensors: Tensor) -> list[Tensor]:
    """Small tensors where `unpack` of them, and conditions, do not wait.

    Args:
        *tensors: Of 32-bit dtypes.

    Returns:
        Tensors of their shapes and dtypes.
    """
    return list(tensors)


def on_device(x: Tensor) -> Tensor:
    """A small tensor from `to_host` as the others lie, without waiting.

    Args:
        x: A tensor.
    """
    return ops.convert_to_tensor(x)


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Operations on tensors from `to_host` stay there."""
    return contextlib.nullcontext()


def constant(array: Any) -> Tensor:
    """A NumPy array as a tensor of its dtype, in 32 bits.

    Keras chooses a dtype of its own: where `keras.config.floatx()` is
    `"bfloat16"`, JAX would have floats for integers and masks.

    Args:
        array: A NumPy array.
    """
    array = np.asarray(array)
    dtype = array.dtype.name.replace("64", "32")
    return ops.convert_to_tensor(array.astype(dtype, copy=False), dtype)


def unpack(*vectors: Tensor) -> list[list[Any]]:
    """The entries of each of some vectors of one length as scalars."""
    return [list(ops.unstack(x, num=x.shape[0])) for x in vectors]


def unpack_places(
    places: Sequence[np.ndarray],
    *vectors: Tensor,
    unpack: Callable[..., list[list[Any]]] = unpack,
) -> list[list[Any]]:
    """The entries of each of some vectors at some places.

    Args:
        places: Positions in the vectors, arrays of int32 of any shapes; each
            position is in one of them.
        *vectors: Of one length.
        unpack: The backend's.

    Returns:
        For each vector one scalar or tensor for each of the places: a scalar
        where there is one position.
    """
    if all(place.size == 1 for place in places):
        return unpack(*vectors)
    firsts = constant(np.array([p.flat[0] for p in places], "int32"))
    scalars = unpack(*(take(vector, firsts) for vector in vectors))
    return [
        [
            scalar if place.size == 1 else take(vector, constant(place))
            for scalar, place in zip(row, places, strict=True)
        ]
        for row, vector in zip(scalars, vectors, strict=True)
    ]


def scale_(X: Tensor, factor: Tensor | float) -> Tensor:
    """The product factor X.

    Args:
        X: A tensor, which may be overwritten.
        factor: A number, or a tensor that broadcasts to X.

    Returns:
        A tensor of the shape and dtype of X.
    """
    return factor * X


def after(earlier: Tensor, value: Tensor) -> Tensor:
    """The value, which XLA then knows only after `earlier`.

    XLA copies what a conditional reads and a later step overwrites, unless
    the step cannot come first.

    Args:
        earlier: Numbers above -1e30, or NaN; float32.
        value: A tensor.
    """
    never = ops.min(earlier) < NO_MEASURE
    return where(never, ops.zeros_like(value), value)


def pieces(stack: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """A tensor cut into consecutive pieces along its first axis."""
    ends = list(itertools.accumulate(sizes))
    pairs = zip([0, *ends[:-1]], ends, strict=True)
    return [stack[start:end] for start, end in pairs]


def lerp(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> list[Tensor]:
    """The sums start + weight (end - start).

    Args:
        starts: Tensors.
        ends: Tensors of their shapes and dtypes.
        weights: Scalars, one per tensor.

    Returns:
        One new tensor each.
    """
    weights = [
        ops.cast(w, x.dtype) for w, x in zip(weights, starts, strict=True)
    ]
    # Not w (y - x): a difference of huge numbers is not finite.
    return [
        x + (w * y - w * x)
        for x, y, w in zip(starts, ends, weights, strict=True)
    ]


def lerp_(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> list[Tensor]:
    """`lerp`, where `starts` may be overwritten."""
    return lerp(starts, ends, weights)


def as_tensors(values: Sequence[Any]) -> list[Tensor]:
    """Tensors of variables, tensors or arrays.

    Args:
        values: In any mixture.
    """
    return [ops.convert_to_tensor(value) for value in values]


def cast_each(tensors: Sequence[Tensor], dtypes: Sequence[Any]) -> list[Tensor]:
    """Tensors in other dtypes.

    Args:
        tensors: Tensors of any dtypes.
        dtypes: One per tensor: its name, or the `dtype` of a tensor.
    """
    pairs = zip(tensors, dtypes, strict=True)
    return [x if x.dtype == dtype else ops.cast(x, dtype) for x, dtype in pairs]


def store_(old: Sequence[Tensor], new: Sequence[Tensor]) -> list[Tensor]:
    """New values in the dtypes of the old, which may be overwritten.

    Args:
        old: Tensors.
        new: Tensors of their shapes.
    """
    return cast_each(new, [x.dtype for x in old])


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The entries in another shape, in their order.

    Args:
        x: A tensor.
        shape: Of as many entries.
    """
    return ops.reshape(x, shape)


def scale_each_(
    tensors: Sequence[Tensor], factors: Sequence[Any]
) -> list[Tensor]:
    """The products factor x, where `tensors` may be overwritten.

    Args:
        tensors: Tensors, float32.
        factors: Scalars, one per tensor.
    """
    return [factor * x for x, factor in zip(tensors, factors, strict=True)]


def mean_roots_(
    roots: Sequence[Tensor], tensors: Sequence[Tensor], weights: Sequence[Any]
) -> list[Tensor]:
    """sqrt((1 - w) r^2 + w x^2), without squares that leave float32.

    Args:
        roots: Roots r of mean squares, float32, which may be overwritten.
        tensors: Tensors x of their shapes, float32.
        weights: Numbers or tensors w in [0, 1], one per tensor; where one is
            0, r stays as it is.
    """
    found = []
    for r, x, w in zip(roots, tensors, weights, strict=True):
        unit = maximum(r, ops.abs(x))
        unit = minimum(where(unit > 0, unit, 1.0), LARGEST_DIVISOR)
        square = (1.0 - w) * (r / unit) ** 2 + w * (x / unit) ** 2
        found.append(where(w != 0, unit * ops.sqrt(square), r))
    return found


def adam_directions(
    m: Sequence[Tensor],
    roots: Sequence[Tensor],
    debiasing: Sequence[Any],
    *,
    epsilon: float,
    epsilon_before_debiasing: bool = False,
) -> list[Tensor]:
    """m^ / (sqrt(v^) + epsilon) of each pair of moments: new tensors.

    Args:
        m: Means of gradients, float32.
        roots: Roots of the means of their squares, sqrt(v), float32.
        debiasing: What m is divided by, and sqrt(v): scalars.
        epsilon: Above 0.
        epsilon_before_debiasing: Whether epsilon is added to sqrt(v).
    """
    bias, divisor = debiasing
    pairs = zip(m, roots, strict=True)
    if epsilon_before_debiasing:
        return [a / (b + epsilon) * (divisor / bias) for a, b in pairs]
    return [(a / bias) / (b / divisor + epsilon) for a, b in pairs]


def update_(
    X: Sequence[Tensor],
    steps: Sequence[Tensor],
    decay_factors: Sequence[Any],
    *,
    cautious: bool = False,
    casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
) -> list[Tensor]:
    """The sums decay_factor x + step.

    Args:
        X: Tensors, which may be overwritten.
        steps: Tensors of their shapes, float32.
        decay_factors: Scalars, one per tensor.
        cautious: Whether entries that the step moves away from 0 do not
            decay.
        casts: Functions of a sum and the dtype of x, one per tensor; None
            rounds to the nearest.

    Returns:
        One tensor each, of the dtype of x.
    """
    updated = []
    casts = casts or [ops.cast] * len(X)
    for x, step, k, cast in zip(X, steps, decay_factors, casts, strict=True):
        # Half precision would lose small steps before they are added.
        wide = x if str(x.dtype).endswith("64") else ops.cast(x, "float32")
        step = ops.cast(step, wide.dtype)
        kept = wide * (k if isinstance(k, float) else ops.cast(k, wide.dtype))
        if cautious:
            kept = where(ops.sign(wide) * ops.sign(step) > 0, wide, kept)
        updated.append(cast(kept + step, x.dtype))
    return updated


def largest_entries(tensors: Sequence[Tensor]) -> Tensor:
    """Largest magnitudes: 0 only for zero, not finite if any entry is not.

    Args:
        tensors: Tensors of any shapes and float dtypes, at least one.

    Returns:
        `(tensors,)`, float32.
    """
    return ops.stack([_largest_entry(x) for x in tensors])


def largest_of_each(stack: Tensor) -> Tensor:
    """`largest_entries` of each matrix of a stack.

    Args:
        stack: `(n, rows, columns)`, any float dtype.

    Returns:
        `(n,)`, float32.
    """
    return _largest_entry(stack, axis=(-2, -1))


def _largest_entry(x: Tensor, axis: tuple[int, ...] | None = None) -> Tensor:
    # XLA's maximum leaves out NaN where TensorFlow compiles.
    x = ops.cast(x, "float32")
    finite = ops.all(ops.isfinite(x), axis=axis)
    return where(finite, ops.max(ops.abs(x), axis=axis), float("nan"))


def unit_norm(X: Tensor) -> tuple[Tensor, Tensor]:
    """X in float32 over its Frobenius norm, and that norm.

    Everything is divided by the largest entry before it is squared: sums of
    squares stay finite and above zero for entries of any size.

    Args:
        X: `(..., m, n)`, any float dtype.

    Returns:
        `(..., m, n)` of norm 1, and `(..., 1, 1)`, at most float32's largest
        number; zero stays zero.
    """
    X = ops.cast(X, "float32")
    scale = ops.max(ops.abs(X), axis=(-2, -1), keepdims=True)
    scale = minimum(scale, LARGEST_DIVISOR)
    X = X / where(scale > 0, scale, 1.0)
    squares = ops.sum(X * X, axis=(-2, -1), keepdims=True)
    inverse = ops.rsqrt(where(squares > 0, squares, 1.0))
    return X * inverse, minimum(scale * ops.sqrt(squares), LARGEST)


def frobenius_norm(X: Tensor) -> Tensor:
    """The norm that `unit_norm` gives, alone.

    Args:
        X: `(..., m, n)`, any float dtype.

    Returns:
        `(..., 1, 1)` float32.
    """
    return unit_norm(X)[1]


def shrunk_signs(
    X: Tensor,
    noisy: Tensor,
    inverse: Tensor,
    rows: Tensor,
    columns: Tensor,
) -> Tensor:
    """X / sqrt(x^2 + rows columns) of x = inverse X, or sign(X).

    Args:
        X: `(n, rows, columns)`, any float dtype.
        noisy: `(n, 1, 1)` bool: where it is False, signs.
        inverse: `(n, 1, 1)` float32.
        rows: `(n, rows, 1)` float32, above 0.
        columns: `(n, 1, columns)` float32, above 0.

    Returns:
        A new tensor of the shape of X, float32.
    """
    X = ops.cast(X, "float32")
    x = clip(inverse * X, -LARGEST_SQUARED, LARGEST_SQUARED)
    found = x * ops.rsqrt(x * x + rows * columns)
    return where(noisy, found, ops.sign(X))


def add_products(
    C: Tensor,
    factors: Sequence[tuple[Tensor, Tensor]],
    *,
    beta: float,
    alpha: float,
) -> Tensor:
    """The sum beta C + alpha (A_1 B_1 + A_2 B_2 + ...) of each matrix.

    Args:
        C: `(..., s, k)`.
        factors: Pairs `(..., s, j)`, `(..., j, k)`.
        beta: Factor on C.
        alpha: Factor on the products.

    Returns:
        `(..., s, k)`.
    """
    total = sum(ops.matmul(A, B) for A, B in factors)
    return beta * C + (total if alpha == 1.0 else alpha * total)

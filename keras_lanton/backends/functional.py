"""Work on many tensors as pure functions, for backends that fuse them."""

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras import ops

Tensor = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """That share out the work on stacks of matrices.

    Args:
        count: How many.
        split: Whether any weight is split over them.
        mesh: JAX's mesh of them.
    """

    count: int
    split: bool = False
    mesh: Any = None


def reduces(count: int, devices: int) -> bool:
    """Whether results of a few devices go to all by an all-reduce.

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
            "`shard_orthogonalization` needs the jax or the torch backend. "
            "Received: shard_orthogonalization=True"
        )


def value_of(function: Callable[[Any], Any], count: int) -> Any:
    """A function of a count, such as a schedule."""
    return function(count)


def layouts(variables: Sequence[Any]) -> list[None]:
    """None for each variable: it lies where it lies."""
    return [None] * len(variables)


def laid_out(tensors: Sequence[Tensor], layouts: Sequence[Any]) -> list[Tensor]:
    """The tensors as they are."""
    return list(tensors)


def unpack(*vectors: Tensor) -> list[list[Any]]:
    """The entries of each of some vectors of one length as scalars."""
    return [list(ops.unstack(x, num=x.shape[0])) for x in vectors]


def scaled(X: Tensor, factor: Tensor | float) -> Tensor:
    """The product factor X.

    Args:
        X: A tensor, which may be overwritten.
        factor: A number, or a tensor that broadcasts to X.

    Returns:
        A tensor of the shape and dtype of X.
    """
    return factor * X


def pieces(stack: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """A tensor cut into consecutive pieces along its first axis."""
    ends = list(itertools.accumulate(sizes))
    pairs = zip([0, *ends[:-1]], ends, strict=True)
    return [stack[start:end] for start, end in pairs]


def lerp(
    starts: Sequence[Tensor],
    ends: Sequence[Tensor],
    weights: Sequence[Any],
    *,
    in_place: bool = False,
) -> list[Tensor]:
    """Many tensors' start + weight (end - start).

    Args:
        starts: Tensors.
        ends: Tensors of their shapes and dtypes.
        weights: Scalars, one per tensor.
        in_place: Whether `starts` may be overwritten.

    Returns:
        One tensor each.
    """
    return [
        x + ops.cast(w, x.dtype) * (y - x)
        for x, y, w in zip(starts, ends, weights, strict=True)
    ]


def move(
    X: Sequence[Tensor], steps: Sequence[Tensor], keep: Sequence[Any]
) -> list[Tensor]:
    """Many tensors' keep x + step.

    Args:
        X: Tensors, which may be overwritten.
        steps: Tensors of their shapes, float32.
        keep: Scalars, one per tensor.

    Returns:
        One tensor each, of the dtype of x.
    """
    moved = []
    for x, step, k in zip(X, steps, keep, strict=True):
        # Half precision would lose small steps before they are added.
        wide = x if str(x.dtype).endswith("64") else ops.cast(x, "float32")
        k, step = ops.cast(k, wide.dtype), ops.cast(step, wide.dtype)
        moved.append(ops.cast(k * wide + step, x.dtype))
    return moved


def abs_sums(tensors: Sequence[Tensor]) -> Tensor:
    """Sums of magnitudes: 0 only for zero, NaN for NaN.

    Args:
        tensors: Of any shapes and float dtypes.

    Returns:
        `(tensors,)`, float32.
    """
    return ops.stack(
        [ops.sum(ops.abs(ops.cast(x, "float32"))) for x in tensors]
    )

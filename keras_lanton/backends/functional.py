"""Work on many tensors as pure functions, for backends that fuse them."""

from collections.abc import Sequence
from typing import Any

from keras import ops

Tensor = Any


def unpack(vector: Tensor) -> list[Any]:
    """The entries of a vector as scalars."""
    return list(ops.unstack(vector, num=vector.shape[0]))


def lerp(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> list[Tensor]:
    """Many tensors' start + weight (end - start).

    Args:
        starts: Tensors, which may be overwritten.
        ends: Tensors of their shapes and dtypes.
        weights: Scalars, one per tensor.

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

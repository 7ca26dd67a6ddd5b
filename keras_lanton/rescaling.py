"""Lines 8 and 9 of Algorithm 1: from noise factors to layer learning rates.

A layer whose H is exactly 0 (nothing was measured yet) has ratio 1 and takes
no part in its group's maximum or means: else it would throttle the group.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

Tensor = Any


def group_noise(noise: Tensor, *, groups: Sequence[Tensor]) -> Tensor:
    """Root of the mean of H over each layer's group, the unit of alpha.

    Args:
        noise: sqrt(H_t), `(layers,)`, float32.
        groups: One mask of its layers for each group, `(layers,)` bool.

    Returns:
        `(layers,)`, float32; 1 in a group where nothing was measured.
    """
    result = ops.ones_like(noise)
    for member in groups:
        top = ops.max(ops.where(member, noise, 0.0))
        unit = ops.where(top > 0, top, 1.0)
        mean = _measured_mean((noise / unit) ** 2, noise, member)
        rms = ops.where(top > 0, unit * ops.sqrt(mean), 1.0)
        result = ops.where(member, rms, result)
    return result


def layer_ratio(
    a: Tensor, noise: Tensor, *, groups: Sequence[Tensor], reduction: str
) -> Tensor:
    """sqrt(a_t^l / a_t^m), a_t^m the group's maximum [Alg. 1, line 9].

    Args:
        a: Noise factors, `(layers,)`, float32.
        noise: sqrt(H_t), `(layers,)`, float32.
        groups: One mask of its layers for each group, `(layers,)` bool.
        reduction: `"max"` as printed, or `"mean"`: sqrt(a_t^l) over the
            group's mean of it, so that the group's mean ratio is 1.

    Returns:
        `(layers,)`, float32: at most 1 with `"max"`.
    """
    root = ops.sqrt(a)
    result = ops.ones_like(root)
    for member in groups:
        if reduction == "max":
            measured = ops.logical_and(member, noise > 0)
            divisor = ops.max(ops.where(measured, root, 0.0))
        else:
            divisor = _measured_mean(root, noise, member)
        ratio = root / ops.where(divisor > 0, divisor, 1.0)
        result = ops.where(member, ratio, result)
    return ops.where(noise > 0, result, 1.0)


def _measured_mean(x: Tensor, noise: Tensor, member: Tensor) -> Tensor:
    measured = ops.logical_and(member, noise > 0)
    count = ops.sum(ops.cast(measured, "float32"))
    # Not a product with zeros: x of another group may be infinite.
    return ops.sum(ops.where(measured, x, 0.0)) / ops.maximum(count, 1.0)

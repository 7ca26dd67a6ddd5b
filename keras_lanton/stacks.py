"""All matrices of equal role and shape as one stack, for one call each."""

import itertools
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_lanton.roles import Layer
from keras_lanton.views import to_matrices

Tensor = Any


def equal_stacks(layers: Sequence[Layer]) -> list[list[int]]:
    """Positions of the layers whose matrices share a norm and a shape.

    Args:
        layers: The layers at hand.

    Returns:
        Lists of positions, each of layers of equal role, d_in and d_out.
    """
    stacks: dict[tuple[str, int, int], list[int]] = {}
    for i, layer in enumerate(layers):
        key = (layer.role, layer.d_in, layer.d_out)
        stacks.setdefault(key, []).append(i)
    return list(stacks.values())


def stack(
    tensors: Sequence[Tensor], layers: Sequence[Layer]
) -> list[tuple[str, Tensor]]:
    """All matrices of equal role and shape as one, for one call each.

    Args:
        tensors: One per layer, of the layer's shape.
        layers: The layers at hand.

    Returns:
        Pairs of a role and a stack `(n, d_in, d_out)`.
    """
    result = []
    for members in equal_stacks(layers):
        parts = [to_matrices(tensors[i], layers[i]) for i in members]
        whole = parts[0] if len(parts) == 1 else ops.concatenate(parts)
        result.append((layers[members[0]].role, whole))
    return result


def unstack(stacks: Sequence[Tensor], layers: Sequence[Layer]) -> list[Tensor]:
    """The parts of stacks that `stack` put together.

    Args:
        stacks: Tensors `(n, ...)`, in the order of `stack`.
        layers: The layers at hand.

    Returns:
        One tensor per layer, `(batch, ...)`.
    """
    parts: list[Tensor] = [None] * len(layers)
    for whole, members in zip(stacks, equal_stacks(layers), strict=True):
        start = 0
        for i in members:
            parts[i] = whole[start : start + layers[i].batch]
            start += layers[i].batch
    return parts


def split(vector: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
    """A vector like the noise as one factor per layer, `(batch, 1, 1)`."""
    ends = itertools.accumulate(layer.batch for layer in layers)
    return [
        ops.reshape(vector[end - layer.batch : end], (layer.batch, 1, 1))
        for end, layer in zip(ends, layers, strict=True)
    ]

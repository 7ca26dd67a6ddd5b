"""Gradients before a step: their shapes, their size, and huge ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.layout import VariableLayout
from keras_lanton.core.matrices import to_matrices
from keras_lanton.roles.spec import variable_path
from keras_lanton.types import Tensor

HUGE = float(np.finfo("float32").max) / 2


def largest_of_matrices(layout: VariableLayout, G: Sequence[Tensor]) -> Tensor:
    """The largest magnitude in each matrix, `(matrices,)` float32."""
    stacks = []
    for i in layout.stacks:
        if backend.holds_parts(layout.placements[i : i + 1]):
            first = np.searchsorted(layout.variable_of_matrix, i)
            numbers = layout.places[i] - first
            count = layout.specs[i].batch
            found = backend.largest_by_number(G[i], numbers, count)
        else:
            matrices = to_matrices(G[i], layout.specs[i].view)
            found = backend.largest_of_each(matrices)
        stacks.append(found)
    others = [x for i, x in enumerate(G) if i not in layout.stacks]
    if others:
        stacks.append(backend.largest_entries(others))
    found = stacks[0]
    if layout.stacks:
        order = backend.constant(layout.behind_stacks)
        found = backend.take(backend.concatenate(stacks), order)
    return backend.largest_of_parts(found, layout.placements)


def halved(
    layout: VariableLayout, G: Sequence[Tensor], size: Tensor
) -> list[Tensor]:
    """The gradients, huge ones halved: differences stay in float32.

    Args:
        layout: The variables.
        G: Gradients.
        size: From `largest_of_matrices`.
    """
    with backend.on_host():
        huge = size > HUGE
        if not bool(ops.any(huge)):
            return list(G)
        factor = backend.where(huge, 0.5, ops.ones_like(size))
    (factors,) = backend.unpack_places(layout.places, factor)
    return [
        ops.cast(g * factor, g.dtype)
        for g, factor in zip(G, factors, strict=True)
    ]


def infinite_as_nan(gradient: Tensor | None) -> Tensor | None:
    """A gradient with NaN for infinity, which Keras does not clip."""
    if gradient is None:
        return None
    # No constant NaN: TensorFlow can be told to stop at one.
    return gradient + 0.0 / ops.cast(ops.isfinite(gradient), gradient.dtype)


def check_shapes(gradients: Sequence[Tensor], variables: Sequence[Any]) -> None:
    """ValueError unless each gradient has its variable's shape."""
    if len(gradients) != len(variables):
        raise ValueError(
            f"There must be one gradient, or None, for each of the "
            f"{len(variables)} variables. Received: {len(gradients)} gradients"
        )
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None and None not in tuple(gradient.shape):
            wanted, found = tuple(variable.shape), tuple(gradient.shape)
            if wanted != found:
                raise ValueError(
                    f"The gradient of {variable_path(variable)!r} must "
                    f"have its shape {wanted}. Received: shape {found}"
                )

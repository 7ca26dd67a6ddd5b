"""A tensor as a stack of matrices, and back.

Algorithm 1 speaks of matrices X in R^{d_in x d_out}; Keras kernels have any
rank. A `MatrixView` says which axes of a tensor are batch, input and output
axes. `to_matrices` gives the stack `(batch, d_in, d_out)` and
`from_matrices` is its exact inverse.
"""

import dataclasses
import functools
import math

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.types import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixView:
    """The axes of a tensor that make its matrices.

    Every axis is in exactly one of the three tuples. A vector has no input
    axis: it is one matrix of shape `(1, size)`.

    Args:
        shape: The tensor's shape.
        batch_axes: Axes that number the matrices (experts, heads).
        input_axes: Axes that are contracted with the layer's input.
        output_axes: Axes of the layer's output.
        output_blocks: Number of contiguous blocks that the last output axis
            is cut into, each a matrix of its own (the gates of an LSTM, the
            groups of a convolution). Defaults to 1.

    Raises:
        ValueError: If the axes do not name every axis of the tensor once, or
            the blocks do not divide the last output axis.
    """

    shape: tuple[int, ...]
    batch_axes: tuple[int, ...] = ()
    input_axes: tuple[int, ...] = ()
    output_axes: tuple[int, ...] = ()
    output_blocks: int = 1

    def __post_init__(self) -> None:
        axes = self.batch_axes + self.input_axes + self.output_axes
        if sorted(axes) != list(range(len(self.shape))):
            raise ValueError(
                "Batch, input and output axes must not overlap and must name "
                f"every axis of the shape {self.shape} once. Received: "
                f"batch_axes={self.batch_axes}, input_axes={self.input_axes}, "
                f"output_axes={self.output_axes}"
            )
        if self.output_blocks != 1 and (
            not self.output_axes
            or self.output_blocks < 1
            or self.shape[self.output_axes[-1]] % self.output_blocks
        ):
            raise ValueError(
                "`output_blocks` must divide the last output axis of the "
                f"shape {self.shape}. Received: "
                f"output_blocks={self.output_blocks}"
            )

    @property
    def d_in(self) -> int:
        """Rows of each matrix: the product of the input axes."""
        return math.prod(self.shape[axis] for axis in self.input_axes)

    @property
    def d_out(self) -> int:
        """Columns of each matrix: the output axes, over the blocks."""
        size = math.prod(self.shape[axis] for axis in self.output_axes)
        return size // self.output_blocks

    @property
    def batch(self) -> int:
        """Number of matrices: the batch axes times the blocks."""
        size = math.prod(self.shape[axis] for axis in self.batch_axes)
        return size * self.output_blocks

    @property
    def lies_transposed(self) -> bool:
        """True if the tensor has the matrices as (d_out, d_in), row by row."""
        return (
            self.output_blocks == 1
            and bool(self.input_axes)
            and self._transposed._order == tuple(range(len(self.shape)))
        )

    @functools.cached_property
    def matrix_numbers(self) -> np.ndarray:
        """Number of the matrix of each entry, int32; broadcasts to `shape`."""
        axes = self.batch_axes
        sizes = [self.shape[axis] for axis in axes]
        numbers = np.arange(self.batch, dtype="int32")
        if self.output_blocks > 1:
            *_, last = axes = (*axes, self.output_axes[-1])
            numbers = np.repeat(numbers, self.shape[last] // self.output_blocks)
            sizes.append(self.shape[last])
        in_order = numbers.reshape(sizes).transpose(np.argsort(axes))
        return in_order.reshape(
            [self.shape[i] if i in axes else 1 for i in range(len(self.shape))]
        )

    @functools.cached_property
    def _transposed(self) -> "MatrixView":
        """The view as matrices (d_out, d_in); not of blocks of outputs."""
        return dataclasses.replace(
            self, input_axes=self.output_axes, output_axes=self.input_axes
        )

    @functools.cached_property
    def _order(self) -> tuple[int, ...]:
        return self.batch_axes + self.input_axes + self.output_axes


def to_matrices(
    tensor: Tensor, view: MatrixView, *, transposed: bool = False
) -> Tensor:
    """The tensor's stack of matrices.

    Args:
        tensor: Tensor of shape `view.shape`.
        view: The axes.
        transposed: Whether the matrices are wanted as (d_out, d_in).

    Returns:
        Tensor of shape `(view.batch, view.d_in, view.d_out)`, or transposed,
        same dtype.
    """
    if transposed and view.output_blocks == 1:
        return to_matrices(tensor, view._transposed)
    if transposed:
        return ops.swapaxes(to_matrices(tensor, view), -2, -1)
    if view._order != tuple(range(len(view.shape))):
        tensor = ops.transpose(tensor, view._order)
    if view.output_blocks == 1:
        return backend.reshape(tensor, (view.batch, view.d_in, view.d_out))
    *outer, last = (view.shape[axis] for axis in view.output_axes)
    outer_size = math.prod(outer)
    width = last // view.output_blocks
    stacks = view.batch // view.output_blocks
    tensor = backend.reshape(
        tensor, (stacks, view.d_in * outer_size, view.output_blocks, width)
    )
    tensor = ops.transpose(tensor, (0, 2, 1, 3))
    return backend.reshape(tensor, (view.batch, view.d_in, view.d_out))


def from_matrices(
    matrices: Tensor, view: MatrixView, *, transposed: bool = False
) -> Tensor:
    """The tensor whose stack of matrices this is: inverse of `to_matrices`.

    Args:
        matrices: Tensor of shape `(view.batch, view.d_in, view.d_out)`, or
            transposed.
        view: The axes.
        transposed: Whether the matrices are (d_out, d_in).

    Returns:
        Tensor of shape `view.shape`, same dtype.
    """
    if transposed and view.output_blocks == 1:
        return from_matrices(matrices, view._transposed)
    if transposed:
        return from_matrices(ops.swapaxes(matrices, -2, -1), view)
    if view.output_blocks != 1:
        *outer, last = (view.shape[axis] for axis in view.output_axes)
        rows = view.d_in * math.prod(outer)
        width = last // view.output_blocks
        stacks = view.batch // view.output_blocks
        matrices = backend.reshape(
            matrices, (stacks, view.output_blocks, rows, width)
        )
        matrices = ops.transpose(matrices, (0, 2, 1, 3))
    permuted = tuple(view.shape[axis] for axis in view._order)
    tensor = backend.reshape(matrices, permuted)
    if view._order == tuple(range(len(view.shape))):
        return tensor
    inverse = sorted(range(len(view._order)), key=view._order.__getitem__)
    return ops.transpose(tensor, inverse)

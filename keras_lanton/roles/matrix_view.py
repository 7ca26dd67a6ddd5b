"""The axes of a tensor that make its matrices.

Algorithm 1 speaks of matrices X in R^{d_in x d_out}; Keras kernels have any
rank. A `MatrixView` says which axes of a tensor are batch, input and output
axes.
"""

import dataclasses
import functools
import math

import numpy as np


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

    @functools.cached_property
    def d_in(self) -> int:
        """Rows of each matrix: the product of the input axes."""
        return math.prod(self.shape[axis] for axis in self.input_axes)

    @functools.cached_property
    def d_out(self) -> int:
        """Columns of each matrix: the output axes, over the blocks."""
        size = math.prod(self.shape[axis] for axis in self.output_axes)
        return size // self.output_blocks

    @functools.cached_property
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
            and self.transposed.order == tuple(range(len(self.shape)))
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
    def transposed(self) -> "MatrixView":
        """The view as matrices (d_out, d_in); not of blocks of outputs."""
        return dataclasses.replace(
            self, input_axes=self.output_axes, output_axes=self.input_axes
        )

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """The axes in the order batch, inputs, outputs."""
        return self.batch_axes + self.input_axes + self.output_axes

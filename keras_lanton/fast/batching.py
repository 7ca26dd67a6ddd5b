"""The number of matrices that are worked on at once: one policy, one place.

A GPU takes a whole stack. A CPU is faster with one matrix after the other,
whose intermediate results then stay in its cache. Memory bounds both.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.matrices import Stack
from keras_lanton.types import Tensor

# Short side from which a CPU is faster with one matrix at a time.
ONE_BY_ONE_FROM = 64
# Temporaries up to which a CPU finds a stack in its cache, and each new tensor
# in memory that the process has already, where steps are not compiled.
EAGER_BYTES = 2**25
# Temporaries of a stack by default. All matrices of GPT-2 small that have one
# shape fit into a GPU's: each further stack would be some fifty kernels more.
TEMPORARY_BYTES = {"gpu": 2**30}
OTHER_BYTES = 2**29
# Size up to which a stack is gathered whole where steps are compiled.
GATHERED_WHOLE_BYTES = 2**22


def default_temporary_bytes() -> int:
    """Memory for the matrices that are worked on at once, on each device."""
    return TEMPORARY_BYTES.get(backend.device(), OTHER_BYTES)


def largest_size(max_bytes: float, each: float) -> int:
    """Number of matrices that fit into memory at once.

    Args:
        max_bytes: The memory.
        each: Memory that one matrix needs.
    """
    return max(1, int(max_bytes // each))


def useful_size(stack: Stack, each: float) -> float:
    """The number of matrices above which a longer stack is no faster.

    Args:
        stack: The stack.
        each: Memory that one matrix needs.

    Returns:
        A number of at least 1; infinite where all matrices are worked on at
        once, or where compiled code shares its buffers.
    """
    alone = backend.device() == "cpu" and stack.rows >= ONE_BY_ONE_FROM
    useful = EAGER_BYTES if alone and backend.EAGER else math.inf
    return max(1.0, useful / each)


def stack_size(stack: Stack, max_bytes: float, each: float) -> int:
    """Number of matrices to work on at once.

    Args:
        stack: The stack.
        max_bytes: Memory for that on each device.
        each: Memory that one matrix needs there.
    """
    return int(min(largest_size(max_bytes, each), useful_size(stack, each)))


def is_gathered_whole(stack: Stack) -> bool:
    """Returns whether a whole stack is gathered as fast as a chosen part of it.

    Args:
        stack: The stack.
    """
    size = 4 * len(stack) * stack.rows * stack.columns
    return size <= GATHERED_WHOLE_BYTES


def one_by_one(
    function: Callable[[Any], Tensor], side: int
) -> Callable[[Any], Tensor]:
    """A function of a matrix as one of a stack, or all at once.

    A CPU works on one matrix after the other in its cache.

    Args:
        function: Function of a tensor `(..., m, n)`, or of a tuple of them.
        side: Short side of the matrices.

    Returns:
        The function of `(batch, m, n)`, or of a tuple of such.
    """
    if backend.device() == "cpu" and side >= ONE_BY_ONE_FROM:
        return functools.partial(
            backend.each, lambda X: ops.cast(function(X), "float32")
        )
    return function

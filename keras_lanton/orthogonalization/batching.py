"""The number of matrices that are worked on at once: one policy, one place.

A GPU takes a whole stack. A CPU is faster with one matrix after the other,
whose intermediate results then stay in its cache. Memory bounds both.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras_lanton import backends
from keras_lanton.backends.functional import Devices
from keras_lanton.types import Tensor
from keras_lanton.variables.stacks import Stack

backend = backends.load()

# Short side from which a CPU is faster with one matrix at a time.
ONE_BY_ONE_FROM = 64
# Temporaries up to which a CPU finds a stack in its cache, and each new tensor
# in memory that the process has already, where steps are not compiled.
EAGER_BYTES = 2**25
# Size up to which a stack is gathered whole where steps are compiled.
GATHERED_WHOLE_BYTES = 2**22


def temporary_bytes(stack: Stack) -> int:
    """Memory that one matrix of a stack needs while it is worked on.

    A hidden matrix needs itself, its normalized copy and the result, and R,
    R^2, Z, Q and one more of the short side. Any other needs itself and its
    update.

    Args:
        stack: The stack.
    """
    area = stack.rows * stack.columns
    if stack.role == "hidden":
        return 4 * (3 * area + 5 * min(stack.rows, stack.columns) ** 2)
    return 4 * 2 * area


def largest_size(
    stack: Stack, max_bytes: float, devices: Devices | None = None
) -> int:
    """Number of the stack's matrices that fit into memory at once.

    Args:
        stack: The stack.
        max_bytes: Memory for that on each device.
        devices: Devices that share out the work. Unless weights are split
            over them, each has the stack and all of the results too.
    """
    needed: float = temporary_bytes(stack)
    if devices is not None and stack.role == "hidden":
        needed /= devices.count
        if not devices.split:
            needed += 4 * 2 * stack.rows * stack.columns
    return max(1, int(max_bytes // needed))


def useful_size(stack: Stack, devices: Devices | None = None) -> float:
    """Number of matrices from which a longer stack is no faster.

    Args:
        stack: The stack.
        devices: Devices that share out the work.

    Returns:
        A number of at least 1; infinite where all matrices are worked on at
        once, or where compiled code shares its buffers.
    """
    alone = backend.device() == "cpu" and stack.rows >= ONE_BY_ONE_FROM
    useful = EAGER_BYTES if alone and backend.EAGER else math.inf
    each = max(1.0, useful / temporary_bytes(stack))
    return each if devices is None else each * devices.count


def stack_size(
    stack: Stack, max_bytes: float, devices: Devices | None = None
) -> int:
    """Number of matrices to work on at once; see `largest_size`.

    Args:
        stack: The stack.
        max_bytes: Memory for that on each device.
        devices: Devices that share out the work.
    """
    largest = largest_size(stack, max_bytes, devices)
    return int(min(largest, useful_size(stack, devices)))


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
        return functools.partial(backend.each, function)
    return function

"""The number of matrices that are worked on at once: one policy, one place.

A GPU takes a whole stack. A CPU is faster with one matrix after the other,
whose intermediate results then stay in its cache. Memory bounds both.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_lanton.backends import Devices
from keras_lanton.backends import backend
from keras_lanton.core.plan import Sizes
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


def make_sizes(max_bytes: int | None, devices: Devices | None) -> Sizes:
    """This machine's limits on what a step works on at once.

    Args:
        max_bytes: Memory for the temporaries of one stack, on each device;
            None for the default.
        devices: The devices that share out the work, or None.
    """
    device = backend.device()
    return Sizes(
        max_bytes=max_bytes or TEMPORARY_BYTES.get(device, OTHER_BYTES),
        # Compiled code shares its buffers.
        cached_bytes=EAGER_BYTES
        if device == "cpu" and backend.EAGER
        else math.inf,
        cached_from=ONE_BY_ONE_FROM,
        # Whole stacks would be gathered on every device.
        gathered_bytes=GATHERED_WHOLE_BYTES if devices is None else 0,
        devices=devices,
    )


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

"""The switch of this package's own GPU kernels."""

import keras
from keras import ops

from keras_lanton.types import Tensor

_settings = {"enabled": False}


def use_gpu_kernels(enabled: bool = True) -> None:
    """Turns this package's own GPU kernels on or off, for the whole process.

    They halve the work of symmetric products, on PyTorch by Triton. They take
    matrices whose short side is 4096 or more: on an H200 they then took 0.76
    to 0.89 of the time of PyTorch's own products, and longer for smaller ones.
    Off by default. Call it before the first step.

    Args:
        enabled: Whether to use them.

    Raises:
        ValueError: If `enabled` is not a bool, or the backend has no kernels.
    """
    if not isinstance(enabled, bool):
        raise ValueError(
            f"`enabled` must be True or False. Received: enabled={enabled!r}"
        )
    if enabled and keras.backend.backend() != "torch":
        raise ValueError(
            "`use_gpu_kernels` needs the torch backend. "
            f"Received: KERAS_BACKEND={keras.backend.backend()!r}"
        )
    _settings["enabled"] = enabled


def uses_gpu_kernels() -> bool:
    """Returns whether `use_gpu_kernels` turned them on."""
    return _settings["enabled"]


def symmetric_product(A: Tensor, B: Tensor) -> Tensor:
    """A B where it is symmetric, by a Triton kernel where that is faster.

    Args:
        A: `(n, s, k)`.
        B: `(n, k, s)`, same dtype.
    """
    from keras_lanton.fast import triton_kernels

    large = A.shape[-2] >= triton_kernels.MIN_SIDE
    if large and triton_kernels.available(A):
        return triton_kernels.symmetric_product(A, B)
    return ops.matmul(A, B)

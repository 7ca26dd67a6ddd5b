"""The switch of this package's own GPU kernels."""

import keras

from keras_lanton.backends import backend
from keras_lanton.types import Tensor

# From these sides on, and from so many pairs of tiles of 128, the kernel was
# faster on an H200 (bfloat16, benchmarks/results/gpu_h200/kernels_torch.json).
# beta C + alpha A B took 0.64 of cuBLAS' time for four matrices of 2048, 0.50
# for one of 4096 and 0.92 for one of 2048; A A^T 0.87, 0.71 and 1.2.
MIN_SIDE, MIN_SIDE_ALONE, MIN_PAIRS = 2048, 4096, 264
SHARE = 0.65  # of a dense product's time

_settings = {"enabled": False}


def use_gpu_kernels(enabled: bool = True) -> None:
    """Turns this package's own GPU kernels on or off, for the whole process.

    They halve the work of symmetric products in half precision, on PyTorch by
    Triton, where that is faster: for several matrices whose short side is 2048
    or more, and for one of 4096. On an H200 they then took 0.5 to 0.75 of the
    time of PyTorch's own products. Off by default. Call it before the first
    step.

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


def is_faster(A: Tensor, *, adds: bool) -> bool:
    """Returns whether the kernel is faster than a dense product.

    Args:
        A: `(n, s, k)`, the first factor.
        adds: Whether the product is added to another matrix.
    """
    half = keras.backend.standardize_dtype(A.dtype) != "float32"
    if not half or len(A.shape) != 3:
        return False
    n, s, _ = A.shape
    tiles = -(-s // 128)
    large = s >= (MIN_SIDE if adds else MIN_SIDE_ALONE)
    return bool(large and n * tiles * (tiles + 1) // 2 >= MIN_PAIRS)


def symmetric_product(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    beta: float = 0.0,
    alpha: float = 1.0,
) -> Tensor:
    """The sum beta C + alpha A B where it is symmetric.

    By a kernel where that is faster.

    Args:
        A: `(n, s, k)`.
        B: `(n, k, s)`, same dtype.
        C: `(n, s, s)`, symmetric, same dtype; None for zeros.
        beta: Factor of C.
        alpha: Factor of the product.
    """
    from keras_lanton.fast import triton_kernels

    if is_faster(A, adds=C is not None) and triton_kernels.available(A):
        return triton_kernels.symmetric_product(A, B, C, beta=beta, alpha=alpha)
    if C is None:
        return A @ B
    return backend.add_products(C, [(A, B)], beta=beta, alpha=alpha)

"""Half the work of a product that is symmetric, in Triton for PyTorch.

TRITON_INTERPRET=1 runs the kernel on the CPU; it has to be set before this
module is imported, because Triton decides where a kernel is decorated.
"""

import contextlib
import types
from typing import Any

import torch

from keras_lanton.types import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch's builds for the CPU come without it.
    triton = None
    # What the kernel's signature names.
    tl = types.SimpleNamespace(constexpr=None)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# The most blocks that CUDA takes on the second axis of a grid.
_MAX_BATCH = 65535


def _symmetric_product(
    a_ptr: "Any",
    b_ptr: "Any",
    c_ptr: "Any",
    out_ptr: "Any",
    s: "Any",
    k: "Any",
    alpha: "Any",
    beta: "Any",
    stride_an: "Any",
    stride_as: "Any",
    stride_ak: "Any",
    stride_bn: "Any",
    stride_bk: "Any",
    stride_bs: "Any",
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    ADDS: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """Tiles (i, j) and (j, i) of beta C + alpha A B, i >= j, of one entry.

    Rows beyond the matrix wrap around, so that only the depth is masked.
    Only builtins of Triton are called, no functions of its library: those
    were decorated when Triton was imported, maybe for another mode. "Any" is a
    string because Triton's compiler looks other annotations up in its own
    language; its interpreter finds `tl.constexpr` only without the quotes.
    """
    pair = tl.program_id(0)
    # int64 before any product with a stride: entry * s * s passes 2^31.
    entry = tl.program_id(1).to(tl.int64)
    # pair = i (i + 1) / 2 + j; the root may be off by one after rounding.
    i = ((tl.sqrt(8.0 * pair.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    if i * (i + 1) // 2 > pair:
        i -= 1
    if (i + 1) * (i + 2) // 2 <= pair:
        i += 1
    j = pair - i * (i + 1) // 2

    rows = (i * TILE + tl.arange(0, TILE)).to(tl.int64)
    cols = (j * TILE + tl.arange(0, TILE)).to(tl.int64)
    inner = tl.arange(0, DEPTH).to(tl.int64)
    a_rows = a_ptr + entry * stride_an + (rows % s)[:, None] * stride_as
    b_cols = b_ptr + entry * stride_bn + (cols % s)[None, :] * stride_bs
    a_at = a_rows + inner[None, :] * stride_ak
    b_at = b_cols + inner[:, None] * stride_bk
    acc = tl.full((TILE, TILE), 0.0, tl.float32)
    for start in range(0, k, DEPTH):
        a = tl.load(a_at, mask=inner[None, :] < k - start, other=0.0)
        b = tl.load(b_at, mask=inner[:, None] < k - start, other=0.0)
        if UPCAST:
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        # "ieee": the default would round float32 to TF32.
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_at += DEPTH * stride_ak
        b_at += DEPTH * stride_bk
    acc = acc * alpha

    at = entry * s * s + rows[:, None] * s + cols[None, :]
    inside = (rows[:, None] < s) & (cols[None, :] < s)
    if ADDS:
        old = tl.load(c_ptr + at, mask=inside, other=0.0)
        acc += beta * old.to(tl.float32)
    if i == j:
        acc = (acc + tl.trans(acc)) * 0.5
    tile = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, tile, mask=inside)
    if i > j:
        mirrored = entry * s * s + cols[:, None] * s + rows[None, :]
        tl.store(
            out_ptr + mirrored,
            tl.trans(tile),
            mask=(cols[:, None] < s) & (rows[None, :] < s),
        )


_kernel: Any = None if triton is None else triton.jit(_symmetric_product)

# TRITON_INTERPRET as it was read above, whatever it is by now.
INTERPRETED = triton is not None and not isinstance(
    _kernel, triton.runtime.JITFunction
)


def available(x: Tensor) -> bool:
    """Returns whether the kernel can run on tensors like `x`.

    Args:
        x: Tensor of any shape and dtype.

    Returns:
        True where Triton is installed and `x` is on a CUDA device, or where
        Triton interprets its kernels.
    """
    return triton is not None and (INTERPRETED or bool(x.is_cuda))


def tile_sizes(s: int, k: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Side and depth of a tile, and the warps that compute it.

    Args:
        s: Side of the product.
        k: Length of the contraction.
        dtype: Dtype of the operands.

    Returns:
        `(side, depth, warps)`, side and depth powers of two from 16.
    """
    depth = 32 if k <= 32 or dtype == torch.float32 else 64
    if s <= 32:
        return 32, depth, 4
    # Float32 runs without tensor cores, where wide accumulators spill.
    if s < 2048 or dtype == torch.float32:
        return 64, depth, 4
    return 128, depth, 8


def symmetric_product(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    beta: float = 0.0,
    alpha: float = 1.0,
) -> Tensor:
    """The sum beta C + alpha A B where the caller knows that it is symmetric.

    Computes the tiles on and below the diagonal and writes those below a
    second time, transposed: about half the work of the dense product. Tiles
    on the diagonal are averaged with their transposes and written once, so
    the result is exactly symmetric. Sums are in float32. Autograd records
    nothing.

    Args:
        A: `(n, s, k)`, float32, float16 or bfloat16, any strides.
        B: `(n, k, s)`, same dtype and device, any strides: A transposed (a
            view will do), or a symmetric matrix that commutes with a
            symmetric A. Nothing checks that A @ B is symmetric; where it is
            not, the result is its lower triangle of tiles, mirrored.
        C: `(n, s, s)`, symmetric, same dtype and device; None for zeros.
        beta: Factor of C.
        alpha: Factor of the product.

    Returns:
        `(n, s, s)`, contiguous, dtype of A.

    Raises:
        ValueError: For other ranks, shapes, dtypes or devices.

    References:
        The triangular grid and the mirrored store are those of
        github.com/nil0x9/flash-muon and of NVIDIA-NeMo/Emerging-Optimizers;
        two different operands as in github.com/Dao-AILab/quack.
    """
    _check(A, B, C)
    n, s, k = A.shape
    side, depth, warps = tile_sizes(s, k, A.dtype)
    tiles = -(-s // side)
    # The interpreter rounds to bfloat16 wrongly; PyTorch does it after.
    dtype = torch.float32 if INTERPRETED else A.dtype
    out = torch.empty((n, s, s), dtype=dtype, device=A.device)
    added = out if C is None else C.contiguous()
    if out.numel() == 0:
        return out.to(A.dtype)
    # Triton launches on the current device, which may be another one.
    device = torch.cuda.device(A.device) if A.is_cuda else None
    with device or contextlib.nullcontext():
        for first in range(0, n, _MAX_BATCH):
            some = slice(first, first + _MAX_BATCH)
            _kernel[(tiles * (tiles + 1) // 2, len(A[some]))](
                A[some],
                B[some],
                added[some],
                out[some],
                s,
                k,
                alpha,
                beta,
                *A.stride(),
                *B.stride(),
                TILE=side,
                DEPTH=depth,
                ADDS=C is not None,
                UPCAST=INTERPRETED,
                num_warps=warps,
                num_stages=3,
            )
    return out.to(A.dtype)


def _check(A: Tensor, B: Tensor, C: Tensor | None) -> None:
    if A.ndim != 3 or tuple(B.shape) != (A.shape[0], A.shape[2], A.shape[1]):
        raise ValueError(
            "`A` must be of shape (n, s, k) and `B` of shape (n, k, s). "
            f"Received: A.shape={tuple(A.shape)}, B.shape={tuple(B.shape)}"
        )
    square = (A.shape[0], A.shape[1], A.shape[1])
    if C is not None and (tuple(C.shape) != square or C.dtype != A.dtype):
        raise ValueError(
            f"`C` must be of shape {square} and of the dtype of `A`. "
            f"Received: C.shape={tuple(C.shape)}, C.dtype={C.dtype}"
        )
    if A.dtype not in DTYPES or B.dtype != A.dtype:
        raise ValueError(
            "`A` and `B` must have the same dtype, one of float32, float16 "
            f"and bfloat16. Received: A.dtype={A.dtype}, B.dtype={B.dtype}"
        )
    others = [B] if C is None else [B, C]
    if not available(A) or any(x.device != A.device for x in others):
        raise ValueError(
            "`A` and `B` must be on one CUDA device, with Triton installed; "
            "on other devices TRITON_INTERPRET=1 has to be set before the "
            f"import. Received: A.device={A.device}, B.device={B.device}"
        )

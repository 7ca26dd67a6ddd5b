"""Half the work of a product that is symmetric, in Pallas for JAX on GPUs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from keras_lanton.types import Tensor

# Smaller sides go to the dense product; as in triton_kernels, not measured.
MIN_SIDE = 1024

DTYPES = ("float32", "float16", "bfloat16")


def tile_sizes(s: int, k: int, dtype: Any) -> tuple[int, int, int]:
    """Side and depth of a tile, and the warps that compute it.

    Args:
        s: Side of the product.
        k: Length of the contraction.
        dtype: Dtype of the operands.

    Returns:
        `(side, depth, warps)`, side and depth powers of two from 16.
    """
    depth = 32 if k <= 32 or dtype == jnp.float32 else 64
    if s <= 32:
        return 32, depth, 4
    # From 2048 on, the (s / 128) (s / 128 + 1) / 2 >= 136 wide tiles of a
    # single matrix cover the 132 multiprocessors of an H100. Float32 runs
    # without tensor cores, where wide accumulators spill.
    if s < 2048 or dtype == jnp.float32:
        return 64, depth, 4
    return 128, depth, 8


def _tile_pair(pair: Tensor) -> tuple[Tensor, Tensor]:
    """(i, j), i >= j, of pair = i (i + 1) / 2 + j."""
    i = (jnp.sqrt(8.0 * pair.astype(jnp.float32) + 1.0) - 1.0) * 0.5
    i = i.astype(jnp.int32)
    # The root may be off by one after rounding.
    i = jnp.where(i * (i + 1) // 2 > pair, i - 1, i)
    i = jnp.where((i + 1) * (i + 2) // 2 <= pair, i + 1, i)
    return i, pair - i * (i + 1) // 2


def _kernel(a_ref: Any, b_ref: Any, c_ref: Any, *, depth: int) -> None:
    """The tile pair of program (pair, entry): C[i, j] and C[j, i].

    Args:
        a_ref: `(side, k)`, rows i of one matrix.
        b_ref: `(k, side)`, columns j of one matrix.
        c_ref: `(s, s)`, the whole product: two tiles of it are written.
        depth: How much of k is loaded at a time; divides it.
    """
    side, k = a_ref.shape
    i, j = _tile_pair(pl.program_id(0))
    # HIGHEST: the default would round float32 to TF32.
    full = a_ref.dtype == jnp.float32
    precision = jax.lax.Precision.HIGHEST if full else None

    def add(step: Tensor, acc: Tensor) -> Tensor:
        inner = pl.ds(step * depth, depth)
        return acc + jnp.dot(
            a_ref[:, inner],
            b_ref[inner, :],
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    acc = jnp.zeros((side, side), jnp.float32)
    acc = jax.lax.fori_loop(0, k // depth, add, acc)
    rows, cols = pl.ds(i * side, side), pl.ds(j * side, side)

    def on_the_diagonal() -> None:
        c_ref[rows, cols] = ((acc + acc.T) * 0.5).astype(c_ref.dtype)

    def below_and_mirrored() -> None:
        tile = acc.astype(c_ref.dtype)
        c_ref[rows, cols] = tile
        c_ref[cols, rows] = tile.T

    pl.when(i == j)(on_the_diagonal)
    pl.when(i != j)(below_and_mirrored)


def symmetric_product(A: Tensor, B: Tensor, *, interpret: bool = False) -> Any:
    """A @ B where the caller knows that the product is symmetric.

    Computes the tiles on and below the diagonal and writes those below a
    second time, transposed: about half the work of the dense product. Tiles
    on the diagonal are averaged with their transposes and written once, so
    the result is exactly symmetric. Sums are in float32. Sizes that are no
    multiple of a tile are padded with zeros. Not differentiable.

    Args:
        A: `(n, s, k)`, float32, float16 or bfloat16.
        B: `(n, k, s)`, same dtype: A transposed, or a symmetric matrix that
            commutes with a symmetric A. Nothing checks that A @ B is
            symmetric; where it is not, the result is its lower triangle of
            tiles, mirrored.
        interpret: Run in plain JAX, on any device. Otherwise a GPU is
            needed.

    Returns:
        `(n, s, s)`, dtype of A.

    Raises:
        ValueError: For other ranks, shapes or dtypes.

    References:
        The triangular grid and the mirrored store are those of
        github.com/nil0x9/flash-muon and of NVIDIA-NeMo/Emerging-Optimizers;
        two different operands as in github.com/Dao-AILab/quack.
    """
    _check(A, B)
    n, s, k = A.shape
    if 0 in (n, s, k):
        return jnp.zeros((n, s, s), A.dtype)
    side, depth, warps = tile_sizes(s, k, A.dtype)
    more_s, more_k = -s % side, -k % depth
    tiles = (s + more_s) // side
    A = jnp.pad(A, ((0, 0), (0, more_s), (0, more_k)))
    B = jnp.pad(B, ((0, 0), (0, more_k), (0, more_s)))
    C = pl.pallas_call(
        lambda a, b, c: _kernel(a, b, c, depth=depth),
        out_shape=jax.ShapeDtypeStruct((n, s + more_s, s + more_s), A.dtype),
        # The first axis runs fastest: programs side by side share rows.
        grid=(tiles * (tiles + 1) // 2, n),
        in_specs=[
            pl.BlockSpec(
                (None, side, k + more_k),
                lambda pair, entry: (entry, _tile_pair(pair)[0], 0),
            ),
            pl.BlockSpec(
                (None, k + more_k, side),
                lambda pair, entry: (entry, 0, _tile_pair(pair)[1]),
            ),
        ],
        out_specs=pl.BlockSpec(
            (None, s + more_s, s + more_s), lambda pair, entry: (entry, 0, 0)
        ),
        # Pallas' other lowering for GPUs loads whole blocks ahead, and no
        # block of length k fits there.
        compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=3),
        interpret=interpret,
        name="symmetric_product",
    )(A, B)
    return C[:, :s, :s]


def _check(A: Tensor, B: Tensor) -> None:
    if A.ndim != 3 or tuple(B.shape) != (A.shape[0], A.shape[2], A.shape[1]):
        raise ValueError(
            "`A` must be of shape (n, s, k) and `B` of shape (n, k, s). "
            f"Received: A.shape={tuple(A.shape)}, B.shape={tuple(B.shape)}"
        )
    if str(A.dtype) not in DTYPES or B.dtype != A.dtype:
        raise ValueError(
            "`A` and `B` must have the same dtype, one of float32, float16 "
            f"and bfloat16. Received: A.dtype={A.dtype}, B.dtype={B.dtype}"
        )

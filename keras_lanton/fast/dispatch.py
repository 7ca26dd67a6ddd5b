"""The choice of the cheapest stable form of Newton-Schulz on this machine."""

import functools
from collections.abc import Sequence
from typing import Any

from keras_lanton.backends import backend
from keras_lanton.fast import gpu_kernels
from keras_lanton.fast.newton_schulz import gram_newton_schulz
from keras_lanton.fast.newton_schulz import restart_rows
from keras_lanton.fast.newton_schulz import standard_newton_schulz
from keras_lanton.fast.products import BlockProducts
from keras_lanton.fast.products import Products
from keras_lanton.types import Row
from keras_lanton.types import Tensor

# Short side from which a CPU is faster with products in blocks. More blocks
# save little more and take long to compile.
BLOCKS_FROM = {"float32": 384, "bfloat16": 768, "float16": 768}
BLOCKS = 2
# Short side from which a CPU's own half precision is worth a cast.
HALF_FROM = 256


def working_dtype(dtype: str, side: int) -> str:
    """The dtype of the products of Newton-Schulz.

    Args:
        dtype: A float dtype, or `"auto"`. That is float16 on a GPU: eight
            times finer than bfloat16, and X is normalized before. It is
            bfloat16 on a TPU, which has no float16, and on a CPU that
            multiplies it faster, from a short side of 256 on. Else it is
            float32.
        side: The short side of the matrices.

    Returns:
        `"float32"`, `"float16"` or `"bfloat16"`.
    """
    if dtype != "auto":
        return dtype
    device = backend.device()
    if device == "cpu":
        half = side >= HALF_FROM and backend.half_is_faster()
        return "bfloat16" if half else "float32"
    return "bfloat16" if device == "tpu" else "float16"


def products(side: int, dtype: str = "float32") -> Products:
    """The fastest way to multiply matrices of a size.

    Returns:
        `BlockProducts` for large matrices on a CPU, `Products` elsewhere; for
        large ones with the GPU's kernel if that is turned on.
    """
    if backend.device() == "cpu" and side >= BLOCKS_FROM[dtype]:
        return BlockProducts(BLOCKS)
    large = backend.device() == "gpu" and side >= gpu_kernels.MIN_SIDE
    if large and gpu_kernels.uses_gpu_kernels():
        return Products(gpu_kernels.symmetric_product, share=gpu_kernels.SHARE)
    return Products()


def cheapest_form(
    d_in: int, d_out: int, *, rows: Sequence[Row], dtype: str
) -> functools.partial[Tensor]:
    """The cheapest stable form of Newton-Schulz for matrices of a shape.

    Args:
        d_in: Rows of the matrices.
        d_out: Their columns.
        rows: Coefficients, one row per step.
        dtype: See `working_dtype`.

    Returns:
        `standard_newton_schulz` or `gram_newton_schulz`, with everything but
        the matrices `(..., d_in, d_out)` bound.
    """
    short, long = sorted((d_in, d_out))
    dtype = working_dtype(dtype, short)
    options: dict[str, Any] = {
        "rows": tuple(rows),
        "dtype": dtype,
        "products": products(short, dtype),
    }
    if long / short <= crossover(options["products"].share):
        return functools.partial(standard_newton_schulz, **options)
    precision = dtype
    if dtype == "float32" and backend.device() != "cpu":
        precision = "tensorfloat32" if backend.tensorfloat32() else dtype
    restarts = restart_rows(tuple(rows), precision)
    return functools.partial(gram_newton_schulz, restarts=restarts, **options)


def crossover(share: float) -> float:
    """Aspect ratio r from which the Gram form has less to multiply.

    With symmetric products at a share c of dense ones, T rows and k restarts,
    in units of the short side cubed, the forms cost

        T (2 c r + 2 c + 2 r)                              standard
        (1 + k) (2 c r + 2 r) + (8 T - 6 - 6 k) c          Gram

    They are equal at r = 3 c / (1 + c), for any T and k. Without squares, as
    with cubic rows, both cost 2 c T less: they are equal at the same r.

    Args:
        share: Cost of a symmetric product over that of a dense one, above 0.
    """
    return 3.0 * share / (1.0 + share)

"""Which form of Newton-Schulz is the cheapest stable one on this machine."""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras_lanton import backends
from keras_lanton.polar import Row
from keras_lanton.polar import gram_newton_schulz
from keras_lanton.polar import newton_schulz
from keras_lanton.polar import restart_rows
from keras_lanton.products import BlockProducts
from keras_lanton.products import Products

Tensor = Any

backend = backends.load()

# Short sides from which a CPU is faster with one matrix at a time, and with
# products in blocks: more blocks save little more and take long to compile.
ONE_BY_ONE_FROM = 64
BLOCKS_FROM = 384
BLOCKS = 2


def working_dtype(dtype: str) -> str:
    """The dtype of the products of Newton-Schulz.

    Args:
        dtype: A float dtype, or `"auto"`: float32 on a CPU, float16 on a GPU
            (eight times finer than bfloat16, and X is normalized before),
            bfloat16 on a TPU, which has no float16.

    Returns:
        `"float32"`, `"float16"` or `"bfloat16"`.
    """
    if dtype != "auto":
        return dtype
    return {"cpu": "float32", "tpu": "bfloat16"}.get(
        backend.device(), "float16"
    )


def products(side: int) -> Products:
    """The fastest way to multiply matrices of a size.

    Args:
        side: Their short side.

    Returns:
        `BlockProducts` for large matrices on a CPU, `Products` elsewhere, with
        the GPU's kernel if that is turned on.
    """
    if backend.device() == "cpu" and side >= BLOCKS_FROM:
        return BlockProducts(BLOCKS, backend.add_products)
    if backends.uses_gpu_kernels() and backend.device() == "gpu":
        return Products(backend.gpu_product, share=0.5)
    return Products(add=backend.add_products)


def one_by_one(
    function: Callable[[Tensor], Tensor], side: int
) -> Callable[[Tensor], Tensor]:
    """A function of a matrix as one of a stack, or all at once.

    A GPU takes the whole stack. A CPU is faster with one matrix after the
    other, whose intermediate results then stay in its cache.

    Args:
        function: Of tensors `(..., m, n)`.
        side: Short side of the matrices.
    """
    if backend.device() == "cpu" and side >= ONE_BY_ONE_FROM:
        return functools.partial(backend.each, function)
    return function


def polar_form(
    d_in: int, d_out: int, *, rows: Sequence[Row], dtype: str
) -> Callable[[Tensor], Tensor]:
    """The cheapest stable form of Newton-Schulz for matrices of a shape.

    Args:
        d_in: Rows of the matrices.
        d_out: Their columns.
        rows: Coefficients, one row per step.
        dtype: See `working_dtype`.

    Returns:
        A function of a stack `(batch, d_in, d_out)`: `newton_schulz` or
        `gram_newton_schulz` with everything but the stack bound.
    """
    short, long = sorted((d_in, d_out))
    dtype = working_dtype(dtype)
    options: dict[str, Any] = {
        "rows": tuple(rows),
        "dtype": dtype,
        "products": products(short),
    }
    if long / short <= crossover(options["products"].share):
        return one_by_one(functools.partial(newton_schulz, **options), short)
    precision = dtype
    if dtype == "float32" and backend.device() != "cpu":
        precision = "tensorfloat32" if backend.tensorfloat32() else dtype
    restarts = restart_rows(tuple(rows), precision)
    form = functools.partial(gram_newton_schulz, restarts=restarts, **options)
    return one_by_one(form, short)


def crossover(share: float) -> float:
    """Aspect ratio r from which the Gram form has less to multiply.

    With symmetric products at a share c of dense ones, T rows and k restarts
    the standard form costs T (2 c r + 2 c + 2 r), the Gram form
    (1 + k) (2 c r + 2 r) + (8 T - 6 - 6 k) c, in units of the short side
    cubed: equal at r = 3 c / (1 + c), for any T and k.

    Args:
        share: What a symmetric product costs of a dense one, above 0.
    """
    return 3.0 * share / (1.0 + share)

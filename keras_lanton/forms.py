"""Which form of Newton-Schulz is the cheapest stable one on this machine.

In units of s^3, with s the short side and r the aspect ratio, five rows cost
20 r + 10 in the standard form and 34 + 4 r in the Gram form. Where symmetric
products cost half, both get cheaper, and the Gram form from r = 1 on.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras_lanton import backends
from keras_lanton.polar import Product
from keras_lanton.polar import Row
from keras_lanton.polar import block_product
from keras_lanton.polar import dense_product
from keras_lanton.polar import gram_newton_schulz
from keras_lanton.polar import newton_schulz
from keras_lanton.polar import restart_rows

Tensor = Any

backend = backends.load()

# Aspect ratios above which the Gram form is cheaper.
DENSE_CROSSOVER = 1.5
SYMMETRIC_CROSSOVER = 1.2
# Sides below which cutting a product into blocks costs more than it saves.
SMALLEST_SIDE = 256


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


def symmetric_product(side: int) -> Product:
    """The fastest function for symmetric products of a size.

    Args:
        side: Of the product.

    Returns:
        A function of two stacks whose product is symmetric.
    """
    if backend.device() == "cpu":
        if side < SMALLEST_SIDE:
            return dense_product
        return functools.partial(block_product, blocks=backend.CPU_BLOCKS)
    if backends.uses_gpu_kernels() and backend.device() == "gpu":
        kernel: Product = backend.gpu_product
        return kernel
    return dense_product


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
    product = symmetric_product(short)
    dense = product is dense_product
    options: dict[str, Any] = {
        "rows": tuple(rows),
        "dtype": dtype,
        "product": product,
    }
    if long <= short * (DENSE_CROSSOVER if dense else SYMMETRIC_CROSSOVER):
        return functools.partial(newton_schulz, **options)
    precision = dtype
    if dtype == "float32" and backend.device() != "cpu":
        precision = "tensorfloat32" if backend.tensorfloat32() else dtype
    return functools.partial(
        gram_newton_schulz,
        restarts=restart_rows(tuple(rows), precision),
        **options,
    )

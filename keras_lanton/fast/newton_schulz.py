"""Newton-Schulz in two forms that take less time than that of `core`.

Both take a `Products`, which says how matrices are multiplied.
"""

import functools
import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_lanton.core.newton_schulz import transpose
from keras_lanton.core.newton_schulz import unit
from keras_lanton.fast.products import Products
from keras_lanton.types import Row
from keras_lanton.types import Tensor

DENSE = Products()


def standard_newton_schulz(
    X: Tensor,
    rows: Sequence[Row],
    *,
    dtype: str = "float32",
    products: Products = DENSE,
    unit: Callable[[Tensor, str], Tensor] = unit,
) -> Tensor:
    """The map of `core.newton_schulz` [Alg. 1, line 6].

    Args:
        X: `(..., m, n)`, any float dtype.
        rows: Coefficients, one row per step.
        dtype: Dtype of the products; X is normalized in float32 before.
        products: How matrices are multiplied.
        unit: Function of X and `dtype` to matrices of Frobenius norm 1.

    Returns:
        `(..., m, n)`, in `dtype`.
    """
    tall = X.shape[-2] > X.shape[-1]
    X = unit(X, dtype)
    X = products.split(transpose(X) if tall else X)
    for a, b, c in rows:
        P, p = _polynomial(products.gram(X), b, c, products)
        X = products.apply(P, X, beta=a, alpha=p)
    X = products.join(X)
    return transpose(X) if tall else X


def _polynomial(
    A: Any, b: float, c: float, products: Products
) -> tuple[Any, float]:
    """P and p with p P = b A + c A^2; nothing is computed where c is 0."""
    if c == 0.0:
        return A, b
    return products.commuting(A, A, A, beta=b, alpha=c), 1.0


def gram_newton_schulz(
    X: Tensor,
    rows: Sequence[Row],
    *,
    restarts: Sequence[int] = (),
    dtype: str = "float32",
    products: Products = DENSE,
    unit: Callable[[Tensor, str], Tensor] = unit,
) -> Tensor:
    """The same map, iterated on R = X X^T.

    With Z = b R + c R^2 each row does Q <- Q (a + Z) and
    R <- (a + Z) R (a + Z); in the end X <- Q X. All but the first and the
    last product are of the short side only. Rounding makes R slightly
    indefinite, which grows with every row: a restart builds R anew.

    Args:
        X: `(..., m, n)`, any float dtype.
        rows: Coefficients, one row per step.
        restarts: Numbers of the rows before which to restart, see
            `restart_rows`.
        dtype: Dtype of the products; X is normalized in float32 before.
        products: How matrices are multiplied.
        unit: Function of X and `dtype` to matrices of Frobenius norm 1.

    Returns:
        `(..., m, n)`, in `dtype`.

    References:
        Zhang, Amsel, Chen and Dao 2026, Gram Newton-Schulz:
        github.com/Dao-AILab/gram-newton-schulz.
    """
    tall = X.shape[-2] > X.shape[-1]
    X = unit(X, dtype)
    X = products.split(transpose(X) if tall else X)
    starts = (0, *sorted(restarts))
    for start, end in zip(starts, (*starts[1:], len(rows)), strict=True):
        Q = _gram_factor(X, rows[start:end], products)
        X = products.apply(Q, X)
    X = products.join(X)
    return transpose(X) if tall else X


def _gram_factor(X: Any, rows: Sequence[Row], products: Products) -> Any:
    """Q with Q X = the rows' map of X: between two restarts."""
    R = products.gram(X)
    a, b, c = rows[0]
    Z, z = _polynomial(R, b, c, products)
    # `a` is not folded into Z: half precision would round it.
    Q = products.add_identity(z * Z, a)
    for row in rows[1:]:
        RZ = products.commuting(R, R, Z, beta=a, alpha=z)
        R = products.commuting(RZ, Z, RZ, beta=a, alpha=z)
        a, b, c = row
        Z, z = _polynomial(R, b, c, products)
        Q = products.commuting(Q, Q, Z, beta=a, alpha=z)
    return Q


# How far rounding moves the eigenvalues of X X^T, at Frobenius norm 1, and
# how badly conditioned Q may become on the way before it loses the result.
ROUNDING = {
    "float32": 1e-6,
    "tensorfloat32": 4e-4,
    "float16": 4e-4,
    "bfloat16": 3e-3,
}
LARGEST_CONDITION = {
    "float32": 2000.0,
    "tensorfloat32": 60.0,
    "float16": 60.0,
    "bfloat16": 21.0,
}


@functools.cache
def restart_rows(rows: tuple[Row, ...], precision: str) -> tuple[int, ...]:
    """The fewest restarts with which the Gram form is stable.

    A simulation of the iteration on a spectrum of singular values from 1 to
    1e-10, every eigenvalue of X X^T lowered by the rounding error.

    Args:
        rows: Coefficients, one row per step.
        precision: `"float32"`, `"tensorfloat32"`, `"float16"` or
            `"bfloat16"`: what the products are computed in.

    Returns:
        Rows before which to restart: none for up to five rows in float32.

    References:
        `restart_autotune.py` of github.com/Dao-AILab/gram-newton-schulz.
    """
    inner = range(1, len(rows))
    for count in range(len(rows)):
        choices = list(itertools.combinations(inner, count))
        conditions = [_condition(rows, c, ROUNDING[precision]) for c in choices]
        if min(conditions) <= LARGEST_CONDITION[precision]:
            break
        if len(choices) > 500:  # Restarts everywhere: the standard form.
            return tuple(inner)
    return choices[int(np.argmin(conditions))]


def _condition(
    rows: Sequence[Row], restarts: Sequence[int], rounding: float
) -> float:
    """Largest condition number of Q on the way through all rows.

    Not after the first row of all or after a restart: there the standard form
    has the same one.
    """
    x = np.logspace(0, -10, 200)
    r, q, worst = x * x - rounding, np.ones_like(x), 1.0
    with np.errstate(all="ignore"):
        for i, (a, b, c) in enumerate(rows):
            starts = i == 0 or i in restarts
            if starts:
                x = q * x
                r, q = x * x - rounding, np.ones_like(x)
            z = a + b * r + c * r * r
            q, r = q * z, r * z * z
            size = np.abs(q)
            if not starts:
                worst = max(worst, float(np.max(size) / np.min(size)))
    return worst if np.isfinite(worst) else np.inf

"""The polar factor U V^T of a matrix by Newton-Schulz, as plain products.

`fast.newton_schulz` has forms of it that take less time.
"""

from collections.abc import Callable
from collections.abc import Sequence

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.types import Row
from keras_lanton.types import Tensor


def transpose(X: Tensor) -> Tensor:
    """X^T of each matrix: `(..., m, n)` to `(..., n, m)`."""
    return ops.swapaxes(X, -2, -1)


def unit(X: Tensor, dtype: str) -> Tensor:
    """X over its Frobenius norm: `(..., m, n)`, in a dtype."""
    return backend.unit_norm(X, dtype)[0]


def newton_schulz(
    X: Tensor,
    rows: Sequence[Row],
    *,
    unit: Callable[[Tensor, str], Tensor] = unit,
) -> Tensor:
    """Approximate polar factor U V^T of each matrix [Alg. 1, line 6].

    With X scaled to Frobenius norm 1, each row does
    X <- a X + (b A + c A^2) X, A = X X^T, on the short side.

    Args:
        X: `(..., m, n)`, any float dtype.
        rows: Coefficients (a, b, c), one row per step.
        unit: Function of X and a dtype to matrices of Frobenius norm 1.

    Returns:
        `(..., m, n)`, float32: U p(S) V^T, with p(S) near 1 for every
        singular value above about 1e-3 of the Frobenius norm.

    References:
        Jordan et al. 2024, Muon; Bernstein and Newhouse 2024,
        arXiv 2409.20325.
    """
    tall = X.shape[-2] > X.shape[-1]
    X = unit(X, "float32")
    X = transpose(X) if tall else X
    for a, b, c in rows:
        A = X @ transpose(X)
        P = b * A + c * (A @ A)
        X = a * X + P @ X
    return transpose(X) if tall else X

"""The polar factor U V^T of a matrix by Newton-Schulz, in two forms.

Both take a `Products`, which says how matrices are multiplied; its products of
whole matrices are the reference.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.backends import functional
from keras_lanton.orthogonalization.symmetric_products import Products
from keras_lanton.orthogonalization.symmetric_products import transposed
from keras_lanton.types import Row
from keras_lanton.types import Tensor
from keras_lanton.validation import COUNT
from keras_lanton.validation import DTYPES
from keras_lanton.validation import Numbers
from keras_lanton.validation import Part
from keras_lanton.validation import check_bool
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

DENSE = Products()
UnitNorm = Callable[[Tensor], tuple[Tensor, Tensor]]


def _with_safety(rows: Sequence[Row], factor: float) -> tuple[Row, ...]:
    """Rows of p(x / factor): no singular value above 1 can diverge."""
    return tuple((a / factor, b / factor**3, c / factor**5) for a, b, c in rows)


# Rows (a, b, c) of p(x) = a x + b x^3 + c x^5, one per step; the last row is
# repeated where there are more steps than rows.
COEFFICIENTS: dict[str, tuple[Row, ...]] = {
    # Jordan et al. 2024, "Muon": github.com/KellerJordan/Muon
    "jordan": ((3.4445, -4.7750, 2.0315),),
    # You 2025, the five rows used by Dion: github.com/microsoft/dion
    "you": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    # Amsel et al. 2025, arXiv 2505.16932, with the safety factor 1.05 on its
    # five rows; further steps are the plain quintic, which maps 1 to 1.
    "polar_express": (
        *_with_safety(
            (
                (8.28721201814563, -23.595886519098837, 17.300387312530933),
                (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
                (3.3184196573706015, -2.488488024314874, 0.51004894012372),
                (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
            ),
            1.05,
        ),
        (1.875, -1.25, 0.375),
    ),
    # arXiv 2606.00371, as "cubic5" in github.com/NVIDIA-NeMo/
    # Emerging-Optimizers: c = 0 saves a product of each step. Further steps
    # are the plain cubic, which maps 1 to 1.
    "cubic": (
        (3.3656576, -3.3420992, 0.0),
        (2.5744352, -1.4957376, 0.0),
        (2.5368962, -1.4312570, 0.0),
        (2.4418906, -1.2764040, 0.0),
        (2.2230472, -0.9630650, 0.0),
        (1.5, -0.5, 0.0),
    ),
}


def coefficient_rows(
    coefficients: str | Sequence[Sequence[float]], steps: int
) -> tuple[Row, ...]:
    """The `steps` rows that a choice of coefficients stands for.

    A named set gives its first `steps` rows; the last row is repeated where
    the set has fewer.

    Args:
        coefficients: A name in `COEFFICIENTS`, or rows `(a, b, c)`.
        steps: Number of Newton-Schulz steps, at least 1.

    Returns:
        Tuple of `steps` rows of three floats.

    Raises:
        ValueError: For an unknown name, rows that are not three finite
            numbers each, or more given rows than steps.
    """
    if isinstance(coefficients, str):
        if coefficients not in COEFFICIENTS:
            raise ValueError(
                f"`coefficients` must be one of {sorted(COEFFICIENTS)} or "
                "rows of three numbers. "
                f"Received: coefficients={shown(coefficients)}"
            )
        rows = COEFFICIENTS[coefficients]
    else:
        rows = _own_rows(coefficients)
        if len(rows) > steps:
            raise ValueError(
                "`coefficients` must not have more rows than `steps`: "
                "each row is one step. Received: "
                f"coefficients={shown(coefficients)}, steps={steps}"
            )
    return tuple(rows[min(i, len(rows) - 1)] for i in range(steps))


def _own_rows(coefficients: Sequence[Sequence[float]]) -> tuple[Row, ...]:
    try:
        rows = tuple((float(a), float(b), float(c)) for a, b, c in coefficients)
    except Exception:  # What a backend's tensor raises is its own.
        rows = ()
    finite = all(abs(x) < float("inf") for row in rows for x in row)
    if not rows or not finite:
        raise ValueError(
            f"`coefficients` must be one of {sorted(COEFFICIENTS)} or a "
            "non-empty sequence of rows of three finite numbers. "
            f"Received: coefficients={shown(coefficients)}"
        )
    return rows


NUMBERS: Numbers = {
    # Each step is a row of coefficients; no matrix needs a hundred.
    "steps": ("an integer in [1, 100]", lambda x: 1 <= x <= 100, True),
    "max_temporary_bytes": COUNT,
}


@keras.saving.register_keras_serializable(package="keras_lanton")
@dataclasses.dataclass(frozen=True, kw_only=True)
class NewtonSchulz(Part):
    """Settings of Newton-Schulz, which orthogonalizes the matrices.

    Args:
        steps: Newton-Schulz steps, from 1 to 100.
        coefficients: `"cubic"`, `"jordan"`, `"you"`, `"polar_express"` or
            rows `(a, b, c)`; the last row is repeated up to `steps`. A row
            with c = 0, as all of `"cubic"`, takes two products, not three.
        dtype: Dtype of the products: `"float32"`, `"float16"`, `"bfloat16"`
            or `"auto"`. `"auto"` is float16 on a GPU and bfloat16 on a TPU.
            On a CPU it is bfloat16 where PyTorch multiplies it faster
            (AVX512_BF16, AMX), from a short side of 256 on, else float32.
            Matrices are normalized in float32
            before.
        max_temporary_bytes: Limit of the temporary memory for matrices that
            are orthogonalized together; at least one variable at a time.
            Defaults to 512 MiB.
        shard: Whether each device orthogonalizes and measures a share of the
            matrices, and then gets the updates of all. None: on JAX, over the
            mesh of the weights. True: also on PyTorch, over the processes of
            `torch.distributed`; all of them must take every step. TensorFlow
            has no sharding.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Examples:
        >>> Lanton(newton_schulz=NewtonSchulz(dtype="bfloat16"))

    References:
        Jordan et al. 2024, Muon. The sources of the coefficients are in
        `COEFFICIENTS`.
    """

    steps: int = 5
    coefficients: str | Sequence[Sequence[float]] = "cubic"
    dtype: str = "auto"
    max_temporary_bytes: int = 2**29
    shard: bool | None = None

    def __post_init__(self) -> None:
        check_numbers(
            NUMBERS,
            steps=self.steps,
            max_temporary_bytes=self.max_temporary_bytes,
        )
        check_choice("dtype", self.dtype, ("auto", *DTYPES))
        check_bool("shard", self.shard, optional=True)
        coefficient_rows(self.coefficients, self.steps)
        if not isinstance(self.coefficients, str):
            own = tuple(tuple(map(float, row)) for row in self.coefficients)
            object.__setattr__(self, "coefficients", own)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The coefficients `(a, b, c)` of each step."""
        return coefficient_rows(self.coefficients, self.steps)


def newton_schulz(
    X: Tensor,
    rows: Sequence[Row],
    *,
    dtype: str = "float32",
    products: Products = DENSE,
    unit_norm: UnitNorm = functional.unit_norm,
) -> Tensor:
    """Approximate polar factor U V^T of each matrix [Alg. 1, line 6].

    With X scaled to Frobenius norm 1, each row does
    X <- a X + (b A + c A^2) X, A = X X^T, on the short side.

    Args:
        X: `(..., m, n)`, any float dtype.
        rows: Coefficients, one row per step.
        dtype: Dtype of the products; X is normalized in float32 before.
        products: How matrices are multiplied.
        unit_norm: The backend's `unit_norm`.

    Returns:
        `(..., m, n)`, float32: U p(S) V^T, with p(S) near 1 for every
        singular value above about 1e-3 of the Frobenius norm.

    References:
        Jordan et al. 2024, Muon; Bernstein and Newhouse 2024,
        arXiv 2409.20325.
    """
    tall = X.shape[-2] > X.shape[-1]
    X, _ = unit_norm(transposed(X) if tall else X)
    X = products.split(ops.cast(X, dtype))
    for a, b, c in rows:
        P = _polynomial(products.gram(X), b, c, products)
        X = products.apply(P, X, beta=a)
    X = ops.cast(products.join(X), "float32")
    return transposed(X) if tall else X


def _polynomial(A: Any, b: float, c: float, products: Products) -> Any:
    """The sum b A + c A^2, without a product where c is 0."""
    if c == 0.0:
        return b * A
    return products.commuting(A, A, A, beta=b, alpha=c)


def gram_newton_schulz(
    X: Tensor,
    rows: Sequence[Row],
    *,
    restarts: Sequence[int] = (),
    dtype: str = "float32",
    products: Products = DENSE,
    unit_norm: UnitNorm = functional.unit_norm,
) -> Tensor:
    """The same map as `newton_schulz`, iterated on R = X X^T.

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
        unit_norm: The backend's `unit_norm`.

    Returns:
        `(..., m, n)`, float32.

    References:
        Zhang, Amsel, Chen and Dao 2026, Gram Newton-Schulz:
        github.com/Dao-AILab/gram-newton-schulz.
    """
    tall = X.shape[-2] > X.shape[-1]
    X, _ = unit_norm(transposed(X) if tall else X)
    X = products.split(ops.cast(X, dtype))
    starts = (0, *sorted(restarts))
    for start, end in zip(starts, (*starts[1:], len(rows)), strict=True):
        Q = _gram_factor(X, rows[start:end], products)
        X = products.apply(Q, X)
    X = ops.cast(products.join(X), "float32")
    return transposed(X) if tall else X


def _gram_factor(X: Any, rows: Sequence[Row], products: Products) -> Any:
    """Q with Q X = the rows' map of X: between two restarts."""
    R = products.gram(X)
    a, b, c = rows[0]
    Z = _polynomial(R, b, c, products)
    # `a` is not folded into Z: half precision would round it.
    Q = Z + a * products.identity(X)
    for b_next in rows[1:]:
        RZ = products.commuting(R, R, Z, beta=a)
        R = products.commuting(RZ, Z, RZ, beta=a)
        a, b, c = b_next
        Z = _polynomial(R, b, c, products)
        Q = products.commuting(Q, Q, Z, beta=a)
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

"""The polar factor U V^T of a matrix by Newton-Schulz: the reference.

Faster versions live in `keras_lanton.backends`; this one is normative.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

Tensor = Any
Row = tuple[float, float, float]


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
            numbers each, or more rows of one's own than steps.
    """
    if isinstance(coefficients, str):
        if coefficients not in COEFFICIENTS:
            raise ValueError(
                f"`ns_coefficients` must be one of {sorted(COEFFICIENTS)} or "
                "rows of three numbers. "
                f"Received: ns_coefficients={coefficients!r}"
            )
        rows = COEFFICIENTS[coefficients]
    else:
        rows = _own_rows(coefficients)
        if len(rows) > steps:
            raise ValueError(
                "`ns_coefficients` must not have more rows than `ns_steps`: "
                "each row is one step. Received: "
                f"ns_coefficients={coefficients!r}, ns_steps={steps}"
            )
    return tuple(rows[min(i, len(rows) - 1)] for i in range(steps))


def _own_rows(coefficients: Sequence[Sequence[float]]) -> tuple[Row, ...]:
    try:
        rows = tuple((float(a), float(b), float(c)) for a, b, c in coefficients)
    except (TypeError, ValueError):
        rows = ()
    finite = all(abs(x) < float("inf") for row in rows for x in row)
    if not rows or not finite:
        raise ValueError(
            f"`ns_coefficients` must be one of {sorted(COEFFICIENTS)} or a "
            "non-empty sequence of rows of three finite numbers. "
            f"Received: ns_coefficients={coefficients!r}"
        )
    return rows


def max_abs(X: Tensor) -> Tensor:
    """Largest magnitude in each matrix: `(..., m, n)` to `(..., 1, 1)`.

    Dividing by it first keeps sums of squares finite and above zero for
    entries of any size.
    """
    return ops.max(ops.abs(X), axis=(-2, -1), keepdims=True)


def normalized(X: Tensor) -> Tensor:
    """X over its Frobenius norm, exactly scale invariant; zero stays zero.

    Args:
        X: `(..., m, n)`, float32.

    Returns:
        `(..., m, n)`, float32, Frobenius norm 1 per matrix, or 0 for zero.
    """
    scale = max_abs(X)
    X = X / ops.where(scale > 0, scale, 1.0)
    norm = ops.sqrt(ops.sum(X * X, axis=(-2, -1), keepdims=True))
    return X / ops.where(norm > 0, norm, 1.0)


def newton_schulz(X: Tensor, rows: Sequence[Row]) -> Tensor:
    """Approximate polar factor U V^T of each matrix [Alg. 1, line 6].

    With X scaled to Frobenius norm 1, each row does
    X <- a X + (b A + c A^2) X, A = X X^T, on the short side.

    Args:
        X: `(batch, m, n)`, any float dtype; computed in float32.
        rows: Coefficients, one row per step.

    Returns:
        `(batch, m, n)`, float32: U p(S) V^T, with p(S) near 1 for every
        singular value above about 1e-3 of the Frobenius norm.

    References:
        Jordan et al. 2024, Muon; Bernstein and Newhouse 2024,
        arXiv 2409.20325.
    """
    X = normalized(ops.cast(X, "float32"))
    tall = X.shape[-2] > X.shape[-1]
    if tall:
        X = ops.swapaxes(X, -2, -1)
    for a, b, c in rows:
        A = ops.matmul(X, ops.swapaxes(X, -2, -1))
        P = b * A + c * ops.matmul(A, A)
        X = a * X + ops.matmul(P, X)
    return ops.swapaxes(X, -2, -1) if tall else X

"""Rows of coefficients of Newton-Schulz, each set with its source."""

from collections.abc import Sequence

from keras_lanton.types import Row
from keras_lanton.validation import shown


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

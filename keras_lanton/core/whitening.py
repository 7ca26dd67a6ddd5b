"""Noise of the entries of matrices, factored by row and column.

The standard deviation of entry (i, j) is taken as r_i c_j / m. r_i is the root
mean square of the noise over row i, c_j that over column j, and m that over
all of the matrix. As Adafactor factors second moments: m rows and n columns
are kept in place of m n entries.

References:
    Shazeer and Stern 2018, Adafactor, arXiv 1804.04235, section 3.
"""

import dataclasses

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.types import Tensor

# Momentum in units of its noise: its square is in float32.
LARGEST = 1e15
# Below this a unit has no reciprocal in float32.
SMALLEST_UNIT = 1e-37
# A row's noise, or a column's, in units of its matrix': smaller counts as this.
SMALLEST = 1e-3
# Of the momentum's mean square, beside the noise of rows and columns: where
# there is next to no noise, its pattern must not count.
SIGNAL_WEIGHT = 0.1


def line_rms(D: Tensor) -> tuple[Tensor, Tensor]:
    """Root mean squares of rows and of columns.

    Args:
        D: `(n, rows, columns)`, any float dtype, entries of any finite size.

    Returns:
        `(n, rows)` and `(n, columns)`, float32, in the units of D.
    """
    unit, norm = backend.unit_norm(D)
    squares = unit * unit
    rows, columns = D.shape[-2:]
    return (
        norm[..., 0] * ops.sqrt(ops.sum(squares, axis=-1) / columns),
        norm[..., 0] * ops.sqrt(ops.sum(squares, axis=-2) / rows),
    )


def whiten(
    M: Tensor, rows: Tensor, columns: Tensor, m: Tensor, known: Tensor
) -> Tensor:
    """M_ij / (r'_i c'_j), r'_i^2 = r_i^2 + w mean(M^2), likewise c'_j.

    With little noise this is M but for its scale.

    Args:
        M: Momentum, `(..., rows, columns)`, any float dtype.
        rows: r_i^2 / m^2, `(..., rows, 1)` float32.
        columns: c_j^2 / m^2, `(..., 1, columns)` float32.
        m: RMS of the noise, `(..., 1, 1)` float32.
        known: Which matrices were measured, `(..., 1, 1)` bool; the others
            stay as they are.

    Returns:
        `(..., rows, columns)`, float32, up to a factor for each matrix.
    """
    rms = backend.frobenius_norm(M) / (M.shape[-2] * M.shape[-1]) ** 0.5
    signal = backend.minimum(rms / backend.divisor(m), LARGEST)
    signal = SIGNAL_WEIGHT * ops.square(signal)
    # In units of the larger of the two: no matrix leaves float32.
    unit = backend.maximum(signal, 1.0)
    floor = backend.maximum(signal / unit, SMALLEST**2)
    row_factors, column_factors = (
        backend.where(known, ops.rsqrt(squares / unit + floor), 1.0)
        for squares in (rows, columns)
    )
    M = ops.cast(M, "float32") * row_factors
    return backend.scale_(M, column_factors)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EntryNoise:
    """Noise of the entries of some matrices `(n, rows, columns)`.

    Args:
        rows: RMS of each row's gradient noise, `(n, rows)` float32.
        columns: RMS of each column's, `(n, columns)` float32.
        known: Which matrices were measured, `(n,)` bool.
        momentum_share: Standard deviation of the momentum's noise over that
            of what `rows` and `columns` measure.
    """

    rows: Tensor
    columns: Tensor
    known: Tensor
    momentum_share: float

    def _relative(self) -> tuple[Tensor, Tensor, Tensor]:
        """Squares of rows and of columns over m^2, and m; all 0 without noise.

        Returns:
            `(n, rows, 1)`, `(n, 1, columns)` and `(n, 1, 1)`.
        """
        top = ops.max(self.columns, axis=-1, keepdims=True)
        unit = backend.divisor(top)
        m = unit * ops.sqrt(
            ops.mean(ops.square(self.columns / unit), axis=-1, keepdims=True)
        )
        divisor = backend.divisor(m)
        return (
            ops.square(self.rows / divisor)[:, :, None],
            ops.square(self.columns / divisor)[:, None, :],
            m[:, :, None],
        )

    def of_each(self) -> tuple[Tensor, ...]:
        """The arguments of `whiten` after M, stacked matrix by matrix."""
        rows, columns, m = self._relative()
        return rows, columns, m, self.known[:, None, None]

    def shrunk_signs(self, M: Tensor) -> Tensor:
        """M / sqrt(M^2 + V_M), V_M the variance of its own noise.

        These are signs, but for entries that noise may have flipped.

        Args:
            M: Momentum, `(n, rows, columns)`, any float dtype.

        Returns:
            Likewise, float32, in [-1, 1].
        """
        rows, columns, m = self._relative()
        noisy = ops.logical_and(self.known[:, None, None], m > SMALLEST_UNIT)
        share = self.momentum_share**2
        return backend.shrunk_signs(
            M,
            noisy,
            1.0 / backend.where(noisy, m, 1.0),
            backend.maximum(share * rows, SMALLEST**2),
            backend.maximum(columns, SMALLEST**2),
        )

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
# A row's noise, or a column's, in units of its matrix': smaller counts as this.
SMALLEST = 1e-3
# Of a momentum that is divided by it: the quotient's squares are in float32.
NORMS = (1e-30, 1e30)
# Of the momentum's mean square, beside the noise of rows and columns: where
# there is next to no noise, its pattern must not count.
SIGNAL_WEIGHT = 0.1


def whiten(
    M: Tensor, dtype: str, *, noise: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """M_ij / (r'_i c'_j), r'_i^2 = r_i^2 + w mean(M^2), likewise c'_j.

    With little noise this is M but for its scale; without any it is M.

    Args:
        M: Momentum, `(..., rows, columns)`, any float dtype.
        dtype: Of the result, which is computed in float32.
        noise: r_i / m, `(..., rows, 1)`, c_j / m, `(..., 1, columns)`, and
            their RMS m, `(..., 1, 1)`: float32, 0 without noise.

    Returns:
        `(..., rows, columns)`, of Frobenius norm 1 or 0.
    """
    rows, columns, m = noise
    size = (M.shape[-2] * M.shape[-1]) ** 0.5
    norm = backend.frobenius_norm(M)
    # As rows and columns are, in units of the noise.
    signal = SIGNAL_WEIGHT**0.5 / size * norm / backend.divisor(m)
    signal = backend.clip(signal, SMALLEST, LARGEST)
    # In units of the larger of the two: no matrix leaves float32.
    unit = backend.maximum(signal, 1.0)
    row_factors, column_factors = (
        unit / backend.hypot(lines, signal) for lines in (rows, columns)
    )
    row_factors = row_factors / backend.clip(norm, *NORMS)
    # A momentum in bfloat16 is rounded already, and stays in it.
    half = str(M.dtype).endswith("bfloat16")
    scaled = backend.scaled(M, row_factors, "bfloat16" if half else "float32")
    # The norm from the columns' lengths: their factors take no pass before it.
    lengths = backend.column_lengths(scaled) * column_factors
    norm = ops.norm(lengths, axis=-1, keepdims=True)
    factors = column_factors / backend.clip(norm, *NORMS)
    return backend.scaled(scaled, factors, dtype)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EntryNoise:
    """Noise of the entries of some matrices `(n, rows, columns)`.

    Args:
        rows: RMS of each row's gradient noise, `(n, rows)` float32, up to a
            factor for each matrix; 0 where it was not measured.
        columns: RMS of each column's, `(n, columns)` float32, likewise.
        unit: That factor: what `rows` and `columns` have for noise of 1,
            `(n,)` float32, above 0.
        momentum_share: Standard deviation of the momentum's noise over that
            of a gradient.
    """

    rows: Tensor
    columns: Tensor
    unit: Tensor
    momentum_share: float

    def of_each(self) -> tuple[Tensor, Tensor, Tensor]:
        """The `noise` of `whiten`, stacked matrix by matrix."""
        m = self._rms()
        below = backend.divisor(m)
        return (
            (self.rows / below)[:, :, None],
            (self.columns / below)[:, None, :],
            (m / self.unit[:, None])[:, :, None],
        )

    def shrunk_signs(self, M: Tensor) -> Tensor:
        """M / sqrt(M^2 + V_M), V_M the variance of its own noise.

        These are signs, but for entries that noise may have flipped.

        Args:
            M: Momentum, `(n, rows, columns)`, any float dtype.

        Returns:
            Likewise, float32, in [-1, 1].
        """
        rows, columns, m = self.of_each()
        return backend.shrunk_signs(
            M,
            m,
            backend.maximum(self.momentum_share * rows, SMALLEST),
            backend.maximum(columns, SMALLEST),
        )

    def _rms(self) -> Tensor:
        """RMS of the noise of each matrix, in the units of `columns`."""
        norm = backend.frobenius_norm(self.columns[:, None, :])
        return norm[..., 0] / self.columns.shape[-1] ** 0.5

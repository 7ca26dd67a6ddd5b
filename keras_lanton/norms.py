"""The paper's table of norms as code.

| norm | role | LMO | dual norm |
|---|---|---|---|
| `Spectral` | hidden | -sqrt(d_out/d_in) U V^T | sqrt(d_out/d_in) nuclear |
| `Sign` | embedding | -sign(B) / d_in | max over features of abs sums |
| `RMS` | vector | -B / rms(B) | sqrt(d) l2 |

A linear minimization oracle (LMO) returns the matrix of norm 1 that is most
opposed to B. Each norm works on stacks `(batch, d_in, d_out)`; `lmo` keeps
the shape and gives float32, `dual` gives float32 `(batch,)`. Both are exact
for entries of any finite size: everything is divided by its largest entry
before it is squared or summed.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.polar import Row
from keras_lanton.polar import max_abs
from keras_lanton.polar import newton_schulz

Tensor = Any


class Norm(abc.ABC):
    """A norm on matrices `(d_in, d_out)`, known by its LMO and its dual."""

    @abc.abstractmethod
    def lmo(self, B: Tensor) -> Tensor:
        """The step of norm 1 most opposed to B [Alg. 1, line 6].

        Args:
            B: `(batch, d_in, d_out)`, any float dtype.

        Returns:
            `(batch, d_in, d_out)`, float32; zero where B is zero.
        """

    @abc.abstractmethod
    def dual(self, D: Tensor) -> Tensor:
        """Dual norm of the noise sample [Alg. 1, line 7].

        Args:
            D: `(batch, d_in, d_out)`, any float dtype.

        Returns:
            `(batch,)`, float32, in the units of D.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spectral(Norm):
    """RMS->RMS operator norm: sqrt(d_in/d_out) times the spectral norm.

    Args:
        rows: Newton-Schulz coefficients, one row per step.
        nuclear_norm: Estimator of the nuclear norm of a stack,
            `(batch, d_in, d_out)` float32 with entries of at most 1, to
            `(batch,)`. Defaults to <D, polar(D)> with the same rows.
    """

    rows: tuple[Row, ...]
    nuclear_norm: Callable[[Tensor], Tensor] | None = None

    def lmo(self, B: Tensor) -> Tensor:
        """-sqrt(d_out/d_in) U V^T [Alg. 1, line 6]."""
        d_in, d_out = B.shape[-2:]
        return -math.sqrt(d_out / d_in) * newton_schulz(B, self.rows)

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d_out/d_in) times the nuclear norm [Alg. 1, line 7]."""
        d_in, d_out = D.shape[-2:]
        unit, scale = _unit_entries(D)
        nuclear_norm = self.nuclear_norm or self._newton_schulz_nuclear_norm
        return math.sqrt(d_out / d_in) * scale * nuclear_norm(unit)

    def _newton_schulz_nuclear_norm(self, D: Tensor) -> Tensor:
        return ops.sum(D * newton_schulz(D, self.rows), axis=(-2, -1))


@dataclasses.dataclass(frozen=True)
class Sign(Norm):
    """1->inf norm times d_in: the largest entry, in units of 1/d_in."""

    def lmo(self, B: Tensor) -> Tensor:
        """-sign(B) / d_in [Alg. 1, line 6]."""
        return ops.cast(ops.sign(B), "float32") / -B.shape[-2]

    def dual(self, D: Tensor) -> Tensor:
        """1->1 norm as printed: max over d_in of abs sums [Alg. 1, line 7]."""
        unit, scale = _unit_entries(D)
        return scale * ops.max(ops.sum(ops.abs(unit), axis=-1), axis=-1)


@dataclasses.dataclass(frozen=True)
class RMS(Norm):
    """Root mean square of all d entries."""

    def lmo(self, B: Tensor) -> Tensor:
        """-sqrt(d) B / l2(B) = -B / rms(B) [Alg. 1, line 6]."""
        unit, _ = _unit_entries(B)
        rms = ops.sqrt(ops.mean(unit * unit, axis=(-2, -1), keepdims=True))
        return -unit / ops.where(rms > 0, rms, 1.0)

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d) l2(D) [Alg. 1, line 7]."""
        unit, scale = _unit_entries(D)
        size = D.shape[-2] * D.shape[-1]
        squares = ops.sum(unit * unit, axis=(-2, -1))
        return scale * ops.sqrt(size * squares)


def _unit_entries(D: Tensor) -> tuple[Tensor, Tensor]:
    """D in float32 over its largest entry, and that entry, `(batch,)`."""
    D = ops.cast(D, "float32")
    scale = max_abs(D)
    return D / ops.where(scale > 0, scale, 1.0), scale[..., 0, 0]


def svd_nuclear_norm(D: Tensor) -> Tensor:
    """Nuclear norm of each matrix by its singular values: exact.

    Args:
        D: `(batch, m, n)`, float32.

    Returns:
        `(batch,)`, float32; NaN where D is not finite.
    """
    total = ops.sum(D, axis=(-2, -1))
    # A non-finite matrix makes LAPACK raise or hang; NaN has to pass instead.
    D = ops.where(ops.isfinite(total)[..., None, None], D, 0.0)
    values = ops.svd(D, compute_uv=False)
    return ops.sum(values, axis=-1) + 0.0 * total


def randomized_svd_nuclear_norm(
    D: Tensor, *, rank: int, power_iterations: int
) -> Tensor:
    """Sum of the leading `rank` singular values: the paper's estimator.

    A lower bound: on pure noise rank 6 sees about 1 % of the nuclear norm,
    and how much depends on the shape. The sketch is one fixed Gaussian
    matrix per shape, so the value is the same on every backend and step.

    Args:
        D: `(batch, m, n)`, float32.
        rank: Columns of the sketch, at most min(m, n) are used.
        power_iterations: Times that D D^T is applied to the sketch.

    Returns:
        `(batch,)`, float32; NaN where D is not finite.

    References:
        Halko, Martinsson and Tropp 2011, algorithm 4.4.
    """
    D_T = ops.swapaxes(D, -2, -1)
    m, n = D.shape[-2:]
    total = ops.sum(D, axis=(-2, -1))
    sketch = np.random.default_rng(0).standard_normal((n, min(rank, m, n)))
    finite = ops.isfinite(total)[..., None, None]
    D, D_T = ops.where(finite, D, 0.0), ops.where(finite, D_T, 0.0)
    Q = _orthonormal(ops.matmul(D, ops.convert_to_tensor(sketch, "float32")))
    for _ in range(power_iterations):
        Q = _orthonormal(ops.matmul(D, _orthonormal(ops.matmul(D_T, Q))))
    return svd_nuclear_norm(ops.matmul(D_T, Q)) + 0.0 * total


def _orthonormal(Y: Tensor) -> Tensor:
    return ops.qr(Y)[0]

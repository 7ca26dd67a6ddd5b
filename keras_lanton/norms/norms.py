"""The paper's table of norms as code.

| norm | role | LMO | dual norm |
|---|---|---|---|
| `Spectral` | hidden | -sqrt(d_out/d_in) U V^T | sqrt(d_out/d_in) nuclear |
| `Sign` | embedding | -sign(B) / d_in | max over features of abs sums |
| `RMS` | vector | -B / rms(B) | sqrt(d) l2 |

`ColNorm` and `RowNorm` are choices of Scion; the columns and rows are those of
a kernel stored as (out, in).

A linear minimization oracle (LMO) returns the matrix of norm 1 that is most
opposed to B. Each norm works on stacks `(batch, d_in, d_out)`; `lmo` keeps
the shape and gives float32, `dual` gives float32 `(batch,)`. Both are exact
for entries of any finite size: everything is divided by its norm before it
is squared, and the norm is taken of entries of at most 1.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Mapping

from keras import ops

from keras_lanton import backends
from keras_lanton.backends.functional import Devices
from keras_lanton.norms.entry_noise import EntryNoise
from keras_lanton.norms.entry_noise import whiten
from keras_lanton.norms.nuclear_norm import frobenius_nuclear_norm
from keras_lanton.norms.nuclear_norm import inner_products
from keras_lanton.orthogonalization.batching import one_by_one
from keras_lanton.orthogonalization.dispatch import polar_factor
from keras_lanton.types import Row
from keras_lanton.types import Tensor
from keras_lanton.variables.stacks import Stack

backend = backends.load()


class Norm(abc.ABC):
    """A norm on matrices `(d_in, d_out)`, known by its LMO and its dual."""

    @abc.abstractmethod
    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """The step of norm 1 most opposed to B [Alg. 1, line 6].

        Args:
            B: `(batch, d_in, d_out)`, any float dtype.
            noise: The noise of its entries: hidden matrices are then in units
                of it, and signs of entries that are noise are smaller. Other
                norms leave it out.

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

    @abc.abstractmethod
    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """Root mean square of the entries of an LMO of full rank."""

    def of_transposed(self) -> "Norm":
        """The same norm of matrices that are given as `(d_out, d_in)`."""
        return Transposed(self)


def norm_of(norms: Mapping[str, Norm], stack: Stack) -> Norm:
    """The norm of a stack's matrices, in the orientation of the stack.

    Args:
        norms: Norm of each role, of matrices `(d_in, d_out)`.
        stack: The stack.
    """
    norm = norms[stack.role]
    return norm.of_transposed() if stack.transposed else norm


@dataclasses.dataclass(frozen=True)
class Transposed(Norm):
    """A norm of matrices that are given as `(d_out, d_in)`.

    Args:
        norm: The norm of `(d_in, d_out)`.
    """

    norm: Norm

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """The transposed LMO of B^T; noise is left out [Alg. 1, line 6]."""
        B = ops.swapaxes(B, -2, -1)
        return ops.swapaxes(self.norm.lmo(B), -2, -1)

    def dual(self, D: Tensor) -> Tensor:
        """The dual norm of D^T [Alg. 1, line 7]."""
        return self.norm.dual(ops.swapaxes(D, -2, -1))

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """The same as that of the norm."""
        return self.norm.lmo_rms(d_in, d_out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spectral(Norm):
    """RMS->RMS operator norm: sqrt(d_in/d_out) times the spectral norm.

    Args:
        rows: Newton-Schulz coefficients, one row per step.
        nuclear_norm: Estimator of the nuclear norm of a stack,
            `(..., d_in, d_out)` float32 of Frobenius norm 1 or 0, to
            `(...)`. Defaults to <D, polar(D)> with the same rows.
        dtype: Dtype of the products in Newton-Schulz. `"auto"`: float32 on a
            CPU, elsewhere float16 (bfloat16 on a TPU), summed up in float32.
        devices: Devices that share out the matrices of a stack, as the
            backend's `devices` gives them. Defaults to one.
    """

    rows: tuple[Row, ...]
    nuclear_norm: Callable[[Tensor], Tensor] | None = None
    dtype: str = "auto"
    devices: Devices | None = None

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """-sqrt(d_out/d_in) U V^T [Alg. 1, line 6]."""
        d_in, d_out = B.shape[-2:]
        lmo = polar_factor(
            d_in,
            d_out,
            rows=self.rows,
            dtype=self.dtype,
            factor=-math.sqrt(d_out / d_in),
        )
        side = min(d_in, d_out)
        if self.devices is not None:
            B = B if noise is None else whiten(B, *noise.of_each())
            return backend.share_out(one_by_one(lmo, side), B, self.devices)
        if noise is None:
            return one_by_one(lmo, side)(B)
        of_noise = one_by_one(lambda parts: lmo(whiten(*parts)), side)
        return of_noise((B, *noise.of_each()))

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d_out/d_in) times the nuclear norm [Alg. 1, line 7]."""
        d_in, d_out = D.shape[-2:]
        if self.nuclear_norm is frobenius_nuclear_norm:  # of any scale
            return math.sqrt(d_out / d_in) * frobenius_nuclear_norm(D)
        estimate: Callable[[Tensor], Tensor]
        if self.nuclear_norm is None:
            polar = polar_factor(d_in, d_out, rows=self.rows, dtype=self.dtype)
            polar = one_by_one(polar, min(d_in, d_out))
            estimate = functools.partial(
                _scaled, lambda D: inner_products(D, polar(D))
            )
        else:
            estimate = one_by_one(
                functools.partial(_scaled, self.nuclear_norm), min(d_in, d_out)
            )
        if self.devices is not None:
            estimate = functools.partial(
                backend.share_out, estimate, devices=self.devices
            )
        nuclear_norms = estimate(D)
        return math.sqrt(d_out / d_in) * nuclear_norms

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """sqrt(d_out/d_in) / sqrt(max(d_in, d_out))."""
        return math.sqrt(d_out / d_in / max(d_in, d_out))


def _scaled(estimate: Callable[[Tensor], Tensor], D: Tensor) -> Tensor:
    """An estimate of matrices of Frobenius norm 1, scaled back."""
    unit, norm = backend.unit_norm(D)
    return norm[..., 0, 0] * estimate(unit)


@dataclasses.dataclass(frozen=True)
class Sign(Norm):
    """1->inf norm times d_in: the largest entry, in units of 1/d_in.

    Args:
        d_in_axis: Axis of the inputs: -2, or -1 of transposed matrices.
    """

    d_in_axis: int = -2

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """-sign(B) / d_in, or -B / sqrt(B^2 + V) / d_in [Alg. 1, line 6]."""
        if noise is not None:
            return noise.shrunk_signs(B, factor=-1.0 / B.shape[self.d_in_axis])
        signs = ops.cast(ops.sign(B), "float32")
        return backend.scale_(signs, -1.0 / B.shape[self.d_in_axis])

    def dual(self, D: Tensor) -> Tensor:
        """1->1 norm as printed: max over d_in of abs sums [Alg. 1, line 7]."""
        d_out_axis = -3 - self.d_in_axis
        sums = ops.norm(ops.cast(D, "float32"), ord=1, axis=d_out_axis)
        return ops.max(sums, axis=-1)

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """1 / d_in."""
        return 1.0 / d_in

    def of_transposed(self) -> "Sign":
        """The same with the inputs on the other axis."""
        return dataclasses.replace(self, d_in_axis=-3 - self.d_in_axis)


@dataclasses.dataclass(frozen=True)
class RMS(Norm):
    """Root mean square of all d entries."""

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """-sqrt(d) B / l2(B) = -B / rms(B) [Alg. 1, line 6]."""
        unit, _ = backend.unit_norm(B)
        return -math.sqrt(B.shape[-2] * B.shape[-1]) * unit

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d) l2(D) [Alg. 1, line 7]."""
        _, norm = backend.unit_norm(D)
        return math.sqrt(D.shape[-2] * D.shape[-1]) * norm[..., 0, 0]

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """1."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class ColNorm(Norm):
    """Column norm: d_in times the largest RMS of a column.

    A column of a kernel stored as (out, in) is a row of `(d_in, d_out)`.

    References:
        Pethick et al. 2025, arXiv 2502.07529, table of norms.
    """

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """-sqrt(d_out) B_i / (d_in ||B_i||) for each row i of d_out entries."""
        unit, _ = _unit_vectors(B, axis=-1)
        return backend.scale_(unit, -math.sqrt(B.shape[-1]) / B.shape[-2])

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d_out) / d_in times the sum of the rows' norms."""
        _, norms = _unit_vectors(D, axis=-1)
        total = ops.sum(norms, axis=(-2, -1))
        return math.sqrt(D.shape[-1]) / D.shape[-2] * total

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """1 / d_in."""
        return 1.0 / d_in


@dataclasses.dataclass(frozen=True)
class RowNorm(Norm):
    """Row norm: sqrt(d_in) times the largest l2 norm of a row.

    A row of a kernel stored as (out, in) is a column of `(d_in, d_out)`.

    References:
        Pethick et al. 2025, arXiv 2502.07529, table of norms.
    """

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """-B_j / (sqrt(d_in) ||B_j||) for each column j of d_in entries."""
        unit, _ = _unit_vectors(B, axis=-2)
        return backend.scale_(unit, -1.0 / math.sqrt(B.shape[-2]))

    def dual(self, D: Tensor) -> Tensor:
        """The sum of the columns' norms over sqrt(d_in)."""
        _, norms = _unit_vectors(D, axis=-2)
        return ops.sum(norms, axis=(-2, -1)) / math.sqrt(D.shape[-2])

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """1 / d_in."""
        return 1.0 / d_in


def _unit_vectors(X: Tensor, *, axis: int) -> tuple[Tensor, Tensor]:
    """Each row or column over its l2 norm, and the norms; zero stays zero."""
    X, whole = backend.unit_norm(X)
    norms = ops.sqrt(ops.sum(X * X, axis=axis, keepdims=True))
    return X / backend.where(norms > 0, norms, 1.0), whole * norms

"""The paper's table of norms as code.

| norm | role | LMO | dual norm |
|---|---|---|---|
| `Spectral` | hidden | -sqrt(d_out/d_in) U V^T | sqrt(d_out/d_in) nuclear |
| `Sign` | embedding | -sign(B) / d_in | max over features of abs sums |
| `RMS` | vector | -B / rms(B) | sqrt(d) l2 |

Scion's `ColNorm` and `RowNorm`, choices of the baselines, are `Features` and
`Outputs`.

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
from typing import Any

import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.backends.functional import Devices
from keras_lanton.forms import one_by_one
from keras_lanton.forms import polar_form
from keras_lanton.forms import products
from keras_lanton.polar import Row
from keras_lanton.polar import coefficient_rows
from keras_lanton.polar import newton_schulz
from keras_lanton.products import transposed

Tensor = Any

backend = backends.load()


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

    @abc.abstractmethod
    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """Root mean square of the entries of an LMO of full rank."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spectral(Norm):
    """RMS->RMS operator norm: sqrt(d_in/d_out) times the spectral norm.

    Args:
        rows: Newton-Schulz coefficients, one row per step.
        nuclear_norm: Estimator of the nuclear norm of a stack,
            `(..., d_in, d_out)` float32 of Frobenius norm 1 or 0, to
            `(...)`. Defaults to <D, polar(D)> with the same rows.
        dtype: Of the products in Newton-Schulz. `"auto"`: float32 on a CPU,
            elsewhere float16 (bfloat16 on a TPU), summed up in float32.
        devices: That share out the matrices of a stack, as the backend's
            `devices` gives them. Defaults to one.
    """

    rows: tuple[Row, ...]
    nuclear_norm: Callable[[Tensor], Tensor] | None = None
    dtype: str = "auto"
    devices: Devices | None = None

    def lmo(self, B: Tensor) -> Tensor:
        """-sqrt(d_out/d_in) U V^T [Alg. 1, line 6]."""
        d_in, d_out = B.shape[-2:]
        lmo = polar_form(
            d_in,
            d_out,
            rows=self.rows,
            dtype=self.dtype,
            factor=-math.sqrt(d_out / d_in),
        )
        if self.devices is None:
            return lmo(B)
        return backend.share_out(lmo, B, self.devices)

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d_out/d_in) times the nuclear norm [Alg. 1, line 7]."""
        d_in, d_out = D.shape[-2:]
        estimate: Callable[[Tensor], Tensor]
        if self.nuclear_norm is None:
            polar = polar_form(d_in, d_out, rows=self.rows, dtype=self.dtype)
            estimate = functools.partial(_scaled, lambda D: _inner(D, polar(D)))
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


def _inner(A: Tensor, B: Tensor) -> Tensor:
    """<A, B> of each matrix."""
    return ops.sum(A * B, axis=(-2, -1))


@dataclasses.dataclass(frozen=True)
class Sign(Norm):
    """1->inf norm times d_in: the largest entry, in units of 1/d_in."""

    def lmo(self, B: Tensor) -> Tensor:
        """-sign(B) / d_in [Alg. 1, line 6]."""
        signs = ops.cast(ops.sign(B), "float32")
        return backend.scaled(signs, -1.0 / B.shape[-2])

    def dual(self, D: Tensor) -> Tensor:
        """1->1 norm as printed: max over d_in of abs sums [Alg. 1, line 7]."""
        sums = ops.sum(ops.abs(ops.cast(D, "float32")), axis=-1)
        return ops.max(sums, axis=-1)

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """1 / d_in."""
        return 1.0 / d_in


@dataclasses.dataclass(frozen=True)
class RMS(Norm):
    """Root mean square of all d entries."""

    def lmo(self, B: Tensor) -> Tensor:
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
class Features(Norm):
    """Largest RMS of the vectors that features are mapped to, times d_in.

    The columns of a kernel stored as (out, in): Scion's `ColNorm`.
    """

    def lmo(self, B: Tensor) -> Tensor:
        """-sqrt(d_out) B_i / (d_in ||B_i||) for each row i of d_out entries."""
        unit, _ = _unit_vectors(B, axis=-1)
        return backend.scaled(unit, -math.sqrt(B.shape[-1]) / B.shape[-2])

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d_out) / d_in times the sum of the rows' norms."""
        _, norms = _unit_vectors(D, axis=-1)
        total = ops.sum(norms, axis=(-2, -1))
        return math.sqrt(D.shape[-1]) / D.shape[-2] * total

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """1 / d_in."""
        return 1.0 / d_in


@dataclasses.dataclass(frozen=True)
class Outputs(Norm):
    """Largest l2 norm of the vectors that outputs come from, times sqrt(d_in).

    The rows of a kernel stored as (out, in): Scion's `RowNorm`.
    """

    def lmo(self, B: Tensor) -> Tensor:
        """-B_j / (sqrt(d_in) ||B_j||) for each column j of d_in entries."""
        unit, _ = _unit_vectors(B, axis=-2)
        return backend.scaled(unit, -1.0 / math.sqrt(B.shape[-2]))

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
    return X / ops.where(norms > 0, norms, 1.0), whole * norms


def svd_nuclear_norm(D: Tensor) -> Tensor:
    """Nuclear norm of each matrix by its singular values: exact.

    Args:
        D: `(..., m, n)`, float32.

    Returns:
        `(...)`, float32; NaN where D is not finite.
    """
    D, nan = _finite(D)
    values = ops.svd(D, compute_uv=False)
    return ops.sum(values, axis=-1) + nan


def randomized_svd_nuclear_norm(
    D: Tensor, *, rank: int, power_iterations: int
) -> Tensor:
    """Sum of the leading `rank` singular values: the paper's estimator.

    A lower bound: on pure noise rank 6 sees about 1 % of the nuclear norm,
    and how much depends on the shape. The sketch is one fixed Gaussian
    matrix per shape, so the value is the same on every backend and step.

    Args:
        D: `(..., m, n)`, float32.
        rank: Columns of the sketch, at most min(m, n) are used.
        power_iterations: Times that D D^T is applied to the sketch.

    Returns:
        `(...)`, float32; NaN where D is not finite.

    References:
        Halko, Martinsson and Tropp 2011, algorithm 4.4.
    """
    m, n = D.shape[-2:]
    D, nan = _finite(D)
    D_T = transposed(D)
    sketch = _sketch(n, min(rank, m, n))
    Q = _orthonormal(ops.matmul(D, sketch))
    for _ in range(power_iterations):
        Q = _orthonormal(ops.matmul(D, _orthonormal(ops.matmul(D_T, Q))))
    return svd_nuclear_norm(ops.matmul(D_T, Q)) + nan


def lanczos_nuclear_norm(
    D: Tensor, *, rank: int = 32, probes: int = 16, steps: int = 8
) -> Tensor:
    """Trace of sqrt(C), C = D D^T: leading part by a sketch, rest by Lanczos.

    The leading `rank` eigenvalues of C come from one step of subspace
    iteration. On what is left, each random probe z gives a Gauss quadrature
    z^T sqrt(C) z from a few Lanczos steps, and their mean the trace. One
    product of D's short side and a few skinny ones; within a few percent of
    the truth for noise, low rank and power laws alike, on every shape.

    Args:
        D: `(..., m, n)`, float32.
        rank: Leading directions taken apart.
        probes: Number of random probes.
        steps: Lanczos steps, at least 2.

    Returns:
        `(...)`, float32; NaN where D is not finite. Matrices whose short
        side is at most four times the rank are so small that ten rows of
        Newton-Schulz are cheaper, and closer: <D, polar(D)>.

    References:
        Halko, Martinsson and Tropp 2011 (sketch); Ubaru, Chen and Saad 2017,
        Fast estimation of tr(f(A)) via stochastic Lanczos quadrature.
    """
    short = min(D.shape[-2:])
    if short <= 4 * rank:
        rows = coefficient_rows("polar_express", 10)
        return _inner(D, newton_schulz(D, rows))
    D = transposed(D) if D.shape[-2] > short else D
    by = products(short)
    with backend.full_precision():
        C = by.whole(by.gram(by.split(D)))
        squares = ops.trace(C, axis1=-2, axis2=-1)[..., None, None]
        C = C / ops.where(squares > 0, squares, 1.0)

        Q = _orthonormal(ops.matmul(C, _sketch(short, rank)))
        Q = _orthonormal(ops.matmul(C, Q))
        head = ops.matmul(transposed(Q), ops.matmul(C, Q))
        leading = ops.sum(_root(_eigh(head)[0]), axis=-1)

        z = _outside(Q, _outside(Q, _sketch(short, probes)))
        nodes, weights = _quadrature(
            lambda y: _outside(Q, ops.matmul(C, y)), z, steps
        )
    rest = ops.mean(ops.sum(weights * _root(nodes), axis=-1), axis=-1)
    total = leading + (short - rank) * rest
    return ops.sqrt(squares[..., 0, 0]) * total  # NaN where D is not finite.


def _quadrature(
    apply: Callable[[Tensor], Tensor], z: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Gauss quadrature of z^T f(C) z / z^T z by Lanczos.

    Args:
        apply: y to C y on `(batch, s, probes)`, column by column.
        z: Starting vectors, `(batch, s, probes)`.
        steps: Number of nodes.

    Returns:
        Nodes and weights, `(batch, probes, steps)`.
    """
    numbers = np.arange(steps)[:, None]

    def step(i: Any, carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        before, beta, z, diagonal, beside = carry
        y = apply(z) - beta * before
        alpha = ops.sum(y * z, axis=-2, keepdims=True)
        after, beta = _unit_columns(y - alpha * z)
        diagonal = ops.where(numbers == i, alpha, diagonal)
        beside = ops.where(numbers == i, beta, beside)
        return z, beta, after, diagonal, beside

    z, length = _unit_columns(z)
    empty = ops.zeros((*z.shape[:-2], steps, z.shape[-1]))
    start = (ops.zeros_like(z), ops.zeros_like(length), z, empty, empty)
    *_, diagonal, beside = ops.fori_loop(0, steps, step, start)
    on, above = np.eye(steps, dtype="float32"), np.eye(steps, k=1)
    T = transposed(diagonal)[..., None] * on
    U = transposed(beside)[..., None] * above.astype("float32")
    nodes, vectors = _eigh(T + U + transposed(U))
    return nodes, vectors[..., 0, :] ** 2


def _unit_columns(z: Tensor) -> tuple[Tensor, Tensor]:
    """Each column over its length, and the lengths; zero stays zero."""
    length = ops.sqrt(ops.sum(z * z, axis=-2, keepdims=True))
    return z / ops.where(length > 0, length, 1.0), length


def _outside(Q: Tensor, y: Tensor) -> Tensor:
    """The part of each column of y that is orthogonal to Q's."""
    return y - ops.matmul(Q, ops.matmul(transposed(Q), y))


def _root(values: Tensor) -> Tensor:
    """Square roots; rounding may have made an eigenvalue negative."""
    return ops.sqrt(ops.maximum(values, 0.0))


def _finite(D: Tensor) -> tuple[Tensor, Tensor]:
    """D where it is finite, else 0; and 0 or else NaN, `(batch,)`.

    A non-finite matrix makes LAPACK raise or hang; NaN has to pass instead.
    """
    total = ops.sum(D, axis=(-2, -1))
    finite = ops.isfinite(total)[..., None, None]
    return ops.where(finite, D, 0.0), 0.0 * total


@functools.cache
def _gaussian(rows: int, columns: int) -> np.ndarray:
    sketch = np.random.default_rng(0).standard_normal((rows, columns))
    return sketch.astype("float32")


def _sketch(rows: int, columns: int) -> Tensor:
    """One fixed Gaussian matrix per shape, the same on every backend."""
    return ops.convert_to_tensor(_gaussian(rows, columns))


def _orthonormal(Y: Tensor) -> Tensor:
    return ops.qr(_finite(Y)[0])[0]


def _eigh(S: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = ops.linalg.eigh(_finite(S)[0])
    return values, vectors

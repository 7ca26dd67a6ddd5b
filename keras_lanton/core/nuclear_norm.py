"""Estimates of the nuclear norm, the sum of the singular values."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.coefficients import coefficient_rows
from keras_lanton.core.newton_schulz import newton_schulz
from keras_lanton.core.newton_schulz import transpose
from keras_lanton.types import Tensor

# Of `lanczos_nuclear_norm`: directions that a sketch takes apart, random
# probes, and steps of Lanczos for each probe.
LEADING, PROBES, LANCZOS_STEPS = 32, 16, 8
# Of `randomized_svd_nuclear_norm`: columns of the sketch, and times that D D^T
# is applied to it.
RANK, POWER_ITERATIONS = 6, 2


def inner_products(A: Tensor, B: Tensor) -> Tensor:
    """The inner product <A, B> of each matrix of two stacks.

    Args:
        A: `(..., m, n)`, any float dtype.
        B: Likewise.

    Returns:
        `(...)` float32.
    """
    A, B = (ops.cast(X, "float32") for X in (A, B))
    return ops.sum(A * B, axis=(-2, -1))


def frobenius_nuclear_norm(D: Tensor) -> Tensor:
    """sqrt(min(m, n)) ||D||_F: an upper bound, exact if D is orthogonal.

    It takes one pass over D. For Gaussian noise it is 1.18 times the nuclear
    norm if D is square, and 1.03 times if one side is four times the other.
    For k equal singular values it is sqrt(min(m, n) / k) times the norm.

    Args:
        D: `(..., m, n)`, any float dtype, entries of any finite size.

    Returns:
        `(...)`, float32; infinite or NaN where D is not finite.
    """
    norm = backend.frobenius_norm(D)[..., 0, 0]
    return min(D.shape[-2:]) ** 0.5 * norm


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


def randomized_svd_nuclear_norm(D: Tensor) -> Tensor:
    """Sum of the six leading singular values: the paper's estimator.

    A lower bound: on pure noise it sees about 1 % of the nuclear norm,
    and how much depends on the shape. The sketch is one fixed Gaussian
    matrix per shape, so the value is the same on every backend and step.

    Args:
        D: `(..., m, n)`, float32.

    Returns:
        `(...)`, float32; NaN where D is not finite.

    References:
        Halko, Martinsson and Tropp 2011, algorithm 4.4.
    """
    m, n = D.shape[-2:]
    D, nan = _finite(D)
    D_T = transpose(D)
    sketch = _sketch(n, min(RANK, m, n))
    Q = _orthonormal(ops.matmul(D, sketch))
    for _ in range(POWER_ITERATIONS):
        Q = _orthonormal(ops.matmul(D, _orthonormal(ops.matmul(D_T, Q))))
    return svd_nuclear_norm(ops.matmul(D_T, Q)) + nan


def lanczos_nuclear_norm(D: Tensor) -> Tensor:
    """Trace of sqrt(C), C = D D^T: leading part by a sketch, rest by Lanczos.

    The leading 32 eigenvalues of C come from one step of subspace
    iteration. On what is left, each random probe z gives a Gauss quadrature
    z^T sqrt(C) z from a few Lanczos steps, and their mean the trace. One
    product of D's short side and a few skinny ones; within a few percent of
    the truth for noise, low rank and power laws alike, on every shape.

    Args:
        D: `(..., m, n)`, float32.

    Returns:
        `(...)`, float32; NaN where D is not finite. Matrices whose short
        side is at most 128 are so small that ten rows of Newton-Schulz are
        cheaper, and closer: <D, polar(D)>.

    References:
        Halko, Martinsson and Tropp 2011 (sketch); Ubaru, Chen and Saad 2017,
        Fast estimation of tr(f(A)) via stochastic Lanczos quadrature.
    """
    short = min(D.shape[-2:])
    if short <= 4 * LEADING:
        rows = coefficient_rows("polar_express", 10)
        return inner_products(D, newton_schulz(D, rows))
    D = transpose(D) if D.shape[-2] > short else D
    with backend.full_precision():
        C = ops.matmul(D, transpose(D))
        squares = ops.trace(C, axis1=-2, axis2=-1)[..., None, None]
        C = C / backend.divisor(squares)

        Q = _orthonormal(ops.matmul(C, _sketch(short, LEADING)))
        Q = _orthonormal(ops.matmul(C, Q))
        head = ops.matmul(transpose(Q), ops.matmul(C, Q))
        leading = ops.sum(_root(_eigh(head)[0]), axis=-1)

        z = _outside(Q, _outside(Q, _sketch(short, PROBES)))
        nodes, weights = _quadrature(
            lambda y: _outside(Q, ops.matmul(C, y)), z, LANCZOS_STEPS
        )
    rest = ops.mean(ops.sum(weights * _root(nodes), axis=-1), axis=-1)
    total = leading + (short - LEADING) * rest
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
    numbers = ops.reshape(ops.arange(steps, dtype="int32"), (-1, 1))

    def step(i: Any, carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        before, beta, z, diagonal, beside = carry
        y = apply(z) - beta * before
        alpha = ops.sum(y * z, axis=-2, keepdims=True)
        after, beta = _unit_columns(y - alpha * z)
        diagonal = backend.where(numbers == i, alpha, diagonal)
        beside = backend.where(numbers == i, beta, beside)
        return z, beta, after, diagonal, beside

    z, length = _unit_columns(z)
    empty = ops.zeros((*z.shape[:-2], steps, z.shape[-1]), "float32")
    start = (ops.zeros_like(z), ops.zeros_like(length), z, empty, empty)
    *_, diagonal, beside = ops.fori_loop(0, steps, step, start)
    on, above = np.eye(steps, dtype="float32"), np.eye(steps, k=1)
    T = transpose(diagonal)[..., None] * on
    U = transpose(beside)[..., None] * above.astype("float32")
    nodes, vectors = _eigh(T + U + transpose(U))
    return nodes, vectors[..., 0, :] ** 2


def _unit_columns(z: Tensor) -> tuple[Tensor, Tensor]:
    """Each column over its length, and the lengths; zero stays zero."""
    length = ops.sqrt(ops.sum(z * z, axis=-2, keepdims=True))
    return z / backend.divisor(length), length


def _outside(Q: Tensor, y: Tensor) -> Tensor:
    """The part of each column of y that is orthogonal to Q's."""
    return y - ops.matmul(Q, ops.matmul(transpose(Q), y))


def _root(values: Tensor) -> Tensor:
    """Square roots; rounding may have made an eigenvalue negative."""
    return ops.sqrt(backend.maximum(values, 0.0))


def _finite(D: Tensor) -> tuple[Tensor, Tensor]:
    """D where it is finite, else 0; and 0 or else NaN, `(batch,)`.

    A non-finite matrix makes LAPACK raise or hang; NaN has to pass instead.
    """
    total = ops.sum(D, axis=(-2, -1))
    finite = ops.isfinite(total)[..., None, None]
    return backend.where(finite, D, 0.0), 0.0 * total


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

"""Arithmetic of tensors: what Keras' own operations can do.

A backend overrides what it does faster. A method whose name ends in `_` may
overwrite its first argument; here it returns new tensors.
"""

import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.types import Tensor

# Beyond these, numbers or their reciprocals are subnormal, which a device may
# take for zero.
SMALLEST_DIVISOR, LARGEST_DIVISOR = 2.0**-126, 2.0**126
# Less noise is none.
SMALLEST_NOISE = 1e-37
# The square of this is finite.
LARGEST_SQUARED = 1e15
LARGEST = float(np.finfo("float32").max)


class Arithmetic:
    """The arithmetic that backends do differently."""

    def where(self, condition: Any, x: Any, y: Any) -> Tensor:
        """`keras.ops.where`; x or y is a tensor, which keeps its dtype."""
        return ops.where(condition, x, y)

    def divisor(self, x: Tensor) -> Tensor:
        """The tensor, of no negative entries, but above 0."""
        return self.maximum(x, SMALLEST_DIVISOR)

    def maximum(self, x: Tensor, y: Any) -> Tensor:
        """`keras.ops.maximum` with a tensor or number."""
        return ops.maximum(x, y)

    def minimum(self, x: Tensor, y: Any) -> Tensor:
        """`keras.ops.minimum` with a tensor or number."""
        return ops.minimum(x, y)

    def clip(self, x: Tensor, x_min: float, x_max: float) -> Tensor:
        """`keras.ops.clip`."""
        return ops.clip(x, x_min, x_max)

    def power(self, x: float, y: Tensor) -> Tensor:
        """`keras.ops.power` of a number."""
        return ops.power(x, y)

    def take(self, x: Tensor, indices: Tensor) -> Tensor:
        """The entries at some places of the first axis."""
        return ops.take(x, indices, axis=0)

    def scale_(
        self, X: Tensor, factor: Tensor, dtype: str = "float32"
    ) -> Tensor:
        """The product factor X, as `scaled`; X may be overwritten."""
        return self.scaled(X, factor, dtype)

    def scaled(
        self, X: Tensor, factor: Tensor, dtype: str = "float32"
    ) -> Tensor:
        """The product factor X: a new tensor, computed in float32.

        Args:
            X: A tensor of any float dtype.
            factor: A float32 tensor that broadcasts to X.
            dtype: Of the result.
        """
        return ops.cast(factor * ops.cast(X, "float32"), dtype)

    def pieces(self, stack: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """A tensor cut into consecutive pieces along its first axis."""
        ends = list(itertools.accumulate(sizes))
        pairs = zip([0, *ends[:-1]], ends, strict=True)
        return [stack[start:end] for start, end in pairs]

    def lerp(
        self,
        starts: Sequence[Tensor],
        ends: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """The sums start + weight (end - start): new tensors.

        Args:
            starts: Tensors.
            ends: Tensors of their shapes and dtypes.
            weights: Scalars, or tensors for the entries, one per tensor.
                Where one is 0, the start stays, whatever the end holds.
        """
        weights = [
            ops.cast(w, x.dtype) for w, x in zip(weights, starts, strict=True)
        ]
        # Not w (y - x): a difference of huge numbers is not finite.
        return [
            self.where(w != 0, x + (w * y - w * x), x)
            for x, y, w in zip(starts, ends, weights, strict=True)
        ]

    def lerp_(
        self,
        starts: Sequence[Tensor],
        ends: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """`lerp`, where `starts` may be overwritten."""
        return self.lerp(starts, ends, weights)

    def cast_each(
        self, tensors: Sequence[Tensor], dtypes: Sequence[Any]
    ) -> list[Tensor]:
        """Tensors in other dtypes.

        Args:
            tensors: Tensors of any dtypes.
            dtypes: One per tensor: its name, or the `dtype` of a tensor.
        """
        pairs = zip(tensors, dtypes, strict=True)
        return [
            x if x.dtype == dtype else ops.cast(x, dtype) for x, dtype in pairs
        ]

    def store_(
        self, old: Sequence[Tensor], new: Sequence[Tensor]
    ) -> list[Tensor]:
        """New values in the dtypes of the old, which may be overwritten."""
        return self.cast_each(new, [x.dtype for x in old])

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The entries in another shape, in their order."""
        return ops.reshape(x, shape)

    def concatenate(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors joined along the first axis."""
        return ops.concatenate(tensors)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """`keras.ops.transpose`."""
        return ops.transpose(x, axes)

    def scale_each_(
        self, tensors: Sequence[Tensor], factors: Sequence[Any]
    ) -> list[Tensor]:
        """The products factor x, where `tensors` may be overwritten."""
        return [factor * x for x, factor in zip(tensors, factors, strict=True)]

    def hypot(self, x: Tensor, y: Tensor | float) -> Tensor:
        """sqrt(x^2 + y^2), without squares that leave float32."""
        unit = self.maximum(ops.abs(x), ops.abs(y))
        unit = self.clip(unit, SMALLEST_DIVISOR, LARGEST_DIVISOR)
        return unit * ops.sqrt((x / unit) ** 2 + (y / unit) ** 2)

    def mean_roots_(
        self,
        roots: Sequence[Tensor],
        tensors: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """sqrt((1 - w) r^2 + w x^2), without squares that leave float32.

        Args:
            roots: Roots r of mean squares, float32, which may be overwritten.
            tensors: Tensors x of their shapes, float32.
            weights: Numbers or tensors w in [0, 1], one per tensor; where one
                is 0, r stays as it is.
        """
        found = []
        for r, x, w in zip(roots, tensors, weights, strict=True):
            mean = self.hypot((1.0 - w) ** 0.5 * r, w**0.5 * x)
            found.append(self.where(w != 0, mean, r))
        return found

    def mean_roots(
        self,
        roots: Sequence[Tensor],
        tensors: Sequence[Tensor],
        weights: Sequence[float],
    ) -> list[Tensor]:
        """sqrt((1 - w) r^2 + w x^2), as `mean_roots_`: new tensors.

        Args:
            roots: Roots r of mean squares, float32.
            tensors: Tensors x of their shapes, float32.
            weights: w in (0, 1], one per tensor.
        """
        return self.mean_roots_(roots, tensors, weights)

    def adam_directions(
        self,
        m: Sequence[Tensor],
        roots: Sequence[Tensor],
        debiasing: Sequence[Any],
        *,
        epsilon: float,
        epsilon_before_debiasing: bool = False,
    ) -> list[Tensor]:
        """m^ / (sqrt(v^) + epsilon) of each pair of moments: new tensors.

        Args:
            m: Means of gradients, float32.
            roots: Roots of the means of their squares, sqrt(v), float32.
            debiasing: What m is divided by, and sqrt(v): scalars.
            epsilon: Above 0.
            epsilon_before_debiasing: Whether epsilon is added to sqrt(v).
        """
        bias, divisor = debiasing
        pairs = zip(m, roots, strict=True)
        if epsilon_before_debiasing:
            return [a / (b + epsilon) * (divisor / bias) for a, b in pairs]
        return [(a / bias) / (b / divisor + epsilon) for a, b in pairs]

    def step_dtype(self, X: Sequence[Tensor]) -> str:
        """The dtype in which the steps of weights may be: float32."""
        return "float32"

    def update_(
        self,
        X: Sequence[Tensor],
        steps: Sequence[Tensor],
        decay_factors: Sequence[Any],
        *,
        casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
    ) -> list[Tensor]:
        """The sums decay_factor x + step.

        Args:
            X: Tensors, which may be overwritten.
            steps: Tensors of their shapes, float32 or of `step_dtype`, which
                may be overwritten.
            decay_factors: Scalars, one per tensor.
            casts: Functions of a sum and the dtype of x, one per tensor; None
                rounds to the nearest.

        Returns:
            One tensor each, of the dtype of x.
        """
        updated = []
        casts = casts or [ops.cast] * len(X)
        for x, step, k, cast in zip(
            X, steps, decay_factors, casts, strict=True
        ):
            # Half precision would lose small steps before they are added.
            wide = x if str(x.dtype).endswith("64") else ops.cast(x, "float32")
            step = ops.cast(step, wide.dtype)
            kept = wide * (
                k if isinstance(k, float) else ops.cast(k, wide.dtype)
            )
            updated.append(cast(kept + step, x.dtype))
        return updated

    def largest_entries(self, tensors: Sequence[Tensor]) -> Tensor:
        """Largest magnitudes: 0 only for zero, not finite if any entry is not.

        Args:
            tensors: Tensors of any shapes and float dtypes, at least one.

        Returns:
            `(tensors,)`, float32.
        """
        return ops.stack([_largest_entry(x) for x in tensors])

    def largest_of_each(self, stack: Tensor) -> Tensor:
        """`largest_entries` of each matrix of a stack.

        Args:
            stack: `(n, rows, columns)`, any float dtype.

        Returns:
            `(n,)`, float32.
        """
        return _largest_entry(stack, axis=(-2, -1))

    def unit_norm(
        self, X: Tensor, dtype: str = "float32"
    ) -> tuple[Tensor, Tensor]:
        """X over its Frobenius norm, and that norm.

        Everything is divided by the largest entry before it is squared: sums of
        squares stay finite and above zero for entries of any size.

        Args:
            X: `(..., m, n)`, any float dtype.
            dtype: Of the first result, which is computed in float32.

        Returns:
            `(..., m, n)` of norm 1, and `(..., 1, 1)` float32, at most its
            largest number; zero stays zero.
        """
        X = ops.cast(X, "float32")
        scale = ops.max(ops.abs(X), axis=(-2, -1), keepdims=True)
        scale = self.clip(scale, SMALLEST_DIVISOR, LARGEST_DIVISOR)
        X = X / scale
        squares = ops.sum(X * X, axis=(-2, -1), keepdims=True)
        unit = ops.cast(X * ops.rsqrt(self.divisor(squares)), dtype)
        return unit, self.minimum(scale * ops.sqrt(squares), LARGEST)

    def frobenius_norm(self, X: Tensor) -> Tensor:
        """The norm that `unit_norm` gives, alone.

        Args:
            X: `(..., m, n)`, any float dtype.

        Returns:
            `(..., 1, 1)` float32.
        """
        return self.unit_norm(X)[1]

    def column_lengths(self, X: Tensor) -> Tensor:
        """Euclidean lengths of the columns of matrices.

        Args:
            X: `(..., m, n)`, float32 or bfloat16, with squares in its range.

        Returns:
            `(..., 1, n)` float32.
        """
        squares = ops.square(ops.cast(X, "float32"))
        return ops.sqrt(ops.sum(squares, axis=-2, keepdims=True))

    def line_rms(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Root mean squares of the rows and of the columns of matrices.

        Not by `unit_norm`: the norm of a huge gradient leaves float32.

        Args:
            X: `(..., m, n)`, any float dtype.

        Returns:
            `(..., m)` and `(..., n)` float32.
        """
        X = ops.cast(X, "float32")
        scale = ops.max(ops.abs(X), axis=(-2, -1), keepdims=True)
        scale = self.clip(scale, SMALLEST_DIVISOR, LARGEST_DIVISOR)
        squares = ops.square(X / scale)
        rows, columns = (
            scale[..., 0] * ops.sqrt(ops.mean(squares, axis=axis))
            for axis in (-1, -2)
        )
        return rows, columns

    def shrunk_signs(
        self, X: Tensor, m: Tensor, rows: Tensor, columns: Tensor
    ) -> Tensor:
        """Signs of X, smaller where noise is: sign(X) if m is 0.

        Else x / sqrt(x^2 + (rows columns)^2) of x = X / m.

        Args:
            X: `(n, rows, columns)`, any float dtype.
            m: `(n, 1, 1)` float32.
            rows: `(n, rows, 1)` float32, above 0.
            columns: `(n, 1, columns)` float32, above 0.

        Returns:
            A new tensor of the shape of X, float32.
        """
        X = ops.cast(X, "float32")
        noisy = m > SMALLEST_NOISE
        x = X / self.where(noisy, m, 1.0)
        x = self.clip(x, -LARGEST_SQUARED, LARGEST_SQUARED)
        found = x * ops.rsqrt(x * x + ops.square(rows * columns))
        return self.where(noisy, found, ops.sign(X))

    def add_to_diagonal_(self, A: Tensor, factor: float) -> Tensor:
        """The sum A + factor I of each square matrix.

        Args:
            A: `(..., s, s)`, which may be overwritten.
            factor: A number.
        """
        side = A.shape[-1]
        identity = ops.eye(side, dtype=A.dtype)
        # Of A's rank: JAX may be told not to promote ranks.
        shape = (1,) * (len(A.shape) - 2) + (side, side)
        return A + factor * ops.reshape(identity, shape)

    def add_products(
        self,
        C: Tensor,
        factors: Sequence[tuple[Tensor, Tensor]],
        *,
        beta: float,
        alpha: float,
    ) -> Tensor:
        """The sum beta C + alpha (A_1 B_1 + A_2 B_2 + ...) of each matrix.

        Args:
            C: `(..., s, k)`.
            factors: Pairs `(..., s, j)`, `(..., j, k)`.
            beta: Factor on C.
            alpha: Factor on the products.

        Returns:
            `(..., s, k)`.
        """
        total = sum(A @ B for A, B in factors)
        return beta * C + (total if alpha == 1.0 else alpha * total)


def _largest_entry(x: Tensor, axis: tuple[int, ...] | None = None) -> Tensor:
    # XLA's maximum leaves out NaN where TensorFlow compiles; and TensorFlow can
    # be told to stop at a constant NaN.
    x = ops.cast(x, "float32")
    finite = ops.all(ops.isfinite(x), axis=axis)
    return ops.max(ops.abs(x), axis=axis) + 0.0 / ops.cast(finite, "float32")

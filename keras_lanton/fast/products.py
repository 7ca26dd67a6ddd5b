"""The products of Newton-Schulz: of whole matrices, or only half of each.

All symmetric matrices of the iteration are polynomials of one of them, so
they commute and their products are symmetric too: half of each would do.
`Products` hands whole matrices to a function that may know that, such as a
GPU kernel; `BlockProducts` does it with plain products of blocks.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.newton_schulz import transpose
from keras_lanton.types import Tensor


class Products:
    """Products of whole matrices; with the defaults the reference.

    Args:
        symmetric: Function of A `(..., s, k)`, B `(..., k, s)` and, with
            `beta` and `alpha`, of C: A B or beta C + alpha A B where that is
            symmetric. Defaults to plain products.
        share: Cost of a symmetric product over that of a dense one.
    """

    def __init__(
        self,
        symmetric: Callable[..., Tensor] | None = None,
        share: float = 1.0,
    ) -> None:
        self.symmetric = symmetric
        self.share = share

    def split(self, X: Tensor) -> Any:
        """X in the form that the other methods take."""
        return X

    def join(self, X: Any) -> Tensor:
        """Inverse of `split`."""
        return X

    def gram(self, X: Any) -> Any:
        """X X^T."""
        if self.symmetric is not None:
            return self.symmetric(X, transpose(X))
        return X @ transpose(X)

    def commuting(
        self, C: Any, A: Any, B: Any, *, beta: float, alpha: float = 1.0
    ) -> Any:
        """The sum beta C + alpha A B, of symmetric matrices that commute."""
        if self.symmetric is not None:
            return self.symmetric(A, B, C, beta=beta, alpha=alpha)
        return backend.add_products(C, [(A, B)], beta=beta, alpha=alpha)

    def apply(
        self, A: Any, X: Any, *, beta: float = 0.0, alpha: float = 1.0
    ) -> Any:
        """The sum beta X + alpha A X, of a symmetric A."""
        if beta == 0.0 and alpha == 1.0:
            return A @ X
        return backend.add_products(X, [(A, X)], beta=beta, alpha=alpha)

    def add_identity(self, A: Any, factor: float) -> Any:
        """The sum A + factor I, of a symmetric A, which may be overwritten."""
        return backend.add_to_diagonal_(A, factor)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A matrix in blocks; sums and multiples are taken block by block.

    Args:
        at: The blocks: of a symmetric matrix those at `(i, j)` with
            j <= i, of any other matrix its row blocks at `i`.
    """

    at: Mapping[Hashable, Tensor]

    def __rmul__(self, factor: float) -> "Blocks":
        return Blocks({i: factor * x for i, x in self.at.items()})

    def symmetric(self, i: int, j: int) -> Tensor:
        """Block (i, j) of a symmetric matrix."""
        return self.at[i, j] if j <= i else transpose(self.at[j, i])


class BlockProducts(Products):
    """Products of matrices in blocks, without the blocks above the diagonal.

    With b blocks along a side, symmetric products cost (b + 1) / 2b of the
    whole ones.

    Args:
        blocks: Number of blocks along the short side.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__(share=(blocks + 1) / (2 * blocks))
        self.numbers = range(blocks)

    def split(self, X: Tensor) -> Blocks:
        """X `(..., s, k)` in row blocks."""
        s, count = X.shape[-2], len(self.numbers)
        ends = [s * i // count for i in range(count + 1)]
        return Blocks(
            {i: X[..., ends[i] : ends[i + 1], :] for i in self.numbers}
        )

    def join(self, X: Blocks) -> Tensor:
        """Inverse of `split`."""
        return ops.concatenate([X.at[i] for i in self.numbers], axis=-2)

    def gram(self, X: Blocks) -> Blocks:
        """X X^T."""
        return self._lower(lambda i, j: X.at[i] @ transpose(X.at[j]))

    def commuting(
        self,
        C: Blocks,
        A: Blocks,
        B: Blocks,
        *,
        beta: float,
        alpha: float = 1.0,
    ) -> Blocks:
        """The sum beta C + alpha A B, of symmetric matrices that commute."""

        def block(i: int, j: int) -> Tensor:
            factors = [
                (A.symmetric(i, k), B.symmetric(k, j)) for k in self.numbers
            ]
            return backend.add_products(
                C.at[i, j], factors, beta=beta, alpha=alpha
            )

        return self._lower(block)

    def apply(
        self, A: Blocks, X: Blocks, *, beta: float = 0.0, alpha: float = 1.0
    ) -> Blocks:
        """The sum beta X + alpha A X, of a symmetric A."""

        def block(i: int) -> Tensor:
            factors = [(A.symmetric(i, k), X.at[k]) for k in self.numbers]
            if beta == 0.0 and alpha == 1.0:
                return sum(left @ right for left, right in factors)
            return backend.add_products(
                X.at[i], factors, beta=beta, alpha=alpha
            )

        return Blocks({i: block(i) for i in self.numbers})

    def add_identity(self, A: Blocks, factor: float) -> Blocks:
        """The sum A + factor I, of a symmetric A, which may be overwritten."""
        return self._lower(
            lambda i, j: (
                backend.add_to_diagonal_(A.at[i, j], factor)
                if i == j
                else A.at[i, j]
            )
        )

    def _lower(self, block: Callable[[int, int], Tensor]) -> Blocks:
        """Blocks on and below the diagonal."""
        return Blocks(
            {(i, j): block(i, j) for i in self.numbers for j in range(i + 1)}
        )

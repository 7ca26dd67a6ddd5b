"""How Newton-Schulz multiplies: whole matrices, or the half that counts.

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

Tensor = Any


def transposed(X: Tensor) -> Tensor:
    """X^T of each matrix: `(..., m, n)` to `(..., n, m)`."""
    return ops.swapaxes(X, -2, -1)


class Products:
    """Products of whole matrices; with the default the reference.

    Args:
        symmetric: Product of two factors whose product is symmetric,
            `(..., s, k)` times `(..., k, s)`.
        share: What a symmetric product costs of a dense one.
    """

    def __init__(
        self,
        symmetric: Callable[[Tensor, Tensor], Tensor] = ops.matmul,
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

    def whole(self, A: Any) -> Tensor:
        """A symmetric matrix as one tensor."""
        return A

    def gram(self, X: Any) -> Any:
        """X X^T."""
        return self.symmetric(X, transposed(X))

    def commuting(self, A: Any, B: Any) -> Any:
        """A B, of two symmetric matrices that commute."""
        return self.symmetric(A, B)

    def apply(self, A: Any, X: Any) -> Any:
        """A X, of a symmetric A."""
        return ops.matmul(A, X)

    def identity(self, X: Any) -> Any:
        """The identity that A X leaves as X."""
        return ops.eye(X.shape[-2], dtype=X.dtype)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A matrix in blocks; sums and multiples are taken block by block.

    Args:
        at: The blocks: of a symmetric matrix those at `(i, j)` with
            j <= i, of any other matrix its row blocks at `i`.
    """

    at: Mapping[Hashable, Tensor]

    def __add__(self, other: "Blocks") -> "Blocks":
        return Blocks({i: x + other.at[i] for i, x in self.at.items()})

    def __rmul__(self, factor: float) -> "Blocks":
        return Blocks({i: factor * x for i, x in self.at.items()})

    def symmetric(self, i: int, j: int) -> Tensor:
        """Block (i, j) of a symmetric matrix."""
        return self.at[i, j] if j <= i else transposed(self.at[j, i])


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

    def whole(self, A: Blocks) -> Tensor:
        """A symmetric matrix as one tensor."""
        rows = [[A.symmetric(i, j) for j in self.numbers] for i in self.numbers]
        return ops.concatenate(
            [ops.concatenate(row, axis=-1) for row in rows], axis=-2
        )

    def gram(self, X: Blocks) -> Blocks:
        """X X^T."""
        return self._lower(lambda i, j: X.at[i] @ transposed(X.at[j]))

    def commuting(self, A: Blocks, B: Blocks) -> Blocks:
        """A B, of two symmetric matrices that commute."""
        return self._lower(
            lambda i, j: sum(
                A.symmetric(i, k) @ B.symmetric(k, j) for k in self.numbers
            )
        )

    def apply(self, A: Blocks, X: Blocks) -> Blocks:
        """A X, of a symmetric A."""
        return Blocks(
            {
                i: sum(A.symmetric(i, k) @ X.at[k] for k in self.numbers)
                for i in self.numbers
            }
        )

    def identity(self, X: Blocks) -> Blocks:
        """The identity that A X leaves as X."""
        return self._lower(
            lambda i, j: (
                super(BlockProducts, self).identity(X.at[i]) if i == j else 0.0
            )
        )

    def _lower(self, block: Callable[[int, int], Tensor]) -> Blocks:
        """Blocks on and below the diagonal."""
        return Blocks(
            {(i, j): block(i, j) for i in self.numbers for j in range(i + 1)}
        )

"""The paper's table of norms as code.

| norm | role | LMO | dual norm |
|---|---|---|---|
| `Spectral` | hidden | -sqrt(d_out/d_in) U V^T | sqrt(d_out/d_in) nuclear |
| `Sign` | embedding | -sign(B) / d_in | max over features of abs sums |
| `RMS` | vector | -B / rms(B) | sqrt(d) l2 |

A linear minimization oracle (LMO) returns the matrix of norm 1 that is most
opposed to B. The functions of tensors leave out the factors of shape, and the
minus: `lmo` is U V^T, sign(B) or B / rms(B), `dual` the nuclear norm. The
factors are numbers of the shape, `lmo_scale` and `dual_scale`. A plan has them
as one array each, so no matrix is multiplied by them.

Each norm works on stacks `(batch, d_in, d_out)`; `lmo` keeps the shape and
gives float32, `dual` gives float32 `(batch,)`. Both are exact for entries of
any finite size: everything is divided by its norm before it is squared, and
the norm is taken of entries of at most 1.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.matrices import AS_GIVEN
from keras_lanton.core.matrices import AS_STORED
from keras_lanton.core.matrices import SHORT_FIRST
from keras_lanton.core.matrices import Stack
from keras_lanton.core.newton_schulz import newton_schulz
from keras_lanton.core.nuclear_norm import frobenius_nuclear_norm
from keras_lanton.core.nuclear_norm import inner_products
from keras_lanton.core.whitening import EntryNoise
from keras_lanton.core.whitening import whiten
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.types import Row
from keras_lanton.types import Tensor


class Norm(abc.ABC):
    """A norm on matrices `(d_in, d_out)`, known by its LMO and its dual."""

    # Whether `lmo` takes the noise of the entries into account.
    uses_entry_noise = False
    # Whether that is measured on every step, from the gradient alone: most
    # rows of an embedding seldom have one.
    from_every_gradient = False

    @abc.abstractmethod
    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """The LMO over `-lmo_scale` [Alg. 1, line 6].

        Args:
            B: `(batch, d_in, d_out)`, any float dtype.
            noise: The noise of its entries, where `uses_entry_noise`: U V^T
                is then of the matrix in units of it, and signs of entries
                that are noise are smaller.

        Returns:
            `(batch, d_in, d_out)`, a new tensor, zero where B is zero;
            float32, but where products of half precision gave it.
        """

    @abc.abstractmethod
    def dual(self, D: Tensor) -> Tensor:
        """Dual norm of the noise sample over `dual_scale` [Alg. 1, line 7].

        Args:
            D: `(batch, d_in, d_out)`, any float dtype.

        Returns:
            `(batch,)`, float32, in the units of D.
        """

    def lmo_scale(self, d_in: int, d_out: int) -> float:
        """The factor that gives `lmo` norm 1; above 0."""
        return 1.0

    def dual_scale(self, d_in: int, d_out: int) -> float:
        """The factor from `dual` to the dual norm; above 0."""
        return self.lmo_scale(d_in, d_out)

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """Root mean square of the entries of an `lmo` of full rank."""
        return 1.0

    def dual_cost(self, rows: int, columns: int) -> float:
        """Multiply-adds, about, of the `dual` of one matrix."""
        return float(rows * columns)

    def temporary_bytes(self, rows: int, columns: int) -> float:
        """Memory of one matrix while it is worked on, on each device.

        It needs itself and its update.
        """
        return 4.0 * 2 * rows * columns

    @property
    def transposed(self) -> "Norm | None":
        """The same norm of matrices that are given as `(d_out, d_in)`.

        Itself if `lmo(A^T)` is `lmo(A)^T` and `dual(A^T)` is `dual(A)`. None:
        there is no such norm, and all matrices are laid as `(d_in, d_out)`.
        """
        return None

    @property
    def orientation(self) -> str:
        """One of `variables.stacks`' orientations: how stacks lay matrices."""
        if self.transposed is None:
            return AS_GIVEN
        return SHORT_FIRST if self.transposed is self else AS_STORED


def norm_of(norms: Mapping[str, Norm], stack: Stack) -> Norm:
    """The norm of a stack's matrices, as they lie there.

    Args:
        norms: Norm of each role, of matrices `(d_in, d_out)`.
        stack: The stack, laid as its norm's `orientation` says.
    """
    norm = norms[stack.role]
    return (norm.transposed or norm) if stack.transposed else norm


@dataclasses.dataclass(frozen=True)
class Rule:
    """The update of a role's matrices: s times the `lmo` of a norm.

    Args:
        norm: The norm, of matrices `(d_in, d_out)`.
        scale: Function of a variable's spec to the factor s of each of its
            matrices. Defaults to the LMO's own.
    """

    norm: Norm
    scale: Callable[[VariableSpec], float] | None = None

    def step_scale(self, spec: VariableSpec) -> float:
        """The factor s of a variable's matrices [Alg. 1, line 10]."""
        if self.scale is None:
            return self.norm.lmo_scale(spec.d_in, spec.d_out)
        return float(self.scale(spec))

    def update_rms(self, spec: VariableSpec) -> float:
        """Root mean square of the entries of an update at rate 1."""
        return self.step_scale(spec) * self.norm.lmo_rms(spec.d_in, spec.d_out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spectral(Norm):
    """RMS->RMS operator norm: sqrt(d_in/d_out) times the spectral norm.

    Args:
        rows: Newton-Schulz coefficients, one row per step.
        nuclear_norm: Estimator of the nuclear norm of a stack,
            `(..., d_in, d_out)` float32 of Frobenius norm 1 or 0, to
            `(...)`. Defaults to <D, polar(D)> with the same rows.
        keeps_orientation: Whether stacks lay all matrices as (d_in, d_out),
            for optimizers that treat neurons one by one.
    """

    rows: tuple[Row, ...]
    nuclear_norm: Callable[[Tensor], Tensor] | None = None
    keeps_orientation: bool = False
    uses_entry_noise = True

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """U V^T [Alg. 1, line 6]."""
        polar = self.polar(*B.shape[-2:])
        if noise is None:
            return self.map_matrices(polar, B)
        return self.map_matrices(
            lambda parts: polar(
                parts[0], unit=functools.partial(whiten, noise=parts[1:])
            ),
            (B, *noise.of_each()),
        )

    def dual(self, D: Tensor) -> Tensor:
        """The nuclear norm [Alg. 1, line 7]."""
        if self.nuclear_norm is frobenius_nuclear_norm:  # of any scale
            return frobenius_nuclear_norm(D)
        polar = self.polar(*D.shape[-2:])
        estimate = self.nuclear_norm or (lambda D: inner_products(D, polar(D)))

        def scaled(D: Tensor) -> Tensor:
            unit, norm = backend.unit_norm(D)
            return norm[..., 0, 0] * estimate(unit)

        return self.map_matrices(scaled, D)

    def polar(self, rows: int, columns: int) -> Callable[..., Tensor]:
        """The polar factor of matrices of a shape, as a function of them.

        Its `unit` is a function of them and a dtype: what gives them norm 1.
        """
        return functools.partial(newton_schulz, rows=self.rows)

    def map_matrices(
        self, function: Callable[[Any], Tensor], stack: Any
    ) -> Tensor:
        """A function of each matrix of a stack.

        Args:
            function: Function of tensors `(..., m, n)`, or of a tuple of them.
            stack: `(n, rows, columns)`, or a tuple of such.
        """
        return function(stack)

    def lmo_scale(self, d_in: int, d_out: int) -> float:
        """sqrt(d_out/d_in)."""
        return math.sqrt(d_out / d_in)

    def lmo_rms(self, d_in: int, d_out: int) -> float:
        """1 / sqrt(max(d_in, d_out))."""
        return 1.0 / math.sqrt(max(d_in, d_out))

    def dual_cost(self, rows: int, columns: int) -> float:
        """Multiply-adds, about, of a product of the matrix with itself.

        An estimate by the Frobenius norm has none. It is counted alike, so
        that each matrix is measured on the same steps for all estimates.
        """
        return float(rows * columns * min(rows, columns))

    def temporary_bytes(self, rows: int, columns: int) -> float:
        """Memory of one matrix while it is worked on, on each device.

        It needs itself, its normalized copy and the result, and R, R^2, Z, Q
        and one more of the short side.
        """
        return 4.0 * (3 * rows * columns + 5 * min(rows, columns) ** 2)

    @property
    def transposed(self) -> "Spectral | None":
        """Itself, or None with `keeps_orientation`."""
        return None if self.keeps_orientation else self


@dataclasses.dataclass(frozen=True)
class Sign(Norm):
    """1->inf norm times d_in: the largest entry, in units of 1/d_in.

    Args:
        d_in_axis: Axis of the inputs: -2, or -1 of transposed matrices.
    """

    d_in_axis: int = -2
    uses_entry_noise = True
    from_every_gradient = True

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """sign(B), or B / sqrt(B^2 + V) [Alg. 1, line 6]."""
        if noise is not None:
            return noise.shrunk_signs(B)
        return ops.cast(ops.sign(B), "float32")

    def dual(self, D: Tensor) -> Tensor:
        """1->1 norm as printed: max over d_in of abs sums [Alg. 1, line 7]."""
        d_out_axis = -3 - self.d_in_axis
        sums = ops.norm(ops.cast(D, "float32"), ord=1, axis=d_out_axis)
        return ops.max(sums, axis=-1)

    def lmo_scale(self, d_in: int, d_out: int) -> float:
        """1 / d_in."""
        return 1.0 / d_in

    def dual_scale(self, d_in: int, d_out: int) -> float:
        """1: the printed dual norm has no factor."""
        return 1.0

    @property
    def transposed(self) -> "Sign":
        """The same with the inputs on the other axis."""
        return dataclasses.replace(self, d_in_axis=-3 - self.d_in_axis)


@dataclasses.dataclass(frozen=True)
class RMS(Norm):
    """Root mean square of all d entries."""

    def lmo(self, B: Tensor, noise: EntryNoise | None = None) -> Tensor:
        """sqrt(d) B / l2(B) = B / rms(B) [Alg. 1, line 6]."""
        unit, _ = backend.unit_norm(B)
        return math.sqrt(B.shape[-2] * B.shape[-1]) * unit

    def dual(self, D: Tensor) -> Tensor:
        """sqrt(d) l2(D) [Alg. 1, line 7]."""
        _, norm = backend.unit_norm(D)
        return math.sqrt(D.shape[-2] * D.shape[-1]) * norm[..., 0, 0]

    @property
    def transposed(self) -> "RMS":
        """Itself."""
        return self

"""Arithmetic of PyTorch's tensors: in place, and one call for many tensors."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import torch
from keras import ops

from keras_lanton.backends import arithmetic
from keras_lanton.backends.arithmetic import Arithmetic
from keras_lanton.types import Tensor

BLOCK = 2**17  # entries, of which a few blocks fit into a core's cache
SMALL = 2**16  # entries up to which tensors are joined for one operation
LARGE = 2**20  # entries from which one operation for each tensor is no loss
# Between these, the squares that make up a norm are finite and not zero in
# float32.
SAFE_NORMS = (1e-12, 1e18)
# Noise without which signs on a GPU are whole, for entries above 1e-30.
LEAST_NOISE = 1e-35


class TorchArithmetic(Arithmetic):
    """The arithmetic that PyTorch does otherwise, or faster."""

    def where(self, condition: Any, x: Any, y: Any) -> Tensor:
        """See the reference: numbers are arguments of the operations."""
        if isinstance(condition, bool):
            return x if condition else y
        if not isinstance(condition, torch.Tensor):
            condition = ops.convert_to_tensor(condition)
        if not isinstance(y, torch.Tensor):
            return x.masked_fill(~condition, y)
        if not isinstance(x, torch.Tensor):
            return y.masked_fill(condition, x)
        return torch.where(condition, x, y)

    def maximum(self, x: Tensor, y: Any) -> Tensor:
        if isinstance(y, torch.Tensor):
            return torch.maximum(x, y)
        return torch.clamp(x, min=y)

    def minimum(self, x: Tensor, y: Any) -> Tensor:
        if isinstance(y, torch.Tensor):
            return torch.minimum(x, y)
        return torch.clamp(x, max=y)

    def clip(self, x: Tensor, x_min: float, x_max: float) -> Tensor:
        return torch.clamp(x, x_min, x_max)

    def power(self, x: float, y: Tensor) -> Tensor:
        return torch.pow(x, y)

    def take(self, x: Tensor, indices: Tensor) -> Tensor:
        return x[indices]

    def add_products(
        self,
        C: Tensor,
        factors: Sequence[tuple[Tensor, Tensor]],
        *,
        beta: float,
        alpha: float,
    ) -> Tensor:
        """The sum beta C + alpha (A_1 B_1 + A_2 B_2 + ...) of each matrix.

        Matrices `(s, k)` or `(batch, s, k)`, without a pass for each sum.
        """
        add = torch.addmm if C.ndim == 2 else torch.baddbmm
        for A, B in factors:
            C = add(C, A, B, beta=beta, alpha=alpha)
            beta = 1.0
        return C

    def add_to_diagonal_(self, A: Tensor, factor: float) -> Tensor:
        """See the reference: in the place of A."""
        A.diagonal(dim1=-2, dim2=-1).add_(factor)
        return A

    def scale_(
        self, X: Tensor, factor: Tensor, dtype: str = "float32"
    ) -> Tensor:
        """See the reference: in the place of X where it has the dtype."""
        same = X.dtype == getattr(torch, dtype)
        return X.mul_(factor) if same else _times(X, factor, dtype)

    def unit_norm(
        self, X: Tensor, dtype: str = "float32"
    ) -> tuple[Tensor, Tensor]:
        """See the reference: on a CPU with one new tensor instead of four."""
        if X.device.type == "cpu":
            X = X.float()
            norms = _frobenius_norms(X)
            inverse = torch.where(norms > 0, norms, 1.0).reciprocal()
            if bool(((inverse > 1e-30) & (inverse < 1e30)).all()):
                return _times(X, inverse.float(), dtype), norms.float()
        scale, X = _below_one(X)
        norms = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True)
        inverse = norms.clamp(min=arithmetic.SMALLEST_DIVISOR).reciprocal()
        if dtype == "float32":
            unit = X.mul_(inverse)  # a tensor of its own
        else:
            unit = _times(X, inverse, dtype)
        return unit, (scale * norms).clamp(max=arithmetic.LARGEST)

    def frobenius_norm(self, X: Tensor) -> Tensor:
        """See the reference: without a new tensor, where there is float64."""
        on_cpu = X.device.type == "cpu"
        if on_cpu and X.dtype == torch.float32 and X.numel() > SMALL:
            norms = _frobenius_norms(X)
        elif X.device.type in ("cpu", "cuda"):
            norms = torch.linalg.vector_norm(
                X, dim=(-2, -1), keepdim=True, dtype=torch.float64
            )
        else:
            scale, X = _below_one(X)
            norms = scale * torch.linalg.vector_norm(
                X, dim=(-2, -1), keepdim=True
            )
        return norms.clamp(max=arithmetic.LARGEST).float()

    def column_lengths(self, X: Tensor) -> Tensor:
        """See the reference: in one pass."""
        return torch.linalg.vector_norm(
            X, dim=-2, keepdim=True, dtype=torch.float32
        )

    def line_rms(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See the reference: on a GPU in two passes, without a new tensor."""
        m, n = X.shape[-2:]
        if X.device.type == "cuda":
            rows, columns = (
                torch.linalg.vector_norm(X, dim=dim, dtype=torch.float64)
                for dim in (-1, -2)
            )
            return (
                _times(rows, n**-0.5, "float32"),
                _times(columns, m**-0.5, "float32"),
            )
        scale, X = _below_one(X)
        squares, scale = X.square_(), scale[..., 0]
        return (
            squares.mean(-1).sqrt_().mul_(scale),
            squares.mean(-2).sqrt_().mul_(scale),
        )

    def shrunk_signs(
        self, X: Tensor, m: Tensor, rows: Tensor, columns: Tensor
    ) -> Tensor:
        """See the reference: in three passes; a CPU takes blocks in turn.

        All that is done to a block is done in the processor's cache.
        """
        if X.device.type != "cpu":
            noise = (m * rows).clamp(min=LEAST_NOISE) * columns
            torch.hypot(X, noise, out=noise)
            return torch.div(X, noise, out=noise)
        found = torch.empty_like(X, dtype=torch.float32)
        for x, one, r, c, out in zip(X, m, rows, columns, found, strict=True):
            one = float(one)
            if one <= arithmetic.SMALLEST_NOISE:
                torch.sign(x.float(), out=out)
            elif x.stride(0) < x.stride(1):
                _shrink_signs(x.T, one, c.T, r.T, out.T)
            else:
                _shrink_signs(x, one, r, c, out)
        return found

    def scaled(
        self, X: Tensor, factor: Tensor, dtype: str = "float32"
    ) -> Tensor:
        """See the reference: in one pass."""
        return _times(X, factor, dtype)

    def pieces(self, stack: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return list(torch.split(stack, list(sizes)))

    def lerp(
        self,
        starts: Sequence[Tensor],
        ends: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """See the reference: a call for all tensors of one weight."""
        found: list[Any] = [None] * len(weights)
        for weight, chosen, old, new in _by_weight(starts, ends, weights):
            if isinstance(weight, torch.Tensor):
                mixed = [_lerp_where(old[0], new[0], weight)]
            elif weight == 0.0:
                mixed = [x.clone() for x in old]
            else:
                mixed = torch._foreach_lerp(old, new, weight)
            for i, x in zip(chosen, mixed, strict=True):
                found[i] = x
        return found

    def lerp_(
        self,
        starts: Sequence[Tensor],
        ends: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """See the reference: in the place of `starts`."""
        for weight, _, old, new in _by_weight(starts, ends, weights):
            if isinstance(weight, torch.Tensor):
                old[0].copy_(_lerp_where(old[0], new[0], weight))
            elif weight != 0.0:
                torch._foreach_lerp_(old, new, weight)
        return list(starts)

    def cast_each(
        self, tensors: Sequence[Tensor], dtypes: Sequence[Any]
    ) -> list[Tensor]:
        """See the reference: a call for all that change."""
        found = list(tensors)
        wanted = [
            getattr(torch, d) if isinstance(d, str) else d for d in dtypes
        ]
        changed = [i for i, x in enumerate(found) if x.dtype != wanted[i]]
        if changed:
            new = [torch.empty_like(found[i], dtype=wanted[i]) for i in changed]
            torch._foreach_copy_(new, [found[i] for i in changed])
            for i, x in zip(changed, new, strict=True):
                found[i] = x
        return found

    def store_(
        self, old: Sequence[Tensor], new: Sequence[Tensor]
    ) -> list[Tensor]:
        """See the reference: in place where the dtype is another."""
        found = list(new)
        changed = [i for i, x in enumerate(found) if x.dtype != old[i].dtype]
        if changed:
            held = [old[i] for i in changed]
            torch._foreach_copy_(held, [found[i] for i in changed])
            for i, x in zip(changed, held, strict=True):
                found[i] = x
        return found

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """See the reference: without Keras' search for symbolic tensors."""
        return x.reshape(shape)

    def concatenate(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(tensors))

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(tuple(axes))

    def scale_each_(
        self, tensors: Sequence[Tensor], factors: Sequence[Any]
    ) -> list[Tensor]:
        """The products factor x, in the place of `tensors`."""
        tensors, factors = list(tensors), list(factors)
        for i, factor in enumerate(factors):
            if not isinstance(factor, float):
                tensors[i].mul_(factor)
                factors[i] = 1.0
        if tensors:
            torch._foreach_mul_(tensors, factors)
        return tensors

    def hypot(self, x: Tensor, y: Tensor | float) -> Tensor:
        if not isinstance(y, torch.Tensor):
            y = torch.tensor(y, dtype=x.dtype)  # a scalar, on the host
        return torch.hypot(x, y)

    def mean_roots_(
        self,
        roots: Sequence[Tensor],
        tensors: Sequence[Tensor],
        weights: Sequence[Any],
    ) -> list[Tensor]:
        """See the reference: in the place of `roots`."""
        small: list[list[Tensor]] = [[], []]
        for weight, _, old, new in _by_weight(roots, tensors, weights):
            if isinstance(weight, float):
                if weight == 0.0:
                    continue
                torch._foreach_mul_(old, (1.0 - weight) ** 0.5)
                new = torch._foreach_mul(new, weight**0.5)
            else:
                old[0].mul_((1.0 - weight) ** 0.5)
                new = [_where_used(weight, new[0]) * weight**0.5]
            # A GPU waits for Python: there one operation for all small ones.
            for r, x in zip(old, new, strict=True):
                if r.device.type == "cpu" or r.numel() > SMALL:
                    torch.hypot(r, x, out=r)
                else:
                    small[0].append(r)
                    small[1].append(x)
        if small[0]:
            torch._foreach_copy_(small[0], _hypot_together(*small))
        return list(roots)

    def mean_roots(
        self,
        roots: Sequence[Tensor],
        tensors: Sequence[Tensor],
        weights: Sequence[float],
    ) -> list[Tensor]:
        """See the reference: a few operations for all tensors."""
        if not roots:
            return []
        kept = [(1.0 - weight) ** 0.5 for weight in weights]
        X = torch._foreach_mul(list(roots), kept)
        Y = torch._foreach_mul(list(tensors), [w**0.5 for w in weights])
        return _hypot_together(X, Y)

    def adam_directions(
        self,
        m: Sequence[Tensor],
        roots: Sequence[Tensor],
        debiasing: Sequence[Any],
        *,
        epsilon: float,
        epsilon_before_debiasing: bool = False,
    ) -> list[Tensor]:
        """See the reference: a call for all tensors."""
        bias, divisor = debiasing
        if not m or isinstance(bias, torch.Tensor):
            return super().adam_directions(
                m,
                roots,
                debiasing,
                epsilon=epsilon,
                epsilon_before_debiasing=epsilon_before_debiasing,
            )
        if epsilon_before_debiasing:
            below = torch._foreach_add(list(roots), epsilon)
            found = torch._foreach_div(list(m), below)
            torch._foreach_mul_(found, divisor / bias)
            return list(found)
        below = torch._foreach_div(list(roots), divisor)
        torch._foreach_add_(below, epsilon)
        found = torch._foreach_div(list(m), bias)
        torch._foreach_div_(found, below)
        return list(found)

    def step_dtype(self, X: Sequence[Tensor]) -> str:
        """See the reference: on a GPU bfloat16, if all weights are in it.

        They round their sums by more than bfloat16 rounds a step. A GPU sums
        in float32, and rounds once; a CPU would round the decay factor.
        """
        half = all(
            x.dtype == torch.bfloat16 and x.device.type == "cuda" for x in X
        )
        return "bfloat16" if half else "float32"

    def update_(
        self,
        X: Sequence[Tensor],
        steps: Sequence[Tensor],
        decay_factors: Sequence[Any],
        *,
        casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
    ) -> list[Tensor]:
        """The sums decay_factor x + step, in the place of `X`."""
        X, steps = list(X), list(steps)
        if casts is not None:
            return super().update_(X, steps, decay_factors, casts=casts)
        small = [i for i, x in enumerate(X) if x.numel() <= LARGE]
        if small:
            given = (X, steps, decay_factors)
            self._update_small_(*([x[i] for i in small] for x in given))
        # In one pass, rounded once, without a copy that takes memory.
        for x, step, factor in zip(X, steps, decay_factors, strict=True):
            if x.numel() <= LARGE:
                continue
            if isinstance(factor, torch.Tensor):
                wide = x.to(torch.promote_types(x.dtype, torch.float32))
                x.copy_(wide * factor + step)
            else:
                torch.add(step, x, alpha=factor, out=x)
        return X

    def _update_small_(
        self, X: list[Tensor], steps: list[Tensor], factors: list[Any]
    ) -> None:
        """`update_` of small tensors: a few calls for all."""
        alike = all(x.dtype == u.dtype for x, u in zip(X, steps, strict=True))
        if alike and all(isinstance(factor, float) for factor in factors):
            for factor, _, old, new in _by_weight(X, steps, factors):
                torch._foreach_add_(new, old, alpha=factor)
                torch._foreach_copy_(old, new)
            return
        wide = self.cast_each(
            X, [torch.promote_types(x.dtype, torch.float32) for x in X]
        )
        self.scale_each_(wide, factors)
        torch._foreach_add_(wide, steps)
        self.store_(X, wide)

    def largest_entries(self, tensors: Sequence[Tensor]) -> Tensor:
        """See the reference: a call for all tensors."""
        # A process may have no entry of a tensor that is split.
        some = [x if x.numel() else x.new_zeros(1) for x in tensors]
        found = list(torch._foreach_norm(some, float("inf")))
        return torch.stack(self.cast_each(found, ["float32"] * len(found)))

    def largest_of_each(self, stack: Tensor) -> Tensor:
        largest = torch.linalg.vector_norm(stack, float("inf"), dim=(-2, -1))
        return largest.float()


def _frobenius_norms(X: Tensor) -> Tensor:
    """Norms of matrices of float32 `(..., m, n)`: `(..., 1, 1)` float64.

    The lines that lie in memory first: sums of so few squares are exact to
    rounding in float32, and no copy in float64 is made.
    """
    norm = torch.linalg.vector_norm
    line = -1 if X.stride(-1) <= X.stride(-2) else -2
    lines = norm(X, dim=line, keepdim=True)
    norms = norm(lines, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    if bool(((norms > SAFE_NORMS[0]) & (norms < SAFE_NORMS[1])).all()):
        return norms
    # In float64 the squares of float32 entries are finite and not zero.
    return norm(X, dim=(-2, -1), keepdim=True, dtype=torch.float64)


def _below_one(X: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entries of matrices, `(..., 1, 1)`, and X over them.

    A new tensor of float32, in two passes, of which a GPU waits for none.
    """
    X = X.float() if X.dtype == torch.float64 else X
    largest = torch.linalg.vector_norm(
        X, float("inf"), dim=(-2, -1), keepdim=True, dtype=torch.float32
    )
    scale = largest.clamp(
        arithmetic.SMALLEST_DIVISOR, arithmetic.LARGEST_DIVISOR
    )
    return scale, X / scale


def _times(X: Tensor, factor: Tensor, dtype: str) -> Tensor:
    """The product, rounded to a dtype once, in one pass."""
    out = torch.empty_like(X, dtype=getattr(torch, dtype))
    return torch.mul(X, factor, out=out)


def _shrink_signs(
    X: Tensor,
    m: float,
    rows: Tensor,
    columns: Tensor,
    out: Tensor,
) -> None:
    """Writes `shrunk_signs` of one matrix to `out`."""
    size = max(1, BLOCK // X.shape[1])
    largest = arithmetic.LARGEST_SQUARED
    rows, columns = rows.square(), columns.square()
    for x, r, block in zip(
        X.split(size), rows.split(size), out.split(size), strict=True
    ):
        x = (x.float() * (1.0 / m)).clamp_(-largest, largest)
        root = torch.addcmul(r * columns, x, x).rsqrt_()
        torch.mul(x, root, out=block)


def _by_weight(
    starts: Sequence[Tensor], ends: Sequence[Tensor], weights: Sequence[Any]
) -> Iterator[tuple[Any, list[int], list[Tensor], list[Tensor]]]:
    """Each weight with the positions, the starts and the ends that have it.

    A tensor is the weight of one tensor.
    """
    positions: dict[Any, list[int]] = {}
    for i, weight in enumerate(weights):
        # Tensors are keys by their identity.
        positions.setdefault(weight, []).append(i)
    for weight, chosen in positions.items():
        yield (
            weight,
            chosen,
            [starts[i] for i in chosen],
            [ends[i] for i in chosen],
        )


def _hypot_together(X: Sequence[Tensor], Y: Sequence[Tensor]) -> list[Tensor]:
    """sqrt(x^2 + y^2) of each pair, by one operation."""
    flat = torch.hypot(*(torch.cat([x.reshape(-1) for x in Z]) for Z in (X, Y)))
    found = flat.split([x.numel() for x in X])
    return [x.view(y.shape) for x, y in zip(found, X, strict=True)]


def _lerp_where(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """Start where the weight is 0, whatever the end holds."""
    dtype = torch.promote_types(start.dtype, torch.float32)
    mixed = torch.lerp(start.to(dtype), end.to(dtype), weight.to(dtype))
    return torch.where(weight != 0, mixed.to(start.dtype), start)


def _where_used(weight: Tensor, x: Tensor) -> Tensor:
    """0 where the weight is: 0 times NaN is NaN."""
    return torch.where(weight != 0, x, torch.zeros_like(x))

"""The reference of all backends: what Keras' own operations can do.

`Backend` has every function that the package uses beside `keras.ops`. A backend
overrides what it does otherwise or faster. It must write the abstract methods,
which Keras has no public operation for. A method whose name ends in `_` may
overwrite its first argument; here it returns new tensors.
"""

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.types import Tensor

# From here on reciprocals are subnormal, which a device may take for zero.
LARGEST_DIVISOR = 2.0**126
# The square of this is finite.
LARGEST_SQUARED = 1e15
LARGEST = float(np.finfo("float32").max)
# Below every number that is measured, which XLA does not know.
NO_MEASURE = -1e30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices that share out the work on stacks of matrices.

    Args:
        count: Number of devices.
        split: Whether any weight is split over them.
        mesh: JAX's mesh of them.
    """

    count: int
    split: bool = False
    mesh: Any = None


class OptimizerHooks:
    """Leads Keras' per-backend calls to the joint update."""

    def _is_update_step(self) -> Any:
        """None: Keras calls the update only where a window closes."""
        return None  # AutoGraph wants a statement


class Backend(abc.ABC):
    """The functions of tensors that backends do differently."""

    # Whether steps run eagerly: conditions are Python's, work is in place.
    EAGER = False
    # Whether Keras' own hook has to run first: it sums over the replicas.
    SUMS_OVER_REPLICAS = False
    OptimizerHooks: type = OptimizerHooks

    # What each backend has to write.

    @abc.abstractmethod
    def device(self) -> str:
        """The default device's kind: `"cpu"`, `"gpu"` or `"tpu"`."""

    @abc.abstractmethod
    def cond(
        self,
        predicate: Tensor,
        on_true: Callable[[], Any],
        on_false: Callable[[], Any],
    ) -> Any:
        """One of two functions without arguments, by a boolean scalar."""

    @abc.abstractmethod
    def replace_if(
        self, predicate: Tensor, replace: Callable[..., Any], *old: Any
    ) -> Any:
        """`replace(*old)`, or `old` where the predicate is false."""

    @abc.abstractmethod
    def switch(
        self, index: Tensor, branches: Sequence[Callable[[], Any]]
    ) -> Any:
        """One of several functions without arguments, by an integer scalar."""

    @abc.abstractmethod
    def each(self, function: Callable[[Any], Tensor], stack: Any) -> Tensor:
        """The function of each entry of a stack, in turn.

        Args:
            function: Function to float32.
            stack: A tensor, or a tuple of tensors of one length.
        """

    @abc.abstractmethod
    def bitcast(self, x: Tensor, dtype: str) -> Tensor:
        """The same bits as another dtype of 32 bits."""

    # The machine.

    def list_devices(self) -> list[str]:
        """All devices by their names."""
        return [self.device()]

    def replicas(self) -> int:
        """The number of replicas that call a step at the same time."""
        return 1

    def tensorfloat32(self) -> bool:
        """Returns whether float32 products may be rounded to TensorFloat-32."""
        return False

    def full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Products of float32 stay in float32, where that can be set."""
        return contextlib.nullcontext()

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing within is recorded for gradients."""
        return contextlib.nullcontext()

    def eager(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, outside of what a compiler of the backend traces."""
        return function

    def is_compiled(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is of a program that is being traced."""
        return False

    def dense(self, gradient: Tensor | None) -> Tensor | None:
        """The sparse gradient of a lookup as a dense tensor."""
        return gradient

    def share_out(
        self,
        function: Callable[[Tensor], Tensor],
        stack: Tensor,
        devices: Devices,
    ) -> Tensor:
        """A function of each entry of a stack, each device on its own entries.

        Args:
            function: Function of `(n, ...)` to `(n, ...)`, entry by entry.
            stack: `(n, ...)`.
            devices: From `devices`.
        """
        raise NotImplementedError

    # Numbers and tensors.

    def where(self, condition: Any, x: Any, y: Any) -> Tensor:
        """`keras.ops.where`; x or y is a tensor, which keeps its dtype."""
        return ops.where(condition, x, y)

    def divisor(self, x: Tensor) -> Tensor:
        """The tensor, with 1 for 0: nothing is divided by 0."""
        return ops.where(x == 0, 1.0, x)

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

    def devices(
        self, variables: Sequence[Any], wanted: bool | None
    ) -> Devices | None:
        """None: work is not shared out between devices.

        Args:
            variables: Keras variables.
            wanted: Whether to share out work.

        Raises:
            ValueError: If it is asked for.
        """
        if wanted:
            raise ValueError(
                "`shard` of `NewtonSchulz` needs the jax or the torch backend. "
                "Received: shard=True"
            )
        return None

    def half_is_faster(self) -> bool:
        """Returns whether the CPU multiplies bfloat16 faster than float32.

        Not where XLA multiplies them: with AVX512_BF16 Newton-Schulz took 1.0
        to 1.5 times as long on JAX.
        """
        return False

    def value_of(self, function: Callable[[Any], Any], count: int) -> Any:
        """A function of a count, such as a schedule."""
        return function(count)

    def layouts(self, variables: Sequence[Any]) -> list[Any]:
        """The layout of each variable on devices; None for no other."""
        return [None] * len(variables)

    def laid_out(
        self, tensors: Sequence[Tensor], layouts: Sequence[Any]
    ) -> list[Tensor]:
        """The tensors as they are."""
        return list(tensors)

    def to_host(self, *tensors: Tensor) -> list[Tensor]:
        """Copies small tensors to the host: reading them there waits for none.

        Args:
            *tensors: Of 32-bit dtypes.

        Returns:
            Tensors of their shapes and dtypes.
        """
        return list(tensors)

    def on_device(self, x: Tensor) -> Tensor:
        """Copies a small tensor of `to_host` to the device, without waiting.

        Args:
            x: A tensor.
        """
        return ops.convert_to_tensor(x)

    def on_host(self) -> contextlib.AbstractContextManager[Any]:
        """Operations on tensors from `to_host` stay there."""
        return contextlib.nullcontext()

    def constant(self, array: Any) -> Tensor:
        """A NumPy array as a tensor of its dtype, in 32 bits.

        Keras chooses a dtype of its own: where `keras.config.floatx()` is
        `"bfloat16"`, JAX would have floats for integers and masks.

        Args:
            array: A NumPy array.
        """
        array = np.asarray(array)
        dtype = array.dtype.name.replace("64", "32")
        return ops.convert_to_tensor(array.astype(dtype, copy=False), dtype)

    def unpack(self, *vectors: Tensor) -> list[list[Any]]:
        """The entries of each of some vectors of one length as scalars."""
        return [list(ops.unstack(x, num=x.shape[0])) for x in vectors]

    def unpack_places(
        self, places: Sequence[np.ndarray], *vectors: Tensor
    ) -> list[list[Any]]:
        """The entries of each of some vectors at some places.

        Args:
            places: Positions in the vectors, arrays of int32 of any shapes;
                each position is in one of them.
            *vectors: Of one length.

        Returns:
            For each vector one scalar or tensor for each of the places: a
            scalar where there is one position.
        """
        if all(place.size == 1 for place in places):
            return self.unpack(*vectors)
        firsts = self.constant(np.array([p.flat[0] for p in places], "int32"))
        scalars = self.unpack(*(self.take(x, firsts) for x in vectors))
        return [
            [
                scalar
                if place.size == 1
                else self.take(vector, self.constant(place))
                for scalar, place in zip(row, places, strict=True)
            ]
            for row, vector in zip(scalars, vectors, strict=True)
        ]

    def scale_(self, X: Tensor, factor: Tensor | float) -> Tensor:
        """The product factor X.

        Args:
            X: A tensor, which may be overwritten.
            factor: A number, or a tensor that broadcasts to X.

        Returns:
            A tensor of the shape and dtype of X.
        """
        return factor * X

    def after(self, earlier: Tensor, value: Tensor) -> Tensor:
        """The value, as a result that XLA cannot compute before `earlier`.

        XLA copies a tensor that a conditional reads and a later operation
        overwrites, unless the later one has to wait for the conditional.

        Args:
            earlier: Numbers above -1e30, or NaN; float32.
            value: A tensor.
        """
        never = ops.min(earlier) < NO_MEASURE
        return self.where(never, ops.zeros_like(value), value)

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

    def as_tensors(self, values: Sequence[Any]) -> list[Tensor]:
        """Tensors of variables, tensors or arrays.

        Args:
            values: In any mixture.
        """
        return [ops.convert_to_tensor(value) for value in values]

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
        """New values in the dtypes of the old, which may be overwritten.

        Args:
            old: Tensors.
            new: Tensors of their shapes.
        """
        return self.cast_each(new, [x.dtype for x in old])

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The entries in another shape, in their order.

        Args:
            x: A tensor.
            shape: Of as many entries.
        """
        return ops.reshape(x, shape)

    def scale_each_(
        self, tensors: Sequence[Tensor], factors: Sequence[Any]
    ) -> list[Tensor]:
        """The products factor x, where `tensors` may be overwritten.

        Args:
            tensors: Tensors, float32.
            factors: Scalars, one per tensor.
        """
        return [factor * x for x, factor in zip(tensors, factors, strict=True)]

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
            unit = self.maximum(r, ops.abs(x))
            unit = self.minimum(self.divisor(unit), LARGEST_DIVISOR)
            square = (1.0 - w) * (r / unit) ** 2 + w * (x / unit) ** 2
            found.append(self.where(w != 0, unit * ops.sqrt(square), r))
        return found

    def mean_roots(
        self, roots: Sequence[Tensor], tensors: Sequence[Tensor], weight: float
    ) -> list[Tensor]:
        """sqrt((1 - w) r^2 + w x^2), as `mean_roots_`: new tensors.

        Args:
            roots: Roots r of mean squares, float32.
            tensors: Tensors x of their shapes, float32.
            weight: w in (0, 1].
        """
        return self.mean_roots_(roots, tensors, [weight] * len(roots))

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

    def update_(
        self,
        X: Sequence[Tensor],
        steps: Sequence[Tensor],
        decay_factors: Sequence[Any],
        *,
        cautious: bool = False,
        casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
    ) -> list[Tensor]:
        """The sums decay_factor x + step.

        Args:
            X: Tensors, which may be overwritten.
            steps: Tensors of their shapes, float32.
            decay_factors: Scalars, one per tensor.
            cautious: Whether entries that the step moves away from 0 do not
                decay.
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
            if cautious:
                kept = self.where(
                    ops.sign(wide) * ops.sign(step) > 0, wide, kept
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

    def unit_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """X in float32 over its Frobenius norm, and that norm.

        Everything is divided by the largest entry before it is squared: sums of
        squares stay finite and above zero for entries of any size.

        Args:
            X: `(..., m, n)`, any float dtype.

        Returns:
            `(..., m, n)` of norm 1, and `(..., 1, 1)`, at most float32's
            largest number; zero stays zero.
        """
        X = ops.cast(X, "float32")
        scale = ops.max(ops.abs(X), axis=(-2, -1), keepdims=True)
        scale = self.minimum(scale, LARGEST_DIVISOR)
        X = X / self.divisor(scale)
        squares = ops.sum(X * X, axis=(-2, -1), keepdims=True)
        inverse = ops.rsqrt(self.divisor(squares))
        return X * inverse, self.minimum(scale * ops.sqrt(squares), LARGEST)

    def frobenius_norm(self, X: Tensor) -> Tensor:
        """The norm that `unit_norm` gives, alone.

        Args:
            X: `(..., m, n)`, any float dtype.

        Returns:
            `(..., 1, 1)` float32.
        """
        return self.unit_norm(X)[1]

    def shrunk_signs(
        self,
        X: Tensor,
        noisy: Tensor,
        inverse: Tensor,
        rows: Tensor,
        columns: Tensor,
    ) -> Tensor:
        """X / sqrt(x^2 + rows columns) of x = inverse X, or sign(X).

        Args:
            X: `(n, rows, columns)`, any float dtype.
            noisy: `(n, 1, 1)` bool: where it is False, signs.
            inverse: `(n, 1, 1)` float32.
            rows: `(n, rows, 1)` float32, above 0.
            columns: `(n, 1, columns)` float32, above 0.

        Returns:
            A new tensor of the shape of X, float32.
        """
        X = ops.cast(X, "float32")
        x = self.clip(inverse * X, -LARGEST_SQUARED, LARGEST_SQUARED)
        found = x * ops.rsqrt(x * x + rows * columns)
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
        total = sum(ops.matmul(A, B) for A, B in factors)
        return beta * C + (total if alpha == 1.0 else alpha * total)


def reduces(count: int, devices: int) -> bool:
    """Returns whether results of a few devices go to all by an all-reduce.

    An all-gather moves one result for every device, also for those that have
    none; an all-reduce moves each result twice.

    Args:
        count: Number of results.
        devices: Number of devices.
    """
    return -(-count // devices) * devices > 2 * count


def _largest_entry(x: Tensor, axis: tuple[int, ...] | None = None) -> Tensor:
    # XLA's maximum leaves out NaN where TensorFlow compiles.
    x = ops.cast(x, "float32")
    finite = ops.all(ops.isfinite(x), axis=axis)
    return ops.where(finite, ops.max(ops.abs(x), axis=axis), float("nan"))

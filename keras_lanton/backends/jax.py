"""JAX: the update is traced once; conditionals take and return tensors."""

import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_lanton.backends.functional import abs_sums as abs_sums
from keras_lanton.backends.functional import lerp as lerp
from keras_lanton.backends.functional import move as move
from keras_lanton.backends.functional import unpack as unpack

Tensor = Any

SUMS_OVER_REPLICAS = False


def cond(
    predicate: Tensor, on_true: Callable[[], Any], on_false: Callable[[], Any]
) -> Any:
    """One of two functions without arguments, by a boolean scalar."""
    # Outside a trace a compiled conditional would be compiled every step.
    if isinstance(predicate, jax.core.Tracer):
        return jax.lax.cond(predicate, on_true, on_false)
    return on_true() if predicate else on_false()


def replace_if(
    predicate: Tensor, replace: Callable[..., Any], *old: Any
) -> Any:
    """`replace(*old)`, or `old` where the predicate is false."""
    if not isinstance(predicate, jax.core.Tracer):
        return replace(*old) if predicate else old
    # A loop of one step or none: unlike a conditional it works in place.
    return jax.lax.fori_loop(
        0, predicate.astype("int32"), lambda _, carry: replace(*carry), old
    )


def switch(index: Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
    """One of several functions without arguments, by an integer scalar."""
    if isinstance(index, jax.core.Tracer):
        return jax.lax.switch(index, branches)
    return branches[int(index)]()


# The function of each entry of a stack, to float32, in turn.
each: Callable[..., Any] = jax.lax.map


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """Nothing is recorded on JAX."""
    return contextlib.nullcontext()


def dense(gradient: Tensor | None) -> Tensor | None:
    """Gradients are dense already."""
    return gradient


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is."""
    return function


def device() -> str:
    """Where JAX computes by default: `"cpu"`, `"gpu"` or `"tpu"`."""
    return str(jax.default_backend())


def tensorfloat32() -> bool:
    """Whether float32 products may be rounded to TensorFloat-32."""
    precision = jax.config.jax_default_matmul_precision
    return precision not in ("highest", "float32")


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """Products of float32 stay in float32."""
    context: contextlib.AbstractContextManager[Any] = (
        jax.default_matmul_precision("highest")
    )
    return context


def gpu_product(A: Tensor, B: Tensor) -> Tensor:
    """A B where it is symmetric, by a Pallas kernel."""
    from keras_lanton.backends import pallas_kernels

    if A.shape[-2] < pallas_kernels.MIN_SIDE:
        return jnp.matmul(A, B)
    return pallas_kernels.symmetric_product(A, B)


class OptimizerHooks:
    """What the base class does otherwise on JAX."""

    gradient_accumulation_steps: int | None
    _iterations: Any

    def _is_update_step(self) -> Tensor | None:
        """Whether an accumulation window closes here; None if always.

        Keras runs the update on every micro-step on JAX and rolls it back,
        so it is the joint update that has to leave its work undone.
        """
        steps = self.gradient_accumulation_steps
        if not steps:
            return None
        return (self._iterations.value + 1) % steps == 0

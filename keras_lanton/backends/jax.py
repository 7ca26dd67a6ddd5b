"""JAX: the update is traced once; conditionals take and return tensors."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax

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


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """Nothing is recorded on JAX."""
    return contextlib.nullcontext()


def dense(gradient: Tensor | None) -> Tensor | None:
    """Gradients are dense already."""
    return gradient


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

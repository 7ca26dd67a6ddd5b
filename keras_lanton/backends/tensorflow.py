"""TensorFlow: dense gradients, and one update for each replica."""

import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any

SUMS_OVER_REPLICAS = True


def cond(
    predicate: Tensor, on_true: Callable[[], Any], on_false: Callable[[], Any]
) -> Any:
    """One of two functions without arguments, by a boolean scalar."""
    return tf.cond(predicate, on_true, on_false)


def no_grad() -> contextlib.AbstractContextManager[Any]:
    """Nothing is recorded outside a `tf.GradientTape`."""
    return contextlib.nullcontext()


def dense(gradient: Tensor | None) -> Tensor | None:
    """The sparse gradient of a lookup as a tensor.

    Clipping would see duplicate rows of `tf.IndexedSlices` one by one, and
    loss scaling does not take them at all.
    """
    if isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    return gradient


class OptimizerHooks:
    """Leads Keras' calls on TensorFlow to the joint update."""

    update_variables: Callable[..., None]

    def _distributed_tf_update_step(
        self,
        distribution: Any,
        grads_and_vars: Sequence[tuple[Tensor, Any]],
        learning_rate: Tensor,
    ) -> None:
        """One call of the joint update per replica, on its own copies."""
        grads, variables = zip(*grads_and_vars, strict=True)
        distribution.extended.update(
            variables[0],
            lambda _, *args: self.update_variables(*args),
            args=(list(grads), list(variables), learning_rate),
            group=False,
        )

    def _is_update_step(self) -> None:
        """Keras calls the update only where a window closes."""

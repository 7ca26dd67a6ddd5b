"""TensorFlow: dense gradients, and one update for each replica."""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_lanton.backends.functional import adam_directions as adam_directions
from keras_lanton.backends.functional import add_products as add_products
from keras_lanton.backends.functional import after as after
from keras_lanton.backends.functional import as_tensors as as_tensors
from keras_lanton.backends.functional import cast_each as cast_each
from keras_lanton.backends.functional import clip as clip
from keras_lanton.backends.functional import constant as constant
from keras_lanton.backends.functional import devices as devices
from keras_lanton.backends.functional import frobenius_norm as frobenius_norm
from keras_lanton.backends.functional import half_is_faster as half_is_faster
from keras_lanton.backends.functional import laid_out as laid_out
from keras_lanton.backends.functional import largest_entries as largest_entries
from keras_lanton.backends.functional import largest_of_each as largest_of_each
from keras_lanton.backends.functional import layouts as layouts
from keras_lanton.backends.functional import lerp as lerp
from keras_lanton.backends.functional import lerp_ as lerp_
from keras_lanton.backends.functional import maximum as maximum
from keras_lanton.backends.functional import mean_roots_ as mean_roots_
from keras_lanton.backends.functional import minimum as minimum
from keras_lanton.backends.functional import on_device as on_device
from keras_lanton.backends.functional import on_host as on_host
from keras_lanton.backends.functional import pieces as pieces
from keras_lanton.backends.functional import power as power
from keras_lanton.backends.functional import reshape as reshape
from keras_lanton.backends.functional import scale_ as scale_
from keras_lanton.backends.functional import scale_each_ as scale_each_
from keras_lanton.backends.functional import shrunk_signs as shrunk_signs
from keras_lanton.backends.functional import store_ as store_
from keras_lanton.backends.functional import take as take
from keras_lanton.backends.functional import to_host as to_host
from keras_lanton.backends.functional import unit_norm as unit_norm
from keras_lanton.backends.functional import unpack as unpack
from keras_lanton.backends.functional import unpack_places as unpack_places
from keras_lanton.backends.functional import update_ as update_
from keras_lanton.backends.functional import value_of as value_of
from keras_lanton.backends.functional import where as where
from keras_lanton.types import Tensor

EAGER = False
SUMS_OVER_REPLICAS = True

# TensorFlow has no kernel of its own for symmetric products.
gpu_product = None
# ... and `devices` finds none that could share out work.
share_out = None


def cond(
    predicate: Tensor, on_true: Callable[[], Any], on_false: Callable[[], Any]
) -> Any:
    """One of two functions without arguments, by a boolean scalar."""
    return tf.cond(predicate, on_true, on_false)


def is_compiled(tensor: Tensor) -> bool:
    """Conditionals are cheap on TensorFlow, compiled or not."""
    return False


def replace_if(
    predicate: Tensor, replace: Callable[..., Any], *old: Any
) -> Any:
    """`replace(*old)`, or `old` where the predicate is false."""
    return tf.cond(predicate, lambda: replace(*old), lambda: old)


def switch(index: Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
    """One of several functions without arguments, by an integer scalar."""
    return tf.switch_case(index, branches)


# The function of each entry of a stack, or of a tuple of stacks, to float32, in
# turn.
each: Callable[..., Any] = functools.partial(
    tf.map_fn, parallel_iterations=1, fn_output_signature=tf.float32
)


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


def bitcast(x: Tensor, dtype: str) -> Tensor:
    """The same bits as another dtype of 32 bits."""
    return tf.bitcast(x, dtype)


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is."""
    return function


@functools.cache
def device() -> str:
    """The device's kind: `"cpu"`, `"gpu"` or `"tpu"`."""
    for kind in ("tpu", "gpu"):
        if tf.config.list_logical_devices(kind.upper()):
            return kind
    return "cpu"


def list_devices() -> list[str]:
    """All devices by their names, as TensorFlow places work on them."""
    return [d.name for d in tf.config.list_logical_devices()]


def replicas() -> int:
    """The number of replicas of the current strategy."""
    count: int = tf.distribute.get_strategy().num_replicas_in_sync
    return count


def tensorfloat32() -> bool:
    """Returns whether float32 products may be rounded to TensorFloat-32."""
    enabled: bool = tf.config.experimental.tensor_float_32_execution_enabled()
    return enabled


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """TensorFlow has one setting for the whole process: left as it is."""
    return contextlib.nullcontext()


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
        return None  # AutoGraph wants a statement

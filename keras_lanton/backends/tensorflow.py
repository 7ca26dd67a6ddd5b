"""TensorFlow: dense gradients, and one update for each replica."""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_lanton.backends.reference import Backend
from keras_lanton.types import Tensor


class TensorFlowBackend(Backend):
    """The functions that TensorFlow does otherwise."""

    SUMS_OVER_REPLICAS = True

    def each(self, function: Callable[[Any], Tensor], stack: Any) -> Tensor:
        return tf.map_fn(
            function,
            stack,
            parallel_iterations=1,
            fn_output_signature=tf.float32,
        )

    def cond(
        self,
        predicate: Tensor,
        on_true: Callable[[], Any],
        on_false: Callable[[], Any],
    ) -> Any:
        return tf.cond(predicate, on_true, on_false)

    def replace_if(
        self, predicate: Tensor, replace: Callable[..., Any], *old: Any
    ) -> Any:
        return tf.cond(predicate, lambda: replace(*old), lambda: old)

    def switch(
        self, index: Tensor, branches: Sequence[Callable[[], Any]]
    ) -> Any:
        return tf.switch_case(index, branches)

    def dense(self, gradient: Tensor | None) -> Tensor | None:
        """The sparse gradient of a lookup as a tensor.

        Clipping would see duplicate rows of `tf.IndexedSlices` one by one, and
        loss scaling does not take them at all.
        """
        if isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        return gradient

    def bitcast(self, x: Tensor, dtype: str) -> Tensor:
        return tf.bitcast(x, dtype)

    def device(self) -> str:
        """The device's kind: `"cpu"`, `"gpu"` or `"tpu"`."""
        return _device_kind()

    def list_devices(self) -> list[str]:
        """All devices by their names, as TensorFlow places work on them."""
        return [d.name for d in tf.config.list_logical_devices()]

    def tensorfloat32(self) -> bool:
        enabled: bool = (
            tf.config.experimental.tensor_float_32_execution_enabled()
        )
        return enabled


@functools.cache
def _device_kind() -> str:
    for kind in ("tpu", "gpu"):
        if tf.config.list_logical_devices(kind.upper()):
            return kind
    return "cpu"

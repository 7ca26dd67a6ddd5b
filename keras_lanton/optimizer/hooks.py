"""The hooks into Keras' optimizers, which are private names of Keras.

Their names have been the same from 3.10 to 3.16. Where a Keras has changed one,
importing this module raises an ImportError that names it.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.types import Tensor

# The newest release that the tests have run with.
NEWEST_KERAS = "3.15"
# The private methods, and their arguments after `self`.
METHODS = {
    "_apply_weight_decay": ["variables"],
    "_backend_update_step": ["grads", "trainable_variables", "learning_rate"],
    "_check_variables_are_known": ["variables"],
    "_get_variable_index": ["variable"],
    "_update_model_variables_moving_average": ["trainable_variables"],
    "_use_weight_decay": ["variable"],
    "_var_key": ["variable"],
}
if backend.SUMS_OVER_REPLICAS:
    METHODS["_distributed_tf_update_step"] = [
        "distribution",
        "grads_and_vars",
        "learning_rate",
    ]


class Hooks(keras.optimizers.Optimizer):  # type: ignore[misc]
    """The joint update in the place of Keras' own, on its private methods.

    `LayerwiseOptimizer` sets `_backend_update_step`.
    """

    @property
    def decay(self) -> float:
        """The weight decay, 0 for none."""
        return float(self.weight_decay or 0.0)

    def _key_of(self, variable: Any) -> Any:
        """The key that identifies a variable."""
        return self._var_key(variable)

    def _position_of(self, variable: Any) -> int:
        """The number of a variable among those of `build`."""
        position: int = self._get_variable_index(variable)
        return position

    def _check_known(self, variables: Sequence[Any]) -> None:
        """ValueError for a variable that `build` did not have."""
        self._check_variables_are_known(variables)

    def may_decay(self, variable: Any) -> bool:
        """Returns whether `exclude_from_weight_decay` left a variable in.

        Args:
            variable: Of Keras.

        Returns:
            True or False.
        """
        # Keras 3.16's `_use_weight_decay` raises before `build`.
        excluded = getattr(self, "_is_excluded_from_weight_decay", None)
        if excluded is not None:
            return not excluded(variable)
        return bool(self._use_weight_decay(variable))

    def _update_model_variables_moving_average(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        """Keras' averages, which a skipped step leaves as they are."""
        averages = [
            average
            for average in self._model_variables_moving_average
            if average is not None
        ]
        before = [ops.convert_to_tensor(average) + 0 for average in averages]
        super()._update_model_variables_moving_average(trainable_variables)
        if self.nonfinite == "skip":
            skipped = ops.not_equal(
                ops.convert_to_tensor(self._state.skipped_steps),
                self._state.skipped_before,
            )
            for average, old in zip(averages, before, strict=True):
                new = ops.convert_to_tensor(average)
                average.assign(backend.where(skipped, old, new))

    def _distributed_tf_update_step(
        self,
        distribution: Any,
        grads_and_vars: Sequence[tuple[Tensor, Any]],
        learning_rate: Tensor,
    ) -> None:
        """On TensorFlow one call of the joint update for each replica."""
        grads, variables = zip(*grads_and_vars, strict=True)
        distribution.extended.update(
            variables[0],
            lambda _, *args: self.update_variables(*args),
            args=(list(grads), list(variables), learning_rate),
            group=False,
        )

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: `step_` decays the weights, in line 10."""


def changed_methods() -> list[str]:
    """The private methods that this Keras has not, or has otherwise."""
    changed = []
    for name, wanted in METHODS.items():
        method = getattr(keras.optimizers.Optimizer, name, None)
        found = inspect.signature(method).parameters if method else ()
        if list(found) != ["self", *wanted]:
            changed.append(name)
    return changed


def check_keras() -> None:
    """ImportError where this Keras has not the methods that are overridden."""
    changed = changed_methods()
    if changed:
        raise ImportError(
            f"keras_lanton needs {', '.join(changed)} of "
            "keras.optimizers.Optimizer, which this Keras has not, or with "
            f"other arguments. The newest Keras that works is {NEWEST_KERAS}: "
            f"pip install 'keras=={NEWEST_KERAS}.*'. "
            f"Received: keras {keras.__version__}"
        )


check_keras()

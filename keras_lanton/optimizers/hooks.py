"""The hooks into Keras' optimizers: private names, or public ones.

`PrivateHooks` overrides and reads methods that are private in Keras. They have
been the same from 3.10 to 3.16: tests/keras/test_contract.py says which one
changed. `PublicHooks` needs public methods only. It is slower, and is taken
where a private method has changed, or where the environment variable
KERAS_LANTON_PUBLIC_API is 1.
"""

import inspect
import os
import re
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_lanton import backends
from keras_lanton.types import Tensor

backend = backends.load()

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


class PrivateHooks(backend.OptimizerHooks):  # type: ignore[misc, name-defined]
    """The joint update in the place of Keras' own, on its private methods.

    `LayerwiseOptimizer` sets `_backend_update_step`.
    """

    @property
    def decay(self) -> float:
        """The weight decay, 0 for none."""
        return float(self.weight_decay or 0.0)

    def _key_of(self, variable: Any) -> Any:
        """The key that identifies a variable.

        Args:
            variable: Of Keras, or the backend's.
        """
        return self._var_key(variable)

    def _position_of(self, variable: Any) -> int:
        """The number of a variable among those of `build`.

        Args:
            variable: Of Keras, or the backend's.
        """
        position: int = self._get_variable_index(variable)
        return position

    def _check_known(self, variables: Sequence[Any]) -> None:
        """ValueError for a variable that `build` did not have.

        Args:
            variables: Variables of Keras.
        """
        self._check_variables_are_known(variables)

    def may_decay(self, variable: Any) -> bool:
        """Returns whether `exclude_from_weight_decay` left a variable in.

        Args:
            variable: Of Keras.

        Returns:
            True or False.
        """
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

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: `step_` decays the weights, in line 10."""


class PublicHooks:
    """The joint update from `update_step`, which has one variable at a time.

    With gradient accumulation on JAX the work is done on every micro-step, and
    Keras takes it back. Averages of weights (`use_ema`) are updated on skipped
    steps too. `weight_decay` is None here, so that Keras does not decay:
    `decay` has it. Not with several replicas of TensorFlow.
    """

    update_variables: Callable[..., None]
    _expected: Sequence[Any]  # the variables of a step
    _arrived: list[Tensor]  # their gradients, as far as they came

    def __init__(self, learning_rate: Any, **kwargs: Any) -> None:
        gamma = kwargs.pop("weight_decay", None)
        super().__init__(learning_rate, **kwargs)  # type: ignore[call-arg]
        self.decay = float(gamma or 0.0)
        self._left_out: tuple[set[int], list[str]] = set(), []
        self._given_decay = gamma

    def build(self, variables: Sequence[Any]) -> None:
        """Keras' `build`, which remembers the variables.

        Args:
            variables: The trainable variables.

        Raises:
            ValueError: With several replicas of TensorFlow.
        """
        if backend.replicas() > 1:
            raise ValueError(
                "Without Keras' private methods there is no training on "
                "several replicas of TensorFlow. Received: "
                f"{backend.replicas()} replicas, keras {keras.__version__}"
            )
        super().build(variables)  # type: ignore[misc]

    def _key_of(self, variable: Any) -> Any:
        """The key that identifies a variable.

        Args:
            variable: Of Keras.
        """
        return id(variable)

    def _position_of(self, variable: Any) -> int:
        """The number of a variable among those of `build`.

        Args:
            variable: Of Keras.
        """
        return [id(v) for v in self.built_on].index(id(variable))  # type: ignore[attr-defined]

    def _check_known(self, variables: Sequence[Any]) -> None:
        """ValueError for a variable that `build` did not have.

        Args:
            variables: Variables of Keras.
        """
        known = {id(v) for v in self.built_on}  # type: ignore[attr-defined]
        unknown = [v.path for v in variables if id(v) not in known]
        if unknown:
            raise ValueError(
                "Unknown variable: the optimizer was built on others, make a "
                f"new one for these. Received: {unknown}"
            )

    def exclude_from_weight_decay(
        self, var_list: Any = None, var_names: Any = None
    ) -> None:
        """Keras' method, which is remembered here too.

        Args:
            var_list: Variables to exclude.
            var_names: Regular expressions on variable names.
        """
        ids, names = self._left_out
        ids.update(id(variable) for variable in var_list or ())
        names += var_names or []
        super().exclude_from_weight_decay(var_list, var_names)  # type: ignore[misc]

    def may_decay(self, variable: Any) -> bool:
        """Returns whether `exclude_from_weight_decay` left a variable in.

        Args:
            variable: Of Keras.

        Returns:
            True or False.
        """
        ids, names = self._left_out
        return id(variable) not in ids and not any(
            re.search(name, variable.name) for name in names
        )

    def apply(
        self,
        grads: Sequence[Tensor],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        """Keras' `apply`, from which `update_step` gets the gradients.

        Args:
            grads: Gradients, one per variable; None where there is none.
            trainable_variables: Their variables. Defaults to those of
                `build`.
        """
        variables = trainable_variables or self.built_on  # type: ignore[attr-defined]
        expected = tuple(
            variable
            for gradient, variable in zip(grads, variables, strict=True)
            if gradient is not None
            and not getattr(variable, "overwrite_with_gradient", False)
        )
        # As `built_on`: Keras must not track them, or the gradients.
        object.__setattr__(self, "_expected", expected)
        object.__setattr__(self, "_arrived", [])
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def update_step(
        self, gradient: Tensor, variable: Any, learning_rate: Any
    ) -> None:
        """Waits for the last gradient of a step, then updates all variables.

        Args:
            gradient: Of the next variable.
            variable: Of Keras, or the backend's.
            learning_rate: Scalar.
        """
        self._arrived.append(gradient)
        if len(self._arrived) == len(self._expected):
            gradients = list(self._arrived)
            self._arrived.clear()
            self.update_variables(gradients, self._expected, learning_rate)

    def get_config(self) -> dict[str, Any]:
        """Keras' config, with the weight decay."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        return {**config, "weight_decay": self._given_decay}

    def _is_update_step(self) -> None:
        """Not known from the public counter: Keras takes steps back."""
        return None  # TensorFlow's AutoGraph wants a statement


def changed_methods() -> list[str]:
    """The private methods that this Keras has not, or has otherwise."""
    changed = []
    for name, wanted in METHODS.items():
        method = getattr(keras.optimizers.Optimizer, name, None)
        found = inspect.signature(method).parameters if method else ()
        if list(found) != ["self", *wanted]:
            changed.append(name)
    return changed


def choose() -> type:
    """`PrivateHooks` where they work and nobody asks for others."""
    if os.environ.get("KERAS_LANTON_PUBLIC_API") == "1":
        return PublicHooks
    changed = changed_methods()
    if not changed:
        return PrivateHooks
    warnings.warn(
        f"Keras {keras.__version__} changed {', '.join(changed)}. keras_lanton "
        "goes on with Keras' public methods, which are slower: see "
        "keras_lanton/optimizers/hooks.py.",
        stacklevel=2,
    )
    return PublicHooks


Hooks: Any = choose()

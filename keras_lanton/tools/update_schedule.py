"""A learning rate schedule whose steps are updates of the weights."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown


@keras.saving.register_keras_serializable(package="keras_lanton")
class UpdateSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Another schedule, called with the number of updates.

    With `gradient_accumulation_steps` Keras calls a schedule with the number
    of micro-steps. This one counts windows of them, so that its steps are
    updates of the weights, as without accumulation.

    Args:
        schedule: A `keras.optimizers.schedules.LearningRateSchedule`, in
            updates.
        gradient_accumulation_steps: That of the optimizer; None is 1.

    Raises:
        ValueError: For another schedule, or a number below 1.

    Examples:
        >>> cosine = keras.optimizers.schedules.CosineDecay(5e-3, 1000)
        >>> Lanton(UpdateSchedule(cosine, 4), gradient_accumulation_steps=4)
    """

    def __init__(
        self, schedule: Any, gradient_accumulation_steps: int | None
    ) -> None:
        wanted = keras.optimizers.schedules.LearningRateSchedule
        if not isinstance(schedule, wanted):
            raise ValueError(
                "`schedule` must be a "
                "`keras.optimizers.schedules.LearningRateSchedule`. "
                f"Received: schedule={shown(schedule)}"
            )
        name = "gradient_accumulation_steps"
        allowed = "None or an integer of at least 1"
        check_numbers(
            {name: (allowed, lambda x: x >= 1, True)},
            **{name: gradient_accumulation_steps},
        )
        self.schedule = schedule
        self.gradient_accumulation_steps = gradient_accumulation_steps

    def __call__(self, step: Any) -> Any:
        """The rate of a micro-step.

        Args:
            step: Number of the micro-step, from 0.
        """
        window = self.gradient_accumulation_steps or 1
        return self.schedule(ops.floor_divide(step, window))

    def get_config(self) -> dict[str, Any]:
        """Both arguments, as JSON types."""
        schedule = keras.saving.serialize_keras_object(self.schedule)
        window = self.gradient_accumulation_steps
        return {"schedule": schedule, "gradient_accumulation_steps": window}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "UpdateSchedule":
        """Inverse of `get_config`."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["gradient_accumulation_steps"])

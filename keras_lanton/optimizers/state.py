"""The variables of an optimizer's state, and what they can hold."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.types import State
from keras_lanton.types import Tensor

backend = backends.load()


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Shape and dtype of a tensor of the state that is not one per variable.

    Args:
        shape: Its shape.
        dtype: Its dtype.
    """

    shape: tuple[int, ...]
    dtype: str


class StateVariables:
    """The variables of the state by name: lists of them, or single ones.

    A plain object: Keras would track lists and dicts that are attributes of
    an optimizer.

    Args:
        by_name: The variables.
        skipped_steps: The count of steps with non-finite gradients.
    """

    def __init__(self, by_name: Mapping[str, Any], skipped_steps: Any) -> None:
        self.by_name = dict(by_name)
        self.skipped_steps = skipped_steps
        # The count when `apply` was entered.
        self.skipped_before: Tensor = None

    def read(self) -> State:
        """The tensors of all variables, in lists as they are."""
        return {
            name: backend.as_tensors(held)
            if isinstance(held, list)
            else ops.convert_to_tensor(held)
            for name, held in self.by_name.items()
        }

    def as_lists(self) -> dict[str, list[Any]]:
        """The variables by name, each as a list."""
        return {
            name: held if isinstance(held, list) else [held]
            for name, held in self.by_name.items()
        }

    def holds(self, variable: Any, *, without: str = "") -> bool:
        """Returns whether a variable is part of this state.

        Args:
            variable: The variable.
            without: A name that does not count.
        """
        return any(
            one is variable
            for name, held in self.as_lists().items()
            if name != without
            for one in held
        )


def check_saved(
    position: int, variable: Any, store: Any, state: StateVariables, skips: bool
) -> None:
    """ValueError unless a variable of the state may have its saved value.

    Args:
        position: Number of the variable among all of the optimizer's.
        variable: The variable.
        store: Mapping of positions ("0", "1", ...) to arrays.
        state: The state that the variable may belong to.
        skips: Whether steps with non-finite gradients are skipped.

    Raises:
        ValueError: If the value is missing, has another shape or dtype, or is
            one that the state never holds.
    """
    what = f"Optimizer state {position}, {variable.path!r},"
    if str(position) not in store.keys():
        raise ValueError(
            f"{what} is missing. Nothing was loaded. "
            f"Received: {sorted(store.keys())}"
        )
    value = np.asarray(store[str(position)])
    if value.shape != tuple(variable.shape):
        raise ValueError(
            f"{what} has shape {tuple(variable.shape)}: the state was saved "
            "for another model or other optimizer arguments. Nothing was "
            f"loaded. Received: shape {value.shape}"
        )
    kind = variable.dtype.rstrip("0123456789").removeprefix("b")
    if not value.dtype.name.removeprefix("b").startswith(kind):
        raise ValueError(
            f"{what} has dtype {variable.dtype}. Nothing was loaded. "
            f"Received: dtype {value.dtype.name}"
        )
    bad = _impossible(variable, value, state, skips)
    if bad.any():
        raise ValueError(
            f"{what} holds a value that it never has: the file is damaged. "
            "Nothing was loaded. "
            f"Received: {value[bad].ravel()[0]} in {int(bad.sum())} of "
            f"{value.size} entries"
        )


def _impossible(
    variable: Any, value: np.ndarray, state: StateVariables, skips: bool
) -> np.ndarray:
    """Mask of the entries of a saved value that no run can give."""
    bad = np.zeros(value.shape, bool)
    is_noise = any(
        variable is state.by_name.get(name) for name in ("noise", "line_noise")
    )
    is_number = value.dtype.kind in "iu" and value.dtype != np.int8
    is_scale = any(
        variable is one for one in state.by_name.get("momentum_scale", ())
    )
    if is_number or is_noise or is_scale:
        bad |= value < 0
    if variable.name == "learning_rate" or (skips and is_noise):
        bad |= ~np.isfinite(value)
    # Within an accumulation window its sums may be NaN, to be skipped.
    if skips and state.holds(variable, without="gradient_difference"):
        bad |= np.isnan(value)
    return bad

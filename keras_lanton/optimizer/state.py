"""The variables of an optimizer's state, and what they can hold."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.types import State
from keras_lanton.types import Tensor


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
        skipped_in_a_row: The count of the last of these steps in a row.
        skipped_steps: The count of steps with non-finite gradients.
    """

    def __init__(
        self,
        by_name: Mapping[str, Any],
        skipped_in_a_row: Any,
        skipped_steps: Any,
    ) -> None:
        self.by_name = dict(by_name)
        self.skipped_in_a_row = skipped_in_a_row
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


_REFUSES = contextvars.ContextVar("refuses", default=False)


@contextlib.contextmanager
def all_or_nothing() -> Iterator[None]:
    """A state that does not fit its optimizer is an error, not a warning."""
    token = _REFUSES.set(True)
    try:
        yield
    finally:
        _REFUSES.reset(token)


def refuses_misfits() -> bool:
    """Returns whether this is within `all_or_nothing`."""
    return _REFUSES.get()


def is_of_new_optimizer(store: Any) -> bool:
    """Returns whether a saved optimizer had not been built.

    Such a file has at most two arrays: a count of 0 steps, and a rate.

    Args:
        store: Mapping of positions ("0", "1", ...) to arrays.
    """
    return 0 < len(store.keys()) <= 2 and not np.any(store["0"])


def find_misfit(variables: Sequence[Any], store: Any) -> str:
    """The reason why a saved state is not one of these variables; or "".

    Args:
        variables: The optimizer's variables.
        store: Mapping of positions ("0", "1", ...) to arrays.
    """
    if not store.keys():
        return "the file has none."
    cause = "it is of other variables, arguments or of another optimizer."
    if len(store.keys()) != len(variables):
        return (
            f"{cause} Received: {len(store.keys())} arrays for "
            f"{len(variables)} variables of the state."
        )
    for i, variable in enumerate(variables):
        wanted = tuple(variable.shape)
        found = tuple(store[str(i)].shape) if str(i) in store else wanted
        if found != wanted:
            return (
                f"{cause} Received: an array of shape {found} for "
                f"{variable.path!r} of shape {wanted}."
            )
    return ""


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
        ValueError: If the value is missing, has another dtype, or is one that
            the state never holds.
    """
    what = f"Optimizer state {position}, {variable.path!r},"
    if str(position) not in store.keys():
        raise ValueError(
            f"{what} is missing. None of the state was loaded. "
            f"Received: {sorted(store.keys())}"
        )
    value = np.asarray(store[str(position)])
    kind = variable.dtype.rstrip("0123456789").removeprefix("b")
    if not value.dtype.name.removeprefix("b").startswith(kind):
        raise ValueError(
            f"{what} has dtype {variable.dtype}. None of the state was loaded. "
            f"Received: dtype {value.dtype.name}"
        )
    bad = _impossible(variable, value, state, skips)
    if bad.any():
        raise ValueError(
            f"{what} holds a value that it never has: the file is damaged. "
            "None of the state was loaded. "
            f"Received: {value[bad].ravel()[0]} in {int(bad.sum())} of "
            f"{value.size} entries"
        )


def _impossible(
    variable: Any, value: np.ndarray, state: StateVariables, skips: bool
) -> np.ndarray:
    """Mask of the entries of a saved value that no run can give."""
    bad = np.zeros(value.shape, bool)
    name = next(
        (
            name
            for name, held in state.as_lists().items()
            if any(variable is one for one in held)
        ),
        None,
    )
    is_noise = name in ("noise", "row_noise", "col_noise")
    is_scale = name == "momentum_scale"
    is_number = value.dtype.kind in "iu" and value.dtype != np.int8
    if is_number or is_noise or is_scale:
        bad |= value < 0
    if variable.name == "learning_rate" or (skips and is_noise):
        bad |= ~np.isfinite(value)
    # Within an accumulation window its sums may be NaN, to be skipped.
    if skips and name not in (None, "gradient_difference"):
        bad |= np.isnan(value)
    return bad

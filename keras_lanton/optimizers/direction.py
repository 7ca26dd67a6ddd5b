"""Changes of the direction before and after the LMO, as a part."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.variables.stacks import Stack

# New tensors of the state: by name, then by their place in its list.
Changes = dict[str, dict[int, Tensor]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Direction:
    """The LMO as it is: the direction of all but a few optimizers."""

    def before(self, M: Tensor) -> Tensor:
        """The tensor that the LMO is taken of.

        Args:
            M: Momentum of a stack, `(n, rows, columns)`.
        """
        return M

    def after(
        self,
        O: Tensor,
        M: Tensor,
        stack: Stack,
        matrices: np.ndarray,
        weights: Sequence[Any],
        state: State,
    ) -> tuple[Tensor, Changes]:
        """The direction, and changes of the state.

        Args:
            O: The `lmo` of `before(M)`, `(n, rows, columns)` float32.
            M: Momentum of the stack, likewise.
            stack: The stack.
            matrices: Positions of its matrices among all, `(n,)` int32.
            weights: 1 - b1, or 0 without a gradient: scalars, one per
                variable.
            state: The state after the momentum was updated.

        Returns:
            `(n, rows, columns)` float32, and the changes.
        """
        return O, {}


def with_changes(state: State, changes: Mapping[str, Any]) -> State:
    """The state with some tensors of its lists replaced.

    Args:
        state: The state.
        changes: From `Direction.after`.
    """
    replaced = {
        name: [tensors.get(i, old) for i, old in enumerate(state[name])]
        for name, tensors in changes.items()
    }
    return {**state, **replaced}

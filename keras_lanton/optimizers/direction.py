"""The direction that a matrix is updated along, as a part."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_lanton.norms.norms import Norm
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.variables.stacks import Stack

# New tensors of the state: by name, then by their place in its list.
Changes = dict[str, dict[int, Tensor]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Direction:
    """The LMO of the norm: the direction of all but a few optimizers."""

    def __call__(
        self,
        norm: Norm,
        stack: Stack,
        matrices: np.ndarray,
        M: Tensor,
        weights: Sequence[Any],
        state: State,
    ) -> tuple[Tensor, Changes]:
        """O = LMO(M), and changes of the state [Alg. 1, line 6].

        Args:
            norm: The norm of the stack's role.
            stack: The stack.
            matrices: Positions of its matrices among all, `(n,)` int32.
            M: Their momentum, `(n, rows, columns)`.
            weights: 1 - b1, or 0 without a gradient: scalars, one per
                variable.
            state: The state after the momentum was updated.

        Returns:
            `(n, rows, columns)` float32, and what changes of the state.
        """
        return norm.lmo(M), {}


def with_changes(state: State, changes: Mapping[str, Any]) -> State:
    """The state with some tensors of its lists replaced.

    Args:
        state: The state.
        changes: From a `Direction`.
    """
    replaced = {
        name: [tensors.get(i, old) for i, old in enumerate(state[name])]
        for name, tensors in changes.items()
    }
    return {**state, **replaced}

"""The layout of an optimizer's variables, made in `build`."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_lanton.types import ROLES
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.stacks import is_transposed


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VariableLayout:
    """The specs of all variables, and the numbers of their matrices.

    An updated variable is every one but the scales of float8 training, which
    Keras overwrites with their gradient. The matrices are those of the updated
    variables, in their order.

    Attributes besides the arguments are `specs` of the updated variables and
    `places`, the number of each entry's matrix. `variable_of_matrix` and
    `transpose_scale` have one number for each matrix, `role_masks` are the
    matrices of each role. `stacks` are the variables of several matrices, and
    `behind_stacks` is the place of each matrix where those come first.

    Args:
        all_specs: One spec per variable.
        updated: Positions of the updated variables.
        decayed: Whether weight decay applies, one per updated variable.
        rate_multipliers: Factor on the rate, one per updated variable.
    """

    all_specs: tuple[VariableSpec, ...]
    updated: tuple[int, ...]
    decayed: tuple[bool, ...]
    rate_multipliers: tuple[float, ...]
    # What follows, as arrays: computed once, on the host. Inside a step
    # torch.compile would trace it, and guess at lengths.
    specs: tuple[VariableSpec, ...] = dataclasses.field(init=False)
    variable_of_matrix: np.ndarray = dataclasses.field(init=False)
    places: tuple[np.ndarray, ...] = dataclasses.field(init=False)
    stacks: tuple[int, ...] = dataclasses.field(init=False)
    behind_stacks: np.ndarray = dataclasses.field(init=False)
    transpose_scale: np.ndarray = dataclasses.field(init=False)
    role_masks: tuple[np.ndarray, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        specs = tuple(self.all_specs[i] for i in self.updated)
        variable_of_matrix = np.repeat(
            np.arange(len(specs), dtype="int32"), [spec.batch for spec in specs]
        )
        stacks = tuple(i for i, spec in enumerate(specs) if spec.batch > 1)
        roles = np.array([spec.role for spec in specs])[variable_of_matrix]
        derived = {
            "specs": specs,
            "variable_of_matrix": variable_of_matrix,
            "places": _places(specs),
            "stacks": stacks,
            "behind_stacks": _behind(stacks, variable_of_matrix),
            "transpose_scale": _transpose_scales(specs)[variable_of_matrix],
            "role_masks": tuple(roles == r for r in ROLES if r in roles),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def matrices(self) -> int:
        """Number of matrices."""
        return len(self.variable_of_matrix)

    def with_roles(self, roles: Sequence[str] | None) -> list[int]:
        """Positions of the updated variables of some roles; None is all.

        Args:
            roles: The roles.
        """
        return [
            i
            for i, spec in enumerate(self.specs)
            if roles is None or spec.role in roles
        ]


def _places(specs: Sequence[VariableSpec]) -> tuple[np.ndarray, ...]:
    """Number of the matrix of each entry, one array per variable.

    int32; each broadcasts to its variable's shape.
    """
    starts = np.cumsum([0, *(spec.batch for spec in specs)], dtype="int32")
    return tuple(
        start + spec.view.matrix_numbers
        for start, spec in zip(starts, specs, strict=False)
    )


def _behind(
    stacks: Sequence[int], variable_of_matrix: np.ndarray
) -> np.ndarray:
    """Place of each matrix behind those of some variables, int32."""
    others = ~np.isin(variable_of_matrix, stacks)
    order = np.argsort(others, kind="stable")
    return np.argsort(order).astype("int32")


def _transpose_scales(specs: Sequence[VariableSpec]) -> np.ndarray:
    """d_out / d_in of hidden matrices transposed in their stack, else 1.

    By this factor the LMO and the dual norm of A^T differ from those of A.
    """
    scales = [
        spec.d_out / spec.d_in
        if spec.role == "hidden" and is_transposed(spec)
        else 1.0
        for spec in specs
    ]
    return np.array(scales, "float32")

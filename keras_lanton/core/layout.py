"""The layout of an optimizer's variables, made in `build`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.types import ROLES
from keras_lanton.types import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VariableLayout:
    """The specs of all variables, and the numbers of their matrices.

    An updated variable is every one but the scales of float8 training, which
    Keras overwrites with their gradient. A step sees a variable that is cut as
    several, its pieces: `split` makes them, `join` takes them back. Below,
    "variable" means a piece, and the matrices are those of all pieces.

    Attributes besides the arguments are `specs` of the pieces and `places`,
    the number of the matrix of each entry that this process has.
    `variable_of_matrix` has one number for each matrix, `role_masks` are the
    matrices of each role. `stacks` are the variables of several matrices, and
    `behind_stacks` is the place of each matrix where those come first.

    Args:
        all_specs: One spec per variable.
        updated: Positions of the updated variables.
        decayed: Whether weight decay applies, one per updated variable; then
            one per piece.
        rate_multipliers: Factor on the rate, likewise.
        placements: Where its parts lie, from the backend's `layouts`,
            likewise; those of pieces are None. Empty is None for all.
    """

    all_specs: tuple[VariableSpec, ...]
    updated: tuple[int, ...]
    decayed: tuple[bool, ...]
    rate_multipliers: tuple[float, ...]
    placements: tuple[Any, ...] = ()
    # What follows, as arrays: computed once, on the host. Inside a step
    # torch.compile would trace it, and guess at lengths.
    specs: tuple[VariableSpec, ...] = dataclasses.field(init=False)
    variable_of_matrix: np.ndarray = dataclasses.field(init=False)
    places: tuple[np.ndarray, ...] = dataclasses.field(init=False)
    stacks: tuple[int, ...] = dataclasses.field(init=False)
    behind_stacks: np.ndarray = dataclasses.field(init=False)
    role_masks: tuple[np.ndarray, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        counts = [len(spec.pieces) for spec in self.updated_specs]
        specs = tuple(p for spec in self.updated_specs for p in spec.pieces)
        variable_of_matrix = np.repeat(
            np.arange(len(specs), dtype="int32"), [spec.batch for spec in specs]
        )
        stacks = tuple(i for i, spec in enumerate(specs) if spec.batch > 1)
        given = self.placements or (None,) * len(counts)
        placements = tuple(
            place if count == 1 else None
            for place, count in zip(given, counts, strict=True)
            for _ in range(count)
        )
        roles = np.array([spec.role for spec in specs])[variable_of_matrix]
        derived = {
            "decayed": tuple(np.repeat(self.decayed, counts).tolist()),
            "rate_multipliers": tuple(
                np.repeat(self.rate_multipliers, counts).tolist()
            ),
            "specs": specs,
            "variable_of_matrix": variable_of_matrix,
            "placements": placements,
            "places": tuple(
                backend.part_of_numbers(place, where)
                for place, where in zip(_places(specs), placements, strict=True)
            ),
            "stacks": stacks,
            "behind_stacks": _behind(stacks, variable_of_matrix),
            "role_masks": tuple(roles == r for r in ROLES if r in roles),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def matrices(self) -> int:
        """Number of matrices."""
        return len(self.variable_of_matrix)

    @property
    def updated_specs(self) -> tuple[VariableSpec, ...]:
        """One spec per updated variable, whole."""
        return tuple(self.all_specs[i] for i in self.updated)

    @property
    def is_cut(self) -> bool:
        """True if any variable has several pieces."""
        return len(self.specs) > len(self.updated)

    def with_roles(self, roles: Sequence[str] | None) -> list[int]:
        """Positions of the variables of some roles; None is all."""
        return _with_roles(self.specs, roles)

    def whole_with_roles(self, roles: Sequence[str] | None) -> list[int]:
        """The same among the updated variables, not cut."""
        return _with_roles(self.updated_specs, roles)

    def split(
        self, tensors: Sequence[Tensor], roles: Sequence[str] | None = None
    ) -> list[Tensor]:
        """The pieces of the updated variables' tensors; on PyTorch views.

        Args:
            tensors: One per updated variable of some roles, of its shape.
            roles: The roles; None is all.
        """
        if not self.is_cut:
            return list(tensors)
        specs = [self.updated_specs[i] for i in self.whole_with_roles(roles)]
        found: list[Tensor] = []
        for spec, tensor in zip(specs, tensors, strict=True):
            if spec.cut_axis is None:
                found.append(tensor)
            else:
                ends = np.cumsum(spec.cut_sizes)[:-1].tolist()
                found += ops.split(tensor, ends, axis=spec.cut_axis)
        return found

    def join(
        self,
        pieces: Sequence[Tensor],
        before: Sequence[Tensor],
        tensors: Sequence[Tensor],
        roles: Sequence[str] | None = None,
    ) -> list[Tensor]:
        """Inverse of `split`.

        Args:
            pieces: New pieces.
            before: What `split` made of the tensors.
            tensors: The tensors, which stay where the pieces are those before:
                overwritten views of them.
            roles: As in `split`.
        """
        if not self.is_cut:
            return list(pieces)
        specs = [self.updated_specs[i] for i in self.whole_with_roles(roles)]
        found, start = [], 0
        for spec, tensor in zip(specs, tensors, strict=True):
            stop = start + len(spec.pieces)
            new, old = pieces[start:stop], before[start:stop]
            same = all(x is y for x, y in zip(new, old, strict=True))
            if spec.cut_axis is None:
                found.append(new[0])
            else:
                found.append(
                    tensor if same else ops.concatenate(new, spec.cut_axis)
                )
            start = stop
        return found


def _with_roles(
    specs: Sequence[VariableSpec], roles: Sequence[str] | None
) -> list[int]:
    return [
        i for i, spec in enumerate(specs) if roles is None or spec.role in roles
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

"""What an optimizer knows of its variables before and after it is built."""

import re
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_lanton import roles
from keras_lanton.backends.functional import Devices
from keras_lanton.roles import Layer
from keras_lanton.rounds import SMALL_BYTES
from keras_lanton.rounds import Places
from keras_lanton.rounds import Round
from keras_lanton.rounds import find_places
from keras_lanton.rounds import make_rounds
from keras_lanton.stacks import Stack
from keras_lanton.stacks import equal_stacks
from keras_lanton.stacks import largest_size
from keras_lanton.stacks import positions
from keras_lanton.stacks import useful_size


class Plan:
    """Roles by their source, and what was decided.

    A plain object: Keras would track the variables in lists and dicts that
    are attributes of an optimizer.

    Args:
        weight_decay_exclude: Regular expressions on variable paths, or None.
        configured: Layers of an earlier optimizer, from its config.
    """

    def __init__(
        self,
        weight_decay_exclude: Sequence[str] | None,
        configured: Sequence[Layer],
    ) -> None:
        self.weight_decay_exclude = (
            None
            if weight_decay_exclude is None
            else tuple(weight_decay_exclude)
        )
        self.configured = list(configured)
        self.assigned: dict[Any, Layer] = {}
        self.read: dict[Any, Layer] = {}
        self.layers: tuple[Layer, ...] = ()
        self.decayed: tuple[bool, ...] = ()
        self.moving: list[int] = []
        # For each matrix, the position of its layer among the moving ones.
        self.owners: np.ndarray = np.zeros(0, "int32")
        # For each role that occurs, which matrices have it.
        self.groups: list[np.ndarray] = []
        # d_out / d_in of those that lie transposed in their stack, else 1: by
        # it the LMO and the dual norm of A^T differ from those of A.
        self.flips: np.ndarray = np.zeros(0, "float32")
        # The state's variables: lists of them, or single ones.
        self.state: dict[str, Any] = {}
        # What is orthogonalized together, and what is measured together.
        self.stacks: list[tuple[Stack, np.ndarray]] = []
        self.rounds: list[Round] = []
        self.places: Places = find_places([], [])
        # For each round; also the turn on which no share is measured.
        self.share_counts: np.ndarray = np.zeros(0, "int32")
        # Where the moving layers' weights lie, as the backend says it.
        self.layouts: list[Any] = []
        # The count of skipped steps when `apply` was entered.
        self.skipped_before: Any = None

    def decide(
        self, keys: Sequence[Any], variables: Sequence[Any]
    ) -> tuple[Layer, ...]:
        """One layer per variable: by hand, read, from config, or inferred."""
        unknown = [
            layer.path
            for key, layer in self.assigned.items()
            if key not in keys
        ]
        if unknown:
            raise ValueError(
                "`assign_role` was called for variables that the optimizer is "
                "not built on. Allowed: "
                f"{[roles.variable_path(v) for v in variables]}. "
                f"Received: {unknown}"
            )
        configured = _match(self.configured, variables)
        given = [
            self._given(key, configured.get(i)) for i, key in enumerate(keys)
        ]
        if None in given:
            return roles.infer_roles(variables, given)
        return tuple(layer for layer in given if layer is not None)

    def with_roles(self, wanted: Sequence[str] | None) -> list[int]:
        """Positions of the moving layers of some roles; None is all."""
        return [
            i
            for i, number in enumerate(self.moving)
            if wanted is None or self.layers[number].role in wanted
        ]

    def number_matrices(self) -> None:
        """Sets what step needs of the noise's layout.

        Once, on the host: inside a step torch.compile would trace it, and
        guess at lengths.
        """
        layers = [self.layers[i] for i in self.moving]
        sizes = [layer.batch for layer in layers]
        self.owners = np.repeat(np.arange(len(layers), dtype="int32"), sizes)
        flips = [
            layer.d_out / layer.d_in
            if layer.role == "hidden" and layer.d_in > layer.d_out
            else 1.0
            for layer in layers
        ]
        self.flips = np.array(flips, "float32")[self.owners]
        names = np.array([layer.role for layer in layers])[self.owners]
        self.groups = [names == role for role in roles.ROLES if role in names]

    def lay_out(
        self,
        *,
        interval: int | None,
        staggered: bool,
        max_temporary_bytes: int,
        roles: Sequence[str] = roles.ROLES,
        devices: Devices | None = None,
    ) -> None:
        """Sets which matrices are worked on together, and when measured.

        Args:
            interval: Steps from one measurement of a matrix to the next; None
                if none is measured.
            staggered: Whether a part is measured on every step.
            max_temporary_bytes: What one stack may need in temporaries.
            roles: Of the layers that are worked on.
            devices: That share out the work.
        """
        layers = [self.layers[i] for i in self.moving]
        stacks = equal_stacks(layers, roles)
        self.stacks = [
            (piece, positions(piece, layers))
            for stack in stacks
            for piece in stack.cut(
                int(
                    min(
                        largest_size(stack, max_temporary_bytes, devices),
                        useful_size(stack, devices),
                    )
                ),
                whole_layers=True,
            )
        ]
        self.rounds = []
        if interval is not None:
            self.rounds = make_rounds(
                stacks,
                interval=interval,
                staggered=staggered,
                max_bytes=max_temporary_bytes,
                small_bytes=SMALL_BYTES if devices is None else 0,
            )
        self.places = find_places(self.rounds, layers)
        counts = [len(r.shares) for r in self.rounds]
        self.share_counts = np.array(counts, "int32")

    def temporary_bytes(self) -> int:
        """The most that one stack or share needs beyond the state."""
        work = [len(s) * s.temporary_bytes for s, _ in self.stacks]
        work += [r.size * r.shares[0].temporary_bytes for r in self.rounds]
        return max(work, default=0)

    def decide_decay(
        self,
        variables: Sequence[Any],
        allowed: Callable[[Any], bool],
    ) -> None:
        """Sets which variables decay.

        Args:
            variables: The variables, in order.
            allowed: What Keras' `exclude_from_weight_decay` leaves.
        """
        patterns = self.weight_decay_exclude or ()
        paths = [roles.variable_path(variable) for variable in variables]
        for pattern in patterns:
            if not any(re.search(pattern, path) for path in paths):
                warnings.warn(
                    "`weight_decay_exclude` has a pattern that matches no "
                    f"variable path. Received: {pattern!r}",
                    stacklevel=2,
                )
        self.decayed = tuple(
            allowed(variable)
            and not any(re.search(pattern, path) for pattern in patterns)
            for variable, path in zip(variables, paths, strict=True)
        )

    def _given(self, key: Any, configured: Layer | None) -> Layer | None:
        return self.assigned.get(key) or self.read.get(key) or configured

    def to_config(self) -> list[dict[str, Any]] | None:
        """Records for `get_config`: all of them once they are decided."""
        given = {**self.read, **self.assigned}
        known = list(self.layers) or self.configured + list(given.values())
        return [roles.layer_to_config(layer) for layer in known] or None


def _match(
    records: Sequence[Layer], variables: Sequence[Any]
) -> dict[int, Layer]:
    """Position of the variable that each record of a config speaks of.

    By path and shape, in order, since paths are not unique. Numbers that
    Keras adds to names may differ between processes, and a loaded
    `Sequential` leaves its own name out of its variables' paths.
    """
    matched: dict[int, Layer] = {}
    left = list(records)
    for same in (_equal, _equal_but_for_numbers, _one_ends_in_the_other):
        for i, variable in enumerate(variables):
            path, shape = roles.variable_path(variable), tuple(variable.shape)
            for layer in left if i not in matched else ():
                if shape == layer.shape and same(path, layer.path):
                    matched[i] = layer
                    left.remove(layer)
                    break
    if left:
        raise ValueError(
            "The optimizer's config holds the roles of another model: "
            "`config['roles']` must be None or match the variables. Allowed: "
            f"{[(roles.variable_path(v), tuple(v.shape)) for v in variables]}. "
            f"Received: {[(layer.path, layer.shape) for layer in left]}"
        )
    return matched


def _equal(one: str, two: str) -> bool:
    return one == two


def _equal_but_for_numbers(one: str, two: str) -> bool:
    return _without_numbers(one) == _without_numbers(two)


def _one_ends_in_the_other(one: str, two: str) -> bool:
    short, long = sorted(map(_without_numbers, (one, two)), key=len)
    return long.endswith(f"/{short}")


def _without_numbers(path: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", path)

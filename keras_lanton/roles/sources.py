"""The sources of specs: set by hand, read from the model, saved, inferred."""

import dataclasses
import re
import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keras_lanton.roles.from_paths import infer_roles
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import assigned_spec
from keras_lanton.roles.spec import check_role
from keras_lanton.roles.spec import spec_from_config
from keras_lanton.roles.spec import spec_to_config
from keras_lanton.roles.spec import variable_path
from keras_lanton.types import Variable
from keras_lanton.validation import shown


class SpecSources:
    """The specs that are known before an optimizer is built, by source.

    A plain object: Keras would track the dicts if they were attributes of an
    optimizer.

    Args:
        records: Specs of an earlier optimizer, from its config, or None.

    Raises:
        ValueError: If the records are not those of a config.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]] | None) -> None:
        self.saved, self.patterns = _read_records(records)
        self.assigned: dict[Any, VariableSpec] = {}
        self.read: dict[Any, VariableSpec] = {}

    def decide(
        self, keys: Sequence[Any], variables: Sequence[Variable]
    ) -> tuple[VariableSpec, ...]:
        """One spec per variable: by hand, else read, else saved, else inferred.

        Raises:
            ValueError: If roles were assigned to other variables than these.
        """
        self._check_assigned(keys, variables)
        matching = self._assigned_by_pattern(keys, variables)
        saved, left = _match(self.saved, variables)
        given = [
            self.assigned.get(key)
            or matching.get(i)
            or self.read.get(key)
            or saved.get(i)
            for i, key in enumerate(keys)
        ]
        if None not in given:
            return tuple(spec for spec in given if spec is not None)
        found = infer_roles(variables, given)
        inferred = [
            spec
            for spec, known in zip(found, given, strict=True)
            if known is None
        ]
        _warn_of_dropped(left, inferred)
        return found

    def _check_assigned(
        self, keys: Sequence[Any], variables: Sequence[Variable]
    ) -> None:
        unknown = [
            spec.path for key, spec in self.assigned.items() if key not in keys
        ]
        if unknown:
            raise ValueError(
                "`assign_role` was called for variables that the optimizer is "
                "not built on. Allowed: "
                f"{[variable_path(v) for v in variables]}. "
                f"Received: {unknown}"
            )

    def _assigned_by_pattern(
        self, keys: Sequence[Any], variables: Sequence[Variable]
    ) -> dict[int, VariableSpec]:
        """The specs that patterns give, by the variables' positions."""
        paths = [variable_path(variable) for variable in variables]
        found: dict[int, VariableSpec] = {}
        for one in self.patterns:
            matching = [i for i, p in enumerate(paths) if one.matches(p)]
            if not matching:
                raise ValueError(
                    "`assign_role` was called with an expression that matches "
                    f"no variable path. Allowed: {paths}. "
                    f"Received: {one.pattern!r}"
                )
            for i in matching:
                if i in found or keys[i] in self.assigned:
                    raise ValueError(
                        "`assign_role` takes each variable once. Received: "
                        f"{one.pattern!r}, which matches {paths[i]!r} again"
                    )
                shape = tuple(variables[i].shape)
                found[i] = assigned_spec(
                    paths[i], shape, one.role, **one.options
                )
        return found

    def to_config(
        self, decided: Sequence[VariableSpec]
    ) -> list[dict[str, Any]] | None:
        """Records for `get_config`.

        Args:
            decided: The specs of all variables; empty before the build, where
                the records are of those that are known already.
        """
        given = [*{**self.read, **self.assigned}.values()]
        saved = list(self.saved)
        for spec in given:
            for old in saved:
                if (old.path, old.shape) == (spec.path, spec.shape):
                    saved.remove(old)
                    break
        known = list(decided) or given + saved
        made = [spec_to_config(spec) for spec in known]
        if not decided:
            made += [dataclasses.asdict(one) for one in self.patterns]
        return made or None


@dataclasses.dataclass(frozen=True)
class PathPattern:
    """A role for all variables whose path a pattern matches.

    Args:
        pattern: A regular expression on paths.
        role: The role.
        options: Further arguments of `assigned_spec`, as JSON has them.

    Raises:
        ValueError: For a wrong expression or role.
    """

    pattern: str
    role: str
    options: dict[str, Any]

    def __post_init__(self) -> None:
        check_role(self.role)
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                "`variables` must be variables or a regular expression on "
                f"their paths: {error}. Received: {self.pattern!r}"
            ) from error

    def matches(self, path: str) -> bool:
        """Returns whether it matches a path, or a part of it."""
        return re.search(self.pattern, path) is not None


def _read_records(
    records: Any,
) -> tuple[list[VariableSpec], list[PathPattern]]:
    """The specs and patterns of a config's `roles`, or a ValueError."""
    specs, patterns = [], []
    try:
        for record in records or ():
            if "pattern" in record:
                patterns.append(PathPattern(**record))
            else:
                specs.append(spec_from_config(record))
        return specs, patterns
    except Exception as error:
        raise ValueError(
            "`roles` must be None or the records of a config. "
            f"Received: roles={shown(records)}"
        ) from error


def _match(
    records: Sequence[VariableSpec], variables: Sequence[Variable]
) -> tuple[dict[int, VariableSpec], list[VariableSpec]]:
    """The saved spec of each variable, by its position, and what is left.

    Matched by path and shape, in order, since paths are not unique. Numbers
    that Keras adds to names may differ between processes, and a loaded
    `Sequential` leaves its own name out of its variables' paths. Where all
    names differ by numbers alone, the order decides: dense_1 of one process
    may be dense_2 of another. Records that are left over are of variables
    that are frozen by now, or of another model.
    """
    places = [(variable_path(v), tuple(v.shape)) for v in variables]
    if _are_renumbered(records, places):
        return dict(enumerate(records)), []
    matched: dict[int, VariableSpec] = {}
    left = list(records)
    for same in (_equal, _equal_but_for_numbers, _one_ends_in_the_other):
        for i, (path, shape) in enumerate(places):
            if i in matched:
                continue
            for spec in left:
                if shape == spec.shape and same(path, spec.path):
                    matched[i] = spec
                    left.remove(spec)
                    break
    return matched, left


def _warn_of_dropped(
    left: Sequence[VariableSpec], inferred: Sequence[VariableSpec]
) -> None:
    """Warns of saved roles that a renamed variable may be meant to have.

    Args:
        left: Saved specs that no variable has.
        inferred: Specs of the variables that no saved one fits.
    """
    told = []
    for old in left:
        alike = [new for new in inferred if new.shape == old.shape]
        same = any((n.role, n.view) == (old.role, old.view) for n in alike)
        if alike and not same:
            names = ", ".join(new.path for new in alike)
            told.append(f"{old.path} was {old.role} ({names} now)")
    if told:
        warnings.warn(
            "The optimizer's config holds roles of variables that this model "
            "does not have. They are dropped, and those of other variables of "
            f"the same shape are inferred: {'; '.join(told)}. Before the "
            "first step, `assign_role` sets them by hand.",
            stacklevel=3,
        )


def _are_renumbered(
    records: Sequence[VariableSpec],
    places: Sequence[tuple[str, tuple[int, ...]]],
) -> bool:
    """Returns whether paths differ, in order, by Keras' numbers alone."""
    saved = [(spec.path, spec.shape) for spec in records]
    return sorted(saved) != sorted(places) and [
        (without_numbers(path), shape) for path, shape in saved
    ] == [(without_numbers(path), shape) for path, shape in places]


def _equal(one: str, two: str) -> bool:
    return one == two


def _equal_but_for_numbers(one: str, two: str) -> bool:
    return without_numbers(one) == without_numbers(two)


def _one_ends_in_the_other(one: str, two: str) -> bool:
    short, long = sorted(map(without_numbers, (one, two)), key=len)
    return long.endswith(f"/{short}")


def without_numbers(path: str) -> str:
    """The path without the numbers that Keras gives to equal names."""
    return re.sub(r"_\d+(?=/|$)", "", path)

"""An optimizer's decisions on its variables: roles, decay, multipliers."""

import difflib
import math
import re
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from keras_lanton.backends import backend
from keras_lanton.core.layout import VariableLayout
from keras_lanton.optimizer.hooks import Hooks
from keras_lanton.optimizer.state import StateVariables
from keras_lanton.roles import table
from keras_lanton.roles.from_layers import read_model
from keras_lanton.roles.sources import PathPattern
from keras_lanton.roles.sources import SpecSources
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import assigned_spec
from keras_lanton.roles.spec import variable_path
from keras_lanton.validation import shown


class Deciding(Hooks):
    """Roles and matrix views of the variables, and their decay and rates.

    `LayerwiseOptimizer` has the attributes.
    """

    # The variables of `build`, in their order.
    built_on: tuple[Any, ...] = ()
    _layout: VariableLayout
    _sources: SpecSources
    _state: StateVariables
    _weight_decay_exclude: tuple[str, ...] | None
    _rate_multipliers: dict[str, float] | None

    def read_roles(self, model: keras.Model) -> "Deciding":
        """Reads roles and matrix views from the model's layers.

        Args:
            model: A built model, before this optimizer's first step.

        Returns:
            This optimizer, so that `compile` can take the result.

        Raises:
            ValueError: If the optimizer is built, or the model is not; or if
                parameters are DTensors of PyTorch.
        """
        self._check_not_built("read_roles")
        built = getattr(model, "built", False)
        if not built or not model.trainable_variables:
            raise ValueError(
                "`read_roles` needs a built model with trainable variables: "
                "call it on data once, or `model.build(input_shape)`. "
                f"Received: model={shown(model)}"
            )
        backend.check_whole(model.trainable_variables, model)
        self._sources.read.update(
            (self._key_of(variable), spec)
            for variable, spec in read_model(model)
        )
        return self

    def assign_role(
        self,
        role: str,
        variables: Any,
        input_axes: int | Sequence[int] | None = None,
        output_axes: int | Sequence[int] | None = None,
        *,
        input_parts: int | Sequence[int] | None = None,
        output_parts: int | Sequence[int] | None = None,
    ) -> None:
        """Sets the role of variables by hand, before the first step.

        Args:
            role: `"hidden"`, `"embedding"` or `"vector"`.
            variables: A variable or a sequence of variables; or a regular
                expression on their paths, which must match one at least.
            input_axes: Axes contracted with the layer's input. Axes in
                neither tuple number the matrices of a stack.
            output_axes: Axes of the layer's output.
            input_parts: Number of equal parts of the last input axis, or
                their sizes. Each part is a matrix of its own.
            output_parts: The same of the last output axis: queries, keys and
                values in one kernel, or gate and up.

        Raises:
            ValueError: For an unknown role, axes that overlap or do not
                exist, parts that do not make up their axis, a variable set
                twice, or a built optimizer. When it is built, for an
                expression that matches no variable.

        Examples:
            >>> lanton = Lanton()
            >>> lanton.assign_role("hidden", "qkv/kernel", output_parts=3)
        """
        self._check_not_built("assign_role")
        options = {
            "input_axes": input_axes,
            "output_axes": output_axes,
            "input_parts": input_parts,
            "output_parts": output_parts,
        }
        if isinstance(variables, str):
            pattern = PathPattern(variables, role, options)
            self._sources.patterns.append(pattern)
            return
        if not isinstance(variables, (list, tuple)):
            variables = [variables]
        if not variables:
            raise ValueError(
                "`variables` must name at least one variable. "
                f"Received: variables={variables!r}"
            )
        made: dict[Any, VariableSpec] = {}
        for variable in variables:
            if not hasattr(variable, "shape") or not hasattr(variable, "name"):
                raise ValueError(
                    "`variables` must be variables of the model. "
                    f"Received: {shown(variable)}"
                )
            key, path = self._key_of(variable), variable_path(variable)
            if key in made or key in self._sources.assigned:
                raise ValueError(
                    "`assign_role` takes each variable once. "
                    f"Received: variables with {path!r} again"
                )
            made[key] = assigned_spec(
                path, tuple(variable.shape), role, **options
            )
        self._sources.assigned.update(made)

    @property
    def layers(self) -> tuple[VariableSpec, ...]:
        """The decided specs, one per variable, in their order.

        Raises:
            ValueError: Before the optimizer is built.
        """
        self._check_built("layers")
        return self._layout.all_specs

    @property
    def updated_specs(self) -> tuple[VariableSpec, ...]:
        """The specs of the variables that `step_` updates.

        They leave out the scales of float8 training, which Keras overwrites
        with their gradient, and variables without an entry.

        Raises:
            ValueError: Before the optimizer is built.
        """
        return self._layout.updated_specs if self.layers else ()

    def summary(self, print_fn: Callable[[str], None] | None = None) -> None:
        """Prints the role and the matrices of every variable as a table.

        The table also has paths, shapes, the RMS of each update at learning
        rate 1, totals per role, the memory of the state, and the views that
        are guesses.

        Args:
            print_fn: Takes the table as a string. Defaults to `print`.

        Raises:
            ValueError: Before the optimizer is built.
        """
        self._check_built("summary")
        steps = [self.describe_step(spec) for spec in self.layers]
        factors = self.multipliers_of(self.layers)
        told = table.describe_multipliers(self.layers, factors)
        notes = [self._memory(), *told]
        table.print_summary(self.layers, print_fn, steps=steps, notes=notes)

    def describe_step(self, spec: VariableSpec) -> str:
        """The size of a variable's updates, for `summary`; "" for none.

        Args:
            spec: One of `layers`.
        """
        return ""

    def _memory(self) -> str:
        """One line on the memory of the state."""
        return table.describe_memory(
            {
                name: table.count_bytes(held)
                for name, held in self._state.as_lists().items()
            },
            total=table.count_bytes(self.variables),
            weights=table.count_bytes(self.built_on),
        )

    def _check_built(self, name: str) -> None:
        if not self.built:
            raise ValueError(
                f"`{name}` needs a built optimizer. The first step builds it; "
                "or call `model.build(input_shape)`, if the model is not "
                "built, and `optimizer.build(model.trainable_variables)`. "
                f"Received: {type(self).__name__} before its first step"
            )

    def _check_not_built(self, method: str) -> None:
        if self.built:
            raise ValueError(
                f"`{method}` must be called before the optimizer is built, "
                "that is before its first step. Received: an optimizer built "
                f"on {len(self.layers)} variables"
            )

    def decide_specs(
        self, variables: Sequence[Any]
    ) -> tuple[VariableSpec, ...]:
        """The specs that `build` on these variables would decide.

        Args:
            variables: The trainable variables.

        Returns:
            One spec per variable.

        Raises:
            ValueError: If roles were assigned to other variables than these.
        """
        keys = [self._key_of(variable) for variable in variables]
        return self._sources.decide(keys, variables)

    def _decide_decay(
        self, variables: Sequence[Any], specs: Sequence[VariableSpec]
    ) -> list[bool]:
        """Returns whether weight decay applies to each variable."""
        found = matching(self._weight_decay_exclude or (), specs)
        return [
            self.may_decay(variable) and not patterns
            for variable, patterns in zip(variables, found, strict=True)
        ]

    def without_effect(self, specs: Sequence[VariableSpec]) -> list[str]:
        """Says which patterns of arguments match no variable's path.

        It is no error: a loaded optimizer has the patterns that were saved,
        and the paths of a loaded model may have other numbers, or lack the
        model's own name.

        Args:
            specs: Of the variables, from `layers` or `decide_specs`.
        """
        given = {
            "rate_multipliers": self._rate_multipliers or {},
            "weight_decay_exclude": self._weight_decay_exclude or (),
        }
        paths = [spec.path for spec in specs]
        return [
            f"`{name}` has a pattern that matches no variable path. The "
            f"nearest is {difflib.get_close_matches(pattern, paths, 1, 0.0)}. "
            f"Received: {pattern!r}"
            for name, patterns in given.items()
            for pattern in patterns
            if not any(re.search(pattern, path) for path in paths)
        ]

    def multipliers_of(self, specs: Sequence[VariableSpec]) -> list[float]:
        """The factor of `rate_multipliers` on the rate of each variable.

        Args:
            specs: Of the variables, from `layers` or `decide_specs`.
        """
        factors = self._rate_multipliers or {}
        found = matching(tuple(factors), specs)
        return [
            math.prod(float(factors[pattern]) for pattern in patterns)
            for patterns in found
        ]

    def exclude_from_weight_decay(
        self, var_list: Any = None, var_names: Any = None
    ) -> None:
        """Keras' method, refused when it would come too late.

        The config does not hold what it sets; it holds `weight_decay_exclude`.

        Args:
            var_list: Variables to exclude.
            var_names: Regular expressions on variable names.

        Raises:
            ValueError: If the optimizer is built, or `var_names` is a string,
                which Keras takes letter by letter.
        """
        self._check_not_built("exclude_from_weight_decay")
        if isinstance(var_names, str):
            raise ValueError(
                "`var_names` must be a list of regular expressions. "
                f"Received: var_names={var_names!r}"
            )
        super().exclude_from_weight_decay(var_list, var_names)


def matching(
    patterns: Sequence[str], specs: Sequence[VariableSpec]
) -> list[list[str]]:
    """The patterns that match each variable's path."""
    return [[p for p in patterns if re.search(p, x.path)] for x in specs]

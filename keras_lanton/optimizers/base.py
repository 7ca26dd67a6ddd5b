"""The Keras side of an optimizer that updates all variables in one step.

No algorithm is in here: `LayerwiseOptimizer` decides what every variable is,
makes the state, takes the gradients from Keras' hooks, and calls `step_` with
(gradients, weights, state, learning rate), which subclasses write.

Methods that are private in Keras are overridden and read in `hooks` alone.
"""

import functools
import math
import re
import sys
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.optimizers.hooks import Hooks
from keras_lanton.optimizers.state import Buffer
from keras_lanton.optimizers.state import StateVariables
from keras_lanton.optimizers.state import check_saved
from keras_lanton.optimizers.state import find_misfit
from keras_lanton.optimizers.state import is_of_new_optimizer
from keras_lanton.optimizers.state import refuses_misfits
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import check_base_arguments
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_multipliers
from keras_lanton.validation import check_names
from keras_lanton.validation import check_patterns
from keras_lanton.validation import shown
from keras_lanton.variables import table
from keras_lanton.variables.adapters import zero_adapters
from keras_lanton.variables.layout import VariableLayout
from keras_lanton.variables.matrix_view import to_matrices
from keras_lanton.variables.sources import SpecSources
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.spec import assigned_spec
from keras_lanton.variables.spec import variable_path

backend = backends.load()

HUGE = float(np.finfo("float32").max) / 2
SKIPS_IN_A_ROW = 10  # from which on a run is taken as broken


class LayerwiseOptimizer(Hooks, keras.optimizers.Optimizer):  # type: ignore[misc]
    """A Keras optimizer whose step sees all variables at once.

    Subclasses write `step_`. The state that it takes and returns is a dict:

    - one list of tensors per name in `slot_dtypes`, shaped as the updated
      variables, or as those whose role is in `slot_roles`;
    - one tensor or list of tensors per name that `lay_out_work` returns;
    - `"last_step"`, `(matrices,)` int32: number of the step in which each
      matrix last had a gradient, 0 if never. A vector is one matrix.

    Args:
        learning_rate: Float, `keras.optimizers.schedules` schedule, or
            callable without arguments.
        nonfinite: `"skip"` or `"propagate"`.
        weight_decay_exclude: Regular expressions on variable paths, or None.
        rate_multipliers: Factors on the rate by regular expression on variable
            paths, or None. Factors of all that match a path are multiplied.
        roles: Records of an earlier optimizer, from its config.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    # The variables of `build`, in their order.
    built_on: tuple[Any, ...] = ()
    # Names of the tensors that each variable has, and their dtypes; None is
    # the variable's own.
    slot_dtypes: dict[str, str | None] = {}
    # Roles of the variables that have such a tensor, where not all have.
    slot_roles: Mapping[str, tuple[str, ...]] = {}
    # Arguments of subclasses that go to the config as they are.
    arguments: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate: Any,
        *,
        nonfinite: str = "skip",
        weight_decay_exclude: Sequence[str] | None = None,
        rate_multipliers: Mapping[str, float] | None = None,
        roles: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        check_choice("nonfinite", nonfinite, ("skip", "propagate"))
        check_names(type(self), kwargs)
        check_base_arguments(learning_rate, kwargs)
        check_patterns(weight_decay_exclude)
        check_multipliers(rate_multipliers)
        own_name = type(self).__name__
        if kwargs.get("name") is None and own_name.startswith("_"):
            # Keras would keep the underscore, which TensorFlow refuses.
            kwargs["name"] = own_name.strip("_").lower()
        super().__init__(learning_rate, **kwargs)
        self._given_rate = learning_rate
        self._told_of_skips = False
        self.nonfinite = nonfinite
        self._weight_decay_exclude = (
            None
            if weight_decay_exclude is None
            else tuple(weight_decay_exclude)
        )
        self._rate_multipliers = (
            None if rate_multipliers is None else dict(rate_multipliers)
        )
        self._sources = SpecSources(roles)

    # The variables' roles.

    def read_roles(self, model: keras.Model) -> "LayerwiseOptimizer":
        """Reads roles and matrix views from the model's layers.

        Args:
            model: A built model, before this optimizer's first step.

        Returns:
            This optimizer, so that `compile` can take the result.

        Raises:
            ValueError: If the optimizer is built, or the model is not.
        """
        self._check_not_built("read_roles")
        built = getattr(model, "built", False)
        if not built or not model.trainable_variables:
            raise ValueError(
                "`read_roles` needs a built model with trainable variables: "
                "call it on data once, or `model.build(input_shape)`. "
                f"Received: model={shown(model)}"
            )
        self._sources.read_model(model, self._key_of)
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
            self._sources.assign_pattern(variables, role, options)
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
            if key in made:
                raise ValueError(
                    "`assign_role` takes each variable once. "
                    f"Received: variables with {path!r} again"
                )
            made[key] = assigned_spec(
                path, tuple(variable.shape), role, **options
            )
        self._sources.assign(made)

    @property
    def schedule(self) -> Any:
        """The `LearningRateSchedule` that was given, or None."""
        given = self._given_rate
        schedules = keras.optimizers.schedules
        is_one = isinstance(given, schedules.LearningRateSchedule)
        return given if is_one else None

    @property
    def learning_rate(self) -> Any:
        """The rate of the next step, as Keras has it."""
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        keras.optimizers.Optimizer.learning_rate.fset(self, learning_rate)
        self._given_rate = learning_rate

    @property
    def micro_steps(self) -> Any:
        """The variable that counts steps, micro-steps with accumulation."""
        return self.variables[0]

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
        factors = self._layout.rate_multipliers
        notes = [self._memory(), *table.describe_multipliers(factors)]
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

    # Build.

    def build(self, variables: Sequence[Any]) -> None:
        """Decides specs, lays out the work and makes the state.

        Args:
            variables: The trainable variables, in the order of the state.

        Raises:
            ValueError: If roles were assigned to other variables than these,
                or a variable is complex.
        """
        if self.built:
            return
        _check_real(variables)
        specs = self.decide_specs(variables)
        super().build(variables)
        # Not as an attribute of Keras': it would save the model's variables.
        object.__setattr__(self, "built_on", tuple(variables))
        updated = [i for i, v in enumerate(variables) if _is_updated(v)]
        decayed = self._decide_decay(variables, specs)
        multipliers = self.multipliers_of(specs)
        self._layout = VariableLayout(
            all_specs=specs,
            updated=tuple(updated),
            decayed=tuple(decayed[i] for i in updated),
            rate_multipliers=tuple(multipliers[i] for i in updated),
        )
        buffers = self.lay_out_work(
            self._layout, [variables[i] for i in updated]
        )
        self._state = self._make_state(variables, buffers)

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
        patterns = self._weight_decay_exclude or ()
        found = _matching("weight_decay_exclude", patterns, specs)
        return [
            self.may_decay(variable) and not matching
            for variable, matching in zip(variables, found, strict=True)
        ]

    def multipliers_of(self, specs: Sequence[VariableSpec]) -> list[float]:
        """The factor of `rate_multipliers` on the rate of each variable.

        Args:
            specs: Of the variables, from `layers` or `decide_specs`.
        """
        factors = self._rate_multipliers or {}
        found = _matching("rate_multipliers", tuple(factors), specs)
        return [
            math.prod(float(factors[pattern]) for pattern in matching)
            for matching in found
        ]

    def lay_out_work(
        self, layout: VariableLayout, variables: Sequence[Any]
    ) -> dict[str, Buffer | list[Buffer]]:
        """Fixes what `step_` works on together; called once, in `build`.

        Args:
            layout: The variables.
            variables: The updated variables.

        Returns:
            The state that is not one tensor per variable, by name.
        """
        return {}

    def _make_state(
        self,
        variables: Sequence[Any],
        buffers: Mapping[str, Buffer | list[Buffer]],
    ) -> StateVariables:
        made: dict[str, Any] = {
            name: self._add_slots(variables, name) for name in self.slot_dtypes
        }
        for name, buffer in buffers.items():
            if isinstance(buffer, list):
                made[name] = [
                    self._add_buffer(f"{name}_{i}", one)
                    for i, one in enumerate(buffer)
                ]
            else:
                made[name] = self._add_buffer(name, buffer)
        counts = Buffer((self._layout.matrices,), "int32")
        made["last_step"] = self._add_buffer("last_step", counts)
        skipped = (
            self._add_buffer(name, Buffer((), "int32"))
            for name in ("skipped_in_a_row", "skipped_steps")
        )
        return StateVariables(made, *skipped)

    def _add_buffer(self, name: str, buffer: Buffer) -> Any:
        return self.add_variable(buffer.shape, "zeros", buffer.dtype, name=name)

    def _add_slots(self, variables: Sequence[Any], name: str) -> list[Any]:
        """One variable per updated one, laid out as that is."""
        layout = self._layout
        made: list[Any] = []
        for i in layout.whole_with_roles(self.slot_roles.get(name)):
            variable = variables[layout.updated[i]]
            dtype = self.slot_dtype(name, layout.updated_specs[i])
            made += (
                self.add_optimizer_variables([variable], name)
                if dtype is None
                else [self._add_slot(variable, name, dtype)]
            )
        return made

    def _add_slot(self, variable: Any, name: str, dtype: str) -> Any:
        return self.add_variable(
            tuple(variable.shape),
            "zeros",
            dtype,
            layout=getattr(variable, "_layout", None),
            name=f"{variable_path(variable)}_{name}".replace("/", "_"),
        )

    def slot_dtype(self, name: str, spec: VariableSpec) -> str | None:
        """The dtype of a variable's tensor of the state; None for its own.

        Args:
            name: A name in `slot_dtypes`.
            spec: The variable.
        """
        return self.slot_dtypes[name]

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

    def load_own_variables(self, store: Any) -> None:
        """Loads the state, all of it or nothing.

        A state of other variables or arguments is left out with a warning, as
        Keras' optimizers do: the model's weights are loaded all the same. The
        rate of an optimizer that had not taken a step is left out too: it may
        be another optimizer's, as in the weights of a model of KerasHub.

        Args:
            store: Mapping of positions ("0", "1", ...) to arrays.

        Raises:
            ValueError: If an array is missing or holds what this state never
                holds: the file is damaged. Within `load_checkpoint` also in
                place of the warning.
        """
        if is_of_new_optimizer(store):
            if int(ops.convert_to_numpy(self.micro_steps)):
                self._leave_out("it was saved before the first step.")
            return
        if not self.built:
            super().load_own_variables(store)
            return
        misfit = find_misfit(self.variables, store)
        if misfit:
            self._leave_out(misfit)
        else:
            self._load_state(store)
        self._warn_of_zero_adapters()

    def _load_state(self, store: Any) -> None:
        skips = self.nonfinite == "skip"
        for i, variable in enumerate(self.variables):
            check_saved(i, variable, store, self._state, skips)
        # Reads all of it again: a copy of the state may not fit into memory.
        super().load_own_variables(store)

    def _leave_out(self, reason: str) -> None:
        """Warns that a saved state is left out; ValueError in `all_or_nothing`.

        Args:
            reason: Why it cannot be loaded.
        """
        left_out = (
            f"The saved state of the optimizer {self.name!r} was not loaded: "
            f"{reason}"
        )
        if refuses_misfits():
            raise ValueError(left_out)
        steps = int(ops.convert_to_numpy(self.micro_steps))
        own = f"keeps its own, of {steps} steps" if steps else "starts anew"
        warnings.warn(
            f"{left_out} The optimizer {own}; the model's weights are loaded. "
            "`keras_lanton.load_checkpoint` refuses such a file.",
            stacklevel=4,
        )

    def _warn_of_zero_adapters(self) -> None:
        """Loading leaves low-rank adapters that cannot learn."""
        found = zero_adapters(self.built_on)
        if found:
            warnings.warn(
                "Keras loads low-rank adapters as zeros: their gradients are "
                "zero, so they never learn. Give their first factors new "
                'values: docs/guides/fine_tuning.md, "How do I continue a '
                f'run?". Received: {len(found)} such layers, {found[0]!r} '
                "first",
                stacklevel=3,
            )

    @property
    def skipped_steps(self) -> int:
        """Number of steps that `nonfinite="skip"` left out."""
        if not self.built:
            return 0
        return int(ops.convert_to_numpy(self._state.skipped_steps))

    # The step.

    def step_(
        self,
        G: Sequence[Tensor],
        X: Sequence[Tensor],
        state: State,
        *,
        active: Tensor,
        eta: Tensor,
        t: Tensor,
    ) -> tuple[list[Tensor], State]:
        """One step of the algorithm, written by subclasses.

        The tensors of X and the state may be overwritten: on PyTorch they are
        the variables' own. A matrix that is not active keeps its weights and
        its state: where none is, X and all lists of the state must come back
        as they are, whatever G holds. So JAX leaves out non-finite steps.

        Args:
            G: Gradients, one per updated variable, shaped as the weights.
            X: Weights, likewise.
            state: See the class.
            active: Which matrices have a gradient that is not zero
                everywhere, `(matrices,)` bool. JAX sends zeros where the
                other backends send none: both mean the same here.
            eta: Learning rate, float32 scalar.
            t: Number of this step, int32 scalar, from 1; skipped steps do
                not count.

        Returns:
            The new weights and the new state.
        """
        raise NotImplementedError

    def weight_decays(self) -> np.ndarray:
        """The decay gamma of each updated variable, 0 where it is excluded.

        Returns:
            `(variables,)`.
        """
        return np.where(self._layout.decayed, self.decay, 0.0)

    def of_matrices(self, values: np.ndarray) -> Tensor:
        """Values of the updated variables, for each of their matrices.

        Args:
            values: `(variables,)`.

        Returns:
            `(matrices,)`.
        """
        return backend.constant(values[self._layout.variable_of_matrix])

    def of_entries(self, *vectors: Tensor) -> list[list[Any]]:
        """Values of matrices, for the entries of each variable.

        Args:
            *vectors: `(matrices,)` each.

        Returns:
            For each vector one scalar per variable; where its matrices differ,
            or might, a tensor that broadcasts to the variable's shape.
        """
        found: list[list[Any]] = backend.unpack_places(
            self._layout.places, *vectors
        )
        return found

    def matrix_rates(self, eta: Tensor) -> Tensor:
        """The rate eta of each matrix, times its variable's multiplier.

        Args:
            eta: Learning rate, float32 scalar, or one for each matrix.

        Returns:
            `(matrices,)` float32.
        """
        multipliers = np.array(self._layout.rate_multipliers, "float32")
        return eta * self.of_matrices(multipliers)

    def new_state(
        self, state: State, active: Tensor, t: Tensor, **changed: Any
    ) -> State:
        """The state after a step, for the end of `step_`.

        Args:
            state: The state before the step.
            active: The argument of `step_`.
            t: The argument of `step_`.
            **changed: The entries that the step changed, by name; lists get
                the dtypes of the old, which may be overwritten.
        """
        for name, new in changed.items():
            if isinstance(new, list):
                changed[name] = backend.store_(state[name], new)
        with backend.on_host():
            last_step = backend.where(active, t, state["last_step"])
        last_step = backend.on_device(last_step)
        return {**state, **changed, "last_step": last_step}

    def observe(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> None:
        """Sees every micro-batch's gradients, before accumulation.

        Args:
            gradients: Gradients from Keras; None where there is none.
            variables: Their variables.
        """

    def apply(
        self,
        grads: Sequence[Tensor],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        """Keras' `apply`, on dense gradients of the variables' shapes.

        Args:
            grads: Gradients, one per variable; None where there is none.
            trainable_variables: The variables, or a part of those that the
                optimizer was built on. Defaults to all of them.

        Raises:
            ValueError: If a gradient has not its variable's shape, or a
                variable is unknown.
        """
        grads = [backend.dense(gradient) for gradient in grads]
        if not grads:  # Keras does nothing then.
            return
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
            self._check_known(trainable_variables)
        if self.built:
            variables = trainable_variables or self.built_on
            _check_shapes(grads, variables)
            self.observe(grads, variables)
            if self.nonfinite == "skip" and self.clipvalue is not None:
                # Keras would clip an infinite entry to a finite one.
                grads = [_infinite_as_nan(gradient) for gradient in grads]
        if self.built and self.use_ema:
            # A copy: on PyTorch the tensor would follow its variable.
            skipped = ops.convert_to_tensor(self._state.skipped_steps)
            self._state.skipped_before = skipped + 0
        try:
            super().apply(grads, trainable_variables)
        finally:
            if self.built:  # a compiled step's tensor must not outlive it
                self._state.skipped_before = None

    @backend.eager  # type: ignore[untyped-decorator]
    def update_variables(
        self,
        gradients: Sequence[Tensor],
        variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        """Reads everything, calls `step_`, assigns everything.

        Args:
            gradients: One per variable; unscaled, averaged and clipped.
            variables: The variables that have a gradient on this step.
            learning_rate: Scalar.
        """
        if not self._layout.updated:
            return
        with backend.no_grad():
            whole_X = backend.as_tensors(self._updated_variables())
            whole_state = self._state.read()
            X = self._layout.split(whole_X)
            G = self._layout.split(self._align(gradients, variables, whole_X))
            skipped = ops.convert_to_tensor(self._state.skipped_steps)
            t = ops.cast(self.iterations, "int32") - skipped + 1
            eta = ops.cast(ops.convert_to_tensor(learning_rate), "float32")

            size, last_step, in_a_row, eta, t = backend.to_host(
                self._largest_entries(G),
                whole_state["last_step"],
                ops.convert_to_tensor(self._state.skipped_in_a_row),
                eta,
                t,
            )
            whole_state["last_step"] = last_step
            state = self._split(whole_state)
            with backend.on_host():
                finite = ops.all(ops.isfinite(size))
            active = size != 0
            if backend.EAGER and self.nonfinite == "skip":
                G = self._halved(G, size)
            masks = self.nonfinite == "skip" and backend.is_compiled(finite)
            if masks:
                # A conditional around all variables takes long to compile.
                active = ops.logical_and(active, finite)
            step = functools.partial(self.step_, G, active=active, eta=eta, t=t)
            runs = self._is_update_step() if masks else self._runs(finite)
            if runs is None:
                X_new, new_state = step(X, state)
            else:
                X_new, new_state = backend.replace_if(runs, step, X, state)
            if masks:
                _keep_arrays_unless(finite, new_state, state)
            self._assign_all(
                whole_X,
                self._layout.join(X_new, X, whole_X),
                whole_state,
                self._join(new_state, state, whole_state),
            )
            if self.nonfinite == "skip":
                self._count_skips(finite, in_a_row)

    def _count_skips(self, finite: Tensor, before: Tensor) -> None:
        """Counts a skipped step.

        Args:
            finite: Whether all gradients were, bool scalar.
            before: `skipped_in_a_row`, on the host where that exists.
        """
        state, skips = self._state, 1 - ops.cast(finite, "int32")
        total = ops.convert_to_tensor(state.skipped_steps)
        count = ops.convert_to_tensor(state.skipped_in_a_row)
        self.assign(state.skipped_steps, total + skips)
        # Stays from the limit on, so that whoever looks later sees it.
        ends = (1 - skips) * ops.cast(count < SKIPS_IN_A_ROW, "int32")
        self.assign(state.skipped_in_a_row, count * (1 - ends) + skips)
        if backend.EAGER and int(before) + int(skips) >= SKIPS_IN_A_ROW:
            self._warn_of_skips()

    def _warn_of_skips(self) -> None:
        """Warns once if many steps in a row were skipped."""
        in_a_row = ops.convert_to_numpy(self._state.skipped_in_a_row)
        if self._told_of_skips or in_a_row < SKIPS_IN_A_ROW:
            return
        self._told_of_skips = True
        warnings.warn(
            f"{SKIPS_IN_A_ROW} steps in a row were skipped, or more: their "
            "gradients held a NaN or an infinity, so the weights did not "
            "change. Look at the data, the loss and the learning rate. "
            f"Received: skipped_steps={self.skipped_steps}",
            stacklevel=2,
        )

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Keras' method, which `fit` calls at its end.

        Warns where many steps in a row were skipped. PyTorch warns at once.
        After an error there is no warning: on JAX there may be no state.

        Args:
            var_list: The model's variables.
        """
        super().finalize_variable_values(var_list)
        failed = sys.exc_info()[0] is not None
        if self.built and self.nonfinite == "skip" and not failed:
            self._warn_of_skips()

    # On TensorFlow Keras' own hook runs first: it sums over the replicas.
    if not backend.SUMS_OVER_REPLICAS:
        _backend_update_step = update_variables

    def _updated_variables(self) -> list[Any]:
        return [self.built_on[i] for i in self._layout.updated]

    def _align(
        self,
        gradients: Sequence[Tensor],
        variables: Sequence[Any],
        X: Sequence[Tensor],
    ) -> list[Tensor]:
        """One gradient per updated variable, zero where none came."""
        given = self._by_position(gradients, variables)
        pairs = zip(self._layout.updated, X, strict=True)
        return list(
            backend.as_tensors(
                [
                    given[i] if i in given else ops.zeros_like(x)
                    for i, x in pairs
                ]
            )
        )

    def _split(self, state: State) -> State:
        """The state as `step_` sees it: variables that are cut, in pieces."""
        return {
            name: self._layout.split(held, self.slot_roles.get(name))
            if name in self.slot_dtypes
            else held
            for name, held in state.items()
        }

    def _join(self, new: State, old: State, whole: State) -> State:
        """Inverse of `_split`, of a new state.

        Args:
            new: From `step_`.
            old: The state that it was given.
            whole: What that was split from.
        """
        return {
            name: self._layout.join(
                held, old[name], whole[name], self.slot_roles.get(name)
            )
            if name in self.slot_dtypes
            else held
            for name, held in new.items()
        }

    def _largest_entries(self, G: Sequence[Tensor]) -> Tensor:
        """The largest magnitude in each matrix, `(matrices,)` float32."""
        layout, stacks = self._layout, []
        for i in layout.stacks:
            matrices = to_matrices(G[i], layout.specs[i].view)
            stacks.append(backend.largest_of_each(matrices))
        others = [x for i, x in enumerate(G) if i not in layout.stacks]
        if others:
            stacks.append(backend.largest_entries(others))
        if not layout.stacks:
            return stacks[0]
        order = backend.constant(layout.behind_stacks)
        return backend.take(ops.concatenate(stacks), order)

    def _halved(self, G: Sequence[Tensor], size: Tensor) -> list[Tensor]:
        """The gradients, huge ones halved: differences stay in float32.

        Args:
            G: Gradients.
            size: From `_largest_entries`.
        """
        with backend.on_host():
            huge = size > HUGE
            if not bool(ops.any(huge)):
                return list(G)
            factor = backend.where(huge, 0.5, ops.ones_like(size))
        (factors,) = self.of_entries(factor)
        return [
            ops.cast(g * factor, g.dtype)
            for g, factor in zip(G, factors, strict=True)
        ]

    def _by_position(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> dict[int, Tensor]:
        """Gradients by the positions of their variables."""
        return {
            self._position_of(variable): gradient
            for variable, gradient in zip(variables, gradients, strict=True)
        }

    def _runs(self, finite: Tensor) -> Tensor | None:
        """Returns whether the step is taken, as a scalar; None if always."""
        closes_window = self._is_update_step()
        if self.nonfinite == "propagate":
            return closes_window
        if closes_window is None:
            return finite
        return ops.logical_and(finite, closes_window)

    def _assign_all(
        self,
        X: Sequence[Tensor],
        X_new: Sequence[Tensor],
        state: State,
        new_state: State,
    ) -> None:
        """Assigns what `step_` did not overwrite in place."""
        targets = list(self._updated_variables())
        before, after = list(X), list(X_new)
        for name, held in self._state.as_lists().items():
            targets += held
            one = not isinstance(state[name], list)
            before += [state[name]] if one else state[name]
            after += [new_state[name]] if one else new_state[name]
        for variable, old, new in zip(targets, before, after, strict=True):
            if new is not old:
                self.assign(variable, new)

    # Config.

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        config: dict[str, Any] = super().get_config()
        exclude = self._weight_decay_exclude
        multipliers = self._rate_multipliers
        config.update(
            nonfinite=self.nonfinite,
            weight_decay_exclude=None if exclude is None else list(exclude),
            rate_multipliers=None if multipliers is None else dict(multipliers),
            roles=self._sources.to_config(self.layers if self.built else ()),
            **{name: getattr(self, name) for name in self.arguments},
        )
        return config


def _is_updated(variable: Any) -> bool:
    """Returns whether a variable has entries, which the step updates."""
    overwritten = getattr(variable, "overwrite_with_gradient", False)
    return not overwritten and math.prod(variable.shape) > 0


def _check_real(variables: Sequence[Any]) -> None:
    for variable in variables:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype.startswith("complex"):
            raise ValueError(
                "Variables must be real: the steps of matrices are those of "
                f"real ones. Received: {variable_path(variable)!r} of {dtype}"
            )


def _matching(
    name: str, patterns: Sequence[str], specs: Sequence[VariableSpec]
) -> list[list[str]]:
    """The patterns of an argument that match each variable's path.

    A loaded optimizer has the paths that were saved: those of a loaded model
    may have other numbers, or lack the model's own name.
    """
    paths = [spec.path for spec in specs]
    for pattern in patterns:
        if not any(re.search(pattern, path) for path in paths):
            warnings.warn(
                f"`{name}` has a pattern that matches no variable path. "
                f"Received: {pattern!r}",
                stacklevel=4,
            )
    return [[p for p in patterns if re.search(p, path)] for path in paths]


def cast_like(
    tensors: Sequence[Tensor], others: Sequence[Tensor]
) -> list[Tensor]:
    """Tensors in the dtypes of others.

    Args:
        tensors: Tensors of any dtype.
        others: Tensors, as many as the first.
    """
    return list(backend.cast_each(tensors, [x.dtype for x in others]))


def _keep_arrays_unless(finite: Tensor, new: State, old: State) -> None:
    """Takes the old single tensors into the new state of a skipped step."""
    for name, before in old.items():
        if not isinstance(before, list):
            new[name] = backend.where(finite, new[name], before)


def _infinite_as_nan(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    return backend.where(ops.isfinite(gradient), gradient, float("nan"))


def _check_shapes(
    gradients: Sequence[Tensor], variables: Sequence[Any]
) -> None:
    if len(gradients) != len(variables):
        raise ValueError(
            f"There must be one gradient, or None, for each of the "
            f"{len(variables)} variables. Received: {len(gradients)} gradients"
        )
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None and None not in tuple(gradient.shape):
            wanted, found = tuple(variable.shape), tuple(gradient.shape)
            if wanted != found:
                raise ValueError(
                    f"The gradient of {variable_path(variable)!r} must "
                    f"have its shape {wanted}. Received: shape {found}"
                )

"""The Keras side of an optimizer that moves all layers in one step.

No algorithm is in here: this class decides what every variable is, makes the
state, hears of the gradients through Keras' hooks, and calls one pure function
`step` of (gradients, weights, state, learning rate), which subclasses write.

Private names of Keras that this package overrides or reads, all constant from
3.10 to 3.15 (tests/test_contract.py fails when one changes):
`_backend_update_step` (JAX, PyTorch), `_distributed_tf_update_step`
(TensorFlow), `_apply_weight_decay`, `_use_weight_decay`, `_get_variable_index`,
`_check_variables_are_known`, `_var_key`, `_iterations`, `_learning_rate`,
`_trainable_variables`,
`_update_model_variables_moving_average`, `_model_variables_moving_average`.
"""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton import roles
from keras_lanton import summaries
from keras_lanton.arguments import check_base_arguments
from keras_lanton.arguments import check_choice
from keras_lanton.arguments import check_patterns
from keras_lanton.arguments import shown
from keras_lanton.plan import Plan
from keras_lanton.roles import Layer

Tensor = Any
State = dict[str, Any]

backend = backends.load()


class LayerwiseOptimizer(backend.OptimizerHooks, keras.optimizers.Optimizer):  # type: ignore[misc, name-defined]
    """A Keras optimizer whose step sees all layers at once.

    Subclasses write `step`. The state that it takes and returns is a dict:

    - one list of tensors per name in `slots`, shaped as the variables, or as
      those whose role is in `slot_roles`;
    - one list of tensors per name in `buffers()`, of the shapes given there;
    - `"noise"`, `(matrices,)` float32: one entry for each matrix of each
      variable, in the order of `moving_layers`;
    - `"measurements"`, `(matrices,)` int32: how often each was measured;
    - `"last_step"`, `(variables,)` int32: number of the step in which each
      variable last had a gradient, 0 if never.

    The tensors of weights and state that `step` is given may be overwritten:
    on PyTorch they are the variables' own.

    Args:
        learning_rate: Float, `keras.optimizers.schedules` schedule, or
            callable without arguments.
        nonfinite: `"skip"` or `"propagate"`.
        weight_decay_exclude: Regular expressions on variable paths, or None.
        roles: Records of an earlier optimizer, from its config.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    # Names of the tensors that each variable has, and their dtypes; None is
    # the variable's own.
    slots: dict[str, str | None] = {}
    # Roles of the variables that have it, for names that not all have.
    slot_roles: Mapping[str, tuple[str, ...]] = {}
    # Arguments of subclasses that go to the config as they are.
    arguments: tuple[str, ...] = ()
    # What to say of saved state that does not fit.
    state_hint = ""

    def __init__(
        self,
        learning_rate: Any,
        *,
        nonfinite: str = "skip",
        weight_decay_exclude: Sequence[str] | None = None,
        roles: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        check_choice("nonfinite", nonfinite, ("skip", "propagate"))
        check_base_arguments(learning_rate, kwargs)
        check_patterns(weight_decay_exclude)
        super().__init__(learning_rate, **kwargs)
        self.nonfinite = nonfinite
        self._plan = Plan(weight_decay_exclude, _read_records(roles))

    # What every variable is.

    def read_roles(self, model: keras.Model) -> "LayerwiseOptimizer":
        """Takes roles and matrix views from the model's own layers.

        Args:
            model: A built model, before this optimizer's first step.

        Returns:
            This optimizer, so that it can stand in `compile`.

        Raises:
            ValueError: If the optimizer or not yet the model is built.
        """
        self._check_not_built("read_roles")
        if not model.built or not model.trainable_variables:
            raise ValueError(
                "`read_roles` needs a built model with trainable variables: "
                "call it on data once, or `model.build(input_shape)`. "
                f"Received: model={model!r}"
            )
        for variable, layer in roles.read_model(model):
            self._plan.read[self._var_key(variable)] = layer
        return self

    def assign_role(
        self,
        role: str,
        variables: Any,
        input_axes: int | Sequence[int] | None = None,
        output_axes: int | Sequence[int] | None = None,
    ) -> None:
        """Sets the role of variables by hand, before the first step.

        Args:
            role: `"hidden"`, `"embedding"` or `"vector"`.
            variables: A variable or a sequence of variables.
            input_axes: Axes contracted with the layer's input. Axes in
                neither tuple number the matrices of a stack.
            output_axes: Axes of the layer's output.

        Raises:
            ValueError: For an unknown role, axes that overlap or do not
                exist, a variable set twice, or a built optimizer.
        """
        self._check_not_built("assign_role")
        if not isinstance(variables, (list, tuple)):
            variables = [variables]
        if not variables:
            raise ValueError(
                "`variables` must name at least one variable. "
                f"Received: variables={variables!r}"
            )
        made = {}
        for variable in variables:
            key, path = self._var_key(variable), roles.variable_path(variable)
            if key in self._plan.assigned or key in made:
                raise ValueError(
                    "`assign_role` takes each variable once. "
                    f"Received: variables with {path!r} again"
                )
            made[key] = roles.make_layer(
                path, tuple(variable.shape), role, input_axes, output_axes
            )
        self._plan.assigned.update(made)

    @property
    def schedule(self) -> Any:
        """The `LearningRateSchedule` that was given, or None."""
        given = self._learning_rate
        schedules = keras.optimizers.schedules
        is_one = isinstance(given, schedules.LearningRateSchedule)
        return given if is_one else None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What was decided, one record per variable, in their order.

        Raises:
            ValueError: Before the optimizer is built.
        """
        if not self.built:
            raise ValueError(
                "`layers` is known once the optimizer is built: after the "
                "first step, or `optimizer.build(model.trainable_variables)`."
            )
        return self._plan.layers

    @property
    def moving_layers(self) -> tuple[Layer, ...]:
        """The layers that `step` moves.

        All but the scales of float8 training, which Keras overwrites with
        their gradient.
        """
        layers = self.layers
        return tuple(layers[i] for i in self._plan.moving)

    @property
    def decayed_layers(self) -> tuple[bool, ...]:
        """Whether weight decay applies, one per `moving_layers`."""
        return tuple(self._plan.decayed[i] for i in self._plan.moving)

    def summary(self, print_fn: Callable[[str], None] | None = None) -> None:
        """Prints what was decided as a table, like `model.summary()`.

        Path, shape, role and matrices of every variable, the RMS of its step
        at learning rate 1, totals per role, the memory of the state, and which
        views are guesses.

        Args:
            print_fn: Takes the table as a string. Defaults to `print`.

        Raises:
            ValueError: Before the optimizer is built.
        """
        steps = [self.describe_step(layer) for layer in self.layers]
        summaries.print_summary(
            self.layers, print_fn, steps=steps, notes=[self._memory()]
        )

    def describe_step(self, layer: Layer) -> str:
        """The size of a layer's steps, for `summary`; "" is not said.

        Args:
            layer: One of `layers`.
        """
        return ""

    def _memory(self) -> str:
        """What the state takes, beside the weights."""
        parts = {
            name: summaries.count_bytes(
                held if isinstance(held, list) else [held]
            )
            for name, held in self._plan.state.items()
        }
        return summaries.describe_memory(
            parts,
            total=summaries.count_bytes(self.variables),
            weights=summaries.count_bytes(self._trainable_variables),
        )

    def _check_not_built(self, method: str) -> None:
        if self.built:
            raise ValueError(
                f"`{method}` must be called before the optimizer is built, "
                "that is before its first step. Received: an optimizer built "
                f"on {len(self._plan.layers)} variables"
            )

    # State.

    def build(self, variables: Sequence[Any]) -> None:
        """Decides roles and makes the state, one set of slots per variable.

        Args:
            variables: The trainable variables, in the order of the state.

        Raises:
            ValueError: If roles were given for other variables than these.
        """
        if self.built:
            return
        layers = self.decide_layers(variables)
        super().build(variables)
        self._plan.layers = layers
        self._plan.decide_decay(variables, self._use_weight_decay)
        self._plan.moving = [
            i
            for i, variable in enumerate(variables)
            if not getattr(variable, "overwrite_with_gradient", False)
        ]
        self._plan.number_matrices()
        state: dict[str, Any] = {
            name: self._add_slots(variables, name, dtype)
            for name, dtype in self.slots.items()
        }
        for name, specs in self.buffers().items():
            state[name] = [
                self.add_variable(shape, "zeros", dtype, name=f"{name}_{i}")
                for i, (shape, dtype) in enumerate(specs)
            ]
        matrices = (len(self._plan.owners),)
        for name, shape, dtype in (
            ("noise", matrices, "float32"),
            ("measurements", matrices, "int32"),
            ("last_step", (len(self._plan.moving),), "int32"),
            ("skipped_steps", (), "int32"),
        ):
            state[name] = self.add_variable(shape, "zeros", dtype, name=name)
        self._skipped_steps = state.pop("skipped_steps")
        self._plan.state = state

    def decide_layers(self, variables: Sequence[Any]) -> tuple[Layer, ...]:
        """What `build` on these variables would decide, without state.

        Args:
            variables: The trainable variables.

        Returns:
            One record per variable.

        Raises:
            ValueError: If roles were given for other variables than these.
        """
        keys = [self._var_key(variable) for variable in variables]
        return self._plan.decide(keys, variables)

    def buffers(self) -> dict[str, list[tuple[tuple[int, ...], str]]]:
        """Shapes and dtypes of state that is not per variable, by name.

        Called in `build`, when the layers are decided.
        """
        return {}

    def _add_slots(
        self, variables: Sequence[Any], name: str, dtype: str | None
    ) -> list[Any]:
        """One variable per moving layer, laid out as the layer's own."""
        moving = [
            variables[self._plan.moving[i]]
            for i in self._plan.with_roles(self.slot_roles.get(name))
        ]
        if dtype is None:
            return list(self.add_optimizer_variables(moving, name))
        return [
            self.add_variable(
                tuple(variable.shape),
                "zeros",
                dtype,
                layout=getattr(variable, "_layout", None),
                name=f"{roles.variable_path(variable)}_{name}".replace(
                    "/", "_"
                ),
            )
            for variable in moving
        ]

    def exclude_from_weight_decay(
        self, var_list: Any = None, var_names: Any = None
    ) -> None:
        """Keras' method, refused when it would come too late.

        What it sets is not in the config: `weight_decay_exclude` is.

        Args:
            var_list: Variables to exclude.
            var_names: Regular expressions on variable names.

        Raises:
            ValueError: If the optimizer is built.
        """
        self._check_not_built("exclude_from_weight_decay")
        super().exclude_from_weight_decay(var_list, var_names)

    def load_own_variables(self, store: Any) -> None:
        """Loads the state, all of it or nothing.

        Args:
            store: Mapping of positions ("0", "1", ...) to arrays.

        Raises:
            ValueError: If there are more or fewer arrays than variables, an
                array has another shape than its variable, or holds what this
                state never holds.
        """
        if self.built:
            if len(store.keys()) != len(self.variables):
                raise ValueError(
                    f"The optimizer's state is {len(self.variables)} arrays: "
                    "the saved one is of another model, of other optimizer "
                    "arguments, or of a version of this package with another "
                    "state layout (CHANGELOG, `State layout`). "
                    f"{self.state_hint}Nothing was loaded; "
                    "`load_model(..., compile=False)` loads the model alone. "
                    f"Received: {len(store.keys())} arrays"
                )
            for i, variable in enumerate(self.variables):
                self._check_saved(i, variable, store)
        # Reads all of it again: a copy of the state may not fit into memory.
        super().load_own_variables(store)

    def _check_saved(self, i: int, variable: Any, store: Any) -> None:
        """ValueError unless the variable may have the saved value."""
        what = f"Optimizer state {i}, {variable.path!r},"
        if str(i) not in store.keys():
            raise ValueError(
                f"{what} is missing. Nothing was loaded. "
                f"Received: {sorted(store.keys())}"
            )
        value = np.asarray(store[str(i)])
        if value.shape != tuple(variable.shape):
            raise ValueError(
                f"{what} has shape "
                f"{tuple(variable.shape)}: the state was saved for "
                "another model, other optimizer arguments, or by a "
                "version with another state layout (CHANGELOG). "
                f"{self.state_hint}Nothing was loaded. "
                f"Received: shape {value.shape}"
            )
        kind = variable.dtype.rstrip("0123456789").removeprefix("b")
        if not value.dtype.name.removeprefix("b").startswith(kind):
            raise ValueError(
                f"{what} has dtype {variable.dtype}. Nothing was loaded. "
                f"Received: dtype {value.dtype.name}"
            )
        bad = self._impossible(variable, value)
        if bad.any():
            raise ValueError(
                f"{what} holds a value that it never has: the file is damaged. "
                "Nothing was loaded. "
                f"Received: {value[bad].ravel()[0]} in {int(bad.sum())} of "
                f"{value.size} entries"
            )

    def _impossible(self, variable: Any, value: np.ndarray) -> np.ndarray:
        """Which entries of a saved value no run of this optimizer has."""
        skips = self.nonfinite == "skip"
        bad = np.zeros(value.shape, bool)
        state = self._plan.state
        if value.dtype.kind in "iu" or variable is state["noise"]:
            bad |= value < 0
        if variable.name == "learning_rate" or (
            skips and variable is state["noise"]
        ):
            bad |= ~np.isfinite(value)
        # Within an accumulation window its sums may be NaN, to be skipped.
        own = [
            one
            for name, held in state.items()
            if name != "gradient_difference"
            for one in (held if isinstance(held, list) else [held])
        ]
        if skips and any(one is variable for one in own):
            bad |= np.isnan(value)
        return bad

    @property
    def skipped_steps(self) -> int:
        """Number of steps that `nonfinite="skip"` left out."""
        return (
            int(ops.convert_to_numpy(self._skipped_steps)) if self.built else 0
        )

    # The step.

    def step(
        self,
        G: Sequence[Tensor],
        X: Sequence[Tensor],
        state: State,
        *,
        active: Tensor,
        eta: Tensor,
        t: Tensor,
    ) -> tuple[list[Tensor], State]:
        """One step of the algorithm: a pure function, written by subclasses.

        Where no layer is active, X and all lists of the state must come back
        as they are, whatever G holds: so JAX leaves out non-finite steps.

        Args:
            G: Gradients, one per layer, shaped as the weights.
            X: Weights, likewise.
            state: See the class.
            active: Which layers have a gradient that is not zero everywhere,
                `(variables,)` bool. JAX sends zeros where the others send
                none, so the two mean the same.
            eta: Learning rate, float32 scalar.
            t: Number of this step, int32 scalar, from 1; skipped steps do
                not count.

        Returns:
            The new weights and the new state.
        """
        raise NotImplementedError

    def weight_decays(self) -> Tensor:
        """Gamma of each layer, `(variables,)`, 0 where it is excluded."""
        gamma = self.weight_decay or 0.0
        return ops.convert_to_tensor(
            gamma * np.array(self.decayed_layers, "float32")
        )

    def new_state(
        self, state: State, active: Tensor, t: Tensor, **changed: Any
    ) -> State:
        """The state after a step, for the end of `step`.

        Args:
            state: Before the step.
            active: As `step` has it.
            t: As `step` has it.
            **changed: What else the step changed, by name; lists are cast to
                the dtypes of the old.
        """
        for name, new in changed.items():
            if isinstance(new, list):
                changed[name] = as_in(state[name], new)
        last_step = ops.where(active, t, state["last_step"])
        return {**state, **changed, "last_step": last_step}

    def observe(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> None:
        """Called with every micro-batch's gradients, before accumulation.

        Args:
            gradients: As they came; None where there is none.
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
            self._check_variables_are_known(trainable_variables)
        if self.built:
            variables = trainable_variables or self._trainable_variables
            _check_shapes(grads, variables)
            self.observe(grads, variables)
            # A copy: on PyTorch the tensor would follow its variable.
            self._plan.skipped_before = (
                ops.convert_to_tensor(self._skipped_steps) + 0
            )
        super().apply(grads, trainable_variables)

    @backend.eager  # type: ignore[untyped-decorator]
    def update_variables(
        self,
        gradients: Sequence[Tensor],
        variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        """Reads everything, calls `step`, assigns everything.

        Args:
            gradients: One per variable; unscaled, averaged and clipped.
            variables: Those that have a gradient on this step.
            learning_rate: Scalar.
        """
        with backend.no_grad():
            X = [ops.convert_to_tensor(v) for v in self._moving_variables()]
            G = self._align(gradients, variables, X)
            state = self._read_state()
            skipped = ops.convert_to_tensor(self._skipped_steps)
            t = ops.cast(self.iterations, "int32") - skipped + 1
            eta = ops.cast(ops.convert_to_tensor(learning_rate), "float32")

            size = backend.abs_sums(G)
            finite = ops.all(ops.isfinite(size))
            active = size != 0
            masks = self.nonfinite == "skip" and backend.is_compiled(finite)
            if masks:
                # A conditional around all variables takes long to compile.
                active = ops.logical_and(active, finite)
            step = functools.partial(self.step, G, active=active, eta=eta, t=t)
            runs = self._is_update_step() if masks else self._runs(finite)
            if runs is None:
                X_new, new_state = step(X, state)
            else:
                X_new, new_state = backend.replace_if(runs, step, X, state)
            for name, old in state.items():
                if masks and not isinstance(old, list):
                    new_state[name] = ops.where(finite, new_state[name], old)

            self._assign_all(self._moving_variables(), X, X_new)
            for name, variable in self._plan.state.items():
                if isinstance(variable, list):
                    self._assign_all(variable, state[name], new_state[name])
                else:
                    self.assign(variable, new_state[name])
            if self.nonfinite == "skip":
                self.assign(
                    self._skipped_steps, skipped + 1 - ops.cast(finite, "int32")
                )

    # On TensorFlow Keras' own hook runs first: it sums over the replicas.
    if not backend.SUMS_OVER_REPLICAS:
        _backend_update_step = update_variables

    def _moving_variables(self) -> list[Any]:
        return [self._trainable_variables[i] for i in self._plan.moving]

    def _align(
        self,
        gradients: Sequence[Tensor],
        variables: Sequence[Any],
        X: Sequence[Tensor],
    ) -> list[Tensor]:
        """One gradient per moving layer, zero where none came."""
        given = {
            self._get_variable_index(variable): gradient
            for variable, gradient in zip(variables, gradients, strict=True)
        }
        return [
            ops.convert_to_tensor(given[i]) if i in given else ops.zeros_like(x)
            for i, x in zip(self._plan.moving, X, strict=True)
        ]

    def _runs(self, finite: Tensor) -> Tensor | None:
        """Whether the step is taken, a boolean scalar; None if always."""
        closes_window = self._is_update_step()
        if self.nonfinite == "propagate":
            return closes_window
        if closes_window is None:
            return finite
        return ops.logical_and(finite, closes_window)

    def _read_state(self) -> State:
        return {
            name: [ops.convert_to_tensor(v) for v in variable]
            if isinstance(variable, list)
            else ops.convert_to_tensor(variable)
            for name, variable in self._plan.state.items()
        }

    def _assign_all(
        self,
        variables: Sequence[Any],
        before: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> None:
        """Assigns what `step` did not overwrite in place."""
        for variable, old, new in zip(variables, before, values, strict=True):
            if new is not old:
                self.assign(variable, new)

    def _update_model_variables_moving_average(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        """Keras' averages, which a skipped step leaves as they are."""
        averages = [
            average
            for average in self._model_variables_moving_average
            if average is not None
        ]
        before = [ops.convert_to_tensor(average) + 0 for average in averages]
        super()._update_model_variables_moving_average(trainable_variables)
        if self.nonfinite == "skip":
            skipped = ops.not_equal(
                ops.convert_to_tensor(self._skipped_steps),
                self._plan.skipped_before,
            )
            for average, old in zip(averages, before, strict=True):
                new = ops.convert_to_tensor(average)
                average.assign(ops.where(skipped, old, new))

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Decay is the step's own business: line 10."""

    # Config.

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        config: dict[str, Any] = super().get_config()
        exclude = self._plan.weight_decay_exclude
        config.update(
            nonfinite=self.nonfinite,
            weight_decay_exclude=None if exclude is None else list(exclude),
            roles=self._plan.to_config(),
            **{name: getattr(self, name) for name in self.arguments},
        )
        return config


def wide(x: Tensor) -> Tensor:
    """Half precision as float32, anything else as it is."""
    name = keras.backend.standardize_dtype(x.dtype)
    return ops.cast(x, "float32") if name in ("float16", "bfloat16") else x


def as_in(old: Sequence[Tensor], new: Sequence[Tensor]) -> list[Tensor]:
    """The new tensors in the dtypes of the old ones."""
    return [ops.cast(x, y.dtype) for x, y in zip(new, old, strict=True)]


def _read_records(records: Any) -> list[Layer]:
    """The layers of a config's `roles`; ValueError for anything else."""
    try:
        return [roles.layer_from_config(record) for record in records or ()]
    except Exception as error:
        raise ValueError(
            "`roles` must be None or the records of a config. "
            f"Received: roles={shown(records)}"
        ) from error


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
                    f"The gradient of {roles.variable_path(variable)!r} must "
                    f"have its shape {wanted}. Received: shape {found}"
                )

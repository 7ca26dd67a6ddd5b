"""The Keras side of an optimizer that updates all variables in one step.

No algorithm is in here: `LayerwiseOptimizer` decides what every variable is,
makes the state, takes the gradients from Keras' hooks, and calls `step_` with
(gradients, weights, state, learning rate), which subclasses write.

Methods that are private in Keras are overridden and read in `hooks` alone.
"""

import functools
import math
import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.layout import VariableLayout
from keras_lanton.optimizer.deciding import Deciding
from keras_lanton.optimizer.gradients import check_shapes
from keras_lanton.optimizer.gradients import halved
from keras_lanton.optimizer.gradients import infinite_as_nan
from keras_lanton.optimizer.gradients import largest_of_matrices
from keras_lanton.optimizer.state import Buffer
from keras_lanton.optimizer.stateful import Stateful
from keras_lanton.roles.sources import SpecSources
from keras_lanton.roles.spec import variable_path
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import check_base_arguments
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_multipliers
from keras_lanton.validation import check_names
from keras_lanton.validation import check_patterns


class LayerwiseOptimizer(Deciding, Stateful):
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

    # Build.

    def build(self, variables: Sequence[Any]) -> None:
        """Decides specs, lays out the work and makes the state.

        Args:
            variables: The trainable variables, in the order of the state.

        Raises:
            ValueError: If roles were assigned to other variables than these,
                or a variable is complex or, on PyTorch, a DTensor.
        """
        if self.built:
            return
        _check_real(variables)
        backend.check_whole(variables)
        specs = self.decide_specs(variables)
        super().build(variables)
        # Not as an attribute of Keras': it would save the model's variables.
        object.__setattr__(self, "built_on", tuple(variables))
        updated = [i for i, v in enumerate(variables) if _is_updated(v)]
        for said in self.without_effect(specs):
            warnings.warn(said, stacklevel=2)
        decayed = self._decide_decay(variables, specs)
        multipliers = self.multipliers_of(specs)
        self._layout = VariableLayout(
            all_specs=specs,
            updated=tuple(updated),
            decayed=tuple(decayed[i] for i in updated),
            rate_multipliers=tuple(multipliers[i] for i in updated),
            placements=tuple(backend.layouts([variables[i] for i in updated])),
        )
        _check_cuts(self._layout, variables)
        buffers = self.lay_out_work(
            self._layout, [variables[i] for i in updated]
        )
        self._state = self._make_state(variables, buffers)

    def lay_out_work(
        self, layout: VariableLayout, variables: Sequence[Any]
    ) -> dict[str, Buffer | list[Buffer]]:
        """Fixes what `step_` works on together; called once, in `build`.

        It returns the state that is not one tensor per variable, by name.
        """
        return {}

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
        as they are, whatever G holds. So non-finite steps are left out.

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
        """Sees every micro-batch's gradients, before accumulation."""

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
            check_shapes(grads, variables)
            self.observe(grads, variables)
            if self.nonfinite == "skip" and self.clipvalue is not None:
                # Keras would clip an infinite entry to a finite one.
                grads = [infinite_as_nan(gradient) for gradient in grads]
        if self.built and self.use_ema:
            # A copy: on PyTorch the tensor would follow its variable.
            skipped = ops.convert_to_tensor(self._state.skipped_steps)
            self._state.skipped_before = skipped + 0
        try:
            super().apply(grads, trainable_variables)
        finally:
            if self.built:  # a compiled step's tensor must not outlive it
                self._state.skipped_before = None

    @backend.for_compiler
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
                largest_of_matrices(self._layout, G),
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
                if self.nonfinite == "skip":
                    # A mask: a conditional around all takes long to compile.
                    active = active & finite
            if backend.EAGER and self.nonfinite == "skip":
                G = halved(self._layout, G, size)
            step = functools.partial(self.step_, G, active=active, eta=eta, t=t)
            closes_window = backend.closes_window(
                self.micro_steps, self.gradient_accumulation_steps
            )
            if closes_window is None:
                X_new, new_state = step(X, state)
            else:
                X_new, new_state = backend.replace_if(
                    closes_window, step, X, state
                )
            self._assign_all(
                whole_X,
                self._layout.join(X_new, X, whole_X),
                whole_state,
                self._join(new_state, state, whole_state),
            )
            if self.nonfinite == "skip":
                self._count_skips(finite, in_a_row)

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
        gradients = backend.parts_of_gradients(gradients, variables)
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

    def _by_position(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> dict[int, Tensor]:
        """Gradients by the positions of their variables."""
        return {
            self._position_of(variable): gradient
            for variable, gradient in zip(variables, gradients, strict=True)
        }

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
        changed = [
            (variable, new)
            for variable, old, new in zip(targets, before, after, strict=True)
            if new is not old
        ]
        if changed:
            backend.assign_parts(self.assign, *zip(*changed, strict=True))

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


def _check_cuts(layout: VariableLayout, variables: Sequence[Any]) -> None:
    """ValueError where a process has a part of several matrices in one."""
    for i in layout.updated:
        pieces = len(layout.all_specs[i].pieces)
        found = backend.layouts([variables[i]])
        if pieces > 1 and backend.holds_parts(found):
            raise ValueError(
                "A variable of several matrices must be whole in every process "
                "on PyTorch: leave it out of the `LayoutMap`. Received: "
                f"{variable_path(variables[i])!r}, of {pieces} matrices"
            )


def _check_real(variables: Sequence[Any]) -> None:
    for variable in variables:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype.startswith("complex"):
            raise ValueError(
                "Variables must be real: the steps of matrices are those of "
                f"real ones. Received: {variable_path(variable)!r} of {dtype}"
            )

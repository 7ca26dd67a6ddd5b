"""The state of an optimizer: how it is made, loaded, and left by a skip."""

import sys
import warnings
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.layout import VariableLayout
from keras_lanton.optimizer.hooks import Hooks
from keras_lanton.optimizer.state import Buffer
from keras_lanton.optimizer.state import StateVariables
from keras_lanton.optimizer.state import check_saved
from keras_lanton.optimizer.state import find_misfit
from keras_lanton.optimizer.state import is_of_new_optimizer
from keras_lanton.optimizer.state import refuses_misfits
from keras_lanton.roles.adapters import zero_adapters
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import variable_path
from keras_lanton.types import Tensor

SKIPS_IN_A_ROW = 10  # from which on a run is taken as broken


class Stateful(Hooks):
    """Makes the state, loads one that fits, and counts skipped steps.

    `LayerwiseOptimizer` has the attributes.
    """

    # Names of the tensors that each variable has, and their dtypes; None is
    # the variable's own.
    slot_dtypes: dict[str, str | None] = {}
    # Roles of the variables that have such a tensor, where not all have.
    slot_roles: Mapping[str, tuple[str, ...]] = {}
    # The variables of `build`, in their order.
    built_on: tuple[Any, ...] = ()
    _layout: VariableLayout
    _state: StateVariables
    nonfinite: str
    micro_steps: Any
    _told_of_skips: bool

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
        """Warns of a state that is left out; ValueError in `all_or_nothing`."""
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
                'values: docs/guides/training.md, "How do I continue a run '
                f'with LoRA?". Received: {len(found)} such layers, '
                f"{found[0]!r} first",
                stacklevel=3,
            )

    @property
    def skipped_steps(self) -> int:
        """Number of steps that `nonfinite="skip"` left out."""
        if not self.built:
            return 0
        return int(ops.convert_to_numpy(self._state.skipped_steps))

    def _count_skips(self, finite: Tensor, before: Tensor) -> None:
        """Counts a skipped step.

        Args:
            finite: Whether all gradients were, bool scalar.
            before: `skipped_in_a_row`, on the host where that exists.
        """
        if backend.EAGER and bool(finite) and int(before) == 0:
            return  # both counts stay
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

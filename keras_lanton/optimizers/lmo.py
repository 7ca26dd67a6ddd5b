"""The one step of all optimizers whose updates are LMOs of norms.

`LMOOptimizer.step_` is Algorithm 1. An optimizer chooses its parts: the norm
of each role, the noise-adaptive rate, Newton-Schulz, AdamW for the other
roles, how the momentum starts, and the direction.
"""

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.backends.functional import Devices
from keras_lanton.noise.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.noise.report import NoiseSnapshot
from keras_lanton.noise.report import report_noise
from keras_lanton.noise.schedule import Lines
from keras_lanton.norms.entry_noise import EntryNoise
from keras_lanton.norms.norms import Norm
from keras_lanton.norms.norms import Rule
from keras_lanton.norms.norms import Spectral
from keras_lanton.optimizers.auxiliary_adamw import AuxiliaryAdamW
from keras_lanton.optimizers.auxiliary_adamw import debias
from keras_lanton.optimizers.auxiliary_adamw import debiasing
from keras_lanton.optimizers.base import LayerwiseOptimizer
from keras_lanton.optimizers.base import cast_like
from keras_lanton.optimizers.direction import Direction
from keras_lanton.optimizers.direction import with_changes
from keras_lanton.optimizers.momentum import Momentum
from keras_lanton.optimizers.momentum import block_length
from keras_lanton.optimizers.rounding import ROUNDINGS
from keras_lanton.optimizers.rounding import stochastic_cast
from keras_lanton.optimizers.state import Buffer
from keras_lanton.optimizers.work_plan import plan_work
from keras_lanton.orthogonalization.newton_schulz import NewtonSchulz
from keras_lanton.types import ROLES
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import DECAY
from keras_lanton.validation import DTYPES
from keras_lanton.validation import PARTS
from keras_lanton.validation import check_bool
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_numbers
from keras_lanton.validation import check_part
from keras_lanton.validation import part_from_config
from keras_lanton.variables.layout import VariableLayout
from keras_lanton.variables.spec import VariableSpec
from keras_lanton.variables.stacks import Stack

backend = backends.load()


class LMOOptimizer(LayerwiseOptimizer):
    """An optimizer with a norm for each of some roles, and AdamW for others.

        B_t = b1 B_{t-1} + (1 - b1) G_t                          line 5
        O_t = LMO(B_t)                                           line 6
        eta_t^l = eta_t times the ratio of `noise`               lines 7 to 9
        X_{t+1} = (1 - eta_t gamma) X_t + eta_t^l s O_t          line 10

    With `nesterov`, b1 B_t + (1 - b1) G_t goes to line 6. Subclasses choose
    the parts: `make_rules`, and where they need them
    `make_direction`, `first_gradient_starts_momentum` and `bias_correction`.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the momentum, in [0, 1).
        nesterov: Whether b1 B_t + (1 - b1) G_t goes to line 6.
        noise: Makes the learning rates depend on the gradient noise, or None.
        newton_schulz: How hidden matrices are orthogonalized.
        auxiliary_adamw: Updates the roles without a norm, or None.
        momentum_dtype: Dtype of the momentum: a float dtype, or `"int8"` for
            that of hidden matrices and tables. Defaults to each variable's
            own.
        rounding: `"nearest"`, or `"stochastic"`: updates of bfloat16 weights
            are rounded up or down by chance, so that small ones are not lost.
        cautious_weight_decay: Whether entries that the update moves away from
            0 do not decay.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    arguments: tuple[str, ...] = (
        "beta_1",
        "nesterov",
        "momentum_dtype",
        "rounding",
        "cautious_weight_decay",
    )
    # Whether B_0 = G_1, as in Algorithm 1; else B_0 = 0.
    first_gradient_starts_momentum = False
    # Whether 1 - b1 in line 5 is divided by 1 - b1^t, as in Adam.
    bias_correction = False

    def __init__(
        self,
        learning_rate: Any,
        *,
        beta_1: float,
        nesterov: bool = False,
        noise: NoiseAdaptiveRate | None = None,
        newton_schulz: NewtonSchulz,
        auxiliary_adamw: AuxiliaryAdamW | None = None,
        momentum_dtype: str | None = None,
        rounding: str = "nearest",
        cautious_weight_decay: bool = False,
        **kwargs: Any,
    ) -> None:
        check_numbers({"beta_1": DECAY}, beta_1=beta_1)
        check_bool("nesterov", nesterov)
        check_bool("cautious_weight_decay", cautious_weight_decay)
        check_part("noise", noise, NoiseAdaptiveRate, optional=True)
        check_part("newton_schulz", newton_schulz, NewtonSchulz, optional=False)
        check_part(
            "auxiliary_adamw", auxiliary_adamw, AuxiliaryAdamW, optional=True
        )
        if momentum_dtype is not None:
            allowed = (*DTYPES, "int8")
            check_choice("momentum_dtype", momentum_dtype, allowed, also="None")
        check_choice("rounding", rounding, ROUNDINGS)
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = float(beta_1)
        self.nesterov = bool(nesterov)
        self.noise = noise
        self.newton_schulz = newton_schulz
        self.auxiliary_adamw = auxiliary_adamw
        self.momentum_dtype = momentum_dtype
        self.rounding = rounding
        self.cautious_weight_decay = bool(cautious_weight_decay)
        if noise is not None:
            noise.check_accumulation(self.gradient_accumulation_steps)
        # Set once: TensorFlow wraps dicts that are attributes, and cannot
        # save one that has changed since.
        self.slot_dtypes = {
            "momentum": momentum_dtype,
            **self.slot_dtypes,
            **(noise.slot_dtypes() if noise is not None else {}),
            **({"root_velocity": "float32"} if auxiliary_adamw else {}),
        }
        if auxiliary_adamw is not None:
            self.slot_roles = {
                **self.slot_roles,
                "root_velocity": self.adamw_roles,
            }
        # Now, not in `build`: refuses what the backend cannot do.
        backend.devices((), newton_schulz.shard)

    # The choice of parts.

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """The norm and the scale of each role that is updated by an LMO.

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        raise NotImplementedError

    @property
    def hidden_rms(self) -> float | None:
        """RMS of hidden updates at rate 1; None if it depends on the shape."""
        return None

    def make_direction(self, layout: VariableLayout) -> Direction:
        """The part that changes the direction before and after the LMO.

        Args:
            layout: The variables.
        """
        return Direction()

    @property
    def adamw_roles(self) -> tuple[str, ...]:
        """Roles that AdamW updates."""
        part = self.auxiliary_adamw
        return () if part is None else tuple(part.roles)

    @property
    def lmo_roles(self) -> tuple[str, ...]:
        """Roles that an LMO updates; known before `build`."""
        return tuple(self.rules_by_role())

    def rules_by_role(self, devices: Devices | None = None) -> dict[str, Rule]:
        """The rules of `make_rules`; known before `build`.

        Args:
            devices: Devices that share out the hidden matrices.
        """
        noise = self.noise
        rules = self.make_rules(
            Spectral(
                rows=self.newton_schulz.rows,
                nuclear_norm=noise.nuclear_norm() if noise else None,
                dtype=self.newton_schulz.dtype,
                devices=devices,
            )
        )
        return {r: rules[r] for r in ROLES if r in rules}

    def lay_out_work(
        self, layout: VariableLayout, variables: Sequence[Any]
    ) -> dict[str, Buffer | list[Buffer]]:
        """Fixes norms, stacks, measurement groups and the direction.

        Args:
            layout: The variables.
            variables: The updated variables.

        Returns:
            The state of the noise, and int8's scales, by name.

        Raises:
            ValueError: If no weight has the dtype that `rounding` is for.
        """
        devices = backend.devices(variables, self.newton_schulz.shard)
        self._direction = self.make_direction(layout)
        shapes = [spec.shape for spec in layout.specs]
        blocks = map(self._momentum_blocks, layout.updated_specs)
        self._momentum = Momentum(blocks=tuple(itertools.chain(*blocks)))
        self._check_rounding(variables)
        self._work = plan_work(
            layout,
            variables,
            self.rules_by_role(devices),
            self.noise,
            max_bytes=self.newton_schulz.max_temporary_bytes,
            devices=devices,
        )
        made: dict[str, Buffer | list[Buffer]] = {
            **self._momentum.buffers(shapes)
        }
        if self.noise is None:
            return made
        plan = self._work.measurements
        kept = self.noise.buffers(plan)
        made |= {
            "noise": Buffer((layout.matrices,), "float32"),
            "measurements": Buffer((layout.matrices,), "int32"),
        }
        lines = len(plan.placement.line_matrices)
        if lines:
            made["line_noise"] = Buffer((lines,), "float32")
        return {
            **made,
            **{n: [Buffer(*one) for one in ones] for n, ones in kept.items()},
        }

    def slot_dtype(self, name: str, spec: VariableSpec) -> str | None:
        """The dtype of a variable's tensor of the state; None for its own.

        Args:
            name: A name in `slot_dtypes`.
            spec: The variable.
        """
        dtype = super().slot_dtype(name, spec)
        if name != "momentum" or dtype != "int8":
            return dtype
        return dtype if all(self._momentum_blocks(spec)) else None

    def _momentum_blocks(self, spec: VariableSpec) -> list[int | None]:
        """Block lengths of the momentum in int8, or None, of each piece."""
        found: list[int | None] = [None] * len(spec.pieces)
        if self.momentum_dtype != "int8" or spec.role in self.adamw_roles:
            return found
        lengths = [block_length(piece.view) for piece in spec.pieces]
        return lengths if all(lengths) else found

    def _check_rounding(self, variables: Sequence[Any]) -> None:
        """ValueError where stochastic rounding would do nothing."""
        dtypes = sorted(
            {keras.backend.standardize_dtype(v.dtype) for v in variables}
        )
        if self.rounding == "stochastic" and "bfloat16" not in dtypes:
            raise ValueError(
                "rounding='stochastic' is for bfloat16 weights: "
                "`dtype='bfloat16'` of the layers, or "
                "`keras.config.set_dtype_policy('bfloat16')`. "
                f"Received: weights of {', '.join(dtypes)}"
            )

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
        """One step of Algorithm 1 [Alg. 1, lines 5 to 10].

        Args:
            G: Gradients, one per variable, shaped as the weights.
            X: Weights, likewise; may be overwritten.
            state: `"momentum"`, `"last_step"`; with int8
                `"momentum_scale"`; with AdamW `"root_velocity"` (of
                its variables). With noise `"noise"`, `"measurements"`,
                `"line_noise"` (if rows and columns are measured) and, by its
                reference, `"previous_gradient"` (one chunk per group) or
                `"gradient_difference"`. May be overwritten.
            active: Which matrices have a gradient, `(matrices,)` bool.
            eta: Learning rate, float32 scalar.
            t: Number of this step, int32 scalar, from 1.

        Returns:
            The new weights and the new state, in the dtypes of the old.
        """
        plan = self._work
        B_last = self._momentum.read(state)
        G = cast_like(G, B_last)

        # Lines 7 to 9 come first: line 5 may overwrite B_{t-1}.
        ratio, changed = self._noise_ratio(G, B_last, state, active, t)
        if changed:
            active = backend.after(changed["noise"], active)
        rates = self._lmo_rates(ratio, active, eta)
        scalars = self._scalars(state["last_step"], active, eta, t)
        c, nesterov_weight = scalars.gradient_weight, scalars.nesterov_weight

        # Line 5: B_t. `new` is the state as it grows.
        B = backend.lerp_(B_last, G, c)
        new = {**state, **changed, "momentum": B}

        # Line 6: O_t. Line 10: X_{t+1}. One stack after the other, which keeps
        # memory low where steps are eager.
        X = list(X)
        for work in plan.stacks:
            stack, matrices = work.stack, work.matrices
            M = plan.gather(
                stack, self._with_nesterov(stack, B, G, nesterov_weight)
            )
            noise = self._entry_noise(work.lines, new)
            O = work.norm.lmo(self._direction.before(M), noise)
            O, changes = self._direction.after(O, M, stack, matrices, c, new)
            new = with_changes(new, changes)
            update_stack_(
                X,
                stack,
                O,
                backend.take(rates, backend.constant(matrices)),
                scalars.decay_factor,
                cautious=self.cautious_weight_decay,
                casts=self._casts(stack.indices, t),
            )

        if self.auxiliary_adamw is not None:
            new["root_velocity"] = self._update_by_adamw_(X, G, new, scalars, t)
        new |= self._momentum.write(B, state, c, t)
        return X, self.new_state(state, active, t, **new)

    def _lmo_rates(self, ratio: Tensor, active: Tensor, eta: Tensor) -> Tensor:
        """-eta_t^l s of each matrix, 0 without a gradient, `(matrices,)`.

        Args:
            ratio: sqrt(a_t^l / a_t^m), `(matrices,)`.
            active: As `step_`.
            eta: As `step_`.
        """
        with backend.on_host():
            mask = ops.cast(active, "float32")
        rates = eta * ratio * backend.on_device(mask)
        return backend.constant(self._work.step_scale) * rates

    def _noise_ratio(
        self,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
        active: Tensor,
        t: Tensor,
    ) -> tuple[Tensor, State]:
        """Rates over eta_t, `(matrices,)`, and what changes of the state."""
        if self.noise is None:
            return ops.ones((self._layout.matrices,), "float32"), {}
        return self.noise.update(
            self._work.measurements,
            G,
            B_last,
            state,
            active=active,
            t=t,
        )

    def _entry_noise(
        self, lines: Lines | None, state: State
    ) -> EntryNoise | None:
        """The noise of the entries of a stack, if it is measured."""
        if self.noise is None or lines is None:
            return None
        return self.noise.entry_noise(
            lines, state, beta_1=self.beta_1, nesterov=self.nesterov
        )

    def _casts(
        self, indices: Sequence[int], t: Tensor
    ) -> list[Callable[[Tensor, Any], Tensor]] | None:
        """Casts of new weights to their dtypes; None rounds to the nearest."""
        if self.rounding == "nearest":
            return None
        return [
            functools.partial(stochastic_cast, t=t, number=i) for i in indices
        ]

    def _scalars(
        self, last_step: Tensor, active: Tensor, eta: Tensor, t: Tensor
    ) -> "Scalars":
        """The scalars of each variable, for lines 5 and 10 and for AdamW."""
        with backend.on_host():
            mask = ops.cast(active, "float32")
            rates = self.matrix_rates(eta) * mask
            decays = self.of_matrices(self.weight_decays())
            vectors = [
                *self._momentum_weights(last_step, mask, t),
                1.0 - rates * decays,
                *self._adamw_scalars(rates, mask, decays),
            ]
        return Scalars(*self.of_entries(*vectors))

    def _momentum_weights(
        self, last_step: Tensor, mask: Tensor, t: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The weight of G_t in B_t, and in what line 6 sees [Alg. 1, line 5].

        The first is 1 - b1, over 1 - b1^t with `bias_correction`; 0 without a
        gradient, and 1 at a variable's first gradient if that starts the
        momentum. The second is 1 - b1 or 0. AdamW has its own b1, and its
        momentum starts at zero.

        Returns:
            `(matrices,)` float32 each.
        """
        by_adamw = self._is_by_adamw()[self._layout.variable_of_matrix]
        usual = np.full(len(by_adamw), 1.0 - self.beta_1)
        if self.auxiliary_adamw is not None:
            usual[by_adamw] = 1.0 - self.auxiliary_adamw.beta_1
        weight = backend.constant(usual)
        if not self.first_gradient_starts_momentum:
            return weight * mask, weight * mask
        by_lmo = backend.constant(~by_adamw)
        c = weight
        if self.bias_correction:
            c = backend.where(by_lmo, c / debias(self.beta_1, t), c)
        first = ops.logical_and(last_step == 0, by_lmo)
        c = backend.where(first, 1.0, c) * mask
        return c, backend.minimum(c, weight)

    def _with_nesterov(
        self,
        stack: Stack,
        B: Sequence[Tensor],
        G: Sequence[Tensor],
        nesterov_weight: Sequence[Any],
    ) -> Mapping[int, Tensor]:
        """B_t, or b1 B_t + (1 - b1) G_t, of the stack's variables.

        Only of a few at a time: all at once would be a copy of the model.
        """
        if not self.nesterov:
            return {i: B[i] for i in stack.indices}
        chosen = (
            [x[i] for i in stack.indices] for x in (B, G, nesterov_weight)
        )
        return dict(zip(stack.indices, backend.lerp(*chosen), strict=True))

    # AdamW, of the roles without a norm.

    def _is_by_adamw(self) -> np.ndarray:
        """Mask of the variables that AdamW updates, `(variables,)` bool."""
        roles = self.adamw_roles
        return np.array([s.role in roles for s in self._layout.specs], bool)

    def weight_decays(self) -> np.ndarray:
        """The decay gamma of each updated variable; AdamW may have its own.

        Returns:
            `(variables,)`.
        """
        gammas = super().weight_decays()
        part = self.auxiliary_adamw
        if part is None or part.weight_decay is None:
            return gammas
        own = np.where(self._layout.decayed, part.weight_decay, 0.0)
        return np.where(self._is_by_adamw(), own, gammas)

    def _adamw_scalars(
        self, rates: Tensor, mask: Tensor, decays: Tensor
    ) -> list[Tensor]:
        """The fields of `Scalars` that are AdamW's, `(matrices,)` each."""
        part = self.auxiliary_adamw
        if part is None:
            return []
        rates = rates * part.lr_ratio
        return [mask, rates, 1.0 - rates * decays]

    def _update_by_adamw_(
        self,
        X: list[Tensor],
        G: Sequence[Tensor],
        new: State,
        scalars: "Scalars",
        t: Tensor,
    ) -> list[Tensor]:
        """Replaces AdamW's variables in X, and returns their roots of v."""
        part = self.auxiliary_adamw
        chosen = self._layout.with_roles(self.adamw_roles)
        if part is None or not chosen:
            return list(new["root_velocity"])
        with backend.on_host():
            both = ops.stack(debiasing(part.beta_1, part.beta_2, t))
        updated, roots = part.update_(
            [X[i] for i in chosen],
            [G[i] for i in chosen],
            [new["momentum"][i] for i in chosen],
            new["root_velocity"],
            active=[scalars.adamw_active[i] for i in chosen],
            rates=[scalars.adamw_rate[i] for i in chosen],
            decay_factors=[scalars.adamw_decay_factor[i] for i in chosen],
            debiasing=backend.unpack(both)[0],
            cautious=self.cautious_weight_decay,
            casts=self._casts(chosen, t),
        )
        for i, x in zip(chosen, updated, strict=True):
            X[i] = x
        return roots

    def observe(
        self, gradients: Sequence[Tensor], variables: Sequence[Any]
    ) -> None:
        """Keeps the difference of odd and even micro-batches (Option II).

        The step sees their mean only, so this is summed up here.

        Args:
            gradients: Gradients of this micro-batch; None where there is none.
            variables: Their variables.
        """
        totals = self._state.by_name.get("gradient_difference")
        if totals is None:
            return
        k = self.gradient_accumulation_steps
        number = ops.convert_to_tensor(self.micro_steps) % k
        # Means of k / 2 gradients each, of opposite signs, loss unscaled.
        sign = 1 - 2 * (number % 2)
        scale = k / 2 * (self.loss_scale_factor or 1.0)
        given = self._by_position(gradients, variables)
        for i, total in zip(self._layout.updated, totals, strict=True):
            last = ops.convert_to_tensor(total)
            last = backend.where(number == 0, ops.zeros_like(last), last)
            if given.get(i) is not None:
                term = ops.cast(given[i], last.dtype) / scale
                last = last + ops.cast(sign, last.dtype) * term
            self.assign(total, last)

    # Reports.

    def describe_step(self, spec: VariableSpec) -> str:
        """The RMS of an update at learning rate 1, of each piece, or "AdamW".

        Args:
            spec: One of `layers`.
        """
        rule = self.rules_by_role().get(spec.role)
        if rule is None:
            return "AdamW"
        if not math.prod(spec.shape):
            return ""
        sizes = set(map(rule.update_rms, spec.pieces))
        return ", ".join(f"{size:.3g}" for size in sorted(sizes))

    def noise_snapshot(self) -> NoiseSnapshot:
        """A copy of the measured noise, for a later `noise_report`.

        The copy stays on the device, so training does not wait for it.

        Raises:
            ValueError: See `noise_report`.
        """
        self._check_measures("noise_snapshot")
        state = self._state.by_name
        constant = self.schedule is None
        rate = ops.copy(self.learning_rate) if constant else None
        return NoiseSnapshot(
            noise=ops.copy(state["noise"]),
            measurements=ops.copy(state["measurements"]),
            iterations=ops.copy(self.micro_steps),
            learning_rate=rate,
        )

    def noise_report(
        self, snapshot: NoiseSnapshot | None = None
    ) -> dict[str, dict[str, np.ndarray]]:
        """The measured noise and the rates that follow, by variable path.

        Args:
            snapshot: From `noise_snapshot`. None: the present noise.

        Returns:
            For each variable whose noise is measured a dict of arrays
            `(batch,)`: `"noise"`, sqrt(H) in the units of
            `NoiseAdaptiveRate(alpha_unit=)`; `"ratio"`, the matrix' rate over
            the base rate; `"learning_rate"`, their product in the last step.
            Variables that AdamW updates are left out. If two variables have
            one path, the second has its position in `updated_specs` appended.
            As long as nothing was measured, a snapshot has noise 0 and
            ratio 1; without one the dict is empty, with a warning.

        Raises:
            ValueError: Before the optimizer is built, or without `noise`.
        """
        rate = self._check_measures("noise_report")
        now = snapshot or self.noise_snapshot()
        if snapshot is None and not np.any(
            ops.convert_to_numpy(now.measurements)
        ):
            steps = int(ops.convert_to_numpy(now.iterations))
            warnings.warn(
                "No noise was measured yet: the first steps measure none. "
                "In a loop of your own on JAX, write the state back first: "
                "`variable.assign(value)` of each of `optimizer.variables`. "
                f"Received: an optimizer after {steps} steps",
                stacklevel=2,
            )
            return {}
        eta = self._last_learning_rate(now)
        return report_noise(rate, self._layout, now, eta, roles=self.lmo_roles)

    def _check_measures(self, method: str) -> NoiseAdaptiveRate:
        """The part that measures; ValueError before `build`, or without it."""
        if self.noise is None:
            raise ValueError(
                f"`{method}` needs an optimizer that measures noise. "
                f"Received: {type(self).__name__}(noise=None)"
            )
        self._check_built(method)
        return self.noise

    def _last_learning_rate(self, snapshot: NoiseSnapshot) -> float:
        """The rate eta_t of the last step, not of the one to come."""
        rate = snapshot.learning_rate
        if rate is None:
            count = int(ops.convert_to_numpy(snapshot.iterations))
            window = self.gradient_accumulation_steps or 1
            last = max(count // window * window - 1, 0)
            rate = backend.value_of(self.schedule, last)
        return float(ops.convert_to_numpy(ops.cast(rate, "float32")))

    # Config.

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        config = super().get_config()
        for name in PARTS:
            part = getattr(self, name)
            config[name] = keras.saving.serialize_keras_object(part)
        return config

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> "LMOOptimizer":
        """Inverse of `get_config`.

        Args:
            config: From `get_config`.
            custom_objects: Classes by their registered names.
        """
        config = dict(config)
        for name in PARTS:
            if name in config:
                config[name] = part_from_config(config[name], custom_objects)
        made: LMOOptimizer = super().from_config(config, custom_objects)
        return made


class Scalars(NamedTuple):
    """Lists of one scalar for each variable, or one tensor for its entries.

    Args:
        gradient_weight: Of G_t in B_t [Alg. 1, line 5]; 0 without a gradient.
        nesterov_weight: Of G_t in what line 6 sees.
        decay_factor: On the weight in line 10, 1 - eta gamma.
        adamw_active: 1 or 0: whether AdamW has a gradient.
        adamw_rate: AdamW's rate.
        adamw_decay_factor: On the weight, of AdamW.
    """

    gradient_weight: list[Any]
    nesterov_weight: list[Any]
    decay_factor: list[Any]
    adamw_active: Sequence[Any] = ()
    adamw_rate: Sequence[Any] = ()
    adamw_decay_factor: Sequence[Any] = ()


def update_stack_(
    X: list[Tensor],
    stack: Stack,
    O: Tensor,
    rates: Tensor,
    decay_factor: Sequence[Any],
    *,
    cautious: bool = False,
    casts: Sequence[Callable[[Tensor, Any], Tensor]] | None = None,
) -> None:
    """X <- decay_factor X + rate O, of a stack's variables [Alg. 1, line 10].

    Args:
        X: Weights, one per variable; those of the stack are replaced.
        stack: A stack of whole variables.
        O: `(n, rows, columns)`, as the stack; may be overwritten.
        rates: Rate of each matrix in the stack, `(n,)`.
        decay_factor: Factor on the weights, one scalar per variable, or one
            tensor for its entries.
        cautious: Whether entries that the update moves away from 0 do not
            decay.
        casts: Functions of new weights and their dtype, one per variable of
            the stack; None rounds to the nearest.
    """
    updated = backend.update_(
        [X[i] for i in stack.indices],
        stack.scatter(backend.scale_(O, rates[:, None, None])),
        [decay_factor[i] for i in stack.indices],
        cautious=cautious,
        casts=casts,
    )
    for i, x in zip(stack.indices, updated, strict=True):
        X[i] = x


def rms_rule(norm: Norm, rms: float) -> Rule:
    """The rule whose hidden updates have this RMS at rate 1.

    Args:
        norm: A spectral norm.
        rms: The RMS.
    """
    return Rule(norm, lambda spec: rms * rms_matched(spec))


def rms_matched(spec: VariableSpec) -> float:
    """The factor that gives U V^T an RMS of 1, about that of AdamW's updates.

    Args:
        spec: A hidden variable.

    References:
        Liu et al. 2025, Muon is Scalable for LLM Training.
    """
    return float(max(spec.d_in, spec.d_out) ** 0.5)

"""The optimizer of all whose updates are LMOs of norms.

The step itself is `core.step`. An optimizer chooses its parts: the norm of each
role, the noise-adaptive rate, Newton-Schulz, AdamW for the other roles, how the
momentum starts, and what follows the LMO.
"""

import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_lanton.backends import Devices
from keras_lanton.backends import backend
from keras_lanton.core.layout import VariableLayout
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Spectral
from keras_lanton.core.plan import Plan
from keras_lanton.core.plan import make_plan
from keras_lanton.core.step import AfterLMO
from keras_lanton.core.step import Changes
from keras_lanton.core.step import StepSettings
from keras_lanton.core.step import step_
from keras_lanton.fast.batching import make_sizes
from keras_lanton.fast.spectral import make_spectral
from keras_lanton.optimizer.base import LayerwiseOptimizer
from keras_lanton.optimizer.momentum import Momentum
from keras_lanton.optimizer.momentum import block_length
from keras_lanton.optimizer.noise_report import NoiseReports
from keras_lanton.optimizer.rounding import ROUNDINGS
from keras_lanton.optimizer.rounding import stochastic_cast
from keras_lanton.optimizer.state import Buffer
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz
from keras_lanton.settings import NoiseAdaptiveRate
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


class LMOOptimizer(NoiseReports, LayerwiseOptimizer):
    """An optimizer with a norm for each of some roles, and AdamW for others.

        B_t = b1 B_{t-1} + (1 - b1) G_t                          line 5
        O_t = LMO(B_t)                                           line 6
        eta_t^l = eta_t times the ratio of `noise`               lines 7 to 9
        X_{t+1} = (1 - eta_t gamma) X_t + eta_t^l s O_t          line 10

    With `nesterov`, b1 B_t + (1 - b1) G_t goes to line 6. Subclasses choose
    the parts: `make_rules`, and where they need them `before_lmo`,
    `after_lmo`, `first_gradient_starts_momentum` and `momentum_warmup`.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the momentum, in [0, 1).
        nesterov: Whether b1 B_t + (1 - b1) G_t goes to line 6.
        noise: Makes the learning rates depend on the gradient noise, or None.
        newton_schulz: How hidden matrices are orthogonalized.
        auxiliary_adamw: Updates the roles without a norm, or None.
        momentum_dtype: Dtype of the momentum: a float dtype, or `"int8"` for
            that of hidden matrices and embeddings. Defaults to each variable's
            own.
        rounding: `"nearest"`, or `"stochastic"`: updates of bfloat16 weights
            are rounded up or down by chance, so that small ones are not lost.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    arguments: tuple[str, ...] = (
        "beta_1",
        "nesterov",
        "momentum_dtype",
        "rounding",
    )
    # Whether B_0 = G_1, as in Algorithm 1; else B_0 = 0.
    first_gradient_starts_momentum = False
    # Whether 1 - b1 in line 5 is at least min(0.1, 16 / t).
    momentum_warmup = False

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
        **kwargs: Any,
    ) -> None:
        check_numbers({"beta_1": DECAY}, beta_1=beta_1)
        check_bool("nesterov", nesterov)
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
        if noise is not None:
            noise.check_accumulation(self.gradient_accumulation_steps)
        # Set once: TensorFlow wraps dicts that are attributes, and cannot
        # save one that has changed since.
        self.slot_dtypes = {
            "momentum": momentum_dtype,
            **self.slot_dtypes,
            **_slots_of_noise(noise),
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

    def before_lmo(self, M: Tensor) -> Tensor:
        """The tensor that the LMO is taken of.

        Args:
            M: Momentum of a stack, `(n, rows, columns)`.
        """
        return M

    def after_lmo(self, found: AfterLMO) -> tuple[Tensor, Changes]:
        """The direction of line 10, from what line 6 gives.

        Args:
            found: The LMO of a stack.

        Returns:
            `(n, rows, columns)` float32, and changes of the state.
        """
        return found.O, {}

    def decay_of(self, role: str) -> float:
        """The decay gamma of the variables of a role.

        Args:
            role: The role; AdamW's may have a decay of their own.
        """
        part = self.auxiliary_adamw
        if part is None or role not in part.roles or part.weight_decay is None:
            return self.decay
        return part.weight_decay

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
        rules = self.make_rules(
            make_spectral(self.newton_schulz, self.noise, devices)
        )
        return {r: rules[r] for r in ROLES if r in rules}

    def lay_out_work(
        self, layout: VariableLayout, variables: Sequence[Any]
    ) -> dict[str, Buffer | list[Buffer]]:
        """Makes the plan.

        Args:
            layout: The variables.
            variables: The updated variables.

        Returns:
            The state of the noise, and int8's scales, by name.

        Raises:
            ValueError: If no weight has the dtype that `rounding` is for.
        """
        devices = backend.devices(variables, self.newton_schulz.shard)
        self._check_int8(layout)
        shapes = [spec.shape for spec in layout.specs]
        blocks = map(self._momentum_blocks, layout.updated_specs)
        self._momentum = Momentum(blocks=tuple(itertools.chain(*blocks)))
        self._check_rounding(variables)
        self._plan = make_plan(
            layout,
            self.rules_by_role(devices),
            noise=self.noise,
            adamw=self.auxiliary_adamw,
            sizes=make_sizes(self.newton_schulz.max_temporary_bytes, devices),
        )
        made: dict[str, Buffer | list[Buffer]] = {
            **self._momentum.buffers(shapes)
        }
        if self.noise is not None:
            made |= _buffers_of_noise(self._plan, self.noise)
        return made

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

    def _check_int8(self, layout: VariableLayout) -> None:
        """ValueError where a process has a part of a tensor in int8."""
        if self.momentum_dtype == "int8" and backend.holds_parts(
            layout.placements
        ):
            raise ValueError(
                "momentum_dtype='int8' needs whole weights in every process: "
                'blocks of its entries have a scale. `"bfloat16"` does not. '
                "Received: weights that `ModelParallel` splits"
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
        """One step of Algorithm 1, by `core.step`.

        Args:
            G: Gradients, one per variable, shaped as the weights.
            X: Weights, likewise; may be overwritten.
            state: See `core.step`; with int8 also `"momentum_scale"`.
            active: Which matrices have a gradient, `(matrices,)` bool.
            eta: Learning rate, float32 scalar.
            t: Number of this step, int32 scalar, from 1.

        Returns:
            The new weights and the new state, in the dtypes of the old.
        """
        B_last = self._momentum.read(state, self._summed_in_half(G, state))
        X_new, new, weights = step_(
            self._plan,
            self._step_settings(),
            backend.cast_each(G, [B.dtype for B in B_last]),
            B_last,
            X,
            state,
            active=active,
            eta=eta,
            t=t,
        )
        new |= self._momentum.write(new["momentum"], state, weights, t)
        return X_new, self.new_state(state, active, t, **new)

    def _summed_in_half(
        self, G: Sequence[Tensor], state: State
    ) -> frozenset[int]:
        """Variables whose momentum and gradients are of one half precision.

        Where the backend computes their sums in float32, copies of both in
        float32 would gain one rounding of what line 6 sees, and take a quarter
        of the step's memory traffic. AdamW's update is elementwise: it would
        show the rounding.
        """
        if not backend.SUMS_HALF_IN_FLOAT32:
            return frozenset()
        pairs = enumerate(zip(G, state["momentum"], strict=True))
        alike = {i for i, (g, B) in pairs if g.dtype == B.dtype}
        return frozenset(alike.difference(self._plan.by_adamw))

    def _step_settings(self) -> StepSettings:
        """The settings as they are now: a user may set attributes."""
        return StepSettings(
            beta_1=self.beta_1,
            nesterov=self.nesterov,
            momentum_warmup=self.momentum_warmup,
            first_gradient_starts_momentum=self.first_gradient_starts_momentum,
            noise=self.noise,
            adamw=self.auxiliary_adamw,
            decays={role: self.decay_of(role) for role in ROLES},
            cast=stochastic_cast if self.rounding == "stochastic" else None,
            before_lmo=self.before_lmo,
            after_lmo=self.after_lmo,
        )

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


def _slots_of_noise(noise: NoiseAdaptiveRate | None) -> dict[str, str | None]:
    """Names and dtypes of the tensors that each variable needs."""
    if noise is None or noise.reference != "independent_gradient":
        return {}
    return {"gradient_difference": None}


def _buffers_of_noise(
    plan: Plan, noise: NoiseAdaptiveRate
) -> dict[str, Buffer | list[Buffer]]:
    """The state of the noise; of gradients only the chunks measured next."""
    matrices = (plan.layout.matrices,)
    made: dict[str, Buffer | list[Buffer]] = {
        "noise": Buffer(matrices, "float32"),
        "measurements": Buffer(matrices, "int32"),
    }
    shapes = plan.whitened_shapes()
    if shapes:
        made["row_noise"] = [Buffer((n, m), "float32") for n, m, _ in shapes]
        made["col_noise"] = [Buffer((n, k), "float32") for n, _, k in shapes]
    if noise.reference == "previous_gradient":
        dtype = noise.previous_gradient_dtype or "float32"
        made["previous_gradient"] = [
            Buffer(group.shape, dtype) for group in plan.groups
        ]
    return made


def rms_rule(norm: Norm, rms: float) -> Rule:
    """The rule whose hidden updates have this RMS at rate 1."""
    return Rule(norm, lambda spec: rms * rms_matched(spec))


def rms_matched(spec: VariableSpec) -> float:
    """The factor that gives U V^T an RMS of 1, about that of AdamW's updates.

    References:
        Liu et al. 2025, Muon is Scalable for LLM Training.
    """
    return float(max(spec.d_in, spec.d_out) ** 0.5)

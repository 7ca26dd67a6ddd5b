"""The noise-adaptive rate as a part: lines 7 to 9 of Algorithm 1."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.noise.formulas import group_noise
from keras_lanton.noise.formulas import layer_ratio
from keras_lanton.noise.formulas import noise_factor
from keras_lanton.noise.formulas import update_noise
from keras_lanton.noise.schedule import MeasurementGroup
from keras_lanton.noise.schedule import MeasurementPlan
from keras_lanton.norms.norms import Norm
from keras_lanton.norms.nuclear_norm import lanczos_nuclear_norm
from keras_lanton.norms.nuclear_norm import randomized_svd_nuclear_norm
from keras_lanton.norms.nuclear_norm import svd_nuclear_norm
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import DECAY
from keras_lanton.validation import DTYPES
from keras_lanton.validation import STEPS
from keras_lanton.validation import Numbers
from keras_lanton.validation import Part
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_numbers
from keras_lanton.variables.layout import VariableLayout

backend = backends.load()

CHOICES = {
    "alpha_unit": ("group_noise", "absolute"),
    "group_reduction": ("max", "mean"),
    "schedule": ("staggered", "interval"),
    "reference": ("previous_gradient", "independent_gradient", "momentum"),
    "estimator": ("lanczos", "newton_schulz", "randomized_svd", "svd"),
}
NUMBERS: Numbers = {
    "alpha": ABOVE_0,
    "beta_2": DECAY,
    "interval": STEPS,
    "rank": ("None or an integer of at least 1", lambda x: x >= 1, True),
    "power_iterations": (
        "None or an integer of at least 0",
        lambda x: x >= 0,
        True,
    ),
}


@keras.saving.register_keras_serializable(package="keras_lanton")
@dataclasses.dataclass(frozen=True)
class NoiseAdaptiveRate(Part):
    """Each matrix' learning rate over the base rate, by its gradient noise.

    Per matrix, with gradient G_t and noise H_t:

        H_t = b2 H_{t-1} + (1 - b2) ||D_t||_*^2                  line 7
        a_t = alpha / sqrt(alpha^2 + H_t)                        line 8
        eta_t^l = eta_t sqrt(a_t / max of a_t over the group)    line 9

    A group is all matrices of one role. D_t is the noise sample.

    Args:
        alpha: Above 0: how much noise a matrix may have before it is slowed
            down. Smaller adapts more.
        alpha_unit: `"group_noise"`: alpha is in units of the group's RMS
            noise; `"absolute"`: in the units of the dual norm, as printed.
        group_reduction: `"max"`: rates relative to the quietest matrix, as
            printed; `"mean"`: relative to the group's mean, so that the mean
            rate stays eta_t.
        beta_2: Decay of the noise H, in [0, 1).
        interval: Steps from one measurement of a matrix to the next, at
            least 1.
        schedule: `"staggered"`: on every step another part of the matrices is
            measured, so that steps take the same time and only that part's
            previous gradient is kept; `"interval"`: all on one step, as
            printed.
        reference: The noise sample D_t. `"previous_gradient"`: G_t - G_{t-1}
            (Option I); `"independent_gradient"`: difference of the means of
            odd and even micro-batches, before clipping (Option II), needs an
            even `gradient_accumulation_steps`; `"momentum"`: G_t - B_{t-1},
            without a second buffer.
        estimator: Nuclear norm of the hidden samples: `"lanczos"` (sketch and
            stochastic Lanczos quadrature, within a few percent),
            `"newton_schulz"` (`<D, polar(D)>`), `"svd"` (exact) or
            `"randomized_svd"` (the paper's).
        rank: Rank of `"randomized_svd"`, at least 1. Defaults to 6.
        power_iterations: Power iterations of `"randomized_svd"`, at least 0.
            Defaults to 2.
        previous_gradient_dtype: Dtype of the gradients that are kept for the
            next step. Defaults to float32.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Examples:
        >>> Lanton(noise=NoiseAdaptiveRate(alpha=0.3))

    References:
        Hao et al., arXiv 2510.14009, Algorithm 1.
    """

    alpha: float = 1.0
    _: dataclasses.KW_ONLY
    alpha_unit: str = "group_noise"
    group_reduction: str = "mean"
    beta_2: float = 0.9
    interval: int = 10
    schedule: str = "staggered"
    reference: str = "previous_gradient"
    estimator: str = "lanczos"
    rank: int | None = None
    power_iterations: int | None = None
    previous_gradient_dtype: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        check_numbers(NUMBERS, **{n: getattr(self, n) for n in NUMBERS})
        for name in ("rank", "power_iterations"):
            self._check_belongs(name, "estimator", "randomized_svd")
        dtype = self.previous_gradient_dtype
        if dtype is not None:
            check_choice("previous_gradient_dtype", dtype, DTYPES, also="None")
        self._check_belongs(
            "previous_gradient_dtype", "reference", "previous_gradient"
        )

    def _check_belongs(self, name: str, choice: str, needed: str) -> None:
        """ValueError for an argument that another one makes meaningless."""
        value, chosen = getattr(self, name), getattr(self, choice)
        if value is not None and chosen != needed:
            raise ValueError(
                f"`{name}` belongs to {choice}={needed!r}. "
                f"Received: {name}={value!r}, {choice}={chosen!r}"
            )

    def check_accumulation(self, steps: int | None) -> None:
        """ValueError unless this can be measured in windows of `steps`.

        Args:
            steps: `gradient_accumulation_steps` of the optimizer.
        """
        if self.reference == "independent_gradient" and (
            not steps or steps % 2
        ):
            raise ValueError(
                "reference='independent_gradient' needs an even "
                "`gradient_accumulation_steps`: it compares the odd with the "
                "even micro-batches. "
                f"Received: gradient_accumulation_steps={steps!r}"
            )

    def nuclear_norm(self) -> Callable[[Tensor], Tensor] | None:
        """The estimator; None stands for <D, polar(D)>."""
        rank = 6 if self.rank is None else self.rank
        iterations = self.power_iterations
        return {
            "lanczos": lanczos_nuclear_norm,
            "newton_schulz": None,
            "svd": svd_nuclear_norm,
            "randomized_svd": functools.partial(
                randomized_svd_nuclear_norm,
                rank=rank,
                power_iterations=2 if iterations is None else iterations,
            ),
        }[self.estimator]

    # State.

    def slot_dtypes(self) -> dict[str, str | None]:
        """Names and dtypes of the tensors that each variable needs."""
        if self.reference == "independent_gradient":
            return {"gradient_difference": None}
        return {}

    def buffers(
        self, plan: MeasurementPlan
    ) -> dict[str, list[tuple[tuple[int, ...], str]]]:
        """Shapes and dtypes of the gradients that are kept, by name.

        Only the chunk of each group is kept that the next step measures.

        Args:
            plan: The measurement groups.
        """
        if self.reference != "previous_gradient":
            return {}
        dtype = self.previous_gradient_dtype or "float32"
        return {"previous_gradient": [(g.shape, dtype) for g in plan.groups]}

    # The step.

    def update(
        self,
        plan: MeasurementPlan,
        norms: Mapping[str, Norm],
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
        *,
        active: Tensor,
        t: Tensor,
    ) -> tuple[Tensor, State]:
        """Rates over eta_t, and the new state [Alg. 1, lines 7 to 9].

        Args:
            plan: The measurement groups.
            norms: Norm of each role.
            G: Gradients, one per variable.
            B_last: B_{t-1}, likewise.
            state: The state before this step.
            active: Which variables have a gradient, `(variables,)` bool.
            t: Number of this step.

        Returns:
            Ratios `(matrices,)` float32, and the changed entries of the state:
            `"noise"`, `"measurements"`, and the gradients that the next step
            compares with, if it does.
        """
        if not plan.groups:
            return ops.ones_like(state["noise"]), {}
        due = self.due_chunks(plan, t)
        d = self.sample(plan, norms, G, B_last, state, due)
        measured = self.measured(plan, due, state["last_step"], active, t)
        new = self.accumulate(state, d, measured)
        if "previous_gradient" in state:
            new["previous_gradient"] = self.store_reference(
                plan, G, state["previous_gradient"], active, t
            )
        ratio = self.ratio(plan.layout, new["noise"], new["measurements"])
        return ratio, new

    def due_chunks(self, plan: MeasurementPlan, t: Tensor) -> Tensor:
        """The chunk of each group that is measured on step t.

        Args:
            plan: The measurement groups.
            t: Number of the step.

        Returns:
            `(groups,)` int32; the number of chunks where a group pauses.
        """
        first = 1 if self.reference == "independent_gradient" else 2
        late = np.array([first + g.offset for g in plan.groups], "int32")
        due = ops.mod(t - ops.convert_to_tensor(late), self.interval)
        return ops.minimum(due, ops.convert_to_tensor(plan.chunk_counts))

    def sample(
        self,
        plan: MeasurementPlan,
        norms: Mapping[str, Norm],
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
        due: Tensor,
    ) -> Tensor:
        """Dual norms of the noise samples D_t of the due chunks.

        Args:
            plan: The measurement groups.
            norms: Norm of each role.
            G: Gradients, one per variable.
            B_last: B_{t-1}, likewise.
            state: The state before this step.
            due: From `due_chunks`.

        Returns:
            `(matrices,)` float32; any number for matrices that are not due.
        """
        duals = []
        pairs = zip(plan.groups, *backend.unpack(due), strict=True)
        for k, (group, chunk) in enumerate(pairs):
            dual = functools.partial(
                self._dual, norms[group.role], group, k, chunk, G, B_last, state
            )
            duals.append(
                backend.cond(
                    chunk < len(group.chunks),
                    dual,
                    functools.partial(ops.zeros, (group.size,)),
                )
                if group.pauses
                else dual()
            )
        d = ops.take(ops.concatenate(duals), plan.placement.columns)
        return ops.convert_to_tensor(plan.layout.transpose_scale) * d

    def _dual(
        self,
        norm: Norm,
        group: MeasurementGroup,
        k: int,
        chunk: Any,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
    ) -> Tensor:
        """Dual norms of D_t in a chunk of group k, `(size,)`."""
        if self.reference == "independent_gradient":
            return norm.dual(_chunk(group, chunk, state["gradient_difference"]))
        if self.reference == "momentum":
            before = _chunk(group, chunk, B_last)
        else:
            before = ops.cast(state["previous_gradient"][k], "float32")
        return norm.dual(_chunk(group, chunk, G) - before)

    def measured(
        self,
        plan: MeasurementPlan,
        due: Tensor,
        last_step: Tensor,
        active: Tensor,
        t: Tensor,
    ) -> Tensor:
        """The matrices that are due and have both gradients of D_t.

        Args:
            plan: The measurement groups.
            due: From `due_chunks`.
            last_step: Last step with a gradient, `(variables,)` int32.
            active: Which variables have a gradient, `(variables,)` bool.
            t: Number of this step.

        Returns:
            `(matrices,)` bool.
        """
        comparable = active
        if self.reference == "momentum":
            comparable = ops.logical_and(active, last_step > 0)
        elif self.reference == "previous_gradient":
            # Only the immediately preceding gradient will do.
            known = ops.logical_and(active, last_step > 0)
            comparable = ops.logical_and(known, last_step == t - 1)
        placement = plan.placement
        return ops.logical_and(
            ops.take(due, placement.groups)
            == ops.convert_to_tensor(placement.chunks),
            ops.take(comparable, plan.layout.variable_of_matrix),
        )

    def accumulate(self, state: State, d: Tensor, measured: Tensor) -> State:
        """The noise after this step [Alg. 1, line 7].

        Args:
            state: The state before this step.
            d: Dual norms of the noise samples, `(matrices,)`.
            measured: Which matrices were measured, `(matrices,)` bool.

        Returns:
            The new `"noise"` (sqrt(H_t)) and `"measurements"`.
        """
        noise = update_noise(state["noise"], d, beta_2=self.beta_2)
        count = state["measurements"] + ops.cast(measured, "int32")
        return {
            "noise": ops.where(measured, noise, state["noise"]),
            "measurements": count,
        }

    def store_reference(
        self,
        plan: MeasurementPlan,
        G: Sequence[Tensor],
        stored: Sequence[Tensor],
        active: Tensor,
        t: Tensor,
    ) -> list[Tensor]:
        """The gradients that the next step compares with.

        Args:
            plan: The measurement groups.
            G: Gradients, one per variable.
            stored: The gradients that are kept now, one chunk per group.
            active: Which variables have a gradient, `(variables,)` bool.
            t: Number of this step.

        Returns:
            One chunk per group; without any gradient the stored one.
        """
        coming = ops.where(
            ops.any(active), self.due_chunks(plan, t + 1), plan.chunk_counts
        )
        (coming,) = backend.unpack(coming)
        return [
            _chunk_or_old(group, chunk, G, old)
            for group, chunk, old in zip(
                plan.groups, coming, stored, strict=True
            )
        ]

    # The rate.

    def ratio(
        self, layout: VariableLayout, noise: Tensor, measurements: Tensor
    ) -> Tensor:
        """Rate of each matrix over eta_t [Alg. 1, lines 8 and 9].

        Args:
            layout: The variables.
            noise: sqrt(H) as the state has it, `(matrices,)`.
            measurements: How often each matrix was measured, `(matrices,)`.

        Returns:
            `(matrices,)` float32.
        """
        noise = self.comparable_noise(noise, measurements)
        groups = [ops.convert_to_tensor(mask) for mask in layout.role_masks]
        alpha = self.alpha
        if self.alpha_unit == "group_noise":
            alpha = alpha * group_noise(noise, groups=groups)
        a = noise_factor(noise, alpha=alpha)
        return layer_ratio(
            a, noise, groups=groups, reduction=self.group_reduction
        )

    def comparable_noise(self, noise: Tensor, measurements: Tensor) -> Tensor:
        """sqrt(H) as if all matrices were measured equally often.

        H starts at zero and grows with every measurement. Where all are
        measured at once that is the same factor for all, as printed; else it
        would make those look quiet that were measured later.

        Args:
            noise: sqrt(H) as the state has it, `(matrices,)`.
            measurements: How often each matrix was measured, `(matrices,)`.
        """
        if self.schedule == "interval":
            return noise
        n = ops.cast(measurements, "float32")
        return noise / ops.sqrt(
            ops.where(n > 0, 1.0 - ops.power(self.beta_2, n), 1.0)
        )


def _chunk(
    group: MeasurementGroup,
    chunk: Any,
    tensors: Sequence[Tensor],
    dtype: str = "float32",
) -> Tensor:
    """A chunk of the variables' tensors, by its number: `group.shape`."""

    def gather(i: int) -> Tensor:
        return ops.cast(group.gather(i, tensors), dtype)

    count = len(group.chunks)
    if count == 1:
        return gather(0)
    if group.gathers_whole and not isinstance(chunk, int):
        chunks = group.gather_all(tensors)
        return ops.cast(ops.take(chunks, chunk, axis=0), dtype)
    branches = [functools.partial(gather, i) for i in range(count)]
    return backend.switch(chunk, branches)


def _chunk_or_old(
    group: MeasurementGroup, chunk: Any, tensors: Sequence[Tensor], old: Tensor
) -> Tensor:
    """`_chunk`; the old one, whose dtype it has, where a group pauses."""
    (found,) = backend.replace_if(
        chunk < len(group.chunks),
        lambda old: (_chunk(group, chunk, tensors, old.dtype),),
        old,
    )
    return found

"""The noise-adaptive rate as a part: lines 7 to 9 of Algorithm 1.

With `within_matrices` the noise of rows and columns is measured on the same
samples, and line 6 sees the momentum in units of it.
"""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.noise.formulas import group_noise
from keras_lanton.noise.formulas import layer_ratio
from keras_lanton.noise.formulas import momentum_variance
from keras_lanton.noise.formulas import noise_factor
from keras_lanton.noise.formulas import sample_variance
from keras_lanton.noise.formulas import update_noise
from keras_lanton.noise.schedule import Lines
from keras_lanton.noise.schedule import MeasurementGroup
from keras_lanton.noise.schedule import MeasurementPlan
from keras_lanton.norms.entry_noise import EntryNoise
from keras_lanton.norms.entry_noise import line_rms
from keras_lanton.norms.nuclear_norm import fastest_nuclear_norm
from keras_lanton.norms.nuclear_norm import frobenius_nuclear_norm
from keras_lanton.norms.nuclear_norm import lanczos_nuclear_norm
from keras_lanton.norms.nuclear_norm import randomized_svd_nuclear_norm
from keras_lanton.norms.nuclear_norm import svd_nuclear_norm
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import DECAY
from keras_lanton.validation import DTYPES
from keras_lanton.validation import STEPS
from keras_lanton.validation import Numbers
from keras_lanton.validation import Part
from keras_lanton.validation import check_bool
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_numbers
from keras_lanton.variables.layout import VariableLayout

backend = backends.load()

LARGEST = 1e36  # of what is measured: its sums and multiples are finite
LARGEST_NOISE = 1e30  # in units of the signal
CHOICES = {
    "alpha_unit": ("group_noise", "absolute", "signal"),
    "group_reduction": ("max", "mean"),
    "schedule": ("staggered", "interval"),
    "reference": ("previous_gradient", "independent_gradient", "momentum"),
    "estimator": (
        "auto",
        "frobenius",
        "lanczos",
        "newton_schulz",
        "randomized_svd",
        "svd",
    ),
}
NUMBERS: Numbers = {
    "alpha": ("None or a number above 0", lambda x: x > 0, False),
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
    """Adapts updates to the gradient noise, between matrices and within them.

    For each matrix, with gradient G_t and noise H_t:

        H_t = b2 H_{t-1} + (1 - b2) ||D_t||_*^2                  line 7
        a_t = alpha / sqrt(alpha^2 + H_t)                        line 8
        eta_t^l = eta_t sqrt(a_t) / mean of sqrt(a_t)            line 9

    D_t is the noise sample. With `alpha_unit="signal"` its dual norm is
    divided by that of the momentum B_{t-1}, and all matrices are one group.
    Otherwise the matrices of one role are a group. The mean is over the group.
    With `group_reduction="max"` line 9 is as printed:
    eta_t^l = eta_t sqrt(a_t / max of a_t).

    With `within_matrices`, line 6 sees each entry of the momentum in units of
    its noise, whose variance is factored by rows and columns. Hidden matrices
    are whitened: M_ij / (r_i c_j), where r_i^2 and c_j^2 are the noise of row
    i and of column j, each plus a tenth of the mean of M^2. In tables and
    heads M / sqrt(M^2 + V_M) replaces sign(M), where V_M is the variance of
    the momentum's noise. Other roles do not change.

    Args:
        alpha: A number above 0: the noise at which sqrt(a_t) is 84 %. The
            mean of line 9 comes after that. Smaller values adapt more. It does
            not change what `within_matrices` does. None: all matrices have the
            rate eta_t.
        within_matrices: Whether Lanton also measures the noise of rows and
            columns, and line 6 sees the momentum in units of it.
        alpha_unit: The unit of alpha and of the noise. `"signal"`: the dual
            norm of the matrix' own momentum B_{t-1}; `"group_noise"`: the
            group's RMS noise; `"absolute"`: the units of the dual norm, as
            printed.
        group_reduction: `"max"`: rates relative to the quietest matrix, as
            printed; `"mean"`: relative to the group's mean, so that the mean
            rate stays eta_t.
        beta_2: Decay of the noise H, in [0, 1).
        interval: Steps from one measurement of a matrix to the next, at
            least 1.
        schedule: `"staggered"`: each step measures another part of the
            matrices. So all steps take the same time, and the state keeps the
            previous gradient of one part only. `"interval"`: one step measures
            all, as printed.
        reference: The noise sample D_t. `"previous_gradient"`: G_t - G_{t-1}
            (Option I); `"independent_gradient"`: difference of the means of
            odd and even micro-batches, before clipping (Option II); it needs
            an even `gradient_accumulation_steps`; `"momentum"`:
            G_t - B_{t-1}, which needs no second buffer.
        estimator: Estimator of the nuclear norm of hidden samples:
            `"frobenius"` (`sqrt(min(d_in, d_out)) ||D||_F`, an upper bound)
            or `"lanczos"` (sketch and stochastic Lanczos quadrature, within a
            few percent). Also `"newton_schulz"` (`<D, polar(D)>`, by the
            optimizer's rows), `"svd"` (exact) or `"randomized_svd"` (the
            paper's). `"auto"` is `"frobenius"` with `alpha_unit="signal"`.
            With other units it is `"lanczos"` on a CPU, and on a GPU or TPU
            `<D, polar(D)>` by five rows, which needs neither QR nor
            eigenvalues.
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
        Hao et al., arXiv 2510.14009, Algorithm 1. The paper does not have
        noise within matrices, nor in units of the momentum:
        docs/deviations.md.
    """

    alpha: float | None = 1.0
    _: dataclasses.KW_ONLY
    within_matrices: bool = True
    alpha_unit: str = "signal"
    group_reduction: str = "mean"
    beta_2: float = 0.9
    interval: int = 10
    schedule: str = "staggered"
    reference: str = "previous_gradient"
    estimator: str = "auto"
    rank: int | None = None
    power_iterations: int | None = None
    previous_gradient_dtype: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        check_bool("within_matrices", self.within_matrices)
        check_numbers(NUMBERS, **{n: getattr(self, n) for n in NUMBERS})
        for name in ("rank", "power_iterations"):
            self._check_belongs(name, "estimator", "randomized_svd")
        if self.alpha is None and self.group_reduction != "mean":
            raise ValueError(
                "`group_reduction` belongs to an `alpha`: without one all "
                "matrices have the base rate. "
                f"Received: group_reduction={self.group_reduction!r}, "
                "alpha=None"
            )
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
        # A quotient of two norms of like matrices needs no more.
        in_units_of_signal = self.alpha_unit == "signal"
        return {
            "auto": frobenius_nuclear_norm
            if in_units_of_signal
            else fastest_nuclear_norm,
            "frobenius": frobenius_nuclear_norm,
            "lanczos": lanczos_nuclear_norm,
            "newton_schulz": None,
            "svd": svd_nuclear_norm,
            "randomized_svd": functools.partial(
                randomized_svd_nuclear_norm,
                rank=rank,
                power_iterations=2 if iterations is None else iterations,
            ),
        }[self.estimator]

    @property
    def line_roles(self) -> tuple[str, ...]:
        """Roles whose rows and columns are measured."""
        return ("hidden", "embedding") if self.within_matrices else ()

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
            G: Gradients, one per variable.
            B_last: B_{t-1}, likewise.
            state: The state before this step.
            active: Which matrices have a gradient, `(matrices,)` bool.
            t: Number of this step.

        Returns:
            Ratios `(matrices,)` float32, and the changed entries of the state:
            `"noise"`, `"measurements"`, `"line_noise"` with
            `within_matrices`, and the gradients that the next step compares
            with, if it does.
        """
        if not plan.groups:
            return ops.ones_like(state["noise"]), {}
        with backend.on_host():
            due = self.due_chunks(plan, t)
            measured = self.measured(plan, due, state["last_step"], active, t)
        outputs = self.sample(plan, G, B_last, state, due)
        measured = backend.on_device(measured)
        new = self.accumulate(plan, state, outputs, measured)
        active = backend.after(outputs, active)
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
        due = ops.mod(t - backend.constant(late), self.interval)
        return backend.minimum(due, backend.constant(plan.chunk_counts))

    def sample(
        self,
        plan: MeasurementPlan,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
        due: Tensor,
    ) -> Tensor:
        """Dual norms, and lines, of the noise samples D_t of the due chunks.

        Args:
            plan: The measurement groups.
            G: Gradients, one per variable.
            B_last: B_{t-1}, likewise.
            state: The state before this step.
            due: From `due_chunks`.

        Returns:
            `(outputs,)` float32, as `plan.placement` has them.
        """
        outputs = []
        pairs = zip(plan.groups, *backend.unpack(due), strict=True)
        for k, (group, chunk) in enumerate(pairs):
            measure = functools.partial(
                self._measure,
                group,
                k,
                chunk,
                G,
                B_last,
                state,
            )
            outputs.append(
                backend.cond(
                    chunk < len(group.chunks),
                    measure,
                    functools.partial(ops.zeros, (group.outputs,), "float32"),
                )
                if group.pauses
                else measure()
            )
        return ops.concatenate(outputs)

    def _measure(
        self,
        group: MeasurementGroup,
        k: int,
        chunk: Any,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
    ) -> Tensor:
        """Dual norms of D_t in a chunk of group k, then its lines."""
        D = self._sample(group, k, chunk, G, B_last, state)
        if not backend.EAGER:  # where huge gradients are not halved
            D = backend.clip(D, -LARGEST, LARGEST)
        d = backend.minimum(group.norm.dual(D), LARGEST)
        if self.alpha_unit == "signal":
            signal = group.norm.dual(_chunk(group, chunk, B_last))
            signal = backend.minimum(signal, LARGEST)
            d = d / backend.where(signal > 0, signal, 1.0)
            d = backend.minimum(d, LARGEST_NOISE)
        if not group.has_lines:
            return d
        lines = (ops.reshape(one, (-1,)) for one in line_rms(D))
        return ops.concatenate(
            [d, *(backend.minimum(one, LARGEST) for one in lines)]
        )

    def _sample(
        self,
        group: MeasurementGroup,
        k: int,
        chunk: Any,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
    ) -> Tensor:
        """D_t of a chunk of group k, of the group's shape."""
        if self.reference == "independent_gradient":
            return _chunk(group, chunk, state["gradient_difference"])
        if self.reference == "momentum":
            before = _chunk(group, chunk, B_last)
        else:
            before = ops.cast(state["previous_gradient"][k], "float32")
        return _chunk(group, chunk, G) - before

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
            last_step: Last step with a gradient, `(matrices,)` int32.
            active: Which matrices have a gradient, `(matrices,)` bool.
            t: Number of this step.

        Returns:
            `(matrices,)` bool.
        """
        comparable = active
        if self.alpha_unit == "signal" or self.reference == "momentum":
            comparable = ops.logical_and(active, last_step > 0)
        if self.reference == "previous_gradient":
            # Only the immediately preceding gradient will do.
            known = ops.logical_and(active, last_step > 0)
            comparable = ops.logical_and(known, last_step == t - 1)
        placement = plan.placement
        return ops.logical_and(
            backend.take(due, backend.constant(placement.groups))
            == backend.constant(placement.chunks),
            comparable,
        )

    def accumulate(
        self,
        plan: MeasurementPlan,
        state: State,
        outputs: Tensor,
        measured: Tensor,
    ) -> State:
        """The noise after this step [Alg. 1, line 7].

        Args:
            plan: The measurement groups.
            state: The state before this step.
            outputs: From `sample`.
            measured: Which matrices were measured, `(matrices,)` bool.

        Returns:
            The new `"noise"` (sqrt(H_t)) and `"measurements"`, and likewise
            `"line_noise"` where rows and columns are measured.
        """
        place = plan.placement
        d = backend.take(outputs, backend.constant(place.columns))
        if self.alpha_unit != "signal":  # a quotient, where it cancels
            d = backend.constant(plan.dual_scale) * d
        noise = update_noise(state["noise"], d, beta_2=self.beta_2)
        count = state["measurements"] + ops.cast(measured, "int32")
        new = {
            "noise": backend.where(measured, noise, state["noise"]),
            "measurements": count,
        }
        if "line_noise" in state:
            old = state["line_noise"]
            lines = backend.take(outputs, backend.constant(place.line_columns))
            lines = update_noise(old, lines, beta_2=self.beta_2)
            due = backend.take(measured, backend.constant(place.line_matrices))
            new["line_noise"] = backend.where(due, lines, old)
        return new

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
            stored: The gradients in the state, one chunk per group.
            active: Which matrices have a gradient, `(matrices,)` bool.
            t: Number of this step.

        Returns:
            One chunk per group; without any gradient the stored one.
        """
        with backend.on_host():
            due = self.due_chunks(plan, t + 1)
            coming = backend.where(
                ops.any(active), due, backend.constant(plan.chunk_counts)
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
        if self.alpha is None:
            return ops.ones_like(noise)
        noise = self.comparable_noise(noise, measurements)
        masks = layout.role_masks
        if self.alpha_unit == "signal":
            masks = (np.any(np.array(masks), axis=0),)
        groups = [backend.constant(mask) for mask in masks]
        alpha = self.alpha
        if self.alpha_unit == "group_noise":
            alpha = alpha * group_noise(noise, groups=groups)
        a = noise_factor(noise, alpha=alpha)
        return layer_ratio(
            a, noise, groups=groups, reduction=self.group_reduction
        )

    def comparable_noise(self, noise: Tensor, measurements: Tensor) -> Tensor:
        """sqrt(H) as if all matrices were measured equally often.

        H starts at zero and grows with every measurement. If one step measures
        all matrices, this is the same factor for all, as printed. Otherwise
        it would make matrices look quiet that are measured later.

        Args:
            noise: sqrt(H) as the state has it, `(matrices,)`.
            measurements: How often each matrix was measured, `(matrices,)`.
        """
        if self.schedule == "interval":
            return noise
        return noise / self._debias(measurements)

    def _debias(self, measurements: Tensor) -> Tensor:
        """sqrt(1 - b2^n): what n measurements leave of sqrt(H), at 0 first."""
        n = ops.cast(measurements, "float32")
        return ops.sqrt(
            backend.where(n > 0, 1.0 - backend.power(self.beta_2, n), 1.0)
        )

    # Within matrices.

    def entry_noise(
        self, lines: Lines, state: State, *, beta_1: float, nesterov: bool
    ) -> EntryNoise:
        """The noise of the entries of a stack's matrices.

        Args:
            lines: Where the state has the stack's lines.
            state: The state, with this step's measurements.
            beta_1: Decay of the momentum.
            nesterov: Whether line 6 sees b1 B_t + (1 - b1) G_t.
        """
        count = backend.take(
            state["measurements"], backend.constant(lines.matrices)
        )
        # Of the sample, over one gradient's.
        unit = (
            self._debias(count) * sample_variance(self.reference, beta_1) ** 0.5
        )
        rows, columns = (
            backend.take(state["line_noise"], backend.constant(numbers))
            / unit[:, None]
            for numbers in (lines.rows, lines.columns)
        )
        return EntryNoise(
            rows=rows,
            columns=columns,
            known=count > 0,
            momentum_share=momentum_variance(beta_1, nesterov) ** 0.5,
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

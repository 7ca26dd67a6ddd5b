"""The noise-adaptive layer rate as a part: lines 7 to 9 of Algorithm 1."""

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.arguments import ABOVE_0
from keras_lanton.arguments import DECAY
from keras_lanton.arguments import DTYPES
from keras_lanton.arguments import STEPS
from keras_lanton.arguments import Numbers
from keras_lanton.arguments import check_choice
from keras_lanton.arguments import check_numbers
from keras_lanton.noise import noise_factor
from keras_lanton.noise import update_noise
from keras_lanton.norms import Norm
from keras_lanton.norms import lanczos_nuclear_norm
from keras_lanton.norms import randomized_svd_nuclear_norm
from keras_lanton.norms import svd_nuclear_norm
from keras_lanton.plan import Plan
from keras_lanton.rescaling import group_noise
from keras_lanton.rescaling import layer_ratio
from keras_lanton.rounds import Round

Tensor = Any
State = dict[str, Any]

backend = backends.load()


@keras.saving.register_keras_serializable(package="keras_lanton")
class NoiseAdaptiveRate:
    """Each layer's rate over the base rate, by its gradient noise.

    The part of Lanton that other optimizers take too, as `DMuon(noise=...)`.
    Per layer, with gradient G_t and noise H_t:

        H_t = b2 H_{t-1} + (1 - b2) ||D_t||_*^2                  line 7
        a_t = alpha / sqrt(alpha^2 + H_t)                        line 8
        eta_t^l = eta_t sqrt(a_t / max of a_t over the group)    line 9

    Args:
        beta_2: Decay of the noise H, in [0, 1).
        alpha: Above 0: how much noise a layer may have before it is slowed
            down.
        alpha_unit: `"group_noise"` or `"absolute"`.
        group_reduction: `"max"` or `"mean"`.
        noise_interval: Steps from one measurement of a matrix to the next, at
            least 1.
        noise_schedule: `"staggered"` or `"interval"`.
        noise_reference: `"previous_gradient"`, `"independent_gradient"` or
            `"momentum"`.
        noise_estimator: `"lanczos"`, `"newton_schulz"`, `"svd"` or
            `"randomized_svd"`.
        rank: Rank of `"randomized_svd"`, at least 1. Defaults to 6.
        power_iterations: Power iterations of `"randomized_svd"`, at least 0.
            Defaults to 2.
        previous_gradient_dtype: Dtype of the gradients that are kept for the
            next step. Defaults to float32.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    References:
        Hao et al., arXiv 2510.14009, Algorithm 1. The choices are explained
        at `Lanton`.
    """

    def __init__(
        self,
        *,
        beta_2: float = 0.9,
        alpha: float = 0.3,
        alpha_unit: str = "group_noise",
        group_reduction: str = "max",
        noise_interval: int = 10,
        noise_schedule: str = "staggered",
        noise_reference: str = "previous_gradient",
        noise_estimator: str = "lanczos",
        rank: int | None = None,
        power_iterations: int | None = None,
        previous_gradient_dtype: str | None = None,
    ) -> None:
        _check_arguments(locals())
        self.beta_2 = float(beta_2)
        self.alpha = float(alpha)
        self.alpha_unit = alpha_unit
        self.group_reduction = group_reduction
        self.noise_interval = int(noise_interval)
        self.noise_schedule = noise_schedule
        self.noise_reference = noise_reference
        self.noise_estimator = noise_estimator
        self.rank = rank
        self.power_iterations = power_iterations
        self.previous_gradient_dtype = previous_gradient_dtype

    def get_config(self) -> dict[str, Any]:
        """Every argument, as JSON types."""
        return {name: getattr(self, name) for name in ARGUMENTS}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "NoiseAdaptiveRate":
        """Inverse of `get_config`."""
        return cls(**config)

    def check_accumulation(self, steps: int | None) -> None:
        """ValueError unless this can be measured in windows of `steps`.

        Args:
            steps: `gradient_accumulation_steps` of the optimizer.
        """
        if self.noise_reference == "independent_gradient" and (
            not steps or steps % 2
        ):
            raise ValueError(
                "noise_reference='independent_gradient' needs an even "
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
        }[self.noise_estimator]

    def slots(self) -> dict[str, str | None]:
        """Names and dtypes of the tensors that each variable needs."""
        if self.noise_reference == "independent_gradient":
            return {"gradient_difference": None}
        return {}

    def buffers(
        self, plan: Plan
    ) -> dict[str, list[tuple[tuple[int, ...], str]]]:
        """Shapes and dtypes of what is kept per round.

        Returns:
            Of the previous gradient only the share of each round that the
            next step measures.
        """
        if self.noise_reference != "previous_gradient":
            return {}
        dtype = self.previous_gradient_dtype or "float32"
        shapes = [measuring.shape for measuring in plan.rounds]
        return {"previous_gradient": [(shape, dtype) for shape in shapes]}

    def measure(
        self,
        plan: Plan,
        norms: Mapping[str, Norm],
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
        active: Tensor,
        t: Tensor,
    ) -> State:
        """sqrt(H_t) of the matrices whose turn it is [Alg. 1, line 7].

        Args:
            plan: Of the optimizer.
            norms: Norm of each role.
            G: Gradients, one per layer.
            B_last: B_{t-1}, likewise.
            state: The state before this step.
            active: Which layers have a gradient, `(variables,)` bool.
            t: Number of this step.

        Returns:
            The new `"noise"` and `"measurements"`, and the gradients that the
            next step compares with, if it does.
        """
        turns = self._turns(plan, t)
        duals = []
        for k, (measuring, turn) in enumerate(
            zip(plan.rounds, *backend.unpack(turns), strict=True)
        ):
            dual = functools.partial(
                self._dual, norms, measuring, k, turn, G, B_last, state
            )
            duals.append(
                backend.cond(
                    turn < len(measuring.shares),
                    dual,
                    functools.partial(ops.zeros, (measuring.size,)),
                )
                if measuring.pauses
                else dual()
            )
        places = plan.places
        d = ops.take(ops.concatenate(duals), places.slots)
        d = ops.convert_to_tensor(plan.flips) * d
        comparable = self._comparable(state["last_step"], active, t)
        known = ops.logical_and(
            ops.take(turns, places.rounds)
            == ops.convert_to_tensor(places.shares),
            ops.take(comparable, plan.owners),
        )
        noise = update_noise(state["noise"], d, beta_2=self.beta_2)
        new = {
            "noise": ops.where(known, noise, state["noise"]),
            "measurements": state["measurements"] + ops.cast(known, "int32"),
        }
        if "previous_gradient" in state:
            # Without any gradient there is none to keep.
            coming = ops.where(
                ops.any(active), self._turns(plan, t + 1), plan.share_counts
            )
            (coming,) = backend.unpack(coming)
            new["previous_gradient"] = [
                _share(measuring, turn, G, otherwise=old)
                for measuring, turn, old in zip(
                    plan.rounds,
                    coming,
                    state["previous_gradient"],
                    strict=True,
                )
            ]
        return new

    def _turns(self, plan: Plan, t: Tensor) -> Tensor:
        """The share of each round whose turn it is on step t.

        Returns:
            `(rounds,)` int32; the number of its shares where a round pauses.
        """
        first = 1 if self.noise_reference == "independent_gradient" else 2
        rounds = plan.rounds
        late = np.array([first + r.offset for r in rounds], "int32")
        turns = ops.mod(t - ops.convert_to_tensor(late), self.noise_interval)
        return ops.minimum(turns, ops.convert_to_tensor(plan.share_counts))

    def _dual(
        self,
        norms: Mapping[str, Norm],
        measuring: Round,
        k: int,
        turn: Any,
        G: Sequence[Tensor],
        B_last: Sequence[Tensor],
        state: State,
    ) -> Tensor:
        """Dual norms of D_t in a share of round k, `(size,)`."""
        if self.noise_reference == "independent_gradient":
            D = _share(measuring, turn, state["gradient_difference"])
        elif self.noise_reference == "momentum":
            D = _share(measuring, turn, G) - _share(measuring, turn, B_last)
        else:
            G_last = ops.cast(state["previous_gradient"][k], "float32")
            D = _share(measuring, turn, G) - G_last
        return norms[measuring.role].dual(D)

    def _comparable(
        self, last_step: Tensor, active: Tensor, t: Tensor
    ) -> Tensor:
        """Which layers have what D_t compares, `(variables,)` bool."""
        if self.noise_reference == "independent_gradient":
            return active
        known = ops.logical_and(active, last_step > 0)
        if self.noise_reference == "momentum":
            return known
        # Only the immediately preceding gradient will do.
        return ops.logical_and(known, last_step == t - 1)

    def ratio(self, plan: Plan, noise: Tensor, measurements: Tensor) -> Tensor:
        """Rate of each matrix over eta_t [Alg. 1, lines 8 and 9]."""
        noise = self.comparable_noise(noise, measurements)
        groups = [ops.convert_to_tensor(m) for m in plan.groups]
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
        """
        if self.noise_schedule == "interval":
            return noise
        n = ops.cast(measurements, "float32")
        return noise / ops.sqrt(
            ops.where(n > 0, 1.0 - ops.power(self.beta_2, n), 1.0)
        )


CHOICES = {
    "alpha_unit": ("group_noise", "absolute"),
    "group_reduction": ("max", "mean"),
    "noise_schedule": ("staggered", "interval"),
    "noise_reference": (
        "previous_gradient",
        "independent_gradient",
        "momentum",
    ),
    "noise_estimator": ("lanczos", "newton_schulz", "randomized_svd", "svd"),
}
NUMBERS: Numbers = {
    "beta_2": DECAY,
    "alpha": ABOVE_0,
    "noise_interval": STEPS,
    "rank": ("None or an integer of at least 1", lambda x: x >= 1, True),
    "power_iterations": (
        "None or an integer of at least 0",
        lambda x: x >= 0,
        True,
    ),
}
ARGUMENTS = (*CHOICES, *NUMBERS, "previous_gradient_dtype")


def _check_arguments(given: Mapping[str, Any]) -> None:
    """ValueError for the first wrong argument."""
    for name, allowed in CHOICES.items():
        check_choice(name, given[name], allowed)
    check_numbers(NUMBERS, given)
    for name in ("rank", "power_iterations"):
        if given[name] is not None and (
            given["noise_estimator"] != "randomized_svd"
        ):
            raise ValueError(
                f"`{name}` belongs to noise_estimator='randomized_svd'. "
                f"Received: {name}={given[name]!r}, "
                f"noise_estimator={given['noise_estimator']!r}"
            )
    dtype = given["previous_gradient_dtype"]
    if dtype is None:
        return
    check_choice("previous_gradient_dtype", dtype, DTYPES, also="None")
    if given["noise_reference"] != "previous_gradient":
        raise ValueError(
            "`previous_gradient_dtype` belongs to "
            "noise_reference='previous_gradient'. Received: "
            f"previous_gradient_dtype={dtype!r}, "
            f"noise_reference={given['noise_reference']!r}"
        )


def _share(
    measuring: Round,
    turn: Any,
    tensors: Sequence[Tensor],
    otherwise: Tensor | None = None,
) -> Tensor:
    """Share number `turn` of the layers' tensors.

    Args:
        measuring: The round.
        turn: Integer scalar.
        tensors: One per layer.
        otherwise: What to return where the round pauses.

    Returns:
        `(size, rows, columns)`, in the dtype of `otherwise` or else float32.
    """
    dtype = "float32" if otherwise is None else otherwise.dtype

    def gather(i: int) -> Tensor:
        return ops.cast(measuring.gather(i, tensors), dtype)

    count = len(measuring.shares)
    branches = [functools.partial(gather, i) for i in range(count)]

    def share() -> Tensor:
        if count == 1:
            return gather(0)
        if measuring.is_small and not isinstance(turn, int):
            shares = measuring.gather_all(tensors)
            return ops.cast(ops.take(shares, turn, axis=0), dtype)
        return backend.switch(turn, branches)

    if otherwise is None:
        return share()
    (found,) = backend.replace_if(
        turn < count, lambda old: (share(),), otherwise
    )
    return found

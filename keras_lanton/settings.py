"""Settings of the parts of an optimizer: frozen records with their checks.

They compute nothing: `core` reads them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from keras_lanton.coefficients import coefficient_rows
from keras_lanton.types import Row
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import BASE_NUMBERS
from keras_lanton.validation import COUNT
from keras_lanton.validation import DECAY
from keras_lanton.validation import DTYPES
from keras_lanton.validation import STEPS
from keras_lanton.validation import Numbers
from keras_lanton.validation import Part
from keras_lanton.validation import check_bool
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

NOISE_CHOICES = {
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
NOISE_NUMBERS: Numbers = {
    "alpha": ("None or a number above 0", lambda x: x > 0, False),
    "beta_2": DECAY,
    "interval": STEPS,
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
    i and of column j, each plus a tenth of the mean of M^2. In embeddings and
    heads M / sqrt(M^2 + V_M) replaces sign(M), where V_M is the variance of
    the momentum's noise. Their rows and columns are measured on every step,
    by the gradient itself. Other roles do not change.

    Args:
        alpha: A number above 0. At a noise of alpha the factor sqrt(a_t) is
            0.84, before line 9 divides it by the mean of all. Smaller values
            adapt more. It does not change what `within_matrices` does. None:
            all matrices have the rate eta_t.
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
        docs/algorithm.md.
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
    previous_gradient_dtype: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in NOISE_CHOICES.items():
            check_choice(name, getattr(self, name), allowed)
        check_bool("within_matrices", self.within_matrices)
        check_numbers(
            NOISE_NUMBERS, **{n: getattr(self, n) for n in NOISE_NUMBERS}
        )
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
            if self.reference != "previous_gradient":
                raise ValueError(
                    "`previous_gradient_dtype` belongs to "
                    "reference='previous_gradient'. Received: "
                    f"previous_gradient_dtype={dtype!r}, "
                    f"reference={self.reference!r}"
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


NEWTON_SCHULZ_NUMBERS: Numbers = {
    # Each step is a row of coefficients; no matrix needs a hundred.
    "steps": ("an integer in [1, 100]", lambda x: 1 <= x <= 100, True),
    "max_temporary_bytes": COUNT,
}


@keras.saving.register_keras_serializable(package="keras_lanton")
@dataclasses.dataclass(frozen=True, kw_only=True)
class NewtonSchulz(Part):
    """Settings of Newton-Schulz, which orthogonalizes the matrices.

    Args:
        steps: Newton-Schulz steps, from 1 to 100.
        coefficients: `"cubic"`, `"jordan"`, `"you"`, `"polar_express"` or
            rows `(a, b, c)`; the last row is repeated up to `steps`. A row
            with c = 0, as all of `"cubic"`, takes two products, not three.
        dtype: Dtype of the products: `"float32"`, `"float16"`, `"bfloat16"`
            or `"auto"`. `"auto"` is float16 on a GPU and bfloat16 on a TPU.
            On a CPU it is bfloat16 where PyTorch multiplies it faster
            (AVX512_BF16, AMX), from a short side of 256 on, else float32.
            Matrices are normalized in float32
            before.
        max_temporary_bytes: Limit of the temporary memory for matrices that
            are orthogonalized together; at least one variable at a time.
            Defaults to 1 GiB on a GPU, else to 512 MiB.
        shard: Whether each device orthogonalizes and measures a share of the
            matrices, and then gets the updates of all. None: on JAX, over the
            mesh of the weights, and on PyTorch where these are split. True:
            also over other processes of `torch.distributed`; all of them must
            take every step. TensorFlow has no sharding.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Examples:
        >>> Lanton(newton_schulz=NewtonSchulz(dtype="bfloat16"))

    References:
        Jordan et al. 2024, Muon. The sources of the coefficients are in
        `COEFFICIENTS`.
    """

    steps: int = 5
    coefficients: str | Sequence[Sequence[float]] = "polar_express"
    dtype: str = "auto"
    max_temporary_bytes: int | None = None
    shard: bool | None = None

    def __post_init__(self) -> None:
        given = {"steps": self.steps}
        if self.max_temporary_bytes is not None:
            given["max_temporary_bytes"] = self.max_temporary_bytes
        check_numbers(NEWTON_SCHULZ_NUMBERS, **given)
        check_choice("dtype", self.dtype, ("auto", *DTYPES))
        check_bool("shard", self.shard, optional=True)
        coefficient_rows(self.coefficients, self.steps)
        if not isinstance(self.coefficients, str):
            own = tuple(tuple(map(float, row)) for row in self.coefficients)
            object.__setattr__(self, "coefficients", own)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The coefficients `(a, b, c)` of each step."""
        return coefficient_rows(self.coefficients, self.steps)


ADAMW_ROLES = ("embedding", "vector")
ADAMW_NUMBERS: Numbers = {
    "lr_ratio": AT_LEAST_0,
    "beta_1": DECAY,
    "beta_2": DECAY,
    "epsilon": ABOVE_0,
    "weight_decay": BASE_NUMBERS["weight_decay"],
}


@keras.saving.register_keras_serializable(package="keras_lanton")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliaryAdamW(Part):
    """AdamW for some roles; LMOs update the others.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2      from 0
        X <- (1 - eta' gamma) X - eta' m^ / (sqrt(v^) + epsilon)

    with eta' = eta `lr_ratio`. The optimizer keeps m in its momentum, and
    sqrt(v) in place of v: squares of large gradients would leave float32.

    Args:
        roles: Roles that AdamW updates: some of `"embedding"` and `"vector"`,
            at least one.
        lr_ratio: AdamW's learning rate over the base rate, at least 0.
        beta_1: Decay of m, in [0, 1).
        beta_2: Decay of v, in [0, 1).
        epsilon: Above 0.
        weight_decay: gamma, at least 0. Defaults to the optimizer's.
        epsilon_before_debiasing: Whether epsilon is added to sqrt(v), as in
            Keras and Moonlight, and not to sqrt(v^), as in PyTorch.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Examples:
        >>> Lanton(auxiliary_adamw=AuxiliaryAdamW(lr_ratio=0.5))

    References:
        Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization.
    """

    roles: Sequence[str] = ("vector",)
    lr_ratio: float = 1.0
    beta_1: float = 0.9
    beta_2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float | None = None
    epsilon_before_debiasing: bool = False

    def __post_init__(self) -> None:
        _check_roles(self.roles)
        object.__setattr__(self, "roles", tuple(self.roles))
        check_numbers(
            ADAMW_NUMBERS, **{n: getattr(self, n) for n in ADAMW_NUMBERS}
        )
        check_bool("epsilon_before_debiasing", self.epsilon_before_debiasing)


def _check_roles(roles: Any) -> None:
    """ValueError unless a sequence of different roles that AdamW can update."""
    if (
        isinstance(roles, (str, bytes))
        or not isinstance(roles, Sequence)
        or not roles
        or not all(isinstance(r, str) and r in ADAMW_ROLES for r in roles)
        or len(set(roles)) < len(roles)
    ):
        raise ValueError(
            f"`roles` must be a sequence of one or two of {ADAMW_ROLES}; for "
            f"none, `auxiliary_adamw=None`. Received: roles={shown(roles)}"
        )

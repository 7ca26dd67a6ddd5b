"""LANTON: noise-adaptive layerwise learning rates, Algorithm 1."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_lanton import adaptive_rate
from keras_lanton.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.arguments import Numbers
from keras_lanton.arguments import check_choice
from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.norm_optimizer import NormOptimizer
from keras_lanton.norm_optimizer import lookahead
from keras_lanton.norm_optimizer import rms_matched
from keras_lanton.norm_optimizer import wide
from keras_lanton.norms import RMS
from keras_lanton.norms import Norm
from keras_lanton.norms import Sign
from keras_lanton.norms import Spectral
from keras_lanton.roles import Layer

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_lanton")
class Lanton(NormOptimizer):
    """Optimizer that slows down the layers whose gradient is noisy.

    Per layer, with gradient G_t, momentum B_t and noise H_t:

        B_t = b1 B_{t-1} + (1 - b1) G_t                          line 5
        O_t = LMO(B_t)                                           line 6
        H_t = b2 H_{t-1} + (1 - b2) ||D_t||_*^2                  line 7
        a_t = alpha / sqrt(alpha^2 + H_t)                        line 8
        eta_t^l = eta_t sqrt(a_t / max of a_t over the group)    line 9
        X_{t+1} = X_t - eta_t gamma X_t + eta_t^l s O_t          line 10

    The LMO, the dual norm ||.||_* and the step scale s depend on the role of
    the layer: `"hidden"` (matrices: U V^T), `"embedding"` (tables and heads:
    sign) or `"vector"` (gains and biases: normalized). D_t is the noise
    sample. A variable without a gradient, or with one that is zero
    everywhere, keeps its weights and state on that step.

    Args:
        learning_rate: Float, `keras.optimizers.schedules` schedule, or a
            callable without arguments. With `gradient_accumulation_steps`
            Keras counts micro-steps in schedules.
        beta_1: Decay of the momentum B, in [0, 1).
        beta_2: Decay of the noise H, in [0, 1).
        alpha: Above 0: how much noise a layer may have before it is slowed
            down. Smaller adapts more.
        alpha_unit: `"group_noise"`: alpha is in units of the group's RMS
            noise; `"absolute"`: in the units of the dual norm, as printed.
        group_reduction: `"max"`: rates relative to the quietest layer, as
            printed; `"mean"`: relative to the group's mean, so that the mean
            rate stays eta_t.
        noise_interval: Steps from one measurement of a matrix to the next, at
            least 1.
        noise_schedule: `"staggered"`: on every step another part of the
            matrices is measured, so that steps take the same time and only
            that part's previous gradient is kept; `"interval"`: all on one
            step, as printed.
        noise_reference: The noise sample D_t. `"previous_gradient"`:
            G_t - G_{t-1} (Option I); `"independent_gradient"`: difference of
            the means of odd and even micro-batches, before clipping
            (Option II), needs an even `gradient_accumulation_steps`;
            `"momentum"`: G_t - B_{t-1}, without a second buffer.
        noise_estimator: Nuclear norm of the hidden layers' samples:
            `"lanczos"` (sketch and stochastic Lanczos quadrature, within a
            few percent), `"newton_schulz"` (<D, polar(D)>), `"svd"` (exact)
            or `"randomized_svd"` (the paper's).
        hidden_scale: RMS of a hidden step of rate 1, at least 0; only with
            `step_scale="rms_matched"`.
        embedding_scale: r1, at least 0: entries of an embedding step of rate
            1 are r1 / width.
        vector_scale: r2, at least 0: RMS of a vector step of rate 1.
        vector_norm: `"rms"`, or `"sign"` for the paper's CNN recipe.
        step_scale: Hidden steps: `"rms_matched"`:
            hidden_scale sqrt(max(d_in, d_out)) U V^T; `"operator"`:
            sqrt(d_out / d_in) U V^T.
        nesterov: Whether b1 B_t + (1 - b1) G_t goes to line 6.
        ns_steps: Newton-Schulz steps, at least 1.
        ns_coefficients: `"jordan"`, `"you"`, `"polar_express"` or rows
            `(a, b, c)`; the last row is repeated up to `ns_steps`.
        ns_dtype: Of the products in Newton-Schulz: `"float32"`, `"float16"`,
            `"bfloat16"`, or `"auto"`: float32 on a CPU, float16 on a GPU,
            bfloat16 on a TPU. Matrices are normalized in float32 before.
        max_temporary_bytes: Matrices of equal view are orthogonalized
            together as far as their temporaries fit into this, at least one
            variable at a time. Defaults to 512 MiB.
        momentum_dtype: Dtype of the momentum, e.g. `"bfloat16"`. Defaults to
            each variable's own.
        previous_gradient_dtype: Dtype of the gradients that are kept for the
            next step. Defaults to float32.
        nonfinite: `"skip"`: a step with a NaN or infinity in any gradient
            changes nothing but the iteration count and `skipped_steps`;
            `"propagate"`: Keras' usual behaviour.
        weight_decay: gamma, decoupled, at the base rate; None or at least 0.
        weight_decay_exclude: Regular expressions on the paths of variables
            that do not decay.
        rank: Rank of `"randomized_svd"`, at least 1. Defaults to 6.
        power_iterations: Power iterations of `"randomized_svd"`, at least 0.
            Defaults to 2.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Example:
        >>> model.compile(optimizer=Lanton(learning_rate=5e-3), loss="mse")

    References:
        Hao, Gong, Xu, Wang, Liu, Noise-Adaptive Layerwise Learning Rates,
        arXiv 2510.14009, Algorithm 1. Where this departs from the paper:
        docs/deviations.md.
    """

    arguments = (
        *NormOptimizer.arguments,
        "beta_1",
        "hidden_scale",
        "embedding_scale",
        "vector_scale",
        "vector_norm",
        "step_scale",
    )

    def __init__(
        self,
        learning_rate: Any = 5e-3,
        *,
        beta_1: float = 0.95,
        beta_2: float = 0.9,
        alpha: float = 0.3,
        alpha_unit: str = "group_noise",
        group_reduction: str = "max",
        noise_interval: int = 10,
        noise_schedule: str = "staggered",
        noise_reference: str = "previous_gradient",
        noise_estimator: str = "lanczos",
        hidden_scale: float = 0.2,
        embedding_scale: float = 300.0,
        vector_scale: float = 1.0,
        vector_norm: str = "rms",
        step_scale: str = "rms_matched",
        nesterov: bool = False,
        ns_steps: int = 5,
        ns_coefficients: str | Sequence[Sequence[float]] = "jordan",
        ns_dtype: str = "auto",
        max_temporary_bytes: int = 2**29,
        momentum_dtype: str | None = None,
        previous_gradient_dtype: str | None = None,
        nonfinite: str = "skip",
        weight_decay: float | None = 0.1,
        weight_decay_exclude: Sequence[str] | None = None,
        rank: int | None = None,
        power_iterations: int | None = None,
        name: str = "lanton",
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        _check_arguments(given)
        super().__init__(
            learning_rate,
            noise=NoiseAdaptiveRate(
                **{name: given[name] for name in adaptive_rate.ARGUMENTS}
            ),
            nesterov=nesterov,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
            ns_dtype=ns_dtype,
            max_temporary_bytes=max_temporary_bytes,
            momentum_dtype=momentum_dtype,
            nonfinite=nonfinite,
            weight_decay=weight_decay,
            weight_decay_exclude=weight_decay_exclude,
            name=name,
            **kwargs,
        )
        self.beta_1 = float(beta_1)
        self.hidden_scale = float(hidden_scale)
        self.embedding_scale = float(embedding_scale)
        self.vector_scale = float(vector_scale)
        self.vector_norm = vector_norm
        self.step_scale = step_scale

    def make_norms(self, hidden: Spectral) -> dict[str, Norm]:
        """The paper's norms."""
        vector = RMS() if self.vector_norm == "rms" else Sign()
        return {"hidden": hidden, "embedding": Sign(), "vector": vector}

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
        """One step of Algorithm 1 for all layers [Alg. 1, lines 5 to 10].

        Args:
            G: Gradients, one per layer, shaped as the weights.
            X: Weights, likewise.
            state: `"momentum"`, `"noise"`, `"measurements"`, `"last_step"`
                and, by noise reference, `"previous_gradient"` (one share per
                round) or `"gradient_difference"`.
            active: Which layers have a gradient, `(variables,)` bool.
            eta: Learning rate, float32 scalar.
            t: Number of this step, int32 scalar, from 1.

        Returns:
            The new weights and the new state, in the dtypes of the old.
        """
        B_last = [wide(b) for b in state["momentum"]]
        G = [ops.cast(g, b.dtype) for g, b in zip(G, B_last, strict=True)]
        moves = ops.cast(active, "float32")

        # Lines 7 to 9, first: line 5 may overwrite B_{t-1}.
        ratio, measured = self.adapt(G, B_last, state, active=active, t=t)
        eta_l = eta * ratio * ops.take(moves, self._plan.owners)
        s_eta_l = self.step_scales() * eta_l

        # Line 5: c = 1 - b1, but 1 at a layer's first gradient (B_0 = G_1)
        # and 0 without a gradient.
        first = state["last_step"] == 0
        c = ops.where(first, 1.0, 1.0 - self.beta_1) * moves
        ahead = ops.minimum(c, 1.0 - self.beta_1)
        keep = 1.0 - eta * self.weight_decays() * moves
        c, ahead, keep = backend.unpack(c, ahead, keep)
        B = backend.lerp(B_last, G, c, in_place=True)

        # Lines 6 and 10: s O at the rate of each matrix, decay at the base
        # rate; one stack after the other, which keeps memory low where steps
        # are eager.
        M = lookahead(B, G, ahead) if self.nesterov else lambda _: B
        X = list(X)
        for stack, matrices in self._plan.stacks:
            O = self.norms[stack.role].lmo(stack.gather(M(stack.indices)))
            O = backend.scaled(O, ops.take(s_eta_l, matrices)[:, None, None])
            self.move(X, stack, O, keep)

        momentum = [
            ops.cast(new, old.dtype)
            for new, old in zip(B, state["momentum"], strict=True)
        ]
        last_step = ops.where(active, t, state["last_step"])
        new = {**measured, "momentum": momentum, "last_step": last_step}
        return X, {**state, **new}

    def scale_of(self, layer: Layer) -> float:
        """The step scale s of line 10, a factor on the LMO."""
        if layer.role == "embedding":
            return self.embedding_scale
        if layer.role == "vector":
            return self.vector_scale
        if self.step_scale == "operator":
            return 1.0
        return self.hidden_scale * rms_matched(layer)

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        config = super().get_config()
        config.update(config.pop("noise")["config"])
        return config


CHOICES = {
    "vector_norm": ("rms", "sign"),
    "step_scale": ("rms_matched", "operator"),
}
NUMBERS: Numbers = {
    "beta_1": ("a number in [0, 1)", lambda x: 0 <= x < 1, False),
    "hidden_scale": ("a number of at least 0", lambda x: x >= 0, False),
    "embedding_scale": ("a number of at least 0", lambda x: x >= 0, False),
    "vector_scale": ("a number of at least 0", lambda x: x >= 0, False),
}


def _check_arguments(given: Mapping[str, Any]) -> None:
    """ValueError for the first wrong argument that is Lanton's own."""
    for name, allowed in CHOICES.items():
        check_choice(name, given[name], allowed)
    check_numbers(NUMBERS, given)
    if given["step_scale"] == "operator" and given["hidden_scale"] != 0.2:
        raise ValueError(
            "`hidden_scale` belongs to step_scale='rms_matched'. Received: "
            f"hidden_scale={given['hidden_scale']!r}, step_scale='operator'"
        )

"""LANTON: noise-adaptive layerwise learning rates, Algorithm 1."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import adamw
from keras_lanton import adaptive_rate
from keras_lanton import migration
from keras_lanton.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.arguments import ABOVE_0
from keras_lanton.arguments import AT_LEAST_0
from keras_lanton.arguments import DECAY
from keras_lanton.arguments import Numbers
from keras_lanton.arguments import check_choice
from keras_lanton.arguments import check_numbers
from keras_lanton.arguments import shown
from keras_lanton.base import State
from keras_lanton.base import as_in
from keras_lanton.base import backend
from keras_lanton.base import wide
from keras_lanton.norm_optimizer import NormOptimizer
from keras_lanton.norm_optimizer import lookahead
from keras_lanton.norm_optimizer import rms_matched
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
    sample. By default AdamW moves vectors, at the base rate, and with
    Nesterov's look-ahead b1 B_t + (1 - b1) G_t goes to line 6; the paper's own
    settings are `Lanton.paper()`. A variable without a gradient, or with one
    that is zero everywhere, keeps its weights and state on that step.

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
            few percent), `"newton_schulz"` (`<D, polar(D)>`), `"svd"`
            (exact) or `"randomized_svd"` (the paper's).
        hidden_scale: RMS of a hidden step of rate 1, at least 0; only with
            `step_scale="rms_matched"`.
        adamw_roles: Roles that AdamW moves in place of lines 6 to 10: some
            of `"embedding"` and `"vector"`.
        adam_lr_ratio: AdamW's rate over the base rate, at least 0.
        adam_beta_1: beta_1 of AdamW, in [0, 1).
        adam_beta_2: beta_2 of AdamW, in [0, 1).
        epsilon: Of AdamW, above 0.
        embedding_scale: r1, at least 0: entries of an embedding step of rate
            1 are r1 / width. Where AdamW does not move embeddings.
        vector_scale: r2, at least 0: RMS of a vector step of rate 1. Where
            AdamW does not move vectors.
        vector_norm: `"rms"`, or `"sign"` for the paper's CNN recipe. Where
            AdamW does not move vectors.
        step_scale: Hidden steps: `"rms_matched"`:
            hidden_scale sqrt(max(d_in, d_out)) U V^T; `"operator"`:
            sqrt(d_out / d_in) U V^T.
        nesterov: Whether b1 B_t + (1 - b1) G_t goes to line 6.
        ns_steps: Newton-Schulz steps, from 1 to 100.
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
        shard_orthogonalization: Whether each device orthogonalizes and
            measures a share of the matrices, and then gets the steps of all.
            None: on JAX, over the mesh that the weights lie on. True: also on
            PyTorch, over the processes of `torch.distributed`, which must
            then all take every step. Not on TensorFlow.
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

    Examples:
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
        *adamw.NUMBERS,
    )
    slots = {"velocity": "float32"}
    state_hint = (
        "State from before AdamW was a part is that of `Lanton.paper()`. "
    )

    def __init__(
        self,
        learning_rate: Any = 5e-3,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.9,
        alpha: float = 1.0,
        alpha_unit: str = "group_noise",
        group_reduction: str = "mean",
        noise_interval: int = 10,
        noise_schedule: str = "staggered",
        noise_reference: str = "previous_gradient",
        noise_estimator: str = "lanczos",
        hidden_scale: float = 0.2,
        adamw_roles: Sequence[str] = ("vector",),
        adam_lr_ratio: float = 1.0,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.95,
        epsilon: float = 1e-8,
        embedding_scale: float = 200.0,
        vector_scale: float = 1.0,
        vector_norm: str = "rms",
        step_scale: str = "rms_matched",
        nesterov: bool = True,
        ns_steps: int = 5,
        ns_coefficients: str | Sequence[Sequence[float]] = "jordan",
        ns_dtype: str = "auto",
        max_temporary_bytes: int = 2**29,
        momentum_dtype: str | None = None,
        previous_gradient_dtype: str | None = None,
        shard_orthogonalization: bool | None = None,
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
            shard_orthogonalization=shard_orthogonalization,
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
        self.adamw_roles = tuple(adamw_roles)
        self.slot_roles = {"velocity": self.adamw_roles}
        self.adam_lr_ratio = float(adam_lr_ratio)
        self.adam_beta_1 = float(adam_beta_1)
        self.adam_beta_2 = float(adam_beta_2)
        self.epsilon = float(epsilon)

    @classmethod
    def paper(cls, learning_rate: Any = 5e-3, **kwargs: Any) -> "Lanton":
        """Lanton with the paper's settings.

        Args:
            learning_rate: As in the constructor.
            **kwargs: Arguments of the constructor, which go before the
                paper's.

        References:
            arXiv 2510.14009, Algorithm 1 and the tables of hyper-parameters.
            What they leave open: docs/deviations.md.
        """
        settings = dict(PAPER)
        roles = kwargs.get("adamw_roles", ())
        if isinstance(roles, (list, tuple)) and "embedding" in roles:
            del settings["embedding_scale"]  # AdamW has none
        return cls(learning_rate, **{**settings, **kwargs})

    @classmethod
    def from_adamw(
        cls,
        adamw: Any,
        *,
        rate_factor: float = migration.RATE_OVER_ADAMW,
        **kwargs: Any,
    ) -> "Lanton":
        """Lanton for a model that AdamW has trained until now.

        The learning rate, or schedule, is AdamW's times `rate_factor`: what
        Lanton's best rate was over AdamW's in most of docs/paper.md. Weight
        decay, clipping, averages, loss scale and accumulation stay; betas and
        epsilon go to the layers that AdamW still moves. What was excluded from
        weight decay is in no config: give `weight_decay_exclude`.

        Args:
            adamw: A `keras.optimizers.AdamW` or `Adam`.
            rate_factor: Lanton's rate over AdamW's, above 0.
            **kwargs: Arguments of the constructor, which go before AdamW's.

        Raises:
            ValueError: For another optimizer, a wrong factor, or a learning
                rate that is neither a float nor a schedule.

        Examples:
            >>> adamw = keras.optimizers.AdamW(1e-3, weight_decay=0.1)
            >>> lanton = Lanton.from_adamw(adamw)
            >>> lanton.weight_decay
            0.1
        """
        check_numbers({"rate_factor": ABOVE_0}, {"rate_factor": rate_factor})
        found = migration.from_adamw(adamw, rate_factor)
        return cls(**{**found, **kwargs})

    @classmethod
    def from_muon(cls, muon: Any, **kwargs: Any) -> "Lanton":
        """Lanton for a model that Muon has trained until now.

        Hidden steps have Muon's size, on average over the layers; embeddings,
        which Muon leaves to AdamW, take Lanton's own steps, and momentum is
        Lanton's own. Weight decay, clipping, averages, loss scale,
        accumulation, Newton-Schulz steps and AdamW's betas, epsilon and rate
        stay.

        Args:
            muon: A `keras.optimizers.Muon`, or a
                `keras_lanton.baselines.DMuon`.
            **kwargs: Arguments of the constructor, which go before Muon's.

        Raises:
            ValueError: For another optimizer, a Muon without `rms_rate`, or a
                learning rate that is neither a float nor a schedule.

        References:
            Liu et al. 2025, Muon is Scalable for LLM Training (the RMS).
        """
        return cls(**{**migration.from_muon(muon), **kwargs})

    def make_norms(self, hidden: Spectral) -> dict[str, Norm]:
        """The paper's norms, of the roles that AdamW does not move."""
        vector = RMS() if self.vector_norm == "rms" else Sign()
        norms = {"hidden": hidden, "embedding": Sign(), "vector": vector}
        return {r: n for r, n in norms.items() if r not in self.adamw_roles}

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
            state: `"momentum"`, `"velocity"` (of the layers that AdamW
                moves), `"noise"`, `"measurements"`, `"last_step"` and, by
                noise reference, `"previous_gradient"` (one share per round)
                or `"gradient_difference"`.
            active: Which layers have a gradient, `(variables,)` bool.
            eta: Learning rate, float32 scalar.
            t: Number of this step, int32 scalar, from 1.

        Returns:
            The new weights and the new state, in the dtypes of the old.
        """
        B_last = [wide(b) for b in state["momentum"]]
        G = as_in(B_last, G)
        moves = ops.cast(active, "float32")

        # Lines 7 to 9, first: line 5 may overwrite B_{t-1}.
        ratio, measured = self.adapt(G, B_last, state, active=active, t=t)
        eta_l = eta * ratio * ops.take(moves, self._plan.owners)
        s_eta_l = self.step_scales() * eta_l

        # Line 5: c = 1 - b1, but 1 at a layer's first gradient (B_0 = G_1)
        # and 0 without a gradient. AdamW's momentum starts at zero.
        by_adamw = self._plan.with_roles(self.adamw_roles)
        is_adamw = np.isin(np.arange(len(G)), by_adamw)
        usual = ops.convert_to_tensor(
            np.where(is_adamw, 1.0 - self.adam_beta_1, 1.0 - self.beta_1),
            "float32",
        )
        first = ops.logical_and(
            state["last_step"] == 0, ops.convert_to_tensor(~is_adamw)
        )
        c = ops.where(first, 1.0, usual) * moves
        ahead = ops.minimum(c, usual)
        weight_decays = self.weight_decays()
        keep = 1.0 - eta * weight_decays * moves
        c, ahead, keep = backend.unpack(c, ahead, keep)
        B = backend.lerp(B_last, G, c, in_place=True)

        # Lines 6 and 10: s O at the rate of each matrix, decay at the base
        # rate; one stack after the other, which keeps memory low where steps
        # are eager.
        M = lookahead(B, G, ahead) if self.nesterov else lambda _: B
        X = list(X)
        for stack, matrices in self._plan.stacks:
            O = self.norms[stack.role].lmo(self.gather(stack, M(stack.indices)))
            self.move(X, stack, O, ops.take(s_eta_l, matrices), keep)

        new = {**state, **measured, "momentum": B}
        self._adamw().move(
            by_adamw,
            X,
            G,
            new,
            moves=moves,
            eta=eta,
            weight_decays=weight_decays,
            t=t,
        )
        return X, self.new_state(state, active, t, **new)

    def _adamw(self) -> adamw.AdamW:
        return adamw.AdamW(
            lr_ratio=self.adam_lr_ratio,
            beta_1=self.adam_beta_1,
            beta_2=self.adam_beta_2,
            epsilon=self.epsilon,
        )

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
        return {**config, "adamw_roles": list(self.adamw_roles)}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> "Lanton":
        """Inverse of `get_config`.

        A config without `adamw_roles` is older: AdamW moved none then.
        """
        if "embedding_scale" in config and "adamw_roles" not in config:
            config = {**config, "adamw_roles": ()}
        return super().from_config(config, custom_objects)


# What the paper does otherwise than the constructor's defaults.
PAPER: dict[str, Any] = {
    "adamw_roles": (),
    "alpha": 0.3,
    "beta_1": 0.95,
    "embedding_scale": 300.0,
    "group_reduction": "max",
    "nesterov": False,
}
CHOICES = {
    "vector_norm": ("rms", "sign"),
    "step_scale": ("rms_matched", "operator"),
}
NUMBERS: Numbers = {
    "beta_1": DECAY,
    "hidden_scale": AT_LEAST_0,
    "embedding_scale": AT_LEAST_0,
    "vector_scale": AT_LEAST_0,
    **adamw.NUMBERS,
}
# Arguments that mean something only where AdamW does not move the role, and
# their defaults; then those of AdamW, where it moves any.
WITHOUT_ADAMW = {
    "embedding_scale": ("embedding", 200.0),
    "vector_scale": ("vector", 1.0),
    "vector_norm": ("vector", "rms"),
}
WITH_ADAMW = {
    "adam_lr_ratio": 1.0,
    "adam_beta_1": 0.9,
    "adam_beta_2": 0.95,
    "epsilon": 1e-8,
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
    _check_adamw(given)


def _check_adamw(given: Mapping[str, Any]) -> None:
    """ValueError for wrong roles, and for what would be ignored."""
    roles = given["adamw_roles"]
    allowed = ("embedding", "vector")
    if (
        isinstance(roles, (str, bytes))
        or not isinstance(roles, Sequence)
        or not all(isinstance(r, str) and r in allowed for r in roles)
        or len(set(roles)) < len(roles)
    ):
        raise ValueError(
            f"`adamw_roles` must be a sequence of some of {allowed}. "
            f"Received: adamw_roles={shown(roles)}"
        )
    for name, (role, default) in WITHOUT_ADAMW.items():
        if role in roles and given[name] != default:
            raise ValueError(
                f"`{name}` has no effect where AdamW moves the role {role!r}: "
                "leave it out of `adamw_roles`, or use `Lanton.paper()`. "
                f"Received: {name}={given[name]!r}, adamw_roles={roles!r}"
            )
    for name, default in WITH_ADAMW.items():
        if not roles and given[name] != default:
            raise ValueError(
                f"`{name}` has no effect where AdamW moves no role. "
                f"Received: {name}={given[name]!r}, adamw_roles={roles!r}"
            )

"""LANTON: noise-adaptive layerwise learning rates, Algorithm 1.

`Lanton` chooses the parts; the step is that of all optimizers with LMOs. In the
order of the algorithm:

| line | computes | where |
|---|---|---|
| 5 | momentum B_t | `core.step`: `momentum_weights`, `step_` |
| 6 | O_t = LMO(B_t) | `core.norms`: `Spectral`, `Sign`, `RMS` |
| 7 | noise H_t | `core.noise.update_noise`, the norms' `dual` |
| 8 | noise factor a_t | `core.noise.noise_factor` |
| 9 | learning rate eta_t^l | `core.noise.layer_ratio` |
| 10 | weights X_{t+1} | `core.step.update_stack_` |
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Sign
from keras_lanton.core.norms import Spectral
from keras_lanton.optimizer import migration
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.optimizer.lmo import rms_matched
from keras_lanton.roles.block_kinds import embeds_features
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import check_bool
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_numbers

# Arguments that belong to a role, which AdamW must then not update, and what
# None stands for.
ROLE_DEFAULTS: dict[str, tuple[str, Any]] = {
    "embedding_scale": ("embedding", 300.0),
    "vector_scale": ("vector", 1.0),
    "vector_norm": ("vector", "rms"),
}
HIDDEN_SCALE = 0.2
WIDTH = 768  # of GPT-2 small: there an update has an RMS of `hidden_scale`
# Narrower embeddings change as at this width. Those of features, such as users
# and items, then change by half of the rate at most.
NARROW, NARROW_FEATURES = 64, 600
SCALES = ("hidden_scale", "embedding_scale", "vector_scale")
CHOICES = {
    "vector_norm": ("rms", "sign"),
    "step_scale": ("fan_in", "rms_matched", "operator"),
}


@keras.saving.register_keras_serializable(package="keras_lanton")
class Lanton(LMOOptimizer):
    """Optimizer that slows down matrices whose gradient is noisy.

    As Muon does, it orthogonalizes the momentum of each hidden matrix. So all
    directions of the matrix change alike, and the learning rate alone says how
    far. It also measures how much the gradient of each matrix, row and column
    differs from batch to batch. Matrices that are noisier than the mean get a
    lower learning rate, quieter ones a higher. Noisy rows and columns count
    less in the update. Embeddings and heads get the signs of their momentum,
    and AdamW updates gains and biases.

    For each matrix, with gradient G_t, momentum B_t and noise H_t:

        B_t = b1 B_{t-1} + (1 - b1) G_t                          line 5
        O_t = LMO(B_t)                                           line 6
        H_t = b2 H_{t-1} + (1 - b2) ||D_t||_*^2                  line 7
        a_t = alpha / sqrt(alpha^2 + H_t)                        line 8
        eta_t^l = eta_t sqrt(a_t) / mean of sqrt(a_t)            line 9
        X_{t+1} = X_t - eta_t gamma X_t + eta_t^l s O_t          line 10

    The LMO, the dual norm ||.||_* and the step scale s depend on the role of
    the variable: `"hidden"` (matrices: U V^T), `"embedding"` (embeddings and
    heads: sign) or `"vector"` (gains and biases: normalized). D_t is the noise
    sample. By default AdamW updates vectors, at the base rate. Nesterov's
    momentum b1 B_t + (1 - b1) G_t goes to line 6, in units of the noise of
    rows and columns. The mean of line 9 is over all matrices.

    `Lanton.paper()` has the paper's own settings. There B_t itself goes to
    line 6, and line 9 is eta_t sqrt(a_t / max of a_t), over the matrices of
    one role. A matrix without a gradient, or with one that is zero everywhere,
    keeps its weights and state on that step.

    Args:
        learning_rate: Float, `keras.optimizers.schedules` schedule, or a
            callable without arguments. The peak of a schedule that falls to
            zero is higher than a constant rate, about 0.005. With
            `gradient_accumulation_steps` Keras counts micro-steps in
            schedules; `UpdateSchedule` counts updates. Defaults to 0.001.
        beta_1: Decay of the momentum B, in [0, 1).
        nesterov: Whether b1 B_t + (1 - b1) G_t goes to line 6.
        momentum_warmup: Whether 1 - b1 is at least min(0.1, 16 / t) on step
            t: b1 is at most 0.9 for 160 steps, then rises, to 0.95 on step
            320. G_1 is most of B_t in the first 7 steps, if False in the first
            14: without a warm-up of the rate, the weights follow one batch.
        noise: Settings of lines 7 to 9: how to measure noise, and how it
            changes the updates. None: every matrix has the base rate.
        hidden_scale: RMS of a hidden update at rate 1 where d_in is 768, at
            least 0. Not with `step_scale="operator"`. Defaults to 0.2.
        embedding_scale: r1, at least 0: entries of an embedding update at
            rate 1 are r1 / max(width, 64), in models without attention and
            without a head of words r1 / max(width, 600). Only where AdamW
            does not update embeddings. Defaults to 300.
        vector_scale: r2, at least 0: RMS of a vector update at rate 1. Only
            where AdamW does not update vectors. Defaults to 1.
        vector_norm: `"rms"`, or `"sign"` for the paper's CNN recipe. Only
            where AdamW does not update vectors. Defaults to `"rms"`.
        step_scale: How the size of hidden updates depends on their shape.
            `"rms_matched"`: hidden_scale sqrt(max(d_in, d_out)) U V^T, whose
            RMS is hidden_scale at any shape. `"fan_in"`: the same times
            sqrt(768 / d_in): the best rate changes less with the width.
            `"operator"`: sqrt(d_out / d_in) U V^T.
        auxiliary_adamw: AdamW for some roles, instead of lines 6 to 10. None:
            AdamW updates no role.
        newton_schulz: Settings of Newton-Schulz, for hidden matrices.
        momentum_dtype: Dtype of the momentum, e.g. `"bfloat16"`. `"int8"`
            is for hidden matrices and embeddings; blocks of up to 128 entries
            share a scale. Defaults to each variable's own.
        rounding: `"nearest"`, or `"stochastic"`: bfloat16 weights are rounded
            up or down by chance, so that updates smaller than their precision
            are not lost. Every run rounds alike.
        nonfinite: `"skip"`: a step with a NaN or infinity in any gradient
            changes nothing but the iteration count and `skipped_steps`;
            `"propagate"`: Keras' usual behavior.
        weight_decay: gamma, decoupled, at the base rate; None or at least 0.
            0.1 is for runs of some thousand steps; longer ones end lower
            with less.
        weight_decay_exclude: Regular expressions on the paths of variables
            that do not decay.
        rate_multipliers: Factors on the learning rate, of at least 0, by
            regular expression on variable paths: `{"head/": 10.0}`. 0
            freezes. If several expressions match a path, their factors are
            multiplied. `layerwise_decay` makes such a dict.
        name: Name of the optimizer. Defaults to one that Keras numbers.
        **kwargs: Arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: For a wrong argument, naming it, what is allowed and what
            was received.

    Examples:
        >>> model.compile(optimizer=Lanton(), loss="mse")

    References:
        Hao, Gong, Xu, Wang, Liu, Noise-Adaptive Layerwise Learning Rates,
        arXiv 2510.14009, Algorithm 1; docs/algorithm.md has the differences.
    """

    arguments = (
        *LMOOptimizer.arguments,
        "momentum_warmup",
        *SCALES,
        *CHOICES,
    )
    first_gradient_starts_momentum = True
    _narrow = NARROW  # until the variables are known

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        beta_1: float = 0.95,
        nesterov: bool = True,
        momentum_warmup: bool = True,
        noise: NoiseAdaptiveRate | None = NoiseAdaptiveRate(),
        hidden_scale: float | None = None,
        embedding_scale: float | None = None,
        vector_scale: float | None = None,
        vector_norm: str | None = None,
        step_scale: str = "fan_in",
        auxiliary_adamw: AuxiliaryAdamW | None = AuxiliaryAdamW(),
        newton_schulz: NewtonSchulz = NewtonSchulz(),
        momentum_dtype: str | None = None,
        rounding: str = "nearest",
        nonfinite: str = "skip",
        weight_decay: float | None = 0.1,
        weight_decay_exclude: Sequence[str] | None = None,
        rate_multipliers: Mapping[str, float] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = {
            "embedding_scale": embedding_scale,
            "vector_scale": vector_scale,
            "vector_norm": vector_norm,
        }
        _check_scales(hidden_scale=hidden_scale, step_scale=step_scale, **given)
        check_bool("momentum_warmup", momentum_warmup)
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            nesterov=nesterov,
            noise=noise,
            newton_schulz=newton_schulz,
            auxiliary_adamw=auxiliary_adamw,
            momentum_dtype=momentum_dtype,
            rounding=rounding,
            nonfinite=nonfinite,
            weight_decay=weight_decay,
            weight_decay_exclude=weight_decay_exclude,
            rate_multipliers=rate_multipliers,
            name=name,
            **kwargs,
        )
        self.momentum_warmup = bool(momentum_warmup)
        self.step_scale = step_scale
        self.hidden_scale = _resolved(
            hidden_scale, HIDDEN_SCALE, step_scale != "operator"
        )
        for argument, (role, default) in ROLE_DEFAULTS.items():
            has_norm = role not in self.adamw_roles
            if given[argument] is not None and not has_norm:
                raise ValueError(
                    f"`{argument}` has no effect where AdamW updates the role "
                    f"{role!r}: leave it out of the roles of "
                    "`auxiliary_adamw`, or use `Lanton.paper()`. Received: "
                    f"{argument}={given[argument]!r}, "
                    f"auxiliary_adamw={auxiliary_adamw!r}"
                )
            value = _resolved(given[argument], default, has_norm)
            setattr(self, argument, value)

    @classmethod
    def paper(cls, learning_rate: Any = 5e-3, **kwargs: Any) -> "Lanton":
        """Lanton with the paper's settings.

        Args:
            learning_rate: As in the constructor. Defaults to 0.005, the peak
                in the paper's runs of GPT-2 small.
            **kwargs: Arguments of the constructor, instead of the paper's.

        References:
            arXiv 2510.14009, Algorithm 1 and the tables of hyper-parameters;
            docs/algorithm.md has the points that they leave open.
        """
        return cls(learning_rate, **{**PAPER, **kwargs})

    @classmethod
    def for_fine_tuning(
        cls, learning_rate: Any = 1e-3, **kwargs: Any
    ) -> "Lanton":
        """Lanton for training a pretrained model on other data.

        AdamW updates embeddings and heads of language models, besides gains
        and biases. Nothing decays, because decay pulls to zero and not to the
        pretrained weights. `beta_1` is 0.9.

        Args:
            learning_rate: As in the constructor; lower rates forget less.
            **kwargs: Arguments of the constructor, instead of these.

        Examples:
            >>> Lanton.for_fine_tuning().auxiliary_adamw.roles
            ('embedding', 'vector')
        """
        return cls(learning_rate, **{**FINE_TUNING, **kwargs})

    @classmethod
    def from_adamw(
        cls,
        adamw: Any,
        *,
        rate_factor: float = migration.RATE_OVER_ADAMW,
        **kwargs: Any,
    ) -> "Lanton":
        """Lanton with the settings of an AdamW.

        AdamW goes on updating embeddings, heads of language models, gains and
        biases, with its rate, betas and epsilon. Hidden matrices have AdamW's
        rate, or schedule, times `rate_factor`: docs/guides/learning_rate.md has
        what this ended at. Weight decay, clipping, averages, loss scale and
        accumulation are AdamW's. AdamW's config does not hold the variables
        that it excludes from weight decay: give `weight_decay_exclude`.

        Args:
            adamw: A `keras.optimizers.AdamW` or `Adam`.
            rate_factor: Rate of hidden matrices over AdamW's, above 0.
            **kwargs: Arguments of the constructor, instead of AdamW's.

        Raises:
            ValueError: For another optimizer, a wrong factor, or a learning
                rate that is neither a float nor a schedule.

        Examples:
            >>> adamw = keras.optimizers.AdamW(1e-3, weight_decay=0.1)
            >>> lanton = Lanton.from_adamw(adamw)
            >>> lanton.weight_decay
            0.1
        """
        check_numbers({"rate_factor": ABOVE_0}, rate_factor=rate_factor)
        found = migration.from_adamw(adamw, rate_factor)
        return cls(**{**found, **kwargs})

    @classmethod
    def from_muon(cls, muon: Any, **kwargs: Any) -> "Lanton":
        """Lanton with the settings of a Muon.

        Hidden updates have Muon's size, on average over the matrices, and
        Lanton's momentum. AdamW goes on updating embeddings, gains and biases,
        with the betas, epsilon, rate and weight decay that Muon gives it; and
        heads of language models. Weight decay, clipping, averages, loss scale,
        accumulation and Newton-Schulz steps are Muon's.

        Args:
            muon: A `keras.optimizers.Muon`, or a
                `keras_lanton.baselines.DMuon`.
            **kwargs: Arguments of the constructor, instead of Muon's.

        Raises:
            ValueError: For another optimizer, a Muon without `rms_rate`, or a
                learning rate that is neither a float nor a schedule.

        References:
            Liu et al. 2025, Muon is Scalable for LLM Training (the RMS).
        """
        return cls(**{**migration.from_muon(muon), **kwargs})

    def decide_specs(
        self, variables: Sequence[Any]
    ) -> tuple[VariableSpec, ...]:
        """The specs that `build` on these variables would decide.

        They also decide how narrow embeddings change.

        Args:
            variables: The trainable variables.
        """
        specs = super().decide_specs(variables)
        self._narrow = NARROW_FEATURES if embeds_features(specs) else NARROW
        return specs

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """The paper's norms, of the roles that AdamW does not update.

        The step scale s of line 10 is on U V^T, sign(B) or B / rms(B).

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        operator = self.step_scale == "operator"
        rules = {
            "hidden": Rule(hidden, None if operator else self._hidden_scale),
            "embedding": Rule(Sign(), self._embedding_scale),
            "vector": Rule(
                Sign() if self.vector_norm == "sign" else RMS(),
                lambda s: self.vector_scale,
            ),
        }
        return {r: one for r, one in rules.items() if r not in self.adamw_roles}

    def _embedding_scale(self, spec: VariableSpec) -> float:
        scale: float = self.embedding_scale / max(spec.d_in, self._narrow)
        return scale

    def _hidden_scale(self, spec: VariableSpec) -> float:
        scale: float = self.hidden_scale * rms_matched(spec)
        if self.step_scale == "fan_in":
            scale *= (WIDTH / spec.d_in) ** 0.5
        return scale


# Settings that differ from the constructor's defaults.
FINE_TUNING: Mapping[str, Any] = {
    "beta_1": 0.9,
    "auxiliary_adamw": AuxiliaryAdamW(roles=("embedding", "vector")),
    "weight_decay": None,
}
PAPER: Mapping[str, Any] = {
    "auxiliary_adamw": None,
    "beta_1": 0.95,
    "momentum_warmup": False,
    "nesterov": False,
    "newton_schulz": NewtonSchulz(coefficients="jordan"),
    "step_scale": "rms_matched",
    "noise": NoiseAdaptiveRate(
        alpha=0.3,
        within_matrices=False,
        alpha_unit="group_noise",
        group_reduction="max",
    ),
}


def _check_scales(**given: Any) -> None:
    """ValueError for the first wrong scale or choice that is given."""
    check_choice("step_scale", given["step_scale"], CHOICES["step_scale"])
    if given["vector_norm"] is not None:
        check_choice(
            "vector_norm",
            given["vector_norm"],
            CHOICES["vector_norm"],
            also="None",
        )
    for name in SCALES:
        if given[name] is not None:
            check_numbers({name: AT_LEAST_0}, **{name: given[name]})
    if given["step_scale"] == "operator" and given["hidden_scale"] is not None:
        raise ValueError(
            "`hidden_scale` belongs to step_scale='fan_in' and "
            "'rms_matched'. Received: "
            f"hidden_scale={given['hidden_scale']!r}, step_scale='operator'"
        )


def _resolved(value: Any, default: Any, has_effect: bool) -> Any:
    """An argument, its default where it is None, or None without effect."""
    if not has_effect:
        return None
    if value is None:
        return default
    return value if isinstance(value, str) else float(value)

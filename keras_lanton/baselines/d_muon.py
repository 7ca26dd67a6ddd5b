"""D-Muon: Muon with decay and steps of AdamW's RMS, as in Moonlight."""

from typing import Any

import keras

from keras_lanton.arguments import AT_LEAST_0
from keras_lanton.arguments import check_numbers
from keras_lanton.baselines.hybrid import HybridOptimizer
from keras_lanton.norm_optimizer import rms_matched
from keras_lanton.roles import Layer


@keras.saving.register_keras_serializable(package="keras_lanton")
class DMuon(HybridOptimizer):
    """Muon with steps 0.2 sqrt(max(d_in, d_out)) U V^T, and weight decay.

    Over all matrix views: attention and convolution kernels too. Embeddings,
    the head and vectors are moved by AdamW at the same rate and decay, with
    epsilon added before debiasing.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        hidden_scale: RMS of a hidden step of rate 1, at least 0.
        adam_lr_ratio: Rate of AdamW over the base rate, at least 0.
        epsilon: Of AdamW, above 0.
        weight_decay: Decoupled, at the base rate; at least 0, or None.
        **kwargs: Arguments of `HybridOptimizer`, e.g. `beta_1=0.95`,
            `adam_beta_2=0.95`, `noise`, and of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    Examples:
        >>> DMuon(1e-3, noise=NoiseAdaptiveRate(group_reduction="mean"))

    References:
        Liu et al. 2025, Muon is Scalable for LLM Training, arXiv 2502.16982;
        github.com/MoonshotAI/Moonlight, examples/toy_train.py.
    """

    arguments = (*HybridOptimizer.arguments, "hidden_scale")
    epsilon_before_debiasing = True

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        hidden_scale: float = 0.2,
        adam_lr_ratio: float = 1.0,
        epsilon: float = 1e-8,
        weight_decay: float | None = 0.1,
        name: str = "d_muon",
        **kwargs: Any,
    ) -> None:
        check_numbers({"hidden_scale": AT_LEAST_0}, locals())
        super().__init__(
            learning_rate,
            adam_lr_ratio=adam_lr_ratio,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.hidden_scale = float(hidden_scale)

    def scale_of(self, layer: Layer) -> float:
        """0.2 sqrt(max(d_in, d_out)), over the LMO's own factor."""
        return self.hidden_scale * rms_matched(layer)

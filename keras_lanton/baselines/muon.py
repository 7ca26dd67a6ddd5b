"""Muon as Keller Jordan's, over all matrix views."""

import math
from typing import Any

import keras

from keras_lanton.baselines.hybrid import HybridOptimizer
from keras_lanton.roles import Layer


@keras.saving.register_keras_serializable(package="keras_lanton")
class Muon(HybridOptimizer):
    """Steps sqrt(max(1, d_out / d_in)) U V^T for all hidden matrices.

    Embeddings, the head and vectors are moved by AdamW, whose rate is
    `adam_lr_ratio` times that of the hidden layers. The reference leaves the
    first convolution to AdamW too: `assign_role("vector", kernel)`.

    Args:
        learning_rate: Of hidden layers: float, schedule, or callable.
        adam_lr_ratio: Rate of AdamW over the base rate, at least 0. Defaults
            to the reference's 3e-4 / 0.02.
        epsilon: Of AdamW, above 0.
        weight_decay: Decoupled, at each layer's rate; at least 0, or None.
        **kwargs: Arguments of `HybridOptimizer`, e.g. `beta_1=0.95`,
            `adam_beta_2=0.95`, `noise`, and of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Jordan et al. 2024, Muon; github.com/KellerJordan/Muon, muon.py. Its
        scale takes the last two axes of a convolution's four; here it is that
        of the matrix.
    """

    def __init__(
        self,
        learning_rate: Any = 0.02,
        *,
        adam_lr_ratio: float = 0.015,
        epsilon: float = 1e-10,
        weight_decay: float | None = None,
        name: str = "muon",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            adam_lr_ratio=adam_lr_ratio,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )

    def scale_of(self, layer: Layer) -> float:
        """sqrt(max(1, d_out / d_in)), over the LMO's own factor."""
        shape = layer.d_out / layer.d_in
        return math.sqrt(max(1.0, shape)) / math.sqrt(shape)

"""Orthogonalized steps for hidden layers, AdamW for all others."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_lanton import adamw
from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.baselines.momentum import MomentumOptimizer
from keras_lanton.norms import Norm
from keras_lanton.norms import Spectral

Tensor = Any

ADAM = ("embedding", "vector")


class HybridOptimizer(MomentumOptimizer):
    """What Muon, D-Muon and AdaMuon share: `MomentumOptimizer` and AdamW.

        X <- (1 - eta' gamma) X - eta' m^ / (sqrt(v^) + epsilon)

    for embeddings, heads and vectors, with eta' = eta `adam_lr_ratio`.

    Args:
        learning_rate: Of hidden layers: float, schedule, or callable.
        beta_1: Decay of the hidden layers' momentum, in [0, 1).
        adam_lr_ratio: Rate of AdamW over the base rate, at least 0.
        adam_beta_1: beta_1 of AdamW, in [0, 1).
        adam_beta_2: beta_2 of AdamW, in [0, 1).
        epsilon: Of AdamW, above 0.
        nesterov: Whether to look ahead.
        **kwargs: Arguments of `NormOptimizer`, e.g. `noise`, `ns_steps`, and
            of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    slots = {"velocity": "float32"}
    slot_roles = {"velocity": ADAM}
    arguments = (*MomentumOptimizer.arguments, *adamw.NUMBERS)
    # Where AdamW adds epsilon; see `adam_direction`.
    epsilon_before_debiasing = False

    def __init__(
        self,
        learning_rate: Any,
        *,
        adam_lr_ratio: float,
        epsilon: float,
        beta_1: float = 0.95,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.95,
        nesterov: bool = True,
        **kwargs: Any,
    ) -> None:
        check_numbers(adamw.NUMBERS, locals())
        super().__init__(
            learning_rate, beta_1=beta_1, nesterov=nesterov, **kwargs
        )
        self.adam_lr_ratio = float(adam_lr_ratio)
        self.adam_beta_1 = float(adam_beta_1)
        self.adam_beta_2 = float(adam_beta_2)
        self.epsilon = float(epsilon)

    def make_norms(self, hidden: Spectral) -> dict[str, Norm]:
        """Only hidden layers move by an LMO."""
        return {"hidden": hidden}

    def decays(self) -> np.ndarray:
        """Of the momentum: AdamW has its own."""
        decays = super().decays()
        decays[self._plan.with_roles(ADAM)] = self.adam_beta_1
        return decays

    def move_others(
        self,
        X: list[Tensor],
        G: Sequence[Tensor],
        new: State,
        *,
        moves: Tensor,
        eta: Tensor,
        t: Tensor,
    ) -> None:
        """AdamW, of the layers without a norm; see the base class."""
        part = adamw.AdamW(
            lr_ratio=self.adam_lr_ratio,
            beta_1=self.adam_beta_1,
            beta_2=self.adam_beta_2,
            epsilon=self.epsilon,
            epsilon_before_debiasing=self.epsilon_before_debiasing,
        )
        part.move(
            self._plan.with_roles(ADAM),
            X,
            G,
            new,
            moves=moves,
            eta=eta,
            weight_decays=self.weight_decays(),
            t=t,
        )

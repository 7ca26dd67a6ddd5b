"""MARS-AdamW: AdamW on variance-reduced gradients, approximate mode."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.arguments import AT_LEAST_0
from keras_lanton.arguments import DECAY
from keras_lanton.arguments import check_bool
from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.baselines.elementwise import ElementwiseOptimizer

Tensor = Any

MATRICES = ("hidden", "embedding")


@keras.saving.register_keras_serializable(package="keras_lanton")
class Mars(ElementwiseOptimizer):
    """AdamW on gradients corrected by the previous ones.

        c_t = g_t + gamma b1 / (1 - b1) (g_t - g_{t-1}),   g_0 = 0
        c_t <- c_t / max(1, ||c_t||)             per variable
        m, v: moving means of c_t and c_t^2
        X <- X - eta (decay X + m^ / (sqrt(v^) + epsilon))

    One gradient per step, which is the approximate mode. Vectors are moved by
    plain AdamW, unless `optimize_1d`.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        gamma: Of the correction, at least 0; 0 is AdamW.
        beta_1: Decay of the mean of corrected gradients, in [0, 1).
        beta_2: Decay of the mean of their squares, in [0, 1).
        epsilon: Above 0.
        optimize_1d: Whether vectors are treated like matrices.
        adam_lr_ratio: Rate of the vectors' AdamW over the base rate, at least
            0.
        adam_beta_1: beta_1 of that AdamW.
        adam_beta_2: beta_2 of that AdamW.
        adam_weight_decay: Weight decay of that AdamW, at least 0.
        weight_decay: Of the matrices, at least 0, or None.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Yuan et al. 2024, MARS: Unleashing the Power of Variance Reduction;
        its code, github.com/AGI-Arena/MARS, MARS/optimizers/mars.py, which
        treats tensors of exactly two axes as matrices: here these are all of
        role hidden or embedding.
    """

    slots = {**ElementwiseOptimizer.slots, "previous_gradient": None}
    arguments = (
        *ElementwiseOptimizer.arguments,
        "gamma",
        "optimize_1d",
        "adam_lr_ratio",
        "adam_beta_1",
        "adam_beta_2",
        "adam_weight_decay",
    )

    def __init__(
        self,
        learning_rate: Any = 3e-3,
        *,
        gamma: float = 0.025,
        beta_1: float = 0.95,
        beta_2: float = 0.99,
        epsilon: float = 1e-8,
        optimize_1d: bool = False,
        adam_lr_ratio: float = 1.0,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.95,
        adam_weight_decay: float = 0.1,
        weight_decay: float | None = None,
        name: str = "mars",
        **kwargs: Any,
    ) -> None:
        check_bool("optimize_1d", optimize_1d)
        check_numbers(
            {
                "gamma": AT_LEAST_0,
                "adam_lr_ratio": AT_LEAST_0,
                "adam_beta_1": DECAY,
                "adam_beta_2": DECAY,
                "adam_weight_decay": AT_LEAST_0,
            },
            locals(),
        )
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.gamma = float(gamma)
        self.optimize_1d = bool(optimize_1d)
        self.adam_lr_ratio = float(adam_lr_ratio)
        self.adam_beta_1 = float(adam_beta_1)
        self.adam_beta_2 = float(adam_beta_2)
        self.adam_weight_decay = float(adam_weight_decay)
        if not optimize_1d:
            self.slot_roles = {"previous_gradient": MATRICES}

    def corrected(
        self, G: Sequence[Tensor], state: State, active: Tensor
    ) -> tuple[Sequence[Tensor], State]:
        """c_t of the matrices, and g_t to come back to; see the base class."""
        C, last = list(G), []
        matrices = np.flatnonzero(self._is_matrix()).tolist()
        for i, before in zip(matrices, state["previous_gradient"], strict=True):
            g, g_last = (ops.cast(x, "float32") for x in (G[i], before))
            C[i] = self._corrected(g, g_last)
            last.append(ops.where(active[i], g, g_last))
        return C, {"previous_gradient": last}

    def betas(self) -> list[tuple[float, float]]:
        """Vectors have those of their AdamW."""
        mars = (self.beta_1, self.beta_2)
        adam = (self.adam_beta_1, self.adam_beta_2)
        return [mars if matrix else adam for matrix in self._is_matrix()]

    def rates(self, eta: Tensor, t: Tensor) -> Tensor:
        """Vectors have that of their AdamW."""
        ratios = np.where(self._is_matrix(), 1.0, self.adam_lr_ratio)
        return eta * ops.convert_to_tensor(ratios, "float32")

    def weight_decays(self) -> Tensor:
        """Vectors have that of their AdamW."""
        matrix = self.weight_decay or 0.0
        gammas = np.where(self._is_matrix(), matrix, self.adam_weight_decay)
        return ops.convert_to_tensor(
            gammas * np.array(self.decayed_layers), "float32"
        )

    def _is_matrix(self) -> np.ndarray:
        """Whether a layer's gradient is corrected, `(layers,)` bool."""
        roles = [layer.role for layer in self.moving_layers]
        return np.isin(roles, MATRICES) | self.optimize_1d

    def _corrected(self, g: Tensor, g_last: Tensor) -> Tensor:
        """c_t, of norm 1 at most."""
        factor = self.gamma * self.beta_1 / (1.0 - self.beta_1)
        c = g + factor * (g - g_last)
        norm = ops.sqrt(ops.sum(c * c))
        return c / ops.maximum(norm, 1.0)

"""MARS-AdamW: AdamW on variance-reduced gradients, approximate mode."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.arguments import check_bool
from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.baselines.elementwise import AT_LEAST_0
from keras_lanton.baselines.elementwise import DECAYS
from keras_lanton.baselines.elementwise import ElementwiseOptimizer
from keras_lanton.baselines.elementwise import as_in
from keras_lanton.norm_optimizer import wide

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
                "adam_beta_1": DECAYS["adam_beta_1"],
                "adam_beta_2": DECAYS["adam_beta_2"],
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
        """The steps of the class' docstring; see the base class."""
        moves = ops.cast(active, "float32")
        chosen = self._plan.with_roles(None if self.optimize_1d else MATRICES)
        corrected = dict(enumerate(G))
        last = []
        for i, before in zip(chosen, state["previous_gradient"], strict=True):
            g, g_last = ops.cast(G[i], "float32"), wide(before)
            corrected[i] = self._corrected(g, ops.cast(g_last, "float32"))
            last.append(ops.where(active[i], g, ops.cast(g_last, "float32")))

        matrix = np.isin(np.arange(len(G)), chosen)
        adam = (self.adam_beta_1, self.adam_beta_2)
        mars = (self.beta_1, self.beta_2)
        betas = [mars if one else adam for one in matrix]
        m, v = self.moments(list(corrected.values()), state, betas, moves)

        rates = eta * moves * _tensor(np.where(matrix, 1.0, self.adam_lr_ratio))
        decay = np.where(
            matrix, self.weight_decay or 0.0, self.adam_weight_decay
        )
        keep = 1.0 - rates * _tensor(decay * np.array(self.decayed_layers))
        rates, keep = backend.unpack(rates, keep)
        directions = self.directions(m, v, betas, t)
        steps = [-rate * u for rate, u in zip(rates, directions, strict=True)]
        moved = backend.move(X, steps, keep)
        new = self.new_state(state, m, v, active, t)
        kept = as_in(state["previous_gradient"], last)
        return moved, {**new, "previous_gradient": kept}

    def _corrected(self, g: Tensor, g_last: Tensor) -> Tensor:
        """c_t, of norm 1 at most."""
        factor = self.gamma * self.beta_1 / (1.0 - self.beta_1)
        c = g + factor * (g - g_last)
        norm = ops.sqrt(ops.sum(c * c))
        return c / ops.maximum(norm, 1.0)


def _tensor(numbers: np.ndarray) -> Tensor:
    return ops.convert_to_tensor(numbers, "float32")

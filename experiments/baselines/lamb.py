"""LAMB with weight decay inside the trust ratio, as published."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from experiments.baselines.elementwise import ElementwiseOptimizer
from keras_lanton.backends import backend
from keras_lanton.types import Tensor


@keras.saving.register_keras_serializable(package="keras_lanton")
class Lamb(ElementwiseOptimizer):
    """Adam's direction, scaled to each variable's weights.

        u = m^ / (sqrt(v^) + epsilon) + gamma X
        X <- X - eta ||X|| / ||u|| u        (X - eta u if either is zero)

    `keras.optimizers.Lamb` decays outside of the ratio, which is another
    algorithm.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the mean of gradients, in [0, 1).
        beta_2: Decay of the mean of their squares, in [0, 1).
        epsilon: Above 0.
        weight_decay: gamma, at least 0, or None.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        You et al. 2020, Large Batch Optimization for Deep Learning,
        algorithm 2, with phi the identity.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float | None = 0.01,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )

    def update_(
        self, X: Sequence[Tensor], U: Sequence[Tensor], rates: Tensor
    ) -> list[Tensor]:
        """X <- X - rate ||X|| / ||u + gamma X|| (u + gamma X).

        Args:
            X: Weights, one per variable; may be overwritten.
            U: Directions, likewise.
            rates: Rates, `(matrices,)`.
        """
        gammas = self.of_matrices(self.weight_decays())
        rates, gammas = self.of_entries(rates, gammas)
        steps = []
        for x, u, rate, gamma in zip(X, U, rates, gammas, strict=True):
            x = ops.cast(x, "float32")
            u = u + gamma * x
            steps.append(-rate * _trust_ratio(x, u) * u)
        updated: list[Tensor] = backend.update_(X, steps, [1.0] * len(X))
        return updated


def _trust_ratio(x: Tensor, u: Tensor) -> Tensor:
    """||x|| / ||u||, 1 where either is zero."""
    above, below = (ops.sqrt(ops.sum(y * y)) for y in (x, u))
    usable = ops.logical_and(above > 0, below > 0)
    return backend.where(
        usable, above / backend.where(below > 0, below, 1.0), 1.0
    )

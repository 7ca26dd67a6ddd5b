"""AdamW for all variables, as a base class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.core.adamw import debiasing
from keras_lanton.optimizer.base import LayerwiseOptimizer
from keras_lanton.optimizer.momentum import upcast_half
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import DECAY
from keras_lanton.validation import check_numbers

NUMBERS = {"beta_1": DECAY, "beta_2": DECAY, "epsilon": ABOVE_0}


class ElementwiseOptimizer(LayerwiseOptimizer):
    """AdamW for all variables; subclasses change parts of it.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2      from 0
        X <- (1 - eta gamma) X - eta m^ / (sqrt(v^) + epsilon)

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the mean of gradients, in [0, 1).
        beta_2: Decay of the mean of their squares, in [0, 1).
        epsilon: Above 0.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    slot_dtypes = {"momentum": None, "root_velocity": "float32"}
    arguments: tuple[str, ...] = tuple(NUMBERS)

    def __init__(
        self,
        learning_rate: Any,
        *,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        **kwargs: Any,
    ) -> None:
        check_numbers(NUMBERS, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)

    def step_(
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
        mask = ops.cast(active, "float32")
        C, changed = self.corrected(G, state, active)
        m, roots = self.moments(C, state, mask)
        rates = self.matrix_rates(self.rates(eta, t)) * mask
        X = self.update_(X, self.directions(m, roots, t), rates)
        changed = {"momentum": m, "root_velocity": roots, **changed}
        return X, self.new_state(state, active, t, **changed)

    def betas(self) -> list[tuple[float, float]]:
        """beta_1 and beta_2 of each variable."""
        return [(self.beta_1, self.beta_2)] * len(self._layout.specs)

    def rates(self, eta: Tensor, t: Tensor) -> Tensor:
        """Rate of each matrix, `(matrices,)`, or of all of them, float32."""
        return eta

    def corrected(
        self, G: Sequence[Tensor], state: State, active: Tensor
    ) -> tuple[Sequence[Tensor], State]:
        """The tensors that the moments are taken of, and changes of the state.

        Args:
            G: Gradients, one per variable.
            state: Before this step.
            active: Which matrices have a gradient, `(matrices,)` bool.
        """
        return G, {}

    def moments(
        self, G: Sequence[Tensor], state: State, mask: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Both after this step: means of gradients, roots of mean squares.

        Args:
            G: Corrected gradients, one per variable.
            state: `"momentum"` and `"root_velocity"`; may be overwritten.
            mask: 1 where a matrix has a gradient, else 0, `(matrices,)`.

        Returns:
            The new moments, float32 or float64.
        """
        m = upcast_half(state["momentum"])
        c = 1.0 - np.array(self.betas())
        c_1, c_2 = self.of_entries(
            *(self.of_matrices(one) * mask for one in c.T)
        )
        G = [ops.cast(g, "float32") for g in G]
        return (
            backend.lerp_(m, backend.cast_each(G, [x.dtype for x in m]), c_1),
            backend.mean_roots_(state["root_velocity"], G, c_2),
        )

    def directions(
        self, m: Sequence[Tensor], roots: Sequence[Tensor], t: Tensor
    ) -> list[Tensor]:
        """m^ / (sqrt(v^) + epsilon) of each variable's moments."""
        found: list[Tensor] = []
        for one, root, betas in zip(m, roots, self.betas(), strict=True):
            found += backend.adam_directions(
                [ops.cast(one, "float32")],
                [ops.cast(root, "float32")],
                debiasing(*betas, t),
                epsilon=self.epsilon,
            )
        return found

    def update_(
        self, X: Sequence[Tensor], U: Sequence[Tensor], rates: Tensor
    ) -> list[Tensor]:
        """X <- (1 - rate gamma) X - rate u.

        Args:
            X: Weights, one per variable; may be overwritten.
            U: Directions, likewise.
            rates: 0 where a matrix has no gradient, `(matrices,)`.
        """
        decays = self.of_matrices(self.weight_decays())
        rates, decay_factors = self.of_entries(rates, 1.0 - rates * decays)
        steps = [-rate * u for rate, u in zip(rates, U, strict=True)]
        updated: list[Tensor] = backend.update_(X, steps, decay_factors)
        return updated

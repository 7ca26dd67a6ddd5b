"""AdamW for all layers, as a base class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.adamw import adam_direction
from keras_lanton.adamw import squares
from keras_lanton.arguments import ABOVE_0
from keras_lanton.arguments import DECAY
from keras_lanton.arguments import check_numbers
from keras_lanton.base import LayerwiseOptimizer
from keras_lanton.base import State
from keras_lanton.base import as_in
from keras_lanton.base import backend
from keras_lanton.base import wide

Tensor = Any


class ElementwiseOptimizer(LayerwiseOptimizer):
    """AdamW for all layers; subclasses say what they do otherwise.

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

    slots = {"momentum": None, "velocity": "float32"}
    arguments: tuple[str, ...] = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: Any,
        *,
        beta_1: float,
        beta_2: float,
        epsilon: float,
        **kwargs: Any,
    ) -> None:
        check_numbers(
            {"beta_1": DECAY, "beta_2": DECAY, "epsilon": ABOVE_0}, locals()
        )
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)

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
        C, changed = self.corrected(G, state, active)
        m, v = self.moments(C, state, moves)
        rates = self.rates(eta, t) * moves
        X = self.move(X, self.directions(m, v, t), rates)
        changed = {"momentum": m, "velocity": v, **changed}
        return X, self.new_state(state, active, t, **changed)

    def betas(self) -> list[tuple[float, float]]:
        """beta_1 and beta_2 of each layer."""
        return [(self.beta_1, self.beta_2)] * len(self.moving_layers)

    def rates(self, eta: Tensor, t: Tensor) -> Tensor:
        """Rate of each layer, `(layers,)`, or of all of them, float32."""
        return eta

    def corrected(
        self, G: Sequence[Tensor], state: State, active: Tensor
    ) -> tuple[Sequence[Tensor], State]:
        """What the moments are taken of, and what that changes of the state.

        Args:
            G: Gradients, one per layer.
            state: Before this step.
            active: Which layers have a gradient, `(layers,)` bool.
        """
        return G, {}

    def moments(
        self, G: Sequence[Tensor], state: State, moves: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Both after this step: means of gradients and of their squares.

        Args:
            G: Corrected gradients, one per layer.
            state: `"momentum"` and `"velocity"`, which may be overwritten.
            moves: 1 where a layer has a gradient, else 0, `(layers,)`.

        Returns:
            The new moments, float32 or float64.
        """
        m, v = ([wide(x) for x in state[k]] for k in ("momentum", "velocity"))
        c = 1.0 - np.array(self.betas())
        c_1, c_2 = backend.unpack(
            *(ops.convert_to_tensor(one, "float32") * moves for one in c.T)
        )
        G = [ops.cast(g, "float32") for g in G]
        return (
            backend.lerp(m, as_in(m, G), c_1, in_place=True),
            backend.lerp(v, squares(G), c_2, in_place=True),
        )

    def directions(
        self, m: Sequence[Tensor], v: Sequence[Tensor], t: Tensor
    ) -> list[Tensor]:
        """`adam_direction` of each layer's moments."""
        return [
            adam_direction(
                one_m,
                one_v,
                t,
                beta_1=beta_1,
                beta_2=beta_2,
                epsilon=self.epsilon,
            )
            for one_m, one_v, (beta_1, beta_2) in zip(
                m, v, self.betas(), strict=True
            )
        ]

    def move(
        self, X: Sequence[Tensor], U: Sequence[Tensor], rates: Tensor
    ) -> list[Tensor]:
        """X <- (1 - rate gamma) X - rate u.

        Args:
            X: Weights, one per layer; may be overwritten.
            U: Directions, likewise.
            rates: 0 where a layer has no gradient, `(layers,)`.
        """
        keep = 1.0 - rates * self.weight_decays()
        rates, keep = backend.unpack(rates, keep)
        steps = [-rate * u for rate, u in zip(rates, U, strict=True)]
        moved: list[Tensor] = backend.move(X, steps, keep)
        return moved

"""LMO steps of a momentum that starts at zero."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.arguments import DECAY
from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.base import as_in
from keras_lanton.base import backend
from keras_lanton.base import wide
from keras_lanton.norm_optimizer import NormOptimizer
from keras_lanton.norm_optimizer import lookahead
from keras_lanton.stacks import Stack

Tensor = Any


class MomentumOptimizer(NormOptimizer):
    """What all compared optimizers with an LMO share.

        B <- b1 B + (1 - b1) G                              from 0
        M = b1 B + (1 - b1) G  (nesterov) or B
        X <- (1 - eta gamma) X + eta s LMO(M)

    With heavy-ball momentum the direction is the same: B is a multiple of it.
    Layers whose role has no norm are left to `move_others`, but for B.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the momentum, in [0, 1).
        **kwargs: Arguments of `NormOptimizer`, e.g. `noise`, `nesterov`,
            `ns_steps`, and of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    arguments = (*NormOptimizer.arguments, "beta_1")

    def __init__(
        self, learning_rate: Any, *, beta_1: float, **kwargs: Any
    ) -> None:
        check_numbers({"beta_1": DECAY}, locals())
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = float(beta_1)

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
        B_last = [wide(b) for b in state["momentum"]]
        G = as_in(B_last, G)
        moves = ops.cast(active, "float32")
        ratio, measured = self.adapt(G, B_last, state, active=active, t=t)
        rates = self.step_scales() * eta * ratio
        rates = rates * ops.take(moves, self._plan.owners)

        c = ops.convert_to_tensor(1.0 - self.decays(), "float32") * moves
        keep = 1.0 - eta * self.weight_decays() * moves
        c, keep = backend.unpack(c, keep)
        B = backend.lerp(B_last, G, c, in_place=True)
        new = {**state, **measured, "momentum": B}

        M = lookahead(B, G, c) if self.nesterov else lambda _: B
        X = list(X)
        for stack, matrices in self._plan.stacks:
            M_stack = self.gather(stack, M(stack.indices))
            O = self.direction(stack, matrices, M_stack, c, new)
            self.move(X, stack, O, ops.take(rates, matrices), keep)
        self.move_others(X, G, new, moves=moves, eta=eta, t=t)
        return X, self.new_state(state, active, t, **new)

    def decays(self) -> np.ndarray:
        """Of the momentum of each layer, `(layers,)`."""
        return np.full(len(self.moving_layers), self.beta_1)

    def direction(
        self,
        stack: Stack,
        matrices: np.ndarray,
        M: Tensor,
        c: Sequence[Any],
        new: State,
    ) -> Tensor:
        """What the matrices of a stack move along: their LMO.

        Args:
            stack: The stack.
            matrices: Their positions among all matrices, `(n,)`.
            M: Their momentum, `(n, rows, columns)`.
            c: 1 - b1, or 0 without a gradient: scalars, one per layer.
            new: The state after this step, which may be changed.
        """
        return self.norms[stack.role].lmo(M)

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
        """Moves the layers whose role has no norm.

        Args:
            X: Weights, one per layer; those that move are replaced.
            G: Gradients, likewise.
            new: The state after this step, which may be changed. Its momentum
                is not yet rounded to half precision.
            moves: 1 where a layer has a gradient, else 0, `(layers,)`.
            eta: Learning rate.
            t: Number of this step.
        """

"""AdamW: what it does to each entry, and as a part of other optimizers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.arguments import ABOVE_0
from keras_lanton.arguments import AT_LEAST_0
from keras_lanton.arguments import DECAY
from keras_lanton.arguments import Numbers
from keras_lanton.base import State
from keras_lanton.base import backend

Tensor = Any

LARGEST = float(np.finfo("float32").max)


def debias(beta: float, t: Tensor) -> Tensor:
    """1 - beta^t, exact to rounding for beta near 1.

    Args:
        beta: Decay, in [0, 1).
        t: Number of the step, from 1.
    """
    if beta == 0.0:
        return ops.ones(())
    return -ops.expm1(ops.cast(t, "float32") * math.log(beta))


def adam_direction(
    m: Tensor,
    v: Tensor,
    t: Tensor,
    *,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    epsilon_before_debiasing: bool = False,
) -> Tensor:
    """m^ / (sqrt(v^) + epsilon), where ^ divides by 1 - beta^t.

    Args:
        m: Mean of gradients, from 0.
        v: Mean of their squares, from 0.
        t: Number of the step, from 1.
        beta_1: Decay of m.
        beta_2: Decay of v.
        epsilon: Above 0.
        epsilon_before_debiasing: Whether epsilon is added to sqrt(v), as in
            Keras and Moonlight, and not to sqrt(v^), as in PyTorch.

    Returns:
        A tensor of the shape of m, float32.

    References:
        Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019.
    """
    m, v = (ops.cast(x, "float32") for x in (m, v))
    root, correction = ops.sqrt(debias(beta_2, t)), debias(beta_1, t)
    if epsilon_before_debiasing:
        return m / (ops.sqrt(v) + epsilon) * (root / correction)
    return (m / correction) / (ops.sqrt(v) / root + epsilon)


def squares(G: Sequence[Tensor]) -> list[Tensor]:
    """Of each entry of each tensor, at most what float32 holds.

    An infinity would stay in the second moment for good.
    """
    return [ops.minimum(g * g, LARGEST) for g in G]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW for some layers of an optimizer that moves the others by LMOs.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2      from 0
        X <- (1 - eta' gamma) X - eta' m^ / (sqrt(v^) + epsilon)

    with eta' = eta `lr_ratio`. The optimizer keeps m in its momentum.

    Args:
        lr_ratio: Rate over the base rate, at least 0.
        beta_1: Decay of m, in [0, 1).
        beta_2: Decay of v, in [0, 1).
        epsilon: Above 0.
        epsilon_before_debiasing: See `adam_direction`.
    """

    lr_ratio: float
    beta_1: float
    beta_2: float
    epsilon: float
    epsilon_before_debiasing: bool = False

    def move(
        self,
        chosen: Sequence[int],
        X: list[Tensor],
        G: Sequence[Tensor],
        new: State,
        *,
        moves: Tensor,
        eta: Tensor,
        weight_decays: Tensor,
        t: Tensor,
    ) -> None:
        """Moves the chosen layers.

        Args:
            chosen: Their positions; `"velocity"` in the state has only them.
            X: Weights, one per layer; those that move are replaced.
            G: Gradients, likewise.
            new: The state after this step, but for the velocity, which is
                replaced. Its momentum is not yet rounded to half precision.
            moves: 1 where a layer has a gradient, else 0, `(layers,)`.
            eta: Base learning rate.
            weight_decays: gamma of each layer, `(layers,)`.
            t: Number of this step, from 1.
        """
        if not chosen:
            return
        rates = eta * self.lr_ratio * moves
        keep = 1.0 - rates * weight_decays
        c_2 = (1.0 - self.beta_2) * moves
        rates, keep, c_2 = (
            [scalars[i] for i in chosen]
            for scalars in backend.unpack(rates, keep, c_2)
        )
        g = [ops.cast(G[i], "float32") for i in chosen]
        v = [ops.cast(x, "float32") for x in new["velocity"]]
        v = backend.lerp(v, squares(g), c_2, in_place=True)
        steps = [
            -rate
            * adam_direction(
                new["momentum"][i],
                one,
                t,
                beta_1=self.beta_1,
                beta_2=self.beta_2,
                epsilon=self.epsilon,
                epsilon_before_debiasing=self.epsilon_before_debiasing,
            )
            for i, rate, one in zip(chosen, rates, v, strict=True)
        ]
        moved = backend.move([X[i] for i in chosen], steps, keep)
        for i, x in zip(chosen, moved, strict=True):
            X[i] = x
        new["velocity"] = v


# Arguments of optimizers that have the part.
NUMBERS: Numbers = {
    "adam_lr_ratio": AT_LEAST_0,
    "adam_beta_1": DECAY,
    "adam_beta_2": DECAY,
    "epsilon": ABOVE_0,
}

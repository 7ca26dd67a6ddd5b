"""What AdamW does to each entry, as a part and as a base class."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_lanton.arguments import Numbers
from keras_lanton.arguments import check_numbers
from keras_lanton.base import LayerwiseOptimizer
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.norm_optimizer import wide

Tensor = Any

DECAYS: Numbers = {
    name: ("a number in [0, 1)", lambda x: 0 <= x < 1, False)
    for name in ("beta_1", "beta_2", "adam_beta_1", "adam_beta_2")
}
AT_LEAST_0: tuple[str, Any, bool] = (
    "a number of at least 0",
    lambda x: x >= 0,
    False,
)
ABOVE_0: tuple[str, Any, bool] = ("a number above 0", lambda x: x > 0, False)


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
    """Of each entry of each tensor."""
    return [g * g for g in G]


def as_in(state: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors in the dtypes of the state's."""
    return [
        ops.cast(x, old.dtype) for x, old in zip(tensors, state, strict=True)
    ]


class ElementwiseOptimizer(LayerwiseOptimizer):
    """Moments of AdamW for all layers; subclasses say what they make of them.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the mean of gradients, in [0, 1).
        beta_2: Decay of the mean of their squares, in [0, 1).
        epsilon: Above 0.
        **kwargs: Arguments of `LayerwiseOptimizer`.
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
            {
                "beta_1": DECAYS["beta_1"],
                "beta_2": DECAYS["beta_2"],
                "epsilon": ABOVE_0,
            },
            locals(),
        )
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)

    def moments(
        self,
        G: Sequence[Tensor],
        state: State,
        betas: Sequence[tuple[float, float]],
        moves: Tensor,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """M <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2.

        Args:
            G: Gradients, one per layer.
            state: `"momentum"` and `"velocity"`, which may be overwritten.
            betas: Decays of each layer.
            moves: 1 where a layer has a gradient, else 0, `(layers,)`.

        Returns:
            The new moments, float32 or float64.
        """
        m, v = ([wide(x) for x in state[k]] for k in ("momentum", "velocity"))
        weights = [
            ops.convert_to_tensor([1.0 - pair[k] for pair in betas]) * moves
            for k in (0, 1)
        ]
        c_1, c_2 = backend.unpack(*weights)
        G = [ops.cast(g, "float32") for g in G]
        G_m = [ops.cast(g, x.dtype) for g, x in zip(G, m, strict=True)]
        return (
            backend.lerp(m, G_m, c_1, in_place=True),
            backend.lerp(v, squares(G), c_2, in_place=True),
        )

    def directions(
        self,
        m: Sequence[Tensor],
        v: Sequence[Tensor],
        betas: Sequence[tuple[float, float]],
        t: Tensor,
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
            for one_m, one_v, (beta_1, beta_2) in zip(m, v, betas, strict=True)
        ]

    def new_state(
        self,
        state: State,
        m: Sequence[Tensor],
        v: Sequence[Tensor],
        active: Tensor,
        t: Tensor,
    ) -> State:
        """The state after a step."""
        return {
            **state,
            "momentum": as_in(state["momentum"], m),
            "velocity": as_in(state["velocity"], v),
            "last_step": ops.where(active, t, state["last_step"]),
        }

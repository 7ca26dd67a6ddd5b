"""Orthogonalized steps for hidden layers, AdamW for all others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.baselines.elementwise import ABOVE_0
from keras_lanton.baselines.elementwise import AT_LEAST_0
from keras_lanton.baselines.elementwise import DECAYS
from keras_lanton.baselines.elementwise import adam_direction
from keras_lanton.baselines.elementwise import as_in
from keras_lanton.baselines.elementwise import squares
from keras_lanton.norm_optimizer import NormOptimizer
from keras_lanton.norm_optimizer import lookahead
from keras_lanton.norm_optimizer import wide
from keras_lanton.norms import Norm
from keras_lanton.norms import Spectral
from keras_lanton.stacks import Stack

Tensor = Any

ADAM = ("embedding", "vector")


class HybridOptimizer(NormOptimizer):
    """What Muon, D-Muon and AdaMuon share.

        B <- b1 B + (1 - b1) G;  M = b1 B + (1 - b1) G  (nesterov) or B
        X <- (1 - eta gamma) X + eta s LMO(M)              hidden layers
        X <- (1 - eta' gamma) X - eta' m^ / (sqrt(v^) + epsilon)    others

    The momentum starts at zero. With heavy-ball momentum the direction is the
    same: B is a multiple of it. eta' is eta times `adam_lr_ratio`.

    Args:
        learning_rate: Of hidden layers: float, schedule, or callable.
        beta_1: Decay of the hidden layers' momentum, in [0, 1).
        adam_lr_ratio: Rate of AdamW over the base rate, at least 0.
        adam_beta_1: beta_1 of AdamW, in [0, 1).
        adam_beta_2: beta_2 of AdamW, in [0, 1).
        epsilon: Of AdamW, above 0.
        noise: A `NoiseAdaptiveRate` for the hidden layers, or None.
        nesterov: Whether to look ahead.
        ns_steps: Newton-Schulz steps, at least 1.
        ns_coefficients: A name, or rows `(a, b, c)`; see `Lanton`.
        ns_dtype: Of the products in Newton-Schulz; see `Lanton`.
        max_temporary_bytes: See `Lanton`.
        momentum_dtype: Defaults to each variable's own.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.
    """

    slots = {"velocity": "float32"}
    slot_roles = {"velocity": ADAM}
    arguments = (
        *NormOptimizer.arguments,
        "beta_1",
        "adam_lr_ratio",
        "adam_beta_1",
        "adam_beta_2",
        "epsilon",
    )
    # Where AdamW adds epsilon; see `adam_direction`.
    epsilon_before_debiasing = False

    def __init__(
        self,
        learning_rate: Any,
        *,
        beta_1: float,
        adam_lr_ratio: float,
        adam_beta_1: float,
        adam_beta_2: float,
        epsilon: float,
        noise: NoiseAdaptiveRate | None = None,
        nesterov: bool = True,
        ns_steps: int = 5,
        ns_coefficients: str | Sequence[Sequence[float]] = "jordan",
        ns_dtype: str = "auto",
        max_temporary_bytes: int = 2**29,
        momentum_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_numbers(
            {
                "beta_1": DECAYS["beta_1"],
                "adam_lr_ratio": AT_LEAST_0,
                "adam_beta_1": DECAYS["adam_beta_1"],
                "adam_beta_2": DECAYS["adam_beta_2"],
                "epsilon": ABOVE_0,
            },
            locals(),
        )
        super().__init__(
            learning_rate,
            noise=noise,
            nesterov=nesterov,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
            ns_dtype=ns_dtype,
            max_temporary_bytes=max_temporary_bytes,
            momentum_dtype=momentum_dtype,
            **kwargs,
        )
        self.beta_1 = float(beta_1)
        self.adam_lr_ratio = float(adam_lr_ratio)
        self.adam_beta_1 = float(adam_beta_1)
        self.adam_beta_2 = float(adam_beta_2)
        self.epsilon = float(epsilon)

    def make_norms(self, hidden: Spectral) -> dict[str, Norm]:
        """Only hidden layers move by an LMO."""
        return {"hidden": hidden}

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
        G = [ops.cast(g, b.dtype) for g, b in zip(G, B_last, strict=True)]
        moves = ops.cast(active, "float32")
        ratio, measured = self.adapt(G, B_last, state, active=active, t=t)
        new = {**state, **measured}
        new["last_step"] = ops.where(active, t, state["last_step"])

        adam = self._plan.with_roles(ADAM)
        is_adam = np.isin(np.arange(len(G)), adam)
        rates = eta * moves
        rates = rates * _tensor(np.where(is_adam, self.adam_lr_ratio, 1.0))
        beta_1 = np.where(is_adam, self.adam_beta_1, self.beta_1)
        keep = 1.0 - rates * self.weight_decays()
        matrix_rates = self.step_scales() * ratio
        matrix_rates *= ops.take(rates, self._plan.owners)
        c, ahead, keep, rates = backend.unpack(
            _tensor(1.0 - beta_1) * moves,
            _tensor(1.0 - beta_1) * moves,
            keep,
            rates,
        )
        B = backend.lerp(B_last, G, c, in_place=True)
        new["momentum"] = as_in(state["momentum"], B)

        M = lookahead(B, G, ahead) if self.nesterov else lambda _: B
        X = list(X)
        for stack, matrices in self._plan.stacks:
            O = self.direction(
                stack, stack.gather(M(stack.indices)), new, moves
            )
            O = backend.scaled(
                O, ops.take(matrix_rates, matrices)[:, None, None]
            )
            self.move(X, stack, O, keep)

        v = [ops.cast(x, "float32") for x in state["velocity"]]
        g = [ops.cast(G[i], "float32") for i in adam]
        c_2 = (1.0 - self.adam_beta_2) * moves
        (c_2,) = backend.unpack(c_2)
        v = backend.lerp(v, squares(g), [c_2[i] for i in adam], in_place=True)
        new["velocity"] = as_in(state["velocity"], v)
        steps = [
            -rates[i]
            * adam_direction(
                B[i],
                one,
                t,
                beta_1=self.adam_beta_1,
                beta_2=self.adam_beta_2,
                epsilon=self.epsilon,
                epsilon_before_debiasing=self.epsilon_before_debiasing,
            )
            for i, one in zip(adam, v, strict=True)
        ]
        moved = backend.move(
            [X[i] for i in adam], steps, [keep[i] for i in adam]
        )
        for i, x in zip(adam, moved, strict=True):
            X[i] = x
        return X, new

    def direction(
        self, stack: Stack, M: Tensor, new: State, moves: Tensor
    ) -> Tensor:
        """What the hidden layers of a stack move along.

        Args:
            stack: The stack.
            M: Their momentum, `(n, rows, columns)`.
            new: The state after this step, to which may be added.
            moves: 1 where a layer has a gradient, else 0, `(layers,)`.
        """
        return self.norms[stack.role].lmo(M)


def _tensor(numbers: np.ndarray) -> Tensor:
    return ops.convert_to_tensor(numbers, "float32")

"""AdaMuon: an elementwise second moment behind Newton-Schulz."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.arguments import check_numbers
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.baselines.elementwise import AT_LEAST_0
from keras_lanton.baselines.elementwise import squares
from keras_lanton.baselines.hybrid import HybridOptimizer
from keras_lanton.stacks import Stack

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_lanton")
class AdaMuon(HybridOptimizer):
    """Muon on signs, each entry over the root of its mean square.

        O = U V^T of sign(M)
        V <- b1 V + (1 - b1) O^2                from 0, not debiased
        P = O / (sqrt(V) + epsilon)
        X <- (1 - eta gamma) X - eta 0.2 sqrt(d_in d_out) P / ||P||

    Embeddings, the head and vectors are moved by AdamW; vectors do not decay.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        hidden_scale: RMS of a hidden step of rate 1, at least 0.
        beta_1: Decay of the momentum and of V, in [0, 1).
        adam_lr_ratio: Rate of AdamW over the base rate, at least 0.
        adam_beta_1: beta_1 of AdamW, in [0, 1).
        adam_beta_2: beta_2 of AdamW, in [0, 1).
        epsilon: Above 0.
        weight_decay: Decoupled, at the base rate; at least 0, or None.
        **kwargs: Arguments of `HybridOptimizer` and of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Si et al. 2025, AdaMuon: Adaptive Muon Optimizer, arXiv 2507.11005,
        version 2; github.com/Chongjie-Si/AdaMuon,
        gpt2/models/optimizers/adamuon.py.
    """

    slots = {**HybridOptimizer.slots, "second_moment": "float32"}
    slot_roles = {**HybridOptimizer.slot_roles, "second_moment": ("hidden",)}
    arguments = (*HybridOptimizer.arguments, "hidden_scale")

    def __init__(
        self,
        learning_rate: Any = 6e-4,
        *,
        hidden_scale: float = 0.2,
        beta_1: float = 0.95,
        adam_lr_ratio: float = 1.0,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: float | None = 0.1,
        name: str = "adamuon",
        **kwargs: Any,
    ) -> None:
        check_numbers({"hidden_scale": AT_LEAST_0}, locals())
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            adam_lr_ratio=adam_lr_ratio,
            adam_beta_1=adam_beta_1,
            adam_beta_2=adam_beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.hidden_scale = float(hidden_scale)

    def step_scales(self) -> Tensor:
        """0.2 for all: `direction` gives matrices of RMS 1."""
        count = len(self._plan.owners)
        return ops.convert_to_tensor(
            np.full(count, self.hidden_scale), "float32"
        )

    def weight_decays(self) -> Tensor:
        """As usual, but 0 for vectors."""
        matrix = [layer.role != "vector" for layer in self.moving_layers]
        return super().weight_decays() * ops.convert_to_tensor(
            np.array(matrix), "float32"
        )

    def direction(
        self, stack: Stack, M: Tensor, new: State, moves: Tensor
    ) -> Tensor:
        """-sqrt(d_in d_out) P / ||P||, and the new V."""
        hidden = self._plan.with_roles(("hidden",))
        places = [hidden.index(i) for i in stack.indices]
        # The LMO is -sqrt(columns / rows) U V^T.
        O = self.norms["hidden"].lmo(ops.sign(M))
        O = O * math.sqrt(stack.rows / stack.columns)
        (c,) = backend.unpack((1.0 - self.beta_1) * moves)
        V = backend.lerp(
            [new["second_moment"][k] for k in places],
            squares(stack.scatter(O)),
            [c[i] for i in stack.indices],
        )
        kept = list(new["second_moment"])
        for k, one in zip(places, V, strict=True):
            kept[k] = one
        new["second_moment"] = kept
        V = dict(zip(stack.indices, V, strict=True))
        P = O / (ops.sqrt(stack.gather(V)) + self.epsilon)
        unit, _ = backend.unit_norm(P)
        return math.sqrt(stack.rows * stack.columns) * unit

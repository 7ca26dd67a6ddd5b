"""AdaMuon: an elementwise second moment behind Newton-Schulz."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.adamw import squares
from keras_lanton.base import State
from keras_lanton.base import backend
from keras_lanton.baselines.d_muon import DMuon
from keras_lanton.stacks import Stack

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_lanton")
class AdaMuon(DMuon):
    """D-Muon on signs, each entry over the root of its mean square.

        O = U V^T of sign(M)
        V <- b1 V + (1 - b1) O^2                from 0, not debiased
        P = O / (sqrt(V) + epsilon)
        X <- (1 - eta gamma) X - eta 0.2 sqrt(d_in d_out) P / ||P||

    Embeddings, the head and vectors are moved by AdamW, with epsilon added
    after debiasing; vectors do not decay.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        **kwargs: Arguments of `DMuon`; `beta_1` and `epsilon` are those of V
            too.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Si et al. 2025, AdaMuon: Adaptive Muon Optimizer, arXiv 2507.11005,
        version 2; github.com/Chongjie-Si/AdaMuon,
        gpt2/models/optimizers/adamuon.py.
    """

    slots = {**DMuon.slots, "second_moment": "float32"}
    slot_roles = {**DMuon.slot_roles, "second_moment": ("hidden",)}
    epsilon_before_debiasing = False

    def __init__(
        self, learning_rate: Any = 6e-4, *, name: str = "adamuon", **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, name=name, **kwargs)

    def step_scales(self) -> Tensor:
        """0.2 for all: `direction` gives matrices of RMS 1."""
        scales = np.full(len(self._plan.owners), self.hidden_scale)
        return ops.convert_to_tensor(scales, "float32")

    def weight_decays(self) -> Tensor:
        """As usual, but 0 for vectors."""
        matrix = [layer.role != "vector" for layer in self.moving_layers]
        return super().weight_decays() * ops.convert_to_tensor(
            np.array(matrix), "float32"
        )

    def direction(
        self,
        stack: Stack,
        matrices: np.ndarray,
        M: Tensor,
        c: Sequence[Any],
        new: State,
    ) -> Tensor:
        """-sqrt(d_in d_out) P / ||P||, and the new V."""
        # The LMO is -sqrt(columns / rows) U V^T.
        O = self.norms["hidden"].lmo(ops.sign(M))
        O = O * math.sqrt(stack.rows / stack.columns)
        hidden = self._plan.with_roles(("hidden",))
        places = [hidden.index(i) for i in stack.indices]
        V = backend.lerp(
            [new["second_moment"][k] for k in places],
            squares(stack.scatter(O)),
            [c[i] for i in stack.indices],
        )
        kept = list(new["second_moment"])
        for k, one in zip(places, V, strict=True):
            kept[k] = one
        new["second_moment"] = kept
        V = stack.gather(dict(zip(stack.indices, V, strict=True)))
        unit, _ = backend.unit_norm(O / (ops.sqrt(V) + self.epsilon))
        return math.sqrt(stack.rows * stack.columns) * unit

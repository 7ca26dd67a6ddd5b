"""Scion: LMO steps for all layers, constrained to balls or not."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.arguments import AT_LEAST_0
from keras_lanton.arguments import BASE_NUMBERS
from keras_lanton.arguments import check_bool
from keras_lanton.arguments import check_choice
from keras_lanton.arguments import check_numbers
from keras_lanton.baselines.momentum import MomentumOptimizer
from keras_lanton.norms import RMS
from keras_lanton.norms import Features
from keras_lanton.norms import Norm
from keras_lanton.norms import Outputs
from keras_lanton.norms import Sign
from keras_lanton.norms import Spectral
from keras_lanton.roles import Layer
from keras_lanton.views import from_matrices

Tensor = Any

NORMS = {
    "sign": Sign(),
    "rms": RMS(),
    "col": Features(),
    "row": Outputs(),
}
CHOICES = {
    "embedding_norm": ("sign", "col", "row"),
    "vector_norm": ("rms", "sign"),
}
SCALES = ("hidden_scale", "embedding_scale", "vector_scale")


@keras.saving.register_keras_serializable(package="keras_lanton")
class Scion(MomentumOptimizer):
    """Conditional gradient steps: towards the edge of a ball, or along it.

        B <- b1 B + (1 - b1) G                                from 0
        X <- (1 - eta) X + eta rho LMO(B)                     constrained
        X <- X + eta rho LMO(B)                               unconstrained

    Constrained, weights that start in the ball of radius rho of their norm
    stay in it. The reference's `momentum` is 1 - b1. Its convolutions divide
    by k once more for kernels k x k: scale `hidden_scale` accordingly.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the momentum, in [0, 1).
        constrained: Whether weights decay by eta on each step.
        hidden_scale: rho of hidden layers, at least 0.
        embedding_scale: rho of embeddings and heads, at least 0.
        vector_scale: rho of vectors, at least 0. The reference has none in
            its language models.
        embedding_norm: `"sign"`, `"col"` or `"row"`.
        embedding_normalized: Whether embedding steps are divided as in the
            norm's LMO (`"sign"` and `"col"` by d_in, `"row"` by
            sqrt(d_in)); the reference does not for tables of an untied head.
        vector_norm: `"rms"` or `"sign"`.
        weight_decay: Decoupled decay, only where it is not constrained.
        **kwargs: Arguments of `NormOptimizer`, e.g. `noise`, `ns_steps`, and
            of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Pethick et al. 2025, Training Deep Learning Models with Norm-
        Constrained LMOs, arXiv 2502.07529; github.com/LIONS-EPFL/scion.
    """

    arguments = (
        *MomentumOptimizer.arguments,
        *SCALES,
        *CHOICES,
        "constrained",
        "embedding_normalized",
    )

    def __init__(
        self,
        learning_rate: Any = 3e-4,
        *,
        beta_1: float = 0.9,
        constrained: bool = True,
        hidden_scale: float = 50.0,
        embedding_scale: float = 3000.0,
        vector_scale: float = 10.0,
        embedding_norm: str = "sign",
        embedding_normalized: bool = True,
        vector_norm: str = "rms",
        weight_decay: float | None = None,
        name: str = "scion",
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        check_numbers(dict.fromkeys(SCALES, AT_LEAST_0), given)
        for choice, allowed in CHOICES.items():
            check_choice(choice, given[choice], allowed)
        check_bool("constrained", constrained)
        check_bool("embedding_normalized", embedding_normalized)
        check_numbers({"weight_decay": BASE_NUMBERS["weight_decay"]}, given)
        check_bool("nesterov", kwargs.get("nesterov", False))
        if constrained and weight_decay:
            raise ValueError(
                "`weight_decay` belongs to constrained=False: constrained, "
                "weights decay by the learning rate itself. "
                f"Received: weight_decay={weight_decay!r}"
            )
        if kwargs.get("nesterov"):
            raise ValueError(
                "`nesterov` must be False: Scion does not look ahead. "
                "Received: nesterov=True"
            )
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.constrained = bool(constrained)
        self.hidden_scale = float(hidden_scale)
        self.embedding_scale = float(embedding_scale)
        self.vector_scale = float(vector_scale)
        self.embedding_norm = embedding_norm
        self.embedding_normalized = bool(embedding_normalized)
        self.vector_norm = vector_norm

    def make_norms(self, hidden: Spectral) -> dict[str, Norm]:
        """A norm for every role."""
        return {
            "hidden": hidden,
            "embedding": NORMS[self.embedding_norm],
            "vector": NORMS[self.vector_norm],
        }

    def weight_decays(self) -> Tensor:
        """1 for all that decay, where it is constrained."""
        if not self.constrained:
            return super().weight_decays()
        return ops.convert_to_tensor(np.array(self.decayed_layers), "float32")

    def scale_of(self, layer: Layer) -> float:
        """rho, over what the LMO divides by where that is not wanted."""
        if layer.role == "hidden":
            return self.hidden_scale
        if layer.role == "vector":
            return self.vector_scale
        if self.embedding_normalized:
            return self.embedding_scale
        power = 0.5 if self.embedding_norm == "row" else 1.0
        return self.embedding_scale * float(layer.d_in**power)

    def initialize(self, variables: Sequence[Any], seed: int = 0) -> None:
        """Draws hidden kernels and embeddings on the edges of their balls.

        Hidden kernels become orthogonal, embeddings random LMOs of their
        norm; vectors are left as they are.

        Args:
            variables: The model's trainable variables.
            seed: Of the draws.

        Raises:
            ValueError: If the optimizer took a step already.
        """
        self.build(variables)
        if int(ops.convert_to_numpy(self._iterations)):
            raise ValueError(
                "`initialize` must be called before the first step. Received: "
                f"iterations={int(ops.convert_to_numpy(self._iterations))}"
            )
        random = np.random.default_rng(seed)
        for variable, layer in zip(
            self._moving_variables(), self.moving_layers, strict=True
        ):
            if layer.role == "vector":
                continue
            shape = (layer.batch, layer.d_in, layer.d_out)
            draw = random.standard_normal(shape)
            if layer.role == "hidden":
                U, _, V = np.linalg.svd(draw, full_matrices=False)
                unit = U @ V * (layer.d_out / layer.d_in) ** 0.5
            else:
                lmo = self.norms[layer.role].lmo(
                    ops.convert_to_tensor(draw, "float32")
                )
                unit = ops.convert_to_numpy(lmo)
            whole = ops.convert_to_tensor(unit * self.scale_of(layer))
            variable.assign(
                ops.cast(from_matrices(whole, layer), variable.dtype)
            )

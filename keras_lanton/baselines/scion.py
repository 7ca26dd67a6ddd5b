"""Scion: LMO updates for all variables, constrained to balls or not."""

from typing import Any

import keras

from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Sign
from keras_lanton.core.norms import Spectral
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.settings import NewtonSchulz
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import BASE_NUMBERS
from keras_lanton.validation import check_bool
from keras_lanton.validation import check_choice
from keras_lanton.validation import check_numbers

VECTOR_NORMS: dict[str, Norm] = {"rms": RMS(), "sign": Sign()}
SCALES = ("hidden_scale", "embedding_scale", "vector_scale")


@keras.saving.register_keras_serializable(package="keras_lanton")
class Scion(LMOOptimizer):
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
        hidden_scale: rho of hidden variables, at least 0.
        embedding_scale: rho of embeddings and heads, at least 0.
        vector_scale: rho of vectors, at least 0. The reference has none in
            its language models.
        vector_norm: `"rms"` or `"sign"`.
        newton_schulz: How hidden matrices are orthogonalized.
        weight_decay: Decoupled decay, only where it is not constrained.
        name: Name of the optimizer. Defaults to one that Keras numbers.
        **kwargs: Arguments of `LMOOptimizer`, e.g. `noise`, and of
            `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Pethick et al. 2025, Training Deep Learning Models with Norm-
        Constrained LMOs, arXiv 2502.07529; github.com/LIONS-EPFL/scion.
    """

    arguments = (
        *LMOOptimizer.arguments,
        *SCALES,
        "vector_norm",
        "constrained",
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
        vector_norm: str = "rms",
        newton_schulz: NewtonSchulz = NewtonSchulz(coefficients="jordan"),
        weight_decay: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_numbers(
            dict.fromkeys(SCALES, AT_LEAST_0),
            hidden_scale=hidden_scale,
            embedding_scale=embedding_scale,
            vector_scale=vector_scale,
        )
        check_choice("vector_norm", vector_norm, tuple(VECTOR_NORMS))
        check_bool("constrained", constrained)
        check_numbers(BASE_NUMBERS, weight_decay=weight_decay)
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
            newton_schulz=newton_schulz,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.constrained = bool(constrained)
        self.hidden_scale = float(hidden_scale)
        self.embedding_scale = float(embedding_scale)
        self.vector_scale = float(vector_scale)
        self.vector_norm = vector_norm

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """A norm for every role; rho times its LMO.

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        norms = {
            "hidden": hidden,
            "embedding": Sign(),
            "vector": VECTOR_NORMS[self.vector_norm],
        }

        def scale(spec: VariableSpec) -> float:
            rho: float = getattr(self, f"{spec.role}_scale")
            return rho * norms[spec.role].lmo_scale(spec.d_in, spec.d_out)

        return {role: Rule(norm, scale) for role, norm in norms.items()}

    def decay_of(self, role: str) -> float:
        """The decay gamma of a role: constrained, 1."""
        return 1.0 if self.constrained else super().decay_of(role)

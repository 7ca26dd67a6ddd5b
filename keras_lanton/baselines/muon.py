"""Muon as Keller Jordan's, over all matrix views."""

import math
from typing import Any

import keras

from keras_lanton.baselines.roles import BOTH
from keras_lanton.baselines.roles import check_adamw_has_both
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Spectral
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz


@keras.saving.register_keras_serializable(package="keras_lanton")
class Muon(LMOOptimizer):
    """Muon: updates sqrt(max(1, d_out / d_in)) U V^T of hidden matrices.

    AdamW updates embeddings, the head and vectors, at another rate. In the
    reference AdamW also updates the first convolution; for this, call
    `assign_role("vector", kernel)`.

    Args:
        learning_rate: Rate of the hidden matrices: float, schedule, or
            callable.
        beta_1: Decay of the hidden momentum, in [0, 1).
        nesterov: Whether b1 B_t + (1 - b1) G_t is orthogonalized.
        auxiliary_adamw: AdamW of embeddings, the head and vectors. Its
            default `lr_ratio` is the reference's 3e-4 / 0.02.
        newton_schulz: How hidden matrices are orthogonalized.
        weight_decay: Decoupled, at each variable's rate; at least 0, or None.
        name: Name of the optimizer. Defaults to one that Keras numbers.
        **kwargs: Arguments of `LMOOptimizer`, e.g. `noise`, and of
            `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Jordan et al. 2024, Muon; github.com/KellerJordan/Muon, muon.py. Its
        factor for convolutions is that of the kernel's last two axes, here it
        is that of the matrix.
    """

    def __init__(
        self,
        learning_rate: Any = 0.02,
        *,
        beta_1: float = 0.95,
        nesterov: bool = True,
        auxiliary_adamw: AuxiliaryAdamW = AuxiliaryAdamW(
            roles=BOTH, lr_ratio=0.015, epsilon=1e-10
        ),
        newton_schulz: NewtonSchulz = NewtonSchulz(coefficients="jordan"),
        weight_decay: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_adamw_has_both(auxiliary_adamw)
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            nesterov=nesterov,
            auxiliary_adamw=auxiliary_adamw,
            newton_schulz=newton_schulz,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """U V^T times sqrt(max(1, d_out / d_in)).

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        return {"hidden": Rule(hidden, _scale)}


def _scale(spec: VariableSpec) -> float:
    return math.sqrt(max(1.0, spec.d_out / spec.d_in))

"""D-Muon: Muon with decay and updates of AdamW's RMS, as in Moonlight."""

from typing import Any

import keras

from keras_lanton.baselines.roles import BOTH
from keras_lanton.baselines.roles import check_adamw_has_both
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Spectral
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.optimizer.lmo import rms_rule
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import check_numbers


@keras.saving.register_keras_serializable(package="keras_lanton")
class DMuon(LMOOptimizer):
    """Muon with updates 0.2 sqrt(max(d_in, d_out)) U V^T, and weight decay.

    It orthogonalizes all matrix views, attention and convolution kernels too.
    AdamW updates embeddings, the head and vectors at the same rate and decay,
    with epsilon added before debiasing.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the hidden momentum, in [0, 1).
        nesterov: Whether b1 B_t + (1 - b1) G_t is orthogonalized.
        hidden_scale: RMS of a hidden update at rate 1, at least 0.
        auxiliary_adamw: AdamW of embeddings, the head and vectors.
        newton_schulz: How hidden matrices are orthogonalized.
        weight_decay: Decoupled, at the base rate; at least 0, or None.
        name: Name of the optimizer. Defaults to one that Keras numbers.
        **kwargs: Arguments of `LMOOptimizer`, e.g. `noise`, and of
            `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    Examples:
        >>> DMuon(1e-3, noise=NoiseAdaptiveRate())

    References:
        Liu et al. 2025, Muon is Scalable for LLM Training, arXiv 2502.16982;
        github.com/MoonshotAI/Moonlight, examples/toy_train.py.
    """

    arguments = (*LMOOptimizer.arguments, "hidden_scale")

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        beta_1: float = 0.95,
        nesterov: bool = True,
        hidden_scale: float = 0.2,
        auxiliary_adamw: AuxiliaryAdamW = AuxiliaryAdamW(
            roles=BOTH, epsilon_before_debiasing=True
        ),
        newton_schulz: NewtonSchulz = NewtonSchulz(coefficients="jordan"),
        weight_decay: float | None = 0.1,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_numbers({"hidden_scale": AT_LEAST_0}, hidden_scale=hidden_scale)
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
        self.hidden_scale = float(hidden_scale)

    @property
    def hidden_rms(self) -> float:
        """RMS of hidden updates at rate 1."""
        return self.hidden_scale

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """U V^T times 0.2 sqrt(max(d_in, d_out)).

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        return {"hidden": rms_rule(hidden, self.hidden_scale)}

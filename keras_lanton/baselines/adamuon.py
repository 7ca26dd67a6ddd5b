"""AdaMuon: an elementwise second moment after Newton-Schulz."""

import math
from typing import Any

import keras
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.baselines.roles import BOTH
from keras_lanton.baselines.roles import check_adamw_has_both
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Spectral
from keras_lanton.core.step import AfterLMO
from keras_lanton.core.step import Changes
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.optimizer.lmo import rms_rule
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz
from keras_lanton.types import Tensor
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import Numbers
from keras_lanton.validation import check_numbers

NUMBERS: Numbers = {
    "hidden_scale": AT_LEAST_0,
    "second_moment_epsilon": ABOVE_0,
}


@keras.saving.register_keras_serializable(package="keras_lanton")
class AdaMuon(LMOOptimizer):
    """D-Muon on signs, each entry over the root of its mean square.

        O = U V^T of sign(M)
        V <- b1 V + (1 - b1) O^2                from 0, not debiased
        P = O / (sqrt(V) + epsilon)
        X <- (1 - eta gamma) X - eta 0.2 sqrt(d_in d_out) P / ||P||

    AdamW updates embeddings, the head and vectors, with epsilon added after
    debiasing; vectors do not decay.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the hidden momentum and of V, in [0, 1).
        nesterov: Whether M is b1 B_t + (1 - b1) G_t.
        hidden_scale: RMS of a hidden update at rate 1, at least 0.
        second_moment_epsilon: The epsilon added to sqrt(V), above 0.
        auxiliary_adamw: AdamW of embeddings, the head and vectors.
        newton_schulz: How hidden matrices are orthogonalized.
        weight_decay: Decoupled, at the base rate; at least 0, or None.
        name: Name of the optimizer. Defaults to one that Keras numbers.
        **kwargs: Arguments of `LMOOptimizer`, e.g. `noise`, and of
            `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Si et al. 2025, AdaMuon: Adaptive Muon Optimizer, arXiv 2507.11005,
        version 2; github.com/Chongjie-Si/AdaMuon,
        gpt2/models/optimizers/adamuon.py. Its factor for convolutions is that
        of their smallest and largest axis, here it is that of the matrix.
    """

    slot_dtypes = {"second_moment_root": "float32"}
    slot_roles = {"second_moment_root": ("hidden",)}
    arguments = (*LMOOptimizer.arguments, *NUMBERS)

    def __init__(
        self,
        learning_rate: Any = 6e-4,
        *,
        beta_1: float = 0.95,
        nesterov: bool = True,
        hidden_scale: float = 0.2,
        second_moment_epsilon: float = 1e-8,
        auxiliary_adamw: AuxiliaryAdamW = AuxiliaryAdamW(roles=BOTH),
        newton_schulz: NewtonSchulz = NewtonSchulz(coefficients="jordan"),
        weight_decay: float | None = 0.1,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_numbers(
            NUMBERS,
            hidden_scale=hidden_scale,
            second_moment_epsilon=second_moment_epsilon,
        )
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
        self.second_moment_epsilon = float(second_moment_epsilon)

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """U V^T of signs, times 0.2 sqrt(max(d_in, d_out)).

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        return {"hidden": rms_rule(hidden, self.hidden_scale)}

    @property
    def hidden_rms(self) -> float:
        """RMS of hidden updates at rate 1."""
        return self.hidden_scale

    def decay_of(self, role: str) -> float:
        """The decay gamma of a role; 0 for vectors."""
        return 0.0 if role == "vector" else super().decay_of(role)

    def before_lmo(self, M: Tensor) -> Tensor:
        """sign(M); see the base class."""
        return ops.sign(M)

    def after_lmo(self, found: AfterLMO) -> tuple[Tensor, Changes]:
        """P scaled to the RMS of U V^T, and sqrt(V); see the base class."""
        stack, name = found.work.stack, "second_moment_root"
        O = ops.cast(found.O, "float32")
        hidden = self._layout.with_roles(("hidden",))
        places = [hidden.index(i) for i in stack.indices]
        old = [found.state[name][k] for k in places]
        roots = backend.mean_roots_(
            old,
            self._plan.scatter(stack, O, old),
            [found.weights[i] for i in stack.indices],
        )
        by_index = dict(zip(stack.indices, roots, strict=True))
        root = self._plan.gather(stack, by_index)
        divided = O / (root + self.second_moment_epsilon)
        unit, _ = backend.unit_norm(divided)
        changes = {name: dict(zip(places, roots, strict=True))}
        return math.sqrt(stack.rows) * unit, changes

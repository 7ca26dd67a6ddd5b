"""NorMuon: Muon whose neurons have updates of equal size."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.baselines.roles import BOTH
from keras_lanton.baselines.roles import check_adamw_has_both
from keras_lanton.core.layout import VariableLayout
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Spectral
from keras_lanton.core.step import AfterLMO
from keras_lanton.core.step import Changes
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.optimizer.lmo import rms_rule
from keras_lanton.optimizer.state import Buffer
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz
from keras_lanton.types import Tensor
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import DECAY
from keras_lanton.validation import check_numbers

EPSILON = 1e-10  # of the published code
SLOT = "neuron_second_moment"


@keras.saving.register_keras_serializable(package="keras_lanton")
class NorMuon(LMOOptimizer):
    """D-Muon with each neuron over the root of its running mean square.

        O = U V^T
        v <- b2 v + (1 - b2) mean of O^2 over d_in      `(d_out,)`, from 0
        P = O / (sqrt(v) + epsilon)
        X <- (1 - eta gamma) X - eta 0.2 sqrt(max(d_in, d_out)) ||O|| P / ||P||

    A neuron is a column of `(d_in, d_out)`: a row of the published (out, in).

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        beta_1: Decay of the hidden momentum, in [0, 1).
        beta_2: Decay of v, in [0, 1).
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

    References:
        Li et al. 2025, NorMuon: Making Muon more efficient and scalable, arXiv
        2510.05491; github.com/zichongli5/NorMuon, normuon.py. The RMS of 0.2
        is the paper's; the published code has Muon's factor.
    """

    arguments = (*LMOOptimizer.arguments, "beta_2", "hidden_scale")

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        beta_1: float = 0.95,
        beta_2: float = 0.95,
        nesterov: bool = True,
        hidden_scale: float = 0.2,
        auxiliary_adamw: AuxiliaryAdamW = AuxiliaryAdamW(roles=BOTH),
        newton_schulz: NewtonSchulz = NewtonSchulz(coefficients="jordan"),
        weight_decay: float | None = 0.1,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_numbers(
            {"beta_2": DECAY, "hidden_scale": AT_LEAST_0},
            beta_2=beta_2,
            hidden_scale=hidden_scale,
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
        self.beta_2 = float(beta_2)
        self.hidden_scale = float(hidden_scale)

    @property
    def hidden_rms(self) -> float:
        """RMS of hidden updates at rate 1."""
        return self.hidden_scale

    def make_rules(self, hidden: Spectral) -> dict[str, Rule]:
        """0.2 sqrt(max(d_in, d_out)), of matrices as `(d_in, d_out)`.

        Args:
            hidden: The spectral norm, by this optimizer's Newton-Schulz.
        """
        norm = dataclasses.replace(hidden, keeps_orientation=True)
        return {"hidden": rms_rule(norm, self.hidden_scale)}

    def lay_out_work(
        self, layout: VariableLayout, variables: Sequence[Any]
    ) -> dict[str, Buffer | list[Buffer]]:
        """The state of the base class, and v of each hidden variable.

        Args:
            layout: The variables.
            variables: The updated variables.
        """
        hidden = [layout.specs[i] for i in layout.with_roles(("hidden",))]
        moments = [Buffer((s.batch, s.d_out), "float32") for s in hidden]
        return {**super().lay_out_work(layout, variables), SLOT: moments}

    def after_lmo(self, found: AfterLMO) -> tuple[Tensor, Changes]:
        """P at the norm of O, and v; see the base class."""
        O, work = ops.cast(found.O, "float32"), found.work
        hidden = self._layout.with_roles(("hidden",))
        places = [hidden.index(i) for i in work.stack.indices]
        held = ops.concatenate([found.state[SLOT][k] for k in places])
        v = work.stack.of_mine(held)
        with backend.on_host():
            here = backend.take(found.active, backend.constant(work.matrices))
            mask = ops.cast(here, "float32")
        weight = (1.0 - self.beta_2) * backend.on_device(mask)[:, None]
        v = v + weight * (ops.mean(ops.square(O), axis=-2) - v)
        unit, _ = backend.unit_norm(O / (ops.sqrt(v)[:, None, :] + EPSILON))
        of_all = self._plan.of_all(work.stack, v)
        parts = backend.pieces(of_all, [len(p) for p in work.stack.parts])
        changes = {SLOT: dict(zip(places, parts, strict=True))}
        return backend.frobenius_norm(O) * unit, changes

"""MARS-AdamW: AdamW on variance-reduced gradients, approximate mode."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from experiments.baselines.elementwise import ElementwiseOptimizer
from keras_lanton.backends import backend
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.types import State
from keras_lanton.types import Tensor
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import check_numbers
from keras_lanton.validation import part_from_config
from keras_lanton.validation import shown

MATRICES = ("hidden", "embedding")


@keras.saving.register_keras_serializable(package="keras_lanton")
class Mars(ElementwiseOptimizer):
    """AdamW on gradients corrected by the previous ones.

        c_t = g_t + gamma b1 / (1 - b1) (g_t - g_{t-1}),   g_0 = 0
        c_t <- c_t / max(1, ||c_t||)             per variable
        m, v: moving means of c_t and c_t^2
        X <- X - eta (decay X + m^ / (sqrt(v^) + epsilon))

    It takes one gradient per step: the approximate mode of the paper. Plain
    AdamW updates vectors.

    Args:
        learning_rate: Float, schedule, or callable without arguments.
        gamma: Strength of the correction, at least 0; 0 is AdamW.
        beta_1: Decay of the mean of corrected gradients, in [0, 1).
        beta_2: Decay of the mean of their squares, in [0, 1).
        epsilon: Above 0.
        auxiliary_adamw: AdamW of the vectors, with the epsilon of the
            matrices. None: vectors are treated like matrices (the reference's
            `optimize_1d`).
        weight_decay: Decay of the matrices, at least 0, or None.
        name: Name of the optimizer. Defaults to one that Keras numbers.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Yuan et al. 2024, MARS: Unleashing the Power of Variance Reduction;
        its code, github.com/AGI-Arena/MARS, MARS/optimizers/mars.py, which
        treats tensors of exactly two axes as matrices: here these are all of
        role hidden or embedding.
    """

    slot_dtypes = {
        **ElementwiseOptimizer.slot_dtypes,
        "previous_gradient": None,
    }
    arguments = (*ElementwiseOptimizer.arguments, "gamma")

    def __init__(
        self,
        learning_rate: Any = 3e-3,
        *,
        gamma: float = 0.025,
        beta_1: float = 0.95,
        beta_2: float = 0.99,
        epsilon: float = 1e-8,
        auxiliary_adamw: AuxiliaryAdamW | None = AuxiliaryAdamW(
            weight_decay=0.1
        ),
        weight_decay: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_numbers({"gamma": AT_LEAST_0}, gamma=gamma)
        _check_adamw(auxiliary_adamw, epsilon)
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.gamma = float(gamma)
        self.auxiliary_adamw = auxiliary_adamw
        if auxiliary_adamw is not None:
            self.slot_roles = {"previous_gradient": MATRICES}

    def corrected(
        self, G: Sequence[Tensor], state: State, active: Tensor
    ) -> tuple[Sequence[Tensor], State]:
        """c_t of the matrices, and g_t to be stored; see the base class."""
        C, last = list(G), []
        matrices = np.flatnonzero(self._is_matrix()).tolist()
        (here,) = self.of_entries(ops.cast(active, "float32"))
        for i, before in zip(matrices, state["previous_gradient"], strict=True):
            g, g_last = (ops.cast(x, "float32") for x in (G[i], before))
            C[i] = self._corrected(g, g_last)
            last.append(backend.where(here[i] != 0, g, g_last))
        return C, {"previous_gradient": last}

    def betas(self) -> list[tuple[float, float]]:
        """The betas of the matrices, or of the vectors' AdamW."""
        mars, adamw = (self.beta_1, self.beta_2), self.auxiliary_adamw
        if adamw is None:
            return [mars] * len(self._layout.specs)
        adam = (adamw.beta_1, adamw.beta_2)
        return [mars if matrix else adam for matrix in self._is_matrix()]

    def rates(self, eta: Tensor, t: Tensor) -> Tensor:
        """The base rate, times its ratio for the vectors' AdamW."""
        if self.auxiliary_adamw is None:
            return eta
        ratio = self.auxiliary_adamw.lr_ratio
        ratios = np.where(self._is_matrix(), 1.0, ratio)
        return eta * self.of_matrices(ratios.astype("float32"))

    def weight_decays(self) -> np.ndarray:
        """The decay of the matrices, or of the vectors' AdamW.

        Returns:
            `(variables,)`.
        """
        gamma, adamw = self.decay, self.auxiliary_adamw
        own = None if adamw is None else adamw.weight_decay
        vectors = gamma if own is None else own
        gammas = np.where(self._is_matrix(), gamma, vectors)
        return np.where(self._layout.decayed, gammas, 0.0)

    def _is_matrix(self) -> np.ndarray:
        """True for variables whose gradient is corrected, `(variables,)`."""
        roles = [spec.role for spec in self._layout.specs]
        return np.isin(roles, MATRICES) | (self.auxiliary_adamw is None)

    def _corrected(self, g: Tensor, g_last: Tensor) -> Tensor:
        """c_t, of norm 1 at most."""
        factor = self.gamma * self.beta_1 / (1.0 - self.beta_1)
        c = g + factor * (g - g_last)
        unit, norm = backend.unit_norm(ops.reshape(c, (1, -1)))
        return ops.reshape(unit * backend.minimum(norm, 1.0), c.shape)

    def get_config(self) -> dict[str, Any]:
        """Every argument and the decided roles, as JSON types."""
        part = keras.saving.serialize_keras_object(self.auxiliary_adamw)
        return {**super().get_config(), "auxiliary_adamw": part}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Any = None
    ) -> "Mars":
        """Inverse of `get_config`.

        Args:
            config: From `get_config`.
            custom_objects: Classes by their registered names.
        """
        part = part_from_config(config.get("auxiliary_adamw"), custom_objects)
        made: Mars = super().from_config(
            {**config, "auxiliary_adamw": part}, custom_objects
        )
        return made


def _check_adamw(part: Any, epsilon: float) -> None:
    """ValueError unless AdamW updates vectors, by the same epsilon."""
    if part is None:
        return
    if (
        not isinstance(part, AuxiliaryAdamW)
        or tuple(part.roles) != ("vector",)
        or part.epsilon != epsilon
        or part.epsilon_before_debiasing
    ):
        raise ValueError(
            "`auxiliary_adamw` must be None or an `AuxiliaryAdamW` with "
            f"roles=('vector',), epsilon={epsilon} (that of the matrices) and "
            "epsilon_before_debiasing=False. "
            f"Received: auxiliary_adamw={shown(part)}"
        )

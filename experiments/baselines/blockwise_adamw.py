"""BW-AdamW: AdamW with a learning rate per kind of block."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from experiments.baselines.elementwise import ElementwiseOptimizer
from keras_lanton.backends import backend
from keras_lanton.roles.block_kinds import BLOCKS
from keras_lanton.roles.block_kinds import block_of
from keras_lanton.types import Tensor
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import AT_LEAST_0
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

# The published ratios; position embeddings are a group of their own without
# one. The head's is the one that the LANTON paper gives it.
MULTIPLIERS = {
    "norm": 1.0,
    "position": 1.0,
    "vo": 4.0,
    "mlp": 6.0,
    "head": 6.0,
    "qk": 8.0,
    "embedding": 10.0,
}


@keras.saving.register_keras_serializable(package="keras_lanton")
class BlockwiseAdamW(ElementwiseOptimizer):
    """AdamW whose rate is r times the base rate, r per kind of block.

    All blocks decay to one common minimum, so the ratios shrink to 1:

        eta_r = r eta                                       in the warm-up
        eta_r = eta_min + (r eta_max - eta_min) s           after it,
        s = (eta - eta_min) / (eta_max - eta_min)

    Weight decay is decoupled, at the block's rate, on every variable.

    Args:
        learning_rate: Base rate eta: float, schedule, or callable.
        multipliers: r by kind of block (`variables.block_kinds.BLOCKS`), each
            above 0; other kinds have the published ratio.
        minimum_learning_rate: eta_min, at least 0.
        maximum_learning_rate: eta_max, above eta_min: the schedule's highest
            rate. Needed where eta_min is not 0.
        warmup_steps: Steps at the start in which the ratios are constant, at
            least 0.
        beta_1: Decay of the mean of gradients, in [0, 1).
        beta_2: Decay of the mean of their squares, in [0, 1).
        epsilon: Above 0.
        weight_decay: At least 0, or None.
        **kwargs: Arguments of `LayerwiseOptimizer`.

    Raises:
        ValueError: For a wrong argument, naming it.

    References:
        Wang et al. 2025, The Sharpness Disparity Principle in Transformers
        for Accelerating Language Model Pre-Training; its code,
        github.com/Wongboo/BlockwiseLearningRate.
    """

    arguments = (
        *ElementwiseOptimizer.arguments,
        "multipliers",
        "minimum_learning_rate",
        "maximum_learning_rate",
        "warmup_steps",
    )

    def __init__(
        self,
        learning_rate: Any = 6e-4,
        *,
        multipliers: Mapping[str, float] | None = None,
        minimum_learning_rate: float = 0.0,
        maximum_learning_rate: float | None = None,
        warmup_steps: int = 0,
        beta_1: float = 0.9,
        beta_2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: float | None = 0.1,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check_multipliers(multipliers)
        check_numbers(
            {
                "minimum_learning_rate": AT_LEAST_0,
                "maximum_learning_rate": (
                    "None or a number above `minimum_learning_rate`",
                    lambda x: x > minimum_learning_rate,
                    False,
                ),
                "warmup_steps": (
                    "an integer in [0, 2**31)",
                    lambda x: 0 <= x < 2**31,
                    True,
                ),
            },
            minimum_learning_rate=minimum_learning_rate,
            maximum_learning_rate=maximum_learning_rate,
            warmup_steps=warmup_steps,
        )
        if minimum_learning_rate > 0 and maximum_learning_rate is None:
            raise ValueError(
                "`maximum_learning_rate` is needed with "
                "`minimum_learning_rate`: between the two the ratios shrink "
                f"to 1. Received: minimum_learning_rate={minimum_learning_rate}"
                ", maximum_learning_rate=None"
            )
        super().__init__(
            learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )
        self.multipliers = {**MULTIPLIERS, **(multipliers or {})}
        self.minimum_learning_rate = float(minimum_learning_rate)
        self.maximum_learning_rate = maximum_learning_rate
        self.warmup_steps = int(warmup_steps)

    def rates(self, eta: Tensor, t: Tensor) -> Tensor:
        """Rates of the blocks, whose ratios shrink to 1; see the class."""
        factors = [self.multipliers[block_of(x)] for x in self._layout.specs]
        r = self.of_matrices(np.array(factors, "float32"))
        if self.maximum_learning_rate is None:
            return r * eta
        low, high = self.minimum_learning_rate, self.maximum_learning_rate
        s = (eta - low) / (high - low)
        late = low + (r * high - low) * s
        return backend.where(t <= self.warmup_steps, r * eta, late)


def _check_multipliers(multipliers: Any) -> None:
    if multipliers is None:
        return
    if not isinstance(multipliers, Mapping) or set(multipliers) - set(BLOCKS):
        raise ValueError(
            f"`multipliers` must be None or a dict with keys of {BLOCKS}. "
            f"Received: multipliers={shown(multipliers)}"
        )
    given = {f"multipliers[{block!r}]": r for block, r in multipliers.items()}
    check_numbers(dict.fromkeys(given, ABOVE_0), **given)

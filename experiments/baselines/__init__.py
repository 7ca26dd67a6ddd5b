"""Optimizers of the paper's comparison that have no LMO."""

from experiments.baselines.blockwise_adamw import BlockwiseAdamW
from experiments.baselines.lamb import Lamb
from experiments.baselines.mars import Mars

__all__ = ["BlockwiseAdamW", "Lamb", "Mars"]

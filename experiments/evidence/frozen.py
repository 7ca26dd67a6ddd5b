"""Runs whose noise is constant, on JAX: would a table do as well?

A run is trained first, and the mean over time of what it measured is kept.
The run of the trial then has that mean from its first step to its last.
"""

import dataclasses

import jax
import keras
import numpy as np
from jax import numpy as jnp

from experiments.evidence.training import Learner
from keras_lanton import NoiseAdaptiveRate

MEASURED = ("noise", "line_noise")
OFTEN = 1000  # measurements, after which the mean has forgotten its start


@keras.saving.register_keras_serializable(package="experiments")
@dataclasses.dataclass(frozen=True)
class ConstantNoise(NoiseAdaptiveRate):
    """`NoiseAdaptiveRate` that measures nothing: its state stays as it is."""

    def update(self, plan, G, B_last, state, *, active, t):
        ratio = self.ratio(plan.layout, state["noise"], state["measurements"])
        names = (*MEASURED, "measurements")
        return ratio, {name: state[name] for name in names if name in state}


class Measuring(Learner):
    """A `Learner` that keeps the mean of what was measured."""

    def __init__(self, trial):
        super().__init__(trial)
        self.sums, self.count = None, 0

    def after_chunk(self, state):
        """Add the noise to the sums, each in the units of a full mean."""
        found = measured(self.optimizer, state[2])
        counts = found.pop("measurements")
        if not counts.any():
            return
        noise = self.optimizer.noise
        debias = np.sqrt(1 - noise.beta_2 ** np.maximum(counts, 1))
        found["noise"] /= debias
        if "line_noise" in found:
            found["line_noise"] /= debias[counts > 0].mean()
        self.count += 1
        self.sums = (
            found
            if self.sums is None
            else {k: self.sums[k] + v for k, v in found.items()}
        )

    def mean(self):
        """Means over the run, by name."""
        return {name: total / self.count for name, total in self.sums.items()}


class FrozenLearner(Learner):
    """Runs of `FrozenTrial`s."""

    def __init__(self, trial):
        super().__init__(trial)
        noise = self.optimizer.noise
        fields = {
            f.name: getattr(noise, f.name)
            for f in dataclasses.fields(NoiseAdaptiveRate)
            if f.init
        }
        self.optimizer.noise = ConstantNoise(**fields)
        self.noise_by_source = {}

    def train_weights(self, trial, cache):
        """The state after a run, and its result."""
        source = trial.source()
        if source not in self.noise_by_source:
            measuring = Measuring(source)
            measuring.train_weights(source, cache)
            self.noise_by_source = {source: measuring.mean()}
            jax.clear_caches()
        self.constant = self.noise_by_source[source]
        return super().train_weights(trial, cache)

    def start(self, model):
        """Weights, other state, and the optimizer's with the constant noise."""
        weights, other, slots = super().start(model)
        for k, variable in enumerate(self.optimizer.variables):
            if variable.name in self.constant:
                value = self.constant[variable.name]
                slots[k] = jnp.array(value, "float32")
            elif variable.name == "measurements":
                slots[k] = jnp.full(variable.shape, OFTEN, "int32")
        return weights, other, slots


def measured(optimizer, slots):
    """What a state holds of the noise, by name: float64 arrays."""
    return {
        variable.name: np.array(value, "float64")
        for variable, value in zip(optimizer.variables, slots, strict=True)
        if variable.name in (*MEASURED, "measurements")
    }

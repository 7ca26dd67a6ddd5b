"""A training run of the paper's experiments: all that decides its result."""

import dataclasses

import numpy as np

from experiments.optimizers import warmup_steps
from experiments.settings import Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial(Settings):
    """One run of one optimizer."""

    task: str  # "gpt2", "llama", "llama_wide" or "cnn"
    method: str  # a name of hyperparameters.py
    learning_rate: float
    options: tuple = ()  # pairs: arguments added to those of hyperparameters.py
    steps: int
    batch_size: int
    seed: int
    record_every: int = 0  # steps between two noise reports, 0 for none

    @property
    def name(self):
        """A readable name for the file of its result, one per setting."""
        rate = f"{self.learning_rate:g}"
        return f"{self.task}-{self.method}-{rate}-{self.digest}"


def learning_rates(trial, task):
    """The rate of every step.

    The experiments' schedules, for all steps at once: outside of a compiled
    step JAX compiles Keras' own anew for each step. Language models: as
    `optimizers.make_schedule`. The CNN: linear to 0.
    """
    step = np.arange(trial.steps)
    if trial.task == "cnn":
        return trial.learning_rate * (1 - step / trial.steps)
    warmup = warmup_steps(task, trial.steps)
    rising = (1 + step) / warmup
    done = np.clip((step - (warmup - 1)) / max(1, trial.steps - warmup), 0, 1)
    cosine = (1 + np.cos(np.pi * done)) / 2
    low = task.minimum_ratio
    falling = low + (1 - low) * cosine
    return trial.learning_rate * np.where(step < warmup - 1, rising, falling)


def group(trials):
    """Lists of trials that differ in rate and seed alone."""
    groups = {}
    for trial in trials:
        key = dataclasses.replace(trial, learning_rate=0.0, seed=0)
        groups.setdefault(key, []).append(trial)
    return list(groups.values())

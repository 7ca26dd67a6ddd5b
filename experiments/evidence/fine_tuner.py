"""Trains the runs of `fine_tuning`, on JAX."""

import os
import re
import time

import keras_hub
import numpy as np

from experiments.evidence import fine_tuning
from experiments.evidence import texts
from experiments.evidence.training import Learner
from experiments.evidence.training import make

WEIGHTS = "weights"  # folder of a cache


def pretrained_weights(base, cache):
    """The weights that a run ends with, trained unless `cache` has them.

    Args:
        base: A `Trial`.
        cache: Folder with the tokens, in `texts`.
    """
    path = cache / WEIGHTS / f"{base.name}.npz"
    if not path.exists():
        learner = Learner(base)
        (weights, _, _), _ = learner.train_weights(base, cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{base.name}-{os.getpid()}.npz")
        np.savez(new, *map(np.asarray, weights))
        os.replace(new, path)
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


class FineTuner(Learner):
    """Fine-tuning runs of one optimizer and set of trained weights."""

    def make(self, trial, weights=None):
        """The model with the weights of its base, and LoRA if asked for.

        Args:
            trial: The run.
            weights: Arrays, in the order of the model's; None for its
                structure alone.
        """
        base = fine_tuning.base_of(trial)
        model = make(base, self.preset)
        if weights is not None:
            for variable, value in zip(
                model.trainable_variables, weights, strict=True
            ):
                variable.assign(value)
        if trial.rank:
            (backbone,) = (
                layer
                for layer in model.layers
                if isinstance(layer, keras_hub.models.Backbone)
            )
            backbone.enable_lora(trial.rank)
        return model

    def assign_roles(self, trial):
        """AdamW updates the variables that match `by_adamw`."""
        chosen = [
            variable
            for variable in self.model.trainable_variables
            if trial.by_adamw and re.search(trial.by_adamw, variable.path)
        ]
        if chosen:
            self.optimizer.assign_role("vector", chosen)

    def train(self, trial, cache):
        """The result of a run, as JSON has it.

        Args:
            trial: A `FineTuning`.
            cache: Folder with the tokens, in `texts`.
        """
        old, new = (
            texts.load(name, cache / texts.FOLDER, fine_tuning.TEXT)
            for name in (fine_tuning.TEXT, trial.text)
        )
        weights = pretrained_weights(fine_tuning.base_of(trial), cache)
        started = time.perf_counter()
        state = self.start(self.make(trial, weights))
        before = [self.validation_loss(state, text) for text in (new, old)]
        state, curves = self.take_steps(state, new, trial, trial.steps)
        after = [self.validation_loss(state, text) for text in (new, old)]
        finite = bool(np.isfinite(after).all())
        return {
            "settings": trial.settings(),
            "weights": sum(int(np.size(x)) for x in state[0]),
            "steps": trial.steps,
            "loss": after[0] if finite else None,
            "old_loss": after[1] if finite else None,
            "before": before,
            **curves,
            "seconds": round(time.perf_counter() - started, 1),
        }

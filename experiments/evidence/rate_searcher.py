"""Runs of `keras_lanton.find_learning_rate` on the models of the trials."""

import time

import keras
import numpy as np

import keras_lanton
from experiments import batches
from experiments.evidence import sizes
from experiments.evidence import texts
from experiments.evidence import training
from experiments.evidence.contestants import make_optimizer


class RateSearcher:
    """Searches for the rate of one model and optimizer."""

    def __init__(self, trial):
        self.preset = sizes.preset(trial.model, trial.size)

    def train(self, trial, cache):
        """The result of a search, as JSON has it.

        Args:
            trial: A `RateSearchTrial`.
            cache: Folder with the tokens, in `texts`.
        """
        text = texts.load(trial.text, cache / texts.FOLDER)
        started = time.perf_counter()
        model = training.make(trial, self.preset)
        model.compile(
            make_optimizer(trial.optimizer, trial.learning_rate, trial.options),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        found = keras_lanton.find_learning_rate(
            model,
            list(first_batches(text, trial)),
            steps=trial.steps,
            verbose=False,
        )
        losses = [float(x) if np.isfinite(x) else None for x in found.losses]
        return {
            "settings": trial.settings(),
            "weights": model.count_params(),
            "steps": trial.steps * len(losses),
            "loss": min(x for x in losses if x is not None),
            "learning_rate": found.learning_rate,
            "rates": found.rates.tolist(),
            "losses": losses,
            "seconds": round(time.perf_counter() - started, 1),
        }


def first_batches(text, trial):
    """The batches `(x, y)` of the first steps of a run."""
    count = batches.count_blocks(text.training, sizes.CONTEXT)
    rows = batches.training_rows(
        0, trial.steps, count, trial.batch_size, trial.seed
    )
    for some in np.split(np.asarray(rows).ravel(), trial.steps):
        tokens = training.blocks(text.training, some).astype("int32")
        x, y = tokens[:, :-1], tokens[:, 1:]
        yield {"token_ids": x, "padding_mask": np.ones_like(x)}, y

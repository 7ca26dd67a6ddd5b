"""Runs of fine-tuning: pretrained on `wiki`, then trained on another text.

What is learned is the loss on the new text, what is forgotten how much the
loss on the old one rose.
"""

import functools
import os
import time

import keras_hub
import numpy as np

from experiments import language
from experiments import texts
from experiments.tasks import base_of


def pretrained_weights(base, cache):
    """The weights that a run ends with, trained unless `cache` has them."""
    path = cache / "weights" / f"{base.id}.npz"
    if not path.exists():
        weights, _ = language.train_weights(base, cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{base.id}-{os.getpid()}.npz")
        np.savez(new, *map(np.asarray, weights))
        os.replace(new, path)
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def make(run, weights=None):
    """The model with the weights of its base, and LoRA if asked for.

    Without weights it is the structure alone.
    """
    model = language.make(base_of(run))
    if weights is not None:
        language.assign(model, weights)
    if run.rank:
        backbone = keras_hub.models.Backbone
        (found,) = (one for one in model.layers if isinstance(one, backbone))
        found.enable_lora(run.rank)
    return model


class FineTuner(language.Learner):
    """Fine-tuning runs of one optimizer and set of trained weights."""

    def make(self, run):
        return make(run)


@functools.lru_cache(maxsize=1)
def learner_of(alike):
    """The learner in use, if it trains such runs; else a new one."""
    return FineTuner(alike)


def train(run, cache):
    """The result of a run, as JSON has it."""
    old = texts.load(texts.BASE, cache)
    new = texts.load(run.text, cache, vocabulary_of=texts.BASE)
    weights = pretrained_weights(base_of(run), cache)
    # `base` decides no structure, but the learner asks for one.
    learner = learner_of(run.alike().replace(base=run.base))
    started = time.perf_counter()
    state = learner.start(make(run, weights))

    def losses(state):
        """On the new text and on the old one."""
        return [learner.validation_loss(state, run, x) for x in (new, old)]

    before = losses(state)
    state = learner.take_steps(state, new, run)
    after = losses(state)
    return {
        "weights": sum(int(np.size(x)) for x in state[0]),
        "steps": run.steps,
        "loss": language.finite(after[0]),
        "old_loss": language.finite(after[1]),
        "before": before,
        "seconds": round(time.perf_counter() - started, 1),
    }

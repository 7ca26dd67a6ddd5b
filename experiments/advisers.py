"""Runs that ask the package's own tools, on the models of the other runs."""

import dataclasses
import time

import keras
import numpy as np

import keras_lanton
from experiments import batches
from experiments import language
from experiments import texts
from experiments.optimizers import construct


def train(run, cache):
    """The result of a run, as JSON has it.

    Args:
        run: Of kind "rate_search" or "advice".
        cache: Folder with the tokens.
    """
    return {"rate_search": search_rate, "advice": advise}[run.kind](run, cache)


def search_rate(run, cache):
    """What `find_learning_rate` suggests; arguments as `train`."""
    text = texts.load(run.text, cache)
    started = time.perf_counter()
    model = language.make(run)
    model.compile(
        construct(run.optimizer, run.learning_rate, options=run.options),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    found = keras_lanton.find_learning_rate(
        model,
        list(first_batches(text, run, run.steps, run.seed)),
        steps=run.steps,
        verbose=False,
    )
    return {
        "weights": model.count_params(),
        "steps": run.steps * len(found.losses),
        "loss": float(np.nanmin(found.losses)),
        "learning_rate": found.learning_rate,
        "seconds": round(time.perf_counter() - started, 1),
    }


def advise(run, cache):
    """A run to a loss, and what `advise_batch_size` says at its end."""
    weights, result = language.train_weights(run, cache)
    model = language.make(run)
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss)
    text = texts.load(run.text, cache)
    advice = keras_lanton.advise_batch_size(
        model,
        list(first_batches(text, run, run.noise_steps, run.seed + 1)),
        steps=run.noise_steps,
        verbose=False,
    )
    return {**result, "advice": dataclasses.asdict(advice)}


def first_batches(text, run, steps, seed):
    """The batches `(x, y)` of the first steps of a run."""
    count = batches.count_blocks(text.training, language.CONTEXT)
    rows = batches.training_rows(0, steps, count, run.batch_size, seed)
    for some in np.split(np.asarray(rows).ravel(), steps):
        tokens = language.blocks(text.training, some).astype("int32")
        x, y = tokens[:, :-1], tokens[:, 1:]
        yield {"token_ids": x, "padding_mask": np.ones_like(x)}, y

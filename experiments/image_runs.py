"""Training runs of the CNN: a narrow airbench network.

The recipe is airbench's: shifts of up to 2 pixels, alternating flips (not of
digits), label smoothing of 0.2, and a rate that falls linearly to 0, without a
warm-up. They run on TensorFlow, whose convolutions take a third of the time of
XLA's on a CPU.
"""

import dataclasses
import functools
import time

import keras
import numpy as np

from experiments import airbench
from experiments.image_data import Images
from experiments.image_data import load_digits
from experiments.image_data import normalize
from experiments.image_data import training_batches
from experiments.optimizers import construct

HELD_OUT = 10_000  # images


def load_fashion_mnist(folder):
    """Fashion-MNIST from a folder that has it, or as Keras downloads it."""
    path = folder / "fashion_mnist.npz"
    if path.exists():
        with np.load(path) as arrays:
            parts = [
                arrays[f"{kind}_{part}"]
                for part in ("train", "test")
                for kind in ("x", "y")
            ]
    else:
        train_part, test_part = keras.datasets.fashion_mnist.load_data()
        parts = [*train_part, *test_part]
    x_train, y_train, x_test, y_test = parts
    return normalize(x_train[..., None], y_train, x_test[..., None], y_test)


LOADERS = {
    "fashion_mnist": load_fashion_mnist,
    "digits": lambda folder: load_digits(seed=1),  # of the split
}


@functools.cache
def load(name, folder):
    """The images of a run; arguments: a key of `LOADERS`, and a cache."""
    return LOADERS[name](folder)


def held_out(images):
    """The same, but the last training images take the place of test images."""
    x, y = images.x_train, images.y_train
    return Images(x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:])


@dataclasses.dataclass(frozen=True)
class Batches:
    """What `training_batches` asks of a preset."""

    batch_size: int
    flip: bool


def train(run, cache):
    """The result of a run, as JSON has it.

    Args:
        run: Of kind "images".
        cache: Folder that may have the images.
    """
    images = load(run.images, cache)
    if run.judged_by == "held_out":
        images = held_out(images)
    started = time.perf_counter()
    keras.utils.set_random_seed(run.seed)
    model = airbench.make_model(images, run.widths)
    per_epoch = len(images.x_train) // run.batch_size
    steps = per_epoch * run.epochs
    schedule = airbench.linear_decay(run.learning_rate, steps)
    optimizer = construct(run.optimizer, schedule, options=run.options)
    # XLA's convolutions are slow on a CPU.
    airbench.compile_model(model, optimizer, jit_compile=False)
    preset = Batches(run.batch_size, flip=run.images != "digits")
    history = model.fit(
        training_batches(images, preset, run.epochs, run.seed),
        steps_per_epoch=per_epoch,
        epochs=run.epochs,
        validation_data=(
            images.x_test,
            keras.utils.to_categorical(images.y_test, images.classes),
        ),
        validation_batch_size=1000,
        shuffle=False,  # the batches already are shuffled
        callbacks=[keras.callbacks.TerminateOnNaN()],
        verbose=0,
    ).history
    ended = bool(np.isfinite(history["loss"]).all())
    return {
        "weights": model.count_params(),
        "steps": steps,
        # Lower is better, as of language models.
        "loss": 1 - history["val_accuracy"][-1] if ended else None,
        "accuracies": history["val_accuracy"],
        "training_loss": history["loss"][-1],
        "seconds": round(time.perf_counter() - started, 1),
    }

"""Training runs of the CNN: a narrow airbench network on Fashion-MNIST.

The recipe is airbench's: shifts of up to 2 pixels, alternating flips, label
smoothing of 0.2, and a rate that falls linearly to 0, without a warm-up. They
run on TensorFlow, whose convolutions take a third of the time of XLA's on a
CPU.
"""

import dataclasses
import functools
import time

import keras
import numpy as np

from experiments import airbench
from experiments.evidence.contestants import make_optimizer
from experiments.image_data import Images
from experiments.image_data import normalize
from experiments.image_data import training_batches
from experiments.images import LABEL_SMOOTHING
from experiments.images import make_schedule

FILE = "fashion_mnist.npz"


@functools.cache
def load(folder):
    """Fashion-MNIST from a folder that has it, or as Keras downloads it."""
    path = folder / FILE
    if path.exists():
        with np.load(path) as arrays:
            parts = [
                arrays[f"{kind}_{part}"]
                for part in ("train", "test")
                for kind in ("x", "y")
            ]
    else:
        train, test = keras.datasets.fashion_mnist.load_data()
        parts = [*train, *test]
    x_train, y_train, x_test, y_test = parts
    return normalize(x_train[..., None], y_train, x_test[..., None], y_test)


HELD_OUT = 10_000  # images


def held_out(images):
    """The same, but the last training images take the place of test images."""
    x, y = images.x_train, images.y_train
    return Images(x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:])


@dataclasses.dataclass(frozen=True)
class Batches:
    """What `training_batches` asks of a preset."""

    batch_size: int
    flip: bool = True


class ImageLearner:
    """Trains the network by Keras' `fit`."""

    def __init__(self, trial):
        del trial  # nothing is shared between runs

    def train(self, trial, cache):
        """The result of a run, as JSON has it.

        Args:
            trial: The run.
            cache: Folder that may have the images.
        """
        images = load(cache)
        if trial.judged_by == "held_out":
            images = held_out(images)
        started = time.perf_counter()
        keras.utils.set_random_seed(trial.seed)
        model = airbench.make_model(images, trial.widths)
        per_epoch = len(images.x_train) // trial.batch_size
        steps = per_epoch * trial.epochs
        model.compile(
            make_optimizer(
                trial.optimizer,
                make_schedule(trial.learning_rate, steps),
                trial.options,
            ),
            loss=keras.losses.CategoricalCrossentropy(
                from_logits=True, label_smoothing=LABEL_SMOOTHING
            ),
            metrics=["accuracy"],
            jit_compile=False,  # XLA's convolutions are slow on a CPU
        )
        history = model.fit(
            training_batches(
                images, Batches(trial.batch_size), trial.epochs, trial.seed
            ),
            steps_per_epoch=per_epoch,
            epochs=trial.epochs,
            validation_data=(
                images.x_test,
                keras.utils.to_categorical(images.y_test, images.classes),
            ),
            validation_batch_size=1000,
            shuffle=False,  # the batches already are shuffled
            callbacks=[keras.callbacks.TerminateOnNaN()],
            verbose=0,
        ).history
        finite = bool(np.isfinite(history["loss"]).all())
        return {
            "settings": trial.settings(),
            "weights": model.count_params(),
            "steps": steps,
            # Lower is better, as of language models.
            "loss": 1 - history["val_accuracy"][-1] if finite else None,
            "accuracies": history["val_accuracy"],
            "training_loss": history["loss"],
            "seconds": round(time.perf_counter() - started, 1),
        }

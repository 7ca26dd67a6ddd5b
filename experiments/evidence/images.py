"""Training runs of the CNN: a narrow airbench network on Fashion-MNIST.

The recipe is airbench's: shifts of up to 2 pixels, alternating flips, label
smoothing of 0.2, and a rate that falls linearly to 0, without a warm-up. Each
step is one compiled call: inside of a loop, XLA's convolutions on a CPU are
many times slower.
"""

import dataclasses
import functools
import time

import jax
import keras
import numpy as np
from jax import numpy as jnp

from experiments import airbench
from experiments.evidence.contestants import make_optimizer
from experiments.evidence.training import means
from experiments.evidence.training import values
from experiments.evidence.training import with_rate
from experiments.image_data import Images
from experiments.image_data import normalize
from experiments.image_data import training_batches

LABEL_SMOOTHING = 0.2
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
    """Runs of one batch size and optimizer: one compilation."""

    def __init__(self, trial):
        self.trial = trial
        self.optimizer = make_optimizer(
            trial.optimizer, trial.learning_rate, trial.options
        )
        self.loss = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=LABEL_SMOOTHING
        )
        self.model = None

    def start(self, trial, images):
        """Weights, the model's other state and the optimizer's."""
        keras.utils.set_random_seed(trial.seed)
        model = airbench.make_model(images, trial.widths)
        if self.model is None:
            self.model = model
            self.optimizer.build(model.trainable_variables)
        return (
            values(model.trainable_variables),
            values(model.non_trainable_variables),
            values(self.optimizer.variables),
        )

    def mean_loss(self, weights, other, x, y):
        """The loss, and the model's new state."""
        logits, other = self.model.stateless_call(
            weights, other, x, training=True
        )
        return self.loss(y, logits), other

    @functools.cached_property
    def step(self):
        """One step, compiled."""

        def step(state, x, y, rate):
            weights, other, slots = state
            (loss, other), gradients = jax.value_and_grad(
                self.mean_loss, has_aux=True
            )(weights, other, x, y)
            slots = with_rate(self.optimizer, slots, rate)
            weights, slots = self.optimizer.stateless_apply(
                slots, gradients, weights
            )
            return (weights, other, slots), loss

        return jax.jit(step, donate_argnums=0)

    @functools.cached_property
    def predict(self):
        """Labels of some images, compiled."""

        def labels(weights, other, x):
            logits, _ = self.model.stateless_call(weights, other, x)
            return jnp.argmax(logits, axis=-1)

        return jax.jit(labels)

    def accuracy(self, state, images):
        """Share of the test images with the right label."""
        parts = np.split(images.x_test, 10)
        found = [self.predict(*state[:2], part) for part in parts]
        return float(np.mean(np.concatenate(found) == images.y_test))

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
        per_epoch = len(images.x_train) // trial.batch_size
        steps = per_epoch * trial.epochs
        rates = trial.learning_rate * (1 - np.arange(steps) / steps)
        state, losses, accuracies = self.start(trial, images), [], []
        batches = training_batches(
            images, Batches(trial.batch_size), trial.epochs, trial.seed
        )
        for taken, (x, y) in enumerate(batches, 1):
            rate = np.float32(rates[taken - 1])
            state, loss = self.step(state, x, y, rate)
            losses.append(loss)
            if taken % per_epoch == 0:
                accuracies.append(self.accuracy(state, images))
                if not np.isfinite(np.asarray(losses)).all():
                    break  # nothing follows but more of the same
        losses = np.asarray(losses)
        finite = np.isfinite(losses).all()
        return {
            "settings": trial.settings(),
            "weights": self.model.count_params(),
            "steps": steps,
            # Lower is better, as of language models.
            "loss": 1 - accuracies[-1] if finite else None,
            "accuracies": accuracies,
            "training_loss": means(losses),
            "seconds": round(time.perf_counter() - started, 1),
        }

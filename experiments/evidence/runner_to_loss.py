"""Steps to a loss by batch size, and the noise on the way.

At a constant rate, after a short warm-up: the steps to a loss do not depend
on how long a run was planned to be.
"""

import dataclasses
import time

import numpy as np

from experiments import batches
from experiments.evidence import sizes
from experiments.evidence import texts
from experiments.evidence.training import Learner
from experiments.evidence.training import blocks
from experiments.evidence.training import make
from keras_lanton import advise_batch_size

WARMUP = 20  # steps
BLOCKS = 1024  # between two looks at the loss, at least
STEPS = 10  # likewise
VALIDATION_BLOCKS = 256


class RunnerToLoss(Learner):
    """Runs to a loss of one batch size and optimizer."""

    def train_weights(self, trial, cache):
        """The state after a run, and its result.

        Args:
            trial: A `RunToLoss`.
            cache: Folder with the tokens, in `texts`.
        """
        text = texts.load(trial.text, cache / texts.FOLDER)
        started = time.perf_counter()
        stride = max(STEPS, BLOCKS // trial.batch_size)
        count = batches.count_blocks(text.training, sizes.CONTEXT)
        held_out = self.held_out(text)
        state = self.start(make(trial, self.preset))
        losses, noises = [self.loss_on(state, held_out)], []
        for first in range(0, trial.most_blocks // trial.batch_size, stride):
            steps = np.arange(first, first + stride)
            rows = batches.training_rows(
                first, first + stride, count, trial.batch_size, trial.seed
            )
            tokens = blocks(text.training, rows)
            state, _ = self.chunk(
                state,
                tokens.reshape(stride, trial.batch_size, -1),
                rates_at(trial.learning_rate, steps),
            )
            losses.append(self.loss_on(state, held_out))
            noises.append(self.noise(state[2]))
            if not np.isfinite(losses[-1]) or losses[-1] <= trial.target:
                break
        return state, {
            "settings": trial.settings(),
            "weights": self.weights,
            "loss": steps_to(trial.target, losses, stride),
            "losses": [round(loss, 4) for loss in losses],
            "noise": mean_squares(noises),
            "seconds": round(time.perf_counter() - started, 1),
        }

    def held_out(self, text):
        """The blocks that the loss is taken on."""
        count = batches.count_blocks(text.validation, sizes.CONTEXT)
        rows = np.linspace(0, count - 1, VALIDATION_BLOCKS).astype(int)
        return blocks(text.validation, rows)

    def loss_on(self, state, held_out):
        """The mean loss of some blocks."""
        return float(self.validate(*state[:2], held_out))


class BatchSizeAdviser(RunnerToLoss):
    """Runs to a loss, then asks `advise_batch_size` there."""

    def train(self, trial, cache):
        """The result of a run, with the advice.

        Args:
            trial: A `BatchSizeAdviceTrial`.
            cache: Folder with the tokens, in `texts`.
        """
        state, result = self.train_weights(trial, cache)
        model = self.model
        for variable, value in zip(
            model.trainable_variables, state[0], strict=True
        ):
            variable.assign(value)
        model.compile("sgd", loss=self.loss)
        text = texts.load(trial.text, cache / texts.FOLDER)
        count = batches.count_blocks(text.training, sizes.CONTEXT)
        rows = batches.training_rows(
            0, trial.noise_steps, count, trial.batch_size, trial.seed + 1
        )
        preset = dataclasses.replace(
            self.preset, batch_size=trial.batch_size, accumulate=1
        )
        advice = advise_batch_size(
            model,
            batches.make_batches(text.training, rows, preset),
            steps=trial.noise_steps,
            verbose=False,
        )
        return {**result, "advice": dataclasses.asdict(advice)}


def rates_at(rate, steps):
    """The rate of some steps: linear warm-up, then constant."""
    return (rate * np.minimum(1.0, (1 + steps) / WARMUP)).astype("float32")


def steps_to(target, losses, stride):
    """Steps until a loss, between two looks by interpolation; or None.

    Args:
        target: The loss.
        losses: At step 0, `stride`, 2 `stride` and so on.
        stride: Steps.
    """
    below = np.flatnonzero(np.asarray(losses) <= target)
    if not len(below):
        return None
    i = int(below[0])
    if not i:
        return 0.0
    before, after = losses[i - 1 : i + 1]
    return stride * (i - (target - after) / (before - after))


def mean_squares(noises):
    """The mean squared noise of each matrix over the second half of a run.

    Args:
        noises: `noise_report()`s.
    """
    later = noises[len(noises) // 2 :]
    return {
        path: [
            float(f"{x:.4g}")
            for x in np.mean([r[path]["noise"] ** 2 for r in later], axis=0)
        ]
        for path in noises[0]
    }

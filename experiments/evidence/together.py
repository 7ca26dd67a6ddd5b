"""Runs that share a compiled step, side by side on one GPU, by `jax.vmap`.

A GPU takes a step of one of these small models in about the time of ten: it
waits for the next kernel, not for the arithmetic.
"""

import functools
import time

import jax
import numpy as np
from jax import numpy as jnp

from experiments import batches
from experiments.evidence import sizes
from experiments.evidence import texts
from experiments.evidence import training
from experiments.evidence.trials import FRESH
from keras_lanton.optimizer.noise_report import NoiseSnapshot

LOOKS = 100  # at most, at the ratios of a run


def train(learner, trials, cache, turn):
    """Results as `Learner.train` has them, in the order of the trials.

    A run that ends before the others goes on at a rate of 0; its result is
    taken at its end. Ratios are means over at most `LOOKS` moments. The
    seconds of a run are its share of the time on the device.

    Args:
        learner: A `Learner`, of a trial like these.
        trials: Alike.
        cache: Folder with the tokens, in `texts`.
        turn: A lock that is held while the steps run. Processes that share a
            GPU at the same time make each other wait.
    """
    group = Group(learner, trials, cache)
    state = group.start()
    group.compile(state)
    with turn:
        started = time.perf_counter()
        group.take_steps(state)
        seconds = (time.perf_counter() - started) / len(trials)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        results = [group.result(i) for i in range(len(trials))]
    return [
        {**found, "seconds": round(seconds, 1), "together": len(trials)}
        for found in results
    ]


class Group:
    """Trials that train together.

    Args:
        learner: As `train`.
        trials: As `train`.
        cache: As `train`.
    """

    def __init__(self, learner, trials, cache):
        self.learner, self.trials = learner, trials
        self.steps = [trial.count_steps(learner.weights) for trial in trials]
        self.texts = {
            trial.text: texts.load(trial.text, cache / texts.FOLDER)
            for trial in trials
        }
        self.axes = (0, 0, self.axes_of_slots())
        self.ended = {}  # by trial: the validation loss at its end
        self.losses, self.noise = [], []  # by chunk

    def axes_of_slots(self):
        """The axis of the runs, by slot; None where all runs have the same.

        One count of iterations for all: a condition on it then stays one.
        """
        optimizer = self.learner.optimizer
        return [
            None if variable is optimizer.iterations else 0
            for variable in optimizer.variables
        ]

    def start(self):
        """The states of all runs, stacked."""

        @functools.cache
        def state_of(seed, initial):
            model = training.make(of[seed, initial], self.learner.preset)
            return self.learner.start(model)

        of = {(trial.seed, trial.initial): trial for trial in self.trials}
        states = [state_of(trial.seed, trial.initial) for trial in self.trials]
        weights, other, slots = (
            [jnp.stack(values) for values in zip(*part, strict=True)]
            for part in zip(*states, strict=True)
        )
        slots = [
            value if axis == 0 else value[0]
            for value, axis in zip(slots, self.axes[2], strict=True)
        ]
        return weights, other, slots

    def one(self, state, i):
        """The state of one run."""
        weights, other, slots = state
        return (
            [value[i] for value in weights],
            [value[i] for value in other],
            [
                value if axis is None else value[i]
                for value, axis in zip(slots, self.axes[2], strict=True)
            ],
        )

    def rates(self):
        """Rates `(steps, runs)`, 0 after a run's end."""
        longest = max(self.steps)
        return np.stack(
            [
                np.pad(training.rates_of(trial, steps), (0, longest - steps))
                for trial, steps in zip(self.trials, self.steps, strict=True)
            ],
            axis=1,
        )

    def tokens(self, first):
        """Blocks of a chunk, `(CHUNK, runs, batch, CONTEXT + 1)`."""

        @functools.cache
        def blocks_of(name, seed):
            text, batch_size = self.texts[name].training, trial.batch_size
            count = batches.count_blocks(text, sizes.CONTEXT)
            stop = first + sizes.CHUNK
            rows = batches.training_rows(first, stop, count, batch_size, seed)
            blocks = training.blocks(text, rows)
            return blocks.reshape(sizes.CHUNK, batch_size, -1)

        trial = self.trials[0]  # alike
        return np.stack(
            [blocks_of(trial.text, trial.seed) for trial in self.trials],
            axis=1,
        )

    def compile(self, state):
        """Compile the steps of a chunk and the validation.

        Args:
            state: From `start`.
        """
        step = jax.vmap(
            self.learner.step, in_axes=(self.axes, 0), out_axes=(self.axes, 0)
        )
        chunk = jax.jit(
            lambda state, tokens, rates: jax.lax.scan(
                step, state, (tokens, rates)
            )
        )
        given = (state, self.tokens(0), self.rates()[: sizes.CHUNK])
        self.chunk = chunk.lower(*given).compile()
        text = self.texts[self.trials[0].text]
        self.learner.validation_loss(self.one(state, 0), text)

    def take_steps(self, state):
        """All steps, without waiting for the device until a run ends.

        Args:
            state: From `start`.
        """
        rates = self.rates()
        for first in range(0, max(self.steps), sizes.CHUNK):
            stop = first + sizes.CHUNK
            state, losses = self.chunk(
                state, self.tokens(first), rates[first:stop]
            )
            self.losses.append(losses)
            self.noise.append(self.measured(state[2]))
            for i, trial in enumerate(self.trials):
                if self.steps[i] == stop:
                    self.ended[i] = self.learner.validation_loss(
                        self.one(state, i), self.texts[trial.text]
                    )
        self.losses, self.noise = jax.device_get((self.losses, self.noise))

    def measured(self, slots):
        """Noise and numbers of measurements, `(runs, matrices)`; or None."""
        optimizer = self.learner.optimizer
        if getattr(optimizer, "noise", None) is None:
            return None
        found = {
            variable.name: value
            for variable, value in zip(optimizer.variables, slots, strict=True)
        }
        return found["noise"], found["measurements"]

    def result(self, i):
        """The result of one run, without its seconds."""
        trial, steps = self.trials[i], self.steps[i]
        chunks = steps // sizes.CHUNK
        losses = np.concatenate([x[:, i] for x in self.losses[:chunks]])
        loss = self.ended[i]
        return {
            "settings": trial.settings(),
            "weights": self.learner.weights,
            "steps": steps,
            "loss": loss if np.isfinite(loss) else None,
            "start": FRESH,
            "training_loss": training.means(losses),
            "ratios": training.mean_ratios(self.ratios(i, chunks)),
        }

    def ratios(self, i, chunks):
        """What `Learner.ratios` says of one run, at some of its chunks."""
        if self.noise[0] is None:
            return [{}]
        looks = np.unique(np.linspace(0, chunks - 1, LOOKS).astype(int))
        found = []
        for noise, measurements in (self.noise[look] for look in looks):
            snapshot = NoiseSnapshot(
                noise=noise[i],
                measurements=measurements[i],
                iterations=jnp.zeros((), "int32"),
                learning_rate=jnp.zeros(()),
            )
            report = self.learner.optimizer.noise_report(snapshot)
            found.append(
                {path: float(r["ratio"].mean()) for path, r in report.items()}
            )
        return found

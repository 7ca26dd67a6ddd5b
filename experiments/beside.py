"""Runs that share a compiled step, side by side on one GPU, by `jax.vmap`.

A GPU takes a step of one of these small models in about the time of ten: it
waits for the next kernel, not for the arithmetic.
"""

import functools
import time

import jax
import numpy as np
from jax import numpy as jnp

from experiments import language
from experiments import texts


def train(runs, cache, turn):
    """Results as `language.train` has them, in the order of the runs.

    A run that ends before the others goes on at a rate of 0; its result is
    taken at its end. The seconds of a run are its share of the time on the
    device. The runs are alike: they differ in rate, seed, text or length. The
    lock `turn` is held while the steps run: processes that share a GPU at the
    same time make each other wait.
    """
    learner = language.learner_of(runs[0].alike())
    group = Group(learner, runs, cache)
    state = group.start()
    group.compile(state)
    with turn:
        started = time.perf_counter()
        group.take_steps(state)
        seconds = (time.perf_counter() - started) / len(runs)
    return [
        {
            "weights": learner.weights,
            "steps": steps,
            "loss": language.finite(loss),
            "seconds": round(seconds, 1),
            "together": len(runs),
        }
        for steps, loss in zip(group.steps, group.ended, strict=True)
    ]


class Group:
    """Runs that train together, with a `language.Learner` of such runs."""

    def __init__(self, learner, runs, cache):
        self.learner, self.runs = learner, runs
        self.steps = [
            language.count_steps(run, learner.weights) for run in runs
        ]
        chunks = map(language.chunk_of, self.steps)
        self.stride = int(np.gcd.reduce([*chunks]))
        self.texts = {
            run.text: texts.load(run.text, cache, run.vocabulary)
            for run in runs
        }
        # One count of iterations for all: a condition on it then stays one.
        optimizer = learner.optimizer
        self.axes_of_slots = [
            None if variable is optimizer.iterations else 0
            for variable in optimizer.variables
        ]
        self.ended = [np.nan] * len(runs)  # validation losses

    def start(self):
        """The states of all runs, stacked."""

        @functools.cache
        def state_of(seed, initial):
            model = language.make(of[seed, initial])
            return self.learner.start(model)

        of = {(run.seed, run.initial): run for run in self.runs}
        states = [state_of(run.seed, run.initial) for run in self.runs]
        weights, other, slots = (
            [jnp.stack(values) for values in zip(*part, strict=True)]
            for part in zip(*states, strict=True)
        )
        slots = [
            value if axis == 0 else value[0]
            for value, axis in zip(slots, self.axes_of_slots, strict=True)
        ]
        return weights, other, slots

    def rates(self):
        """Rates `(steps, runs)`, 0 after a run's end."""
        longest = max(self.steps)
        rates = [
            language.rates_of(
                run.learning_rate, steps, run.warmup, run.schedule
            )
            for run, steps in zip(self.runs, self.steps, strict=True)
        ]
        padded = [np.pad(one, (0, longest - len(one))) for one in rates]
        return np.stack(padded, axis=1)

    def tokens(self, first):
        """Blocks of a chunk, `(stride, runs, batch, CONTEXT + 1)`."""
        return np.stack(
            [
                language.chunk_tokens(
                    self.texts[run.text], run, first, first + self.stride
                )
                for run in self.runs
            ],
            axis=1,
        )

    def compile(self, state):
        """Compile the steps of a chunk and the validation."""
        axes = (0, 0, self.axes_of_slots)
        step = jax.vmap(
            self.learner.step, in_axes=(axes, 0), out_axes=(axes, 0)
        )
        chunk = jax.jit(
            lambda state, tokens, rates: jax.lax.scan(
                step, state, (tokens, rates)
            )
        )
        given = (state, self.tokens(0), self.rates()[: self.stride])
        self.chunk = chunk.lower(*given).compile()
        self.validation_loss(state, 0)

    def validation_loss(self, state, i):
        """Of one run."""
        run = self.runs[i]
        one = [[value[i] for value in part] for part in state[:2]]
        return self.learner.validation_loss(one, run, self.texts[run.text])

    def take_steps(self, state):
        """All steps, without waiting for the device until a run ends."""
        rates = self.rates()
        for first in range(0, max(self.steps), self.stride):
            stop = first + self.stride
            state, _ = self.chunk(state, self.tokens(first), rates[first:stop])
            for i, steps in enumerate(self.steps):
                if steps == stop:
                    self.ended[i] = self.validation_loss(state, i)

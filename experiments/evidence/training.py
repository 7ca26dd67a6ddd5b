"""Training runs, many steps to one compiled call, on JAX.

`fit` would spend more time between the steps of such small models than in
them. What is compiled is Keras' own: `stateless_call` and `stateless_apply`.
"""

import dataclasses
import functools
import time

import jax
import keras
import numpy as np
from jax import numpy as jnp

from experiments import batches
from experiments.evidence import sizes
from experiments.evidence import texts
from experiments.evidence.contestants import make_optimizer
from experiments.evidence.trials import FRESH
from experiments.models import make_model

VALIDATION_BLOCKS = 2048
MARKS = 20  # training losses in a result


def make(trial, preset):
    """The model with the initial weights of the trial's seed."""
    keras.utils.set_random_seed(trial.seed)
    preset = dataclasses.replace(
        preset, scaled_kernels=trial.initial == "scaled"
    )
    language_model = make_model(preset, preset.vocabulary)
    model = keras.Model(language_model.input, language_model.output)
    separate_normalizations(model)
    return model


def separate_normalizations(model):
    """Put a barrier for XLA's fusions before each normalization.

    Without one, XLA on a CPU computes the gradient of the residual stream
    again for each layer that reads it, in slow transposed loops. Steps then
    take longer; what is computed is the same.
    """
    for layer in model._flatten_layers():
        if type(layer).__name__.endswith(("Norm", "Normalization")):
            layer.call = behind_barrier(layer.call)


def behind_barrier(call):
    """The `call` of a layer, after a barrier for its input."""

    @functools.wraps(call)
    def separate(inputs, *args, **kwargs):
        return call(jax.lax.optimization_barrier(inputs), *args, **kwargs)

    return separate


def rates_of(trial, steps):
    """Each step's rate: linear warm-up, then a cosine to 0, float32."""
    share = getattr(trial, "warmup", sizes.WARMUP)
    warmup = max(1, round(share * steps))
    step = np.arange(steps)
    done = np.clip((step - (warmup - 1)) / max(1, steps - warmup), 0, 1)
    cosine = (1 + np.cos(np.pi * done)) / 2
    factor = np.where(step < warmup - 1, (1 + step) / warmup, cosine)
    return (trial.learning_rate * factor).astype("float32")


class Learner:
    """Runs of one model, batch size and optimizer: one compilation."""

    def __init__(self, trial):
        self.preset = sizes.preset(
            trial.model,
            trial.size,
            dtype=getattr(trial, "dtype", None),
            layers=getattr(trial, "layers", None),
        )
        self.model = self.make(trial)
        self.optimizer = make_optimizer(
            trial.optimizer, trial.learning_rate, trial.options
        )
        self.assign_roles(trial)
        self.optimizer.build(self.model.trainable_variables)
        self.first_slots = values(self.optimizer.variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.weights = self.model.count_params()

    def make(self, trial):
        """A model of the trial's, for its structure."""
        return make(trial, self.preset)

    def assign_roles(self, trial):
        """Roles other than those that the optimizer finds."""

    def start(self, model):
        """Weights, the model's other state and the optimizer's first one."""
        return (
            values(model.trainable_variables),
            values(model.non_trainable_variables),
            list(self.first_slots),  # `noise` writes into the variables
        )

    def mean_loss(self, weights, other, tokens):
        """Loss of blocks `(batch, CONTEXT + 1)`, in nats per token."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        inputs = {"token_ids": inputs, "padding_mask": jnp.ones_like(inputs)}
        logits, other = self.model.stateless_call(
            weights, other, inputs, training=True
        )
        return self.loss(targets, logits.astype("float32")), other

    def step(self, state, batch):
        """One step, for `jax.lax.scan`."""
        weights, other, slots = state
        tokens, rate = batch
        (loss, other), gradients = jax.value_and_grad(
            self.mean_loss, has_aux=True
        )(weights, other, tokens.astype("int32"))
        slots = with_rate(self.optimizer, slots, rate)
        weights, slots = self.optimizer.stateless_apply(
            slots, gradients, weights
        )
        return (weights, other, slots), loss

    def noise(self, slots):
        """`noise_report` of a state; {} if noise is not measured."""
        if getattr(self.optimizer, "noise", None) is None:
            return {}
        for variable, value in zip(
            self.optimizer.variables, slots, strict=True
        ):
            variable.assign(value)
        return self.optimizer.noise_report(self.optimizer.noise_snapshot())

    @functools.cached_property
    def chunk(self):
        """Steps of a chunk, compiled."""
        return jax.jit(
            lambda state, tokens, rates: jax.lax.scan(
                self.step, state, (tokens, rates)
            )
        )

    @functools.cached_property
    def validate(self):
        """The loss of some blocks, compiled."""
        return jax.jit(lambda *given: self.mean_loss(*given)[0])

    def validation_loss(self, state, text):
        """Over `VALIDATION_BLOCKS`, spread over the held-out text."""
        count = batches.count_blocks(text.validation, sizes.CONTEXT)
        rows = np.linspace(0, count - 1, VALIDATION_BLOCKS).astype(int)
        losses = [
            self.validate(*state[:2], blocks(text.validation, some))
            for some in np.split(rows, 32)
        ]
        return float(np.mean(losses))

    def train(self, trial, cache):
        """The result of a run, as JSON has it.

        Args:
            trial: The run.
            cache: Folder with the tokens, in `texts`.
        """
        return self.train_weights(trial, cache)[1]

    def train_weights(self, trial, cache):
        """The state after a run, and its result.

        Args:
            trial: The run.
            cache: Folder with the tokens, in `texts`.
        """
        text = texts.load(trial.text, cache / texts.FOLDER)
        started = time.perf_counter()
        steps = trial.count_steps(self.weights)
        state = self.start(make(trial, self.preset))
        state, curves = self.take_steps(state, text, trial, steps)
        loss = self.validation_loss(state, text)
        return state, {
            "settings": trial.settings(),
            "weights": self.weights,
            "steps": steps,
            "loss": loss if np.isfinite(loss) else None,
            "start": FRESH,
            **curves,
            "seconds": round(time.perf_counter() - started, 1),
        }

    def take_steps(self, state, text, trial, steps):
        """The state after some steps; training losses and ratios.

        Args:
            state: From `start`.
            text: `texts.Text`.
            trial: The run.
            steps: A multiple of `CHUNK`.
        """
        rates = rates_of(trial, steps)
        count = batches.count_blocks(text.training, sizes.CONTEXT)
        losses, ratios = [], []
        for first in range(0, steps, sizes.CHUNK):
            stop = first + sizes.CHUNK
            rows = batches.training_rows(
                first, stop, count, trial.batch_size, trial.seed
            )
            tokens = blocks(text.training, rows)
            state, loss = self.chunk(
                state,
                tokens.reshape(sizes.CHUNK, trial.batch_size, -1),
                rates[first:stop],
            )
            losses.append(np.asarray(loss))
            ratios.append(self.ratios(state[2]))
            self.after_chunk(state)
            if not np.isfinite(losses[-1]).all():
                break  # nothing follows but more of the same
        return state, {
            "training_loss": means(np.concatenate(losses)),
            "ratios": mean_ratios(ratios),
        }

    def after_chunk(self, state):
        """What a subclass does with the state after each chunk of steps."""

    def ratios(self, slots):
        """Rate over base rate of each matrix by path, if noise is measured."""
        report = self.noise(slots)
        return {path: float(r["ratio"].mean()) for path, r in report.items()}


def with_rate(optimizer, slots, rate):
    """The optimizer's state with another learning rate."""
    return [
        rate if variable is optimizer.learning_rate else value
        for variable, value in zip(optimizer.variables, slots, strict=True)
    ]


def blocks(tokens, rows):
    """Blocks with the token that follows, `(blocks, CONTEXT + 1)`."""
    starts = np.asarray(rows)[:, None] * sizes.CONTEXT
    return tokens[starts + np.arange(sizes.CONTEXT + 1)]


def values(variables):
    return [jnp.array(variable.value) for variable in variables]


def means(losses):
    """Mean training losses over equal parts of the run."""
    parts = np.array_split(losses, min(MARKS, len(losses)))
    return [round(float(part.mean()), 4) for part in parts]


def mean_ratios(ratios):
    """Mean over the run and its standard deviation, by path."""
    later = ratios[1:] or ratios  # nothing is measured at the start
    return {
        path: [
            round(float(np.mean([r[path] for r in later])), 4),
            round(float(np.std([r[path] for r in later])), 4),
        ]
        for path in ratios[0]
    }

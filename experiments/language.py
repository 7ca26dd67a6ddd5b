"""Training runs of language models, many steps to one compiled call, on JAX.

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
from experiments import texts
from experiments.models import make_model
from experiments.optimizers import construct
from experiments.presets import PRESETS

CONTEXT = 64  # tokens
LAYERS = 4
WIDTHS = {"XS": 32, "S": 64, "M": 128, "L": 256, "XL": 512}
CHUNK = 100  # steps that are compiled as one, at most
WARMUP = 0.05  # of the steps
VALIDATION_BLOCKS = 2048


# -- The run's model and its length ------------------------------------------


def preset_of(run):
    """The model of a run: KerasHub's blocks, heads of 32."""
    width = WIDTHS[run.size]
    changes = {
        "layers": run.layers or LAYERS,
        "width": width,
        "head_width": 32,
        "vocabulary": run.vocabulary or texts.VOCABULARY,
        "context": CONTEXT,
        "feed_forward": 4 * width,
        "dtype_policy": run.dtype or "float32",
        "scaled_kernels": run.initial == "scaled",
    }
    if run.model == "llama":
        # Gated: three matrices, of as many weights as GPT-2's two.
        changes["feed_forward"] = round(8 / 3 * width / 16) * 16
        changes["key_value_heads"] = max(1, width // 64)
    return dataclasses.replace(PRESETS[f"{run.model}_demo"], **changes)


def count_steps(run, weights):
    """Steps of a run, a multiple of `CHUNK` if a budget says them.

    `weights` is the number of the model's trained weights, all of them.
    """
    if run.steps is not None:
        return run.steps
    steps = run.tokens_per_weight * weights / (run.batch_size * CONTEXT)
    return max(1, round(steps / CHUNK)) * CHUNK


def chunk_of(steps):
    """Steps that are compiled as one."""
    return max(n for n in range(1, CHUNK + 1) if steps % n == 0)


def rates_of(rate, steps, warmup=None, schedule=None):
    """Each step's rate: linear warm-up, then a cosine to 0, float32.

    `warmup` is a share of the steps; None for `WARMUP`. A `schedule` of
    "constant" has neither.
    """
    if schedule == "constant":
        return np.full(steps, rate, "float32")
    warmup = max(1, round((WARMUP if warmup is None else warmup) * steps))
    step = np.arange(steps)
    done = np.clip((step - (warmup - 1)) / max(1, steps - warmup), 0, 1)
    cosine = (1 + np.cos(np.pi * done)) / 2
    factor = np.where(step < warmup - 1, (1 + step) / warmup, cosine)
    return (rate * factor).astype("float32")


def make(run):
    """The model with the initial weights of the run's seed."""
    keras.utils.set_random_seed(run.seed)
    preset = preset_of(run)
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
    @functools.wraps(call)
    def separate(inputs, *args, **kwargs):
        return call(jax.lax.optimization_barrier(inputs), *args, **kwargs)

    return separate


# -- The loop ----------------------------------------------------------------


class Learner:
    """Runs of one model, batch size and optimizer: one compilation."""

    def __init__(self, run):
        self.model = self.make(run)
        self.optimizer = construct(
            run.optimizer, run.learning_rate, options=run.options
        )
        self.optimizer.build(self.model.trainable_variables)
        self.first_slots = values(self.optimizer.variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.weights = self.model.count_params()
        # Keras counts micro-batches.
        options = dict(run.options)
        self.micro = options.get("gradient_accumulation_steps", 1)

    def make(self, run):
        """A model of the run's, for its structure."""
        return make(run)

    def start(self, model):
        """Weights, the model's other state and the optimizer's first one."""
        return (
            values(model.trainable_variables),
            values(model.non_trainable_variables),
            list(self.first_slots),
        )

    def mean_loss(self, weights, other, tokens):
        """Loss of blocks `(batch, CONTEXT + 1)`, in nats per token."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        inputs = {"token_ids": inputs, "padding_mask": jnp.ones_like(inputs)}
        logits, other = self.model.stateless_call(
            weights, other, inputs, training=True
        )
        return self.loss(targets, logits.astype("float32")), other

    def micro_step(self, state, batch):
        """One gradient."""
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

    def step(self, state, batch):
        """One step, for `jax.lax.scan`."""
        if self.micro == 1:
            return self.micro_step(state, batch)
        tokens, rate = batch
        parts = tokens.reshape(self.micro, -1, tokens.shape[-1])
        rates = jnp.full(self.micro, rate)
        state, losses = jax.lax.scan(self.micro_step, state, (parts, rates))
        return state, losses.mean()

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

    def validation_loss(self, state, run, text):
        """Over blocks that are spread over the held-out text."""
        count = batches.count_blocks(text.validation, CONTEXT)
        wanted = run.validation_blocks or VALIDATION_BLOCKS
        rows = np.linspace(0, count - 1, wanted).astype(int)
        losses = [
            self.validate(
                *state[:2], batches.blocks_of(text.validation, some, CONTEXT)
            )
            for some in np.split(rows, max(1, wanted // 64))
        ]
        return float(np.mean(losses))

    def take_steps(self, state, text, run):
        """The state after a run, from that of `start`."""
        steps = count_steps(run, self.weights)
        stride = chunk_of(steps)
        rates = rates_of(run.learning_rate, steps, run.warmup, run.schedule)
        for first in range(0, steps, stride):
            stop = min(first + stride, steps)
            tokens = chunk_tokens(text, run, first, stop)
            state, losses = self.chunk(state, tokens, rates[first:stop])
            if not np.isfinite(losses).all():
                break  # nothing follows but more of the same
        return state


def with_rate(optimizer, slots, rate):
    """The optimizer's state with another learning rate."""
    return [
        rate if variable is optimizer.learning_rate else value
        for variable, value in zip(optimizer.variables, slots, strict=True)
    ]


def chunk_tokens(text, run, first, stop):
    """Blocks of some steps, `(steps, batch, CONTEXT + 1)`."""
    count = batches.count_blocks(text.training, CONTEXT)
    rows = batches.training_rows(first, stop, count, run.batch_size, run.seed)
    found = batches.blocks_of(text.training, rows, CONTEXT)
    return found.reshape(stop - first, run.batch_size, -1)


def values(variables):
    """The values of variables, as new arrays."""
    return [jnp.array(variable.value) for variable in variables]


def finite(loss):
    """A loss for JSON, which has no NaN."""
    return loss if np.isfinite(loss) else None


@functools.lru_cache(maxsize=1)
def learner_of(alike):
    """The learner in use, if it trains such runs; else a new one."""
    return Learner(alike)


def train(run, cache):
    """The result of a run, as JSON has it; `cache` has the tokens."""
    return train_weights(run, cache)[1]


def assign(model, weights):
    """Give trained variables their values, in their order."""
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)


def train_weights(run, cache):
    """The weights after a run, and its result."""
    learner = learner_of(run.alike())
    text = texts.load(run.text, cache, run.vocabulary)
    started = time.perf_counter()
    state = learner.take_steps(learner.start(make(run)), text, run)
    result = {
        "weights": learner.weights,
        "steps": count_steps(run, learner.weights),
        "loss": finite(learner.validation_loss(state, run, text)),
    }
    seconds = round(time.perf_counter() - started, 1)
    return state[0], {**result, "seconds": seconds}

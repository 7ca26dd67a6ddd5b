"""Models that are trained again and again, each run from the start."""

import gc
import time

import keras
import numpy as np
from keras import ops

from experiments import airbench
from experiments import batches
from experiments import image_data
from experiments import images
from experiments.models import make_model
from experiments.optimizers import make_optimizer as make_language_optimizer
from experiments.paper.trials import learning_rates
from keras_lanton.roles.block_kinds import block_of

VALIDATIONS = 8  # in a run
# Of Lanton in the runs of docs/paper.md, unless their trials name others.
STEPS = {
    "beta_1": 0.9,
    "bias_correction": False,
    "embedding_scale": 200.0,
    "step_scale": "rms_matched",
}


def make_optimizer(trial, task):
    """The trial's optimizer at rate 0: `Recorder` sets the rate."""
    options = dict(trial.options)
    if trial.method == "lanton":
        options = {**STEPS, **options}
        if "embedding" in options.get("auxiliary_adamw.roles", ()):
            del options["embedding_scale"]  # AdamW has none
    if trial.task == "cnn":
        return images.make_optimizer(trial.method, 0.0, **options)
    return make_language_optimizer(
        trial.method, 0.0, task.experiment, **options
    )


def make_recorder(trial, rates, result):
    """A callback that sets each step's rate, and records loss and noise.

    A schedule would be compiled into the step: runs that differ in their rate
    alone would compile it again.
    """

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.total = self.total if batch else 0.0
            self.started = time.perf_counter()
            self.sync()
            optimizer = self.model.optimizer
            optimizer.learning_rate = float(rates[len(result["loss"])])

        def on_train_batch_end(self, batch, logs=None):
            # Keras reports the mean since the start of `fit`.
            total = float(logs["loss"]) * (batch + 1)
            result["loss"].append(total - self.total)
            result["seconds"].append(time.perf_counter() - self.started)
            self.total = total
            every = trial.record_every
            step = len(result["loss"])
            if every and step % every == 0:
                self.sync()
                layers = report(self.model.optimizer)
                result["reports"].append({"step": step, "layers": layers})

        def sync(self):
            # On JAX `fit` keeps the variables' values to itself.
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()

    return Recorder()


def report(optimizer):
    """Noise and learning rate of every layer, with its kind of block."""
    blocks = {layer.path: block_of(layer) for layer in optimizer.layers}
    snapshot = optimizer.noise_snapshot()
    return [
        {
            "path": path,
            "block": blocks[path],
            "noise": values["noise"].tolist(),
            "learning_rate": values["learning_rate"].tolist(),
        }
        for path, values in optimizer.noise_report(snapshot).items()
    ]


def new_result():
    return {"loss": [], "seconds": [], "reports": []}


class Learner:
    """A model that one optimizer trains again and again, from the start."""

    def __init__(self, trial, task, data):
        self.task, self.data = task, data
        self.window = dict(trial.options).get("gradient_accumulation_steps", 1)
        self.model = self.make_model(trial.seed)
        optimizer = make_optimizer(trial, task)
        # torch.compile would take longer than small models train.
        eager = keras.backend.backend() == "torch"
        self.model.compile(
            optimizer,
            self.make_loss(),
            jit_compile=False if eager else "auto",
        )
        optimizer.build(self.model.trainable_variables)
        self.fresh = values(optimizer.variables)
        self.starts = {}  # values of the model's variables, by seed

    def reset(self, trial):
        """Go back to the start of a run with the trial's seed."""
        if trial.seed not in self.starts:
            model = self.make_model(trial.seed)
            self.starts[trial.seed] = values(model.variables)
        assign(self.model.variables, self.starts[trial.seed])
        assign(self.model.optimizer.variables, self.fresh)

    def recorder(self, trial, result):
        """The callback of `fit`; a window of accumulation has one rate."""
        rates = learning_rates(trial, self.task)
        return make_recorder(trial, np.repeat(rates, self.window), result)


def values(variables):
    return [ops.convert_to_numpy(v).copy() for v in variables]


def assign(variables, new):
    for variable, value in zip(variables, new, strict=True):
        variable.assign(value)


class Language(Learner):
    """GPT-2 or Llama on blocks of a text."""

    def __init__(self, trial, task, data):
        super().__init__(trial, task, data)
        rows = batches.validation_rows(data.validation, task)
        self.held_out = batches.cut_blocks(data.validation, rows, task.context)
        self.blocks = batches.count_blocks(data.training, task.context)

    def make_model(self, seed):
        """A model with the initial weights of a seed."""
        keras.utils.set_random_seed(seed)
        vocabulary = self.data.tokenizer.get_vocab_size()
        model = make_model(self.task, vocabulary)
        return keras.Model(model.input, model.output)

    def make_loss(self):
        """The loss, in nats per token."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(self, trial):
        """Training losses per step, validation losses per eighth of the run."""
        self.reset(trial)
        result = {**new_result(), "validation_step": [], "validation_loss": []}
        marks = np.linspace(0, trial.steps, VALIDATIONS + 1).astype(int)
        for start, stop in zip(marks[:-1], marks[1:], strict=True):
            self.fit(trial, result, start, stop, validate=True)
            if not np.isfinite(result["validation_loss"][-1]):
                break  # nothing follows but more of the same
        return result

    def fit(self, trial, result, start, stop, validate=False):
        """Train some steps; the batches depend on seed and step alone."""
        rows = batches.training_rows(
            start, stop, self.blocks, trial.batch_size, trial.seed
        )
        logs = self.model.fit(
            *batches.cut_blocks(self.data.training, rows, self.task.context),
            batch_size=trial.batch_size // self.window,
            validation_data=self.held_out if validate else None,
            validation_batch_size=16,
            callbacks=[self.recorder(trial, result)],
            shuffle=False,
            verbose=0,
        )
        gc.collect()  # the states of past steps hang in cycles
        if validate:
            result["validation_step"].append(int(stop))
            result["validation_loss"].append(logs.history["val_loss"][-1])


class Pictures(Learner):
    """The airbench CNN; `steps` is a number of epochs times their batches."""

    def make_model(self, seed):
        """A model with the initial weights of a seed."""
        keras.utils.set_random_seed(seed)
        return airbench.make_model(self.data, self.task.widths)

    def make_loss(self):
        """The loss, with label smoothing."""
        return keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=images.LABEL_SMOOTHING
        )

    def train(self, trial):
        """Losses per step; accuracies at the end."""
        self.reset(trial)
        result = new_result()
        data, task = self.data, self.task
        self.model.fit(
            image_data.training_batches(data, task, task.epochs, trial.seed),
            steps_per_epoch=trial.steps,
            callbacks=[self.recorder(trial, result)],
            shuffle=False,
            verbose=0,
        )
        for name in ("train", "test"):
            x, y = (getattr(data, f"{k}_{name}") for k in "xy")
            found = images.accuracy(self.model, x, y)
            result[f"{name}_accuracy"] = found
        return result


def learner(trial, tasks, data):
    """The learner of a trial's task."""
    kind = Pictures if trial.task == "cnn" else Language
    return kind(trial, tasks[trial.task], data[trial.task])

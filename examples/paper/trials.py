"""Training runs of the paper's experiments, and the cache of their results.

A `Trial` holds all that decides a run's result. `run_all` trains those whose
result is not on disk yet, some at a time, and returns the results of all: so
experiments share runs, and an interrupted command goes on where it was.
"""

import dataclasses
import gc
import hashlib
import json
import multiprocessing
import os
import pathlib
import sys
import time

import numpy as np

EXAMPLES = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(EXAMPLES))

import cnn_images  # noqa: E402
import pretraining  # noqa: E402
import scales  # noqa: E402

# Keras reads KERAS_BACKEND when it is first imported: the functions below
# import it themselves.

VALIDATIONS = 8  # in a run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of one optimizer."""

    task: str  # "gpt2", "llama" or "cnn"
    method: str  # as the examples name it
    learning_rate: float
    options: tuple = ()  # pairs: arguments beside those of the examples
    steps: int
    batch_size: int
    seed: int
    record_every: int = 0  # steps between two noise reports, 0 for none

    def settings(self):
        """As JSON has it, options in order of their names."""
        fields = dataclasses.asdict(self)
        fields["options"] = dict(sorted(self.options))
        return json.loads(json.dumps(fields))

    @property
    def name(self):
        """For the file of its result: readable, and one per setting."""
        text = json.dumps(self.settings(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return f"{self.task}-{self.method}-{self.learning_rate:g}-{digest}"


# -- One run after another ---------------------------------------------------


def make_optimizer(trial, task):
    """The trial's optimizer at rate 0: `Recorder` sets the rate."""
    if trial.task == "cnn":
        return cnn_images.make_optimizer(trial.method, 0.0)
    return pretraining.make_optimizer(
        trial.method, 0.0, task.experiment, **dict(trial.options)
    )


def make_recorder(trial, rates, result):
    """A callback that sets every step's rate, and records what comes of it.

    A schedule would be compiled into the step: runs that differ in their rate
    alone would compile it again.
    """
    import keras

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
    from keras_lanton.blocks import block_of

    blocks = {layer.path: block_of(layer) for layer in optimizer.layers}
    return [
        {
            "path": path,
            "block": blocks[path],
            "noise": values["noise"].tolist(),
            "learning_rate": values["learning_rate"].tolist(),
        }
        for path, values in optimizer.noise_report().items()
    ]


def new_result():
    return {"loss": [], "seconds": [], "reports": []}


class Learner:
    """A model that one optimizer trains again and again, each run anew."""

    def __init__(self, trial, task, data):
        import keras

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
        """Back to the start of a run with the trial's seed."""
        if trial.seed not in self.starts:
            model = self.make_model(trial.seed)
            self.starts[trial.seed] = values(model.variables)
        assign(self.model.variables, self.starts[trial.seed])
        assign(self.model.optimizer.variables, self.fresh)

    def recorder(self, trial, result):
        """For `fit`; within an accumulation window the rate stays."""
        rates = learning_rates(trial, self.task)
        return make_recorder(trial, np.repeat(rates, self.window), result)


def values(variables):
    from keras import ops

    return [ops.convert_to_numpy(v).copy() for v in variables]


def assign(variables, new):
    for variable, value in zip(variables, new, strict=True):
        variable.assign(value)


class Language(Learner):
    """GPT-2 or Llama on blocks of a text."""

    def __init__(self, trial, task, data):
        self.example = scales.EXAMPLES[trial.task]
        super().__init__(trial, task, data)
        rows = pretraining.validation_rows(data.validation, task)
        self.held_out = pretraining.cut_blocks(
            data.validation, rows, task.context
        )
        self.blocks = pretraining.count_blocks(data.training, task.context)

    def make_model(self, seed):
        """With the weights that belong to the seed."""
        import keras

        keras.utils.set_random_seed(seed)
        vocabulary = self.data.tokenizer.get_vocab_size()
        model = self.example.make_model(self.task, vocabulary)
        return keras.Model(model.input, model.output)

    def make_loss(self):
        """Nats per token."""
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(self, trial):
        """Losses: training by step, validation by eighths of the run."""
        self.reset(trial)
        result = {**new_result(), "validation_step": [], "validation_loss": []}
        marks = np.linspace(0, trial.steps, VALIDATIONS + 1).astype(int)
        for start, stop in zip(marks[:-1], marks[1:], strict=True):
            self.fit(trial, result, start, stop, validate=True)
            if not np.isfinite(result["validation_loss"][-1]):
                break  # nothing follows but more of the same
        return result

    def fit(self, trial, result, start, stop, validate=False):
        """Some steps; the batches depend on seed and step alone."""
        rows = pretraining.training_rows(
            start, stop, self.blocks, trial.batch_size, trial.seed
        )
        logs = self.model.fit(
            *pretraining.cut_blocks(
                self.data.training, rows, self.task.context
            ),
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
        """With the weights that belong to the seed."""
        import keras

        keras.utils.set_random_seed(seed)
        return cnn_images.make_model(self.data, self.task.widths)

    def make_loss(self):
        """With label smoothing."""
        import keras

        return keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=cnn_images.LABEL_SMOOTHING
        )

    def train(self, trial):
        """Losses by step; accuracies at the end."""
        self.reset(trial)
        result = new_result()
        images, task = self.data, self.task
        self.model.fit(
            cnn_images.training_batches(images, task, task.epochs, trial.seed),
            steps_per_epoch=trial.steps,
            callbacks=[self.recorder(trial, result)],
            shuffle=False,
            verbose=0,
        )
        for name in ("train", "test"):
            x, y = (getattr(images, f"{k}_{name}") for k in "xy")
            found = cnn_images.accuracy(self.model, x, y)
            result[f"{name}_accuracy"] = found
        return result


def learner(trial, tasks, data):
    """The learner of a trial's task."""
    kind = Pictures if trial.task == "cnn" else Language
    return kind(trial, tasks[trial.task], data[trial.task])


def learning_rates(trial, task):
    """The rate of every step.

    The schedules of the examples, for all steps at once: outside of a compiled
    step JAX compiles Keras' own anew for each step. Language models: as
    `pretraining.make_schedule`. The CNN: linear to 0.
    """
    step = np.arange(trial.steps)
    if trial.task == "cnn":
        return trial.learning_rate * (1 - step / trial.steps)
    warmup = pretraining.warmup_steps(task, trial.steps)
    rising = (1 + step) / warmup
    done = np.clip((step - (warmup - 1)) / max(1, trial.steps - warmup), 0, 1)
    cosine = (1 + np.cos(np.pi * done)) / 2
    low = task.minimum_ratio
    falling = low + (1 - low) * cosine
    return trial.learning_rate * np.where(step < warmup - 1, rising, falling)


# -- Many runs ---------------------------------------------------------------


SHARED = {}  # what the runs of a process have in common


def set_up(backend, pinned, tasks, data, folder):
    """Prepare a process: one core each, where several work at once."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # What JAX has compiled for tuning it need not again for the other seeds.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "jax-cache")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    if pinned and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        number = multiprocessing.current_process()._identity[0]
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    SHARED.update(tasks=tasks, data=data, folder=folder)


def train_group(trials):
    """Train those that differ in rate and seed alone: one compilation."""
    model = learner(trials[0], SHARED["tasks"], SHARED["data"])
    for trial in trials:
        started = time.perf_counter()
        result = model.train(trial)
        result["wall_seconds"] = time.perf_counter() - started
        result["settings"] = trial.settings()
        pretraining.write_json(SHARED["folder"] / f"{trial.name}.json", result)
    return len(trials)


def group(trials):
    """Lists of trials that differ in rate and seed alone."""
    groups = {}
    for trial in trials:
        key = dataclasses.replace(trial, learning_rate=0.0, seed=0)
        groups.setdefault(key, []).append(trial)
    return list(groups.values())


def run_all(trials, *, tasks, data, folder, backend, workers):
    """Results of all trials, in their order.

    Args:
        trials: Equal ones run once.
        tasks: By name.
        data: By name: tokenizer and tokens, or images.
        folder: Of the results.
        backend: Of Keras.
        workers: Processes at once; 0 for this one.
    """
    import tqdm

    folder.mkdir(parents=True, exist_ok=True)
    missing = [
        trial
        for trial in dict.fromkeys(trials)
        if not (folder / f"{trial.name}.json").exists()
    ]
    if missing and workers:
        context = multiprocessing.get_context("spawn")
        shared = (backend, workers > 1, tasks, data, folder)
        progress = tqdm.tqdm(total=len(missing), unit="run")
        with context.Pool(workers, set_up, shared) as pool:
            for done in pool.imap_unordered(train_group, group(missing)):
                progress.update(done)
        progress.close()
    elif missing:
        SHARED.update(tasks=tasks, data=data, folder=folder)
        for alike in group(missing):
            train_group(alike)
    return [
        pretraining.read_json(folder / f"{trial.name}.json") for trial in trials
    ]

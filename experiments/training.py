"""One run, which can be interrupted and resumed."""

import dataclasses
import json
import os
import pathlib
import shutil
import time

import keras

from experiments import batches
from experiments.models import make_model
from experiments.optimizers import LANTONS
from experiments.optimizers import make_optimizer
from experiments.optimizers import make_schedule
from experiments.optimizers import warmup_steps
from experiments.presets import Preset
from experiments.token_files import read_json
from experiments.token_files import write_json
from keras_lanton import load_checkpoint
from keras_lanton.callbacks import NoiseMonitor


@dataclasses.dataclass(frozen=True)
class Run:
    """One optimizer at one learning rate, in a folder of its own."""

    folder: pathlib.Path
    preset: Preset
    optimizer: str
    learning_rate: float
    steps: int
    seed: int
    source: dict

    @property
    def checkpoint(self):
        """Model, weights and optimizer state after the last `fit`."""
        return self.folder / "model.keras"

    @property
    def history(self):
        """Losses and timings so far."""
        return self.folder / "history.json"

    def settings(self):
        """The settings that a resumed run must share with its start."""
        settings = dataclasses.asdict(self)
        del settings["folder"]
        for other in ("learning_rates", "steps", "sweep", "sweep_steps"):
            del settings["preset"][other]
        # As JSON has it.
        return json.loads(json.dumps(settings))


def make_scheduled_optimizer(run):
    """The run's optimizer, with the rates of a run without accumulation.

    Keras counts micro-batches, and so does the schedule.
    """
    preset, count = run.preset, run.preset.accumulate
    steps, warmup = run.steps, warmup_steps(preset, run.steps)
    schedule = make_schedule(
        run.learning_rate, steps * count, warmup * count, preset.minimum_ratio
    )
    return make_optimizer(
        run.optimizer,
        schedule,
        preset.experiment,
        gradient_accumulation_steps=count if count > 1 else None,
    )


def compile_model(run, vocabulary):
    """Build model and optimizer; the seed fixes the initial weights.

    Returns the language model, which generates text and is saved, and a
    plain Keras model of the same layers, for `fit`: KerasHub's own `fit`
    needs TensorFlow or Grain on every backend.
    """
    import keras_hub

    keras.utils.set_random_seed(run.seed)
    model = make_model(run.preset, vocabulary)
    trainer = keras.Model(model.input, model.output)
    optimizer = make_scheduled_optimizer(run)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sampler = keras_hub.samplers.TopKSampler(k=10, seed=run.seed)
    model.compile(optimizer, loss, weighted_metrics=[], sampler=sampler)
    # torch.compile would take longer than the demo.
    eager = keras.backend.backend() == "torch"
    trainer.compile(optimizer, loss, jit_compile=False if eager else "auto")
    return model, trainer


def set_dropout_state(model, seed, step):
    """Give dropout a random state that depends on seed and step alone.

    Keras leaves this state out of checkpoints.
    """
    # PyTorch's dropout draws from the global generator, ...
    keras.utils.set_random_seed(seed + step)
    for variable in model.variables:
        if variable.name == "seed_generator_state":
            # ... the others' from the layer's seed and its count of draws.
            state = keras.ops.convert_to_numpy(variable).copy()
            state[1] = step
            variable.assign(state)


def new_history(run):
    return {
        "settings": run.settings(),
        "finished": False,
        "loss": [],  # of every step's batch, before the step
        "seconds": [],  # of every step
        "validation_step": [],
        "validation_loss": [],
    }


def make_recorder(run, model, history):
    """A callback that appends every step's loss and seconds to `history`."""
    count = run.preset.accumulate  # batches of `fit` to a step

    class Recorder(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            # Here, since building the model in `fit` draws random numbers.
            set_dropout_state(model, run.seed, len(history["loss"]) * count)

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0:
                self.total = 0.0
            if batch % count == 0:
                self.started = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            if (batch + 1) % count:
                return
            # Keras reports the mean since the start of `fit`.
            total = float(logs["loss"]) * ((batch + 1) // count)
            history["loss"].append(total - self.total)
            history["seconds"].append(time.perf_counter() - self.started)
            self.total = total

    return Recorder()


def make_monitors(optimizer, **options):
    """A NoiseMonitor for Lanton, none for other optimizers."""
    return [NoiseMonitor(**options)] if optimizer in LANTONS else []


def draw_monitors(monitors, path):
    """Draw each monitor that has a record: short runs have none."""
    for monitor in monitors:
        if len(monitor.steps):
            monitor.plot(path)
            print(f"Noise and learning rates: {path}")


def save(run, model, history):
    """Write history and checkpoint; each replaces its old file at once.

    A kill between the two leaves a history that is ahead of the checkpoint:
    `resume` cuts it back.
    """
    write_json(run.history, history)
    new = run.folder / "new.keras"
    model.save(new)
    os.replace(new, run.checkpoint)


def resume(run, model, history):
    """Load the checkpoint; return its number of steps."""
    # (`keras.saving.load_model` loads no optimizer for KerasHub's models.)
    load_checkpoint(model, run.checkpoint)
    step = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    for key in ("loss", "seconds"):
        del history[key][step:]
    done = sum(s <= step for s in history["validation_step"])
    for key in ("validation_step", "validation_loss"):
        del history[key][done:]
    return step


def start(run, data, resuming):
    """Model, trainer, history and the number of finished steps."""
    models = compile_model(run, data.tokenizer.get_vocab_size())
    if resuming and run.checkpoint.exists():
        history = read_json(run.history)
        step = resume(run, models[0], history)
        print(f"Resuming {run.folder} at step {step}")
        return *models, history, step
    if run.folder.exists():
        print(f"Starting {run.folder} anew")
        shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True)
    return *models, new_history(run), 0


def train(run, data, resuming=False, verbose="auto"):
    """Train one model and return its history.

    Each call of `fit` covers the steps from one checkpoint to the next.
    """
    if resuming and run.history.exists():
        history = read_json(run.history)
        if history["settings"] != run.settings():
            raise SystemExit(
                f"{run.folder} was started with other settings: give the "
                "same arguments again, or leave out --resume."
            )
        if history["finished"]:
            print(f"{run.folder} is finished")
            return history
    model, trainer, history, step = start(run, data, resuming)
    monitors = make_monitors(
        run.optimizer,
        every=10 * run.preset.accumulate,
        csv=run.folder / "noise.csv",
    )
    preset = run.preset
    blocks = batches.count_blocks(data.training, preset.context)
    held_out = batches.cut_blocks(
        data.validation,
        batches.validation_rows(data.validation, preset),
        preset.context,
    )
    while step < run.steps:
        stop = min(step + preset.save_every, run.steps)
        rows = batches.training_rows(
            step, stop, blocks, preset.batch_size, run.seed
        )
        if verbose:
            print(
                f"{run.optimizer}, learning rate {run.learning_rate:g}: "
                f"steps {step + 1} to {stop} of {run.steps}"
            )
        logs = trainer.fit(
            batches.make_batches(data.training, rows, preset),
            validation_data=held_out,
            validation_batch_size=preset.batch_size // preset.accumulate,
            callbacks=[make_recorder(run, model, history), *monitors],
            shuffle=False,  # the rows are in order already
            verbose=verbose,
        )
        step = stop
        history["validation_step"].append(step)
        history["validation_loss"].append(logs.history["val_loss"][-1])
        history["finished"] = step == run.steps
        save(run, model, history)
    draw_monitors(monitors, run.folder / "noise.png")
    return history

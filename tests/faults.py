"""A model that trains, and a run of it that is killed again and again.

What is broken on purpose is in tests/keras/test_faults.py. A run is killed in
a process of its own, which imports this module by its name.
"""

import itertools
import json
import multiprocessing
import os
import pathlib
import random
import tempfile
import time

import keras
import numpy as np
from keras import ops

from helpers.models import batch_of
from helpers.models import make_model
from helpers.models import state
from helpers.optimizers import lanton
from keras_lanton import load_checkpoint

# Few Newton-Schulz steps and short intervals, so that all kinds of steps occur.
OPTIONS = {"learning_rate": 0.01, "noise_interval": 3, "ns_steps": 2}
# Saves are frequent, so that many kills are within one.
STEPS_PER_EPOCH = 6
SAVE_EVERY = 2
WAYS = ("backup", "checkpoint")


def built_model(width=6, seed=0, **options):
    """Table, norm and two kernels, built with an optimizer."""
    model = make_model(width, seed=seed)
    model.compile(
        lanton(**{**OPTIONS, **options}), loss="mse", jit_compile=False
    )
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, steps):
    for step in range(steps):
        model.train_on_batch(*batch_of(step))


def equal(found, wanted):
    return len(found) == len(wanted) and all(
        np.array_equal(one, two, equal_nan=True)
        for one, two in zip(found, wanted, strict=True)
    )


def put_back(model, values):
    variables = [*model.variables, *model.optimizer.variables]
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value.astype(variable.dtype))


def count_steps(model):
    return int(ops.convert_to_numpy(model.optimizer.iterations))


# -- The process that is killed ----------------------------------------------


class Batches(keras.utils.PyDataset):
    """Goes on where the optimizer's count of steps is.

    Not where Keras' callback says: it starts the epoch anew that it was killed
    in, and writes weights and epoch one after the other.
    """

    def __init__(self):
        super().__init__()
        self.first = 0

    def __len__(self):
        return STEPS_PER_EPOCH

    def __getitem__(self, index):
        return batch_of(self.first + index)


def run_to_the_end(way, folder, steps, started):
    """A process's work: go on from what is in the folder, until all is done.

    Args:
        way: `"backup"`: `keras.callbacks.BackupAndRestore`; `"checkpoint"`:
            `keras.callbacks.ModelCheckpoint`, one file per save.
        folder: Of the run.
        steps: Of the whole run.
        started: An event, set when the first step begins.
    """
    folder = pathlib.Path(folder)
    model, data = built_model(), Batches()

    class Counts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            data.first = count_steps(model)
            started.set()

        def on_train_batch_end(self, batch, logs=None):
            if count_steps(model) >= steps:
                model.stop_training = True

    if way == "backup":
        remove_cut_off(folder / "backup" / "training_metadata.json")
        replace_at_once(model)
        saves = keras.callbacks.BackupAndRestore(
            folder / "backup", save_freq=SAVE_EVERY, delete_checkpoint=False
        )
    else:
        restore_newest(model, folder)
        name = f"{count_steps(model):06d}-{{epoch:06d}}-{{batch:06d}}.keras"
        saves = keras.callbacks.ModelCheckpoint(
            folder / name, save_freq=SAVE_EVERY
        )
    if count_steps(model) < steps:
        model.fit(
            data,
            epochs=steps,
            shuffle=False,
            verbose=0,
            callbacks=[saves, Counts()],
        )
    np.savez(folder / "new.npz", *state(model))
    os.replace(folder / "new.npz", folder / "end.npz")


def replace_at_once(model):
    """Makes `save_weights` leave the old file or the new one, none between.

    Keras writes over the old file. A kill within that left files that could
    not be opened, also where `double_checkpoint=True` had no copy yet, and may
    leave some that can be opened but lack numbers.
    """
    write = model.save_weights

    def save_weights(filepath, overwrite=True):
        new = pathlib.Path(filepath).with_name("new.weights.h5")
        write(new, overwrite=True)
        os.replace(new, filepath)

    model.save_weights = save_weights


def remove_cut_off(path):
    """Removes Keras' note of the epoch where a kill left it cut off."""
    try:
        json.loads(path.read_text())
    except FileNotFoundError:
        pass
    except ValueError:
        path.unlink()


def restore_newest(model, folder):
    """Loads the newest checkpoint that is whole; sets those cut off aside."""
    for path in sorted(folder.glob("*.keras"), reverse=True):
        try:
            load_checkpoint(model, path)
            return
        except ValueError:
            path.rename(path.with_suffix(".refused"))


# -- The process that kills --------------------------------------------------


def start(way, folder, steps):
    """A process at work, once its first step begins."""
    # Keras is imported once, not once a kill.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["keras", "keras_lanton"])
    started = context.Event()
    process = context.Process(
        target=run_to_the_end, args=(way, str(folder), steps, started)
    )
    process.start()
    while not started.wait(0.05) and process.exitcode is None:
        pass
    return process


def end_of(folder):
    with np.load(folder / "end.npz") as saved:
        return [saved[name] for name in saved.files]


def kill_and_go_on(way, kills, steps=120, seed=0):
    """AssertionError if a killed run does not end as an undisturbed one.

    Where a run is done before all kills are made, another begins.

    Args:
        way: One of `WAYS`.
        kills: How many, all in all.
        steps: Of a run.
        seed: Of the moments.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folders = (pathlib.Path(name, str(i)) for i in itertools.count())
        whole = next(folders)
        whole.mkdir()
        process = start(way, whole, steps)
        begin = time.perf_counter()
        process.join()
        seconds = time.perf_counter() - begin  # without the imports
        wanted = end_of(whole)
        while kills:
            here = next(folders)
            here.mkdir()
            while not (here / "end.npz").exists():
                process = start(way, here, steps)
                process.join(rng.uniform(0.0, seconds) if kills else None)
                if process.exitcode is None:
                    process.kill()
                    process.join()
                    kills -= 1
                else:
                    assert process.exitcode == 0, "the run does not go on"
            assert equal(end_of(here), wanted), "it ends with another state"

"""Runs of KerasHub's tasks stop and go on, as the documents say."""

import copy
import os
import pickle

import keras
import numpy as np
import pytest
from keras import ops

from helpers.models import to_arrays
from helpers.optimizers import lanton
from helpers.saves import OPTIONS
from helpers.saves import assert_same
from helpers.saves import state
from helpers.saves import values
from helpers.tiers import logic
from keras_lanton import load_checkpoint
from keras_lanton.callbacks import NoiseMonitor

hub = pytest.importorskip("keras_hub", exc_type=ImportError).models
load = keras.models.load_model
# What is not of a plain model is Keras' and KerasHub's own code.
pytestmark = logic
SIZES = {
    "vocabulary_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "max_sequence_length": 6,
    "dropout": 0.0,  # no file has its random state
}
STEPS, BATCH = 3, 4


# -- Tasks -------------------------------------------------------------------
def causal_lm(rank=None):
    backbone = hub.GPT2Backbone(**SIZES)
    if rank:
        backbone.enable_lora(rank)
    return hub.GPT2CausalLM(backbone=backbone, preprocessor=None)


def classifier():
    backbone = hub.BertBackbone(**SIZES)
    return hub.BertTextClassifier(backbone, num_classes=16, dropout=0.0)


def with_adapters():
    return causal_lm(rank=2)


def compiled(make=causal_lm, seed=0):
    """A task with Lanton, and weights by the seed."""
    keras.utils.set_random_seed(seed)
    task = make()
    task.compile(
        optimizer=lanton(**OPTIONS),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        jit_compile=keras.backend.backend() == "jax",
    )
    return task


def data(task):
    x = np.random.default_rng(0).integers(0, 16, (STEPS * BATCH, 6))
    inputs = {one.name: np.ones_like(x) for one in task.inputs}
    inputs["token_ids"] = x
    if "segment_ids" in inputs:
        inputs["segment_ids"] = np.zeros_like(x)
        return inputs, x[:, 0]
    return inputs, np.roll(x, -1, axis=1)


def fit(task, **options):
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    task.fit(*data(task), **options)
    return task


def backup(folder):
    return keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)


def assert_same_weights(one, two):
    for found, wanted in zip(
        to_arrays(one.weights), to_arrays(two.weights), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


# -- Going on ----------------------------------------------------------------
TASKS = {
    "causal_lm": (causal_lm, ".keras"),
    "weights": (causal_lm, ".weights.h5"),
    "classifier": (classifier, ".keras"),
}


@pytest.mark.parametrize("name", TASKS)
def test_load_checkpoint_goes_on(name, tmp_path):
    make, suffix = TASKS[name]
    task = fit(compiled(make))
    path = tmp_path / f"run{suffix}"
    (task.save if suffix == ".keras" else task.save_weights)(path)
    other = compiled(make, seed=1)
    load_checkpoint(other, path)
    assert_same(state(other), state(task))
    assert_same(state(fit(other)), state(fit(task)))


def test_load_checkpoint_after_load_model(tmp_path):
    task = fit(compiled())
    task.save(tmp_path / "run.keras")
    other = load(tmp_path / "run.keras")
    other.compile(optimizer=lanton(**OPTIONS), loss=task.loss)
    load_checkpoint(other, tmp_path / "run.keras")
    assert_same(state(other), state(task))


# -- What has no Lanton ------------------------------------------------------
def from_preset(task, folder):
    task.save_to_preset(str(folder))
    return hub.CausalLM.from_preset(str(folder))


def from_file(task, folder, **kwargs):
    task.save(f"{folder}.keras")
    return load(f"{folder}.keras", **kwargs)


def from_orbax(task, folder):
    pytest.importorskip("orbax.checkpoint")
    saves = keras.callbacks.OrbaxCheckpoint(str(folder), save_freq=1)
    fit(task, callbacks=[saves])
    return load(str(folder))


WITHOUT = {
    "load_model": from_file,
    "load_model, compile=False": lambda *a: from_file(*a, compile=False),
    "from_preset": from_preset,
    "deepcopy": lambda task, _: copy.deepcopy(task),
    "pickle": lambda task, _: pickle.loads(pickle.dumps(task)),
    "orbax": from_orbax,
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_gives_a_task_adam(name, tmp_path):
    """Where Keras or KerasHub changes this, docs/keras.md has to follow."""
    task = fit(compiled())
    copied = WITHOUT[name](task, tmp_path / "task")
    assert isinstance(copied.optimizer, keras.optimizers.Adam)
    assert int(ops.convert_to_numpy(copied.optimizer.iterations)) == 0
    assert_same_weights(copied, task)


def test_load_model_of_a_backbone_goes_on(tmp_path):
    def train(model):
        x, _ = data(model)
        model.fit(x, np.ones((BATCH * STEPS, 6, 8)), verbose=0, shuffle=False)
        return model

    backbone = hub.GPT2Backbone(**SIZES)
    backbone.compile(optimizer=lanton(**OPTIONS), loss="mse")
    train(backbone).save(tmp_path / "run.keras")
    loaded = load(tmp_path / "run.keras")
    assert_same(state(train(loaded)), state(train(backbone)))


def test_a_task_that_is_not_compiled_is_refused(tmp_path):
    fit(compiled()).save(tmp_path / "run.keras")
    task = causal_lm()
    before = values(task.variables)
    with pytest.raises(ValueError, match="'lanton.*KerasHub.*Adam"):
        load_checkpoint(task, tmp_path / "run.keras")
    assert_same(values(task.variables), before)
    with pytest.raises(ValueError, match="KerasHub.*load_checkpoint"):
        fit(task, callbacks=[NoiseMonitor()])


def test_a_backup_goes_on(tmp_path):
    fit(compiled(), callbacks=[backup(tmp_path)])
    other = compiled(seed=1)
    fit(other, epochs=2, callbacks=[backup(tmp_path)])
    assert_same(state(other), state(fit(compiled(), epochs=2)))


def test_backup_of_another_optimizer_starts_anew(tmp_path):
    """Keras' warning is all that says so."""
    task = fit(compiled(), callbacks=[backup(tmp_path)])
    other = causal_lm()
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        fit(other, callbacks=[backup(tmp_path)])
    assert int(ops.convert_to_numpy(other.optimizer.iterations)) == 0
    assert_same_weights(other, task)


# -- Low-rank adapters -------------------------------------------------------
def is_adapter(path):
    return "lora_kernel" in path


def test_what_a_file_has_of_adapters(tmp_path):
    """The optimizer and the outputs, but no adapter."""
    task = fit(compiled(with_adapters))
    task.save(tmp_path / "run.keras")
    x, _ = data(task)
    other = compiled(with_adapters, seed=1)
    with pytest.warns(UserWarning, match="never learn"):
        load_checkpoint(other, tmp_path / "run.keras")
    np.testing.assert_allclose(
        other.predict(x, verbose=0), task.predict(x, verbose=0), atol=1e-6
    )
    for one, two in zip(
        other.optimizer.variables, task.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(*to_arrays([one, two]), one.path)
    for one, two in zip(
        other.trainable_variables, task.trainable_variables, strict=True
    ):
        wanted = 0 * two if is_adapter(one.path) else two
        np.testing.assert_array_equal(
            ops.convert_to_numpy(one), ops.convert_to_numpy(wanted), one.path
        )
    loaded = load(tmp_path / "run.keras")
    assert not any(is_adapter(v.path) for v in loaded.variables)
    assert len(loaded.trainable_variables) > len(task.trainable_variables)


def write_numbers(task, path):
    """As docs/guides/training.md has it."""
    numbers = [*task.variables, *task.optimizer.variables]
    new = path.with_suffix(".new")
    new.write_bytes(pickle.dumps([ops.convert_to_numpy(v) for v in numbers]))
    os.replace(new, path)


def read_numbers(task, path):
    task.optimizer.build(task.trainable_variables)
    numbers = [*task.variables, *task.optimizer.variables]
    values = pickle.loads(path.read_bytes())
    for variable, value in zip(numbers, values, strict=True):
        variable.assign(value)


def test_numbers_of_adapters_go_on(tmp_path):
    task = fit(compiled(with_adapters))
    write_numbers(task, tmp_path / "numbers")
    other = compiled(with_adapters, seed=1)
    read_numbers(other, tmp_path / "numbers")
    assert_same(state(fit(other)), state(fit(task)))

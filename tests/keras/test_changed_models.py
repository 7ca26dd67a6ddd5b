"""Files and copies of models that have changed since they were trained.

They load whenever the model does, as with AdamW; one warning says that the
optimizer starts anew.
"""

import copy
import pickle
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from helpers.baselines import BASELINES
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import load_checkpoint

load = keras.models.load_model


def make(optimizer=Lanton):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(1)]
    )
    model.compile(optimizer=optimizer(1e-2), loss="mse", jit_compile=False)
    return model


def train(model):
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    model.fit(x, x[:, :1], batch_size=32, verbose=0)
    return model


def outputs(model):
    x = np.random.default_rng(1).normal(size=(5, 8)).astype("float32")
    return ops.convert_to_numpy(model(x))


def quantized(model):
    model.quantize("int8")
    return model


def with_adapters(model):
    model.layers[0].enable_lora(2)
    return model


def frozen(model):
    model.trainable = False
    return model


def half_frozen(model):
    model.layers[0].trainable = False
    return model


def within_another(model):
    model.trainable = False
    outer = keras.Sequential([keras.Input((8,)), model, keras.layers.Dense(1)])
    outer.compile(optimizer="adam", loss="mse", jit_compile=False)
    return train(outer)


def told(call):
    """The result, and our warnings about the state."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [
        str(one.message)
        for one in caught
        if "saved state of the optimizer" in str(one.message)
    ]


CHANGES = {
    "quantized": quantized,
    "with_adapters": with_adapters,
    "frozen": frozen,
    "half_frozen": half_frozen,
    "within_another": within_another,
}


@pytest.mark.parametrize("name", keep(CHANGES, ["frozen"]))
def test_load_model(name, tmp_path):
    model = CHANGES[name](train(make()))
    model.save(tmp_path / "x.keras")
    loaded, warned = told(lambda: load(tmp_path / "x.keras"))
    (message,) = warned
    assert "starts anew" in message and "load_checkpoint" in message
    np.testing.assert_array_equal(outputs(loaded), outputs(model))
    if loaded.trainable_variables and name != "within_another":
        assert int(ops.convert_to_numpy(loaded.optimizer.iterations)) == 0
        train(loaded)
        assert int(ops.convert_to_numpy(loaded.optimizer.iterations)) == 2


@logic
@pytest.mark.parametrize("name", BASELINES)
def test_load_model_of_each_optimizer(name, tmp_path):
    model = half_frozen(train(make(BASELINES[name])))
    model.save(tmp_path / "x.keras")
    loaded, warned = told(lambda: load(tmp_path / "x.keras"))
    assert len(warned) == 1
    train(loaded)


@logic
def test_an_outer_file_without_compile(tmp_path):
    model = within_another(train(make()))
    model.save(tmp_path / "x.keras")
    loaded, warned = told(lambda: load(tmp_path / "x.keras", compile=False))
    assert len(warned) == 1
    np.testing.assert_array_equal(outputs(loaded), outputs(model))


@logic
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies(copied):
    model = frozen(train(make()))
    result, warned = told(lambda: copied(model))
    assert len(warned) == 1
    np.testing.assert_array_equal(outputs(result), outputs(model))


@logic
def test_in_mixed_precision(tmp_path):
    """The optimizer lies within Keras' loss scaling."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = half_frozen(train(make()))
        model.save(tmp_path / "x.keras")
        _, warned = told(lambda: load(tmp_path / "x.keras"))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert len(warned) == 1


# -- Weights into an optimizer that is built ---------------------------------
def test_weights_without_an_optimizer(tmp_path):
    """Pretrained weights: the state stays as it is."""
    bare = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(1)]
    )
    bare.save_weights(tmp_path / "x.weights.h5")
    model = train(make())
    before = [ops.convert_to_numpy(v) for v in model.optimizer.variables]
    _, warned = told(lambda: model.load_weights(tmp_path / "x.weights.h5"))
    (message,) = warned
    assert "the file has none" in message
    assert "keeps its own, of 2 steps" in message
    np.testing.assert_array_equal(outputs(model), outputs(bare))
    for one, two in zip(before, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, ops.convert_to_numpy(two))
    train(model)


@logic
def test_weights_of_another_optimizer(tmp_path):
    other = train(make(keras.optimizers.AdamW))
    other.save_weights(tmp_path / "x.weights.h5")
    model = train(make())
    _, warned = told(lambda: model.load_weights(tmp_path / "x.weights.h5"))
    assert len(warned) == 1
    np.testing.assert_array_equal(outputs(model), outputs(other))


@logic
@pytest.mark.parametrize("change", [half_frozen, with_adapters])
def test_load_checkpoint_is_strict(change, tmp_path):
    saved = change(train(make()))
    saved.save(tmp_path / "x.keras")
    model = change(make())
    before = outputs(model)
    with pytest.raises(ValueError, match="nothing was loaded") as error:
        load_checkpoint(model, tmp_path / "x.keras")
    assert "weights are loaded" not in str(error.value)
    np.testing.assert_array_equal(outputs(model), before)


@pytest.mark.parametrize("built", keep([False, True], [False]))
def test_the_rate_of_another_optimizer_is_not_loaded(built, tmp_path):
    """Models of KerasHub have Adam's rate in their weights, of 2e-5."""
    other = make(keras.optimizers.Adam)
    other.save_weights(tmp_path / "x.weights.h5")
    model = make()
    if built:
        model.optimizer.build(model.trainable_variables)
    model.load_weights(tmp_path / "x.weights.h5")
    np.testing.assert_array_equal(outputs(model), outputs(other))
    load_checkpoint(model, tmp_path / "x.weights.h5")
    assert float(model.optimizer.learning_rate) == pytest.approx(1e-2)


# -- Optimizers from the config of a trained one -----------------------------
@logic
def test_an_optimizer_from_a_config():
    """As tools that search for settings make them, for another model."""
    trained = train(make()).optimizer
    again = type(trained).from_config(trained.get_config())
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(optimizer=again, loss="mse", jit_compile=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*role")
        x = np.ones((4, 8), "float32")
        model.fit(x, x[:, :3], verbose=0)
    assert [spec.role for spec in again.layers] == ["hidden", "vector"]

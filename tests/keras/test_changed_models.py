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

from helpers.models import dtype_policy
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import load_checkpoint


def make(optimizer=Lanton):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(1)]
    )
    if optimizer is not None:
        model.compile(optimizer=optimizer(1e-2), loss="mse", jit_compile=False)
    return model


def train(model):
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    model.fit(x, x[:, :1], batch_size=32, verbose=0)
    return model


def steps_of(model):
    return int(ops.convert_to_numpy(model.optimizer.iterations))


def assert_same_outputs(one, two):
    x = np.random.default_rng(1).normal(size=(5, 8)).astype("float32")
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(m(x)) for m in (one, two))
    )


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
    """The result, and our one warning about the state."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    said = [str(one.message) for one in caught]
    (message,) = [one for one in said if "saved state of the optimizer" in one]
    return result, message


def saved_and_loaded(model, folder, **options):
    model.save(folder / "x.keras")
    load = keras.models.load_model
    return told(lambda: load(folder / "x.keras", **options))


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
    loaded, message = saved_and_loaded(model, tmp_path)
    assert "starts anew" in message and "load_checkpoint" in message
    assert_same_outputs(loaded, model)
    if loaded.trainable_variables and name != "within_another":
        assert steps_of(loaded) == 0
        assert steps_of(train(loaded)) == 2


@logic
def test_an_outer_file_without_compile(tmp_path):
    model = within_another(train(make()))
    loaded, _ = saved_and_loaded(model, tmp_path, compile=False)
    assert_same_outputs(loaded, model)


@logic
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies(copied):
    model = frozen(train(make()))
    result, _ = told(lambda: copied(model))
    assert_same_outputs(result, model)


@logic
def test_in_mixed_precision(tmp_path):
    """The optimizer lies within Keras' loss scaling."""
    with dtype_policy("mixed_float16"):
        saved_and_loaded(half_frozen(train(make())), tmp_path)


# -- Weights into an optimizer that is built ---------------------------------
@pytest.mark.parametrize("other", keep([None, keras.optimizers.AdamW], [None]))
def test_weights_without_our_state(other, tmp_path):
    """Of pretrained models, say: the state stays as it is."""
    bare = make(other) if other is None else train(make(other))
    bare.save_weights(tmp_path / "x.weights.h5")
    model = train(make())
    before = [ops.convert_to_numpy(v) for v in model.optimizer.variables]
    _, message = told(lambda: model.load_weights(tmp_path / "x.weights.h5"))
    if other is None:
        assert "the file has none" in message
    assert "keeps its own, of 2 steps" in message
    assert_same_outputs(model, bare)
    for one, two in zip(before, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, ops.convert_to_numpy(two))
    train(model)


@logic
@pytest.mark.parametrize("change", [half_frozen, with_adapters])
def test_load_checkpoint_is_strict(change, tmp_path):
    saved = change(train(make()))
    saved.save(tmp_path / "x.keras")
    model = change(make())
    before = model.get_weights()
    with pytest.raises(ValueError, match="nothing was loaded") as error:
        load_checkpoint(model, tmp_path / "x.keras")
    assert "weights are loaded" not in str(error.value)
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("built", keep([False, True], [False]))
def test_the_rate_of_another_optimizer_is_not_loaded(built, tmp_path):
    """Models of KerasHub have Adam's rate in their weights, of 2e-5."""
    other = make(keras.optimizers.Adam)
    other.save_weights(tmp_path / "x.weights.h5")
    model = make()
    if built:
        model.optimizer.build(model.trainable_variables)
    model.load_weights(tmp_path / "x.weights.h5")
    assert_same_outputs(model, other)
    load_checkpoint(model, tmp_path / "x.weights.h5")
    assert float(model.optimizer.learning_rate) == pytest.approx(1e-2)


@logic
def test_an_optimizer_from_the_config_of_a_trained_one():
    """As tools that search for settings make them, for another model."""
    trained = train(make()).optimizer
    again = type(trained).from_config(trained.get_config())
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(optimizer=again, loss="mse", jit_compile=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*role")
        x = np.ones((4, 8), "float32")
        model.fit(x, x[:, :3], verbose=0)
    assert steps_of(model) == 1
    assert [spec.role for spec in again.layers] == ["hidden", "vector"]

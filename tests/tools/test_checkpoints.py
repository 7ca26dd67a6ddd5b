"""Loading all or nothing."""

import keras
import numpy as np
import pytest

import faults
from helpers.baselines import BASELINES
from helpers.models import make_model
from helpers.optimizers import lanton
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import load_checkpoint

pytestmark = logic


# -- Loading all or nothing --------------------------------------------------
def test_load_checkpoint_builds_the_optimizer(tmp_path):
    model = faults.built_model()
    faults.train(model, 3)
    model.save(tmp_path / "x.keras")
    other = faults.built_model(seed=1)
    other.compile(lanton(**faults.OPTIONS), loss="mse", jit_compile=False)
    load_checkpoint(other, tmp_path / "x.keras")
    assert faults.equal(faults.state(other), faults.state(model))


def test_load_checkpoint_names_what_does_not_fit(tmp_path):
    model = faults.built_model()
    before = faults.state(model)
    other = faults.built_model(width=5)
    other.save(tmp_path / "x.keras")
    with pytest.raises(ValueError, match="nothing was loaded.*first") as error:
        load_checkpoint(model, tmp_path / "x.keras")
    assert f"path='{tmp_path / 'x.keras'}'" in str(error.value)
    data = (tmp_path / "x.keras").read_bytes()
    (tmp_path / "x.keras").write_bytes(data[:-100])
    with pytest.raises(ValueError, match="cut off"):
        load_checkpoint(model, tmp_path / "x.keras")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(model, tmp_path / "none.keras")
    assert faults.equal(faults.state(model), before)


def test_load_checkpoint_into_a_model_that_is_not_compiled(tmp_path):
    model = faults.built_model()
    model.save(tmp_path / "model.keras")
    bare = make_model(6, seed=1)
    load_checkpoint(bare, tmp_path / "model.keras")
    for one, two in zip(bare.weights, model.weights, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )


@pytest.mark.parametrize("model, path", [(3, "x.keras"), (None, 3)])
def test_load_checkpoint_wants_a_model_and_a_path(model, path):
    model = model or faults.built_model()
    with pytest.raises(
        ValueError, match="model and the path.*Received: model="
    ):
        load_checkpoint(model, path)


# -- Which optimizer ---------------------------------------------------------
KINDS = (".keras", ".weights.h5")
OURS = {
    "Lanton": Lanton,
    "state of other lengths": lambda: lanton(
        noise_reference="independent_gradient",
        gradient_accumulation_steps=2,
        use_ema=True,
    ),
    "name of its own": lambda: Lanton(name="mine"),
    "in a loss scale": lambda: keras.optimizers.LossScaleOptimizer(Lanton()),
    **BASELINES,
}
KERAS = {
    "AdamW": keras.optimizers.AdamW,
    "SGD": lambda: keras.optimizers.SGD(momentum=0.9),
    "in a loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam()
    ),
}


def compiled(optimizer, seed=0):
    model = faults.built_model(seed=seed)
    model.compile(optimizer, loss="mse", jit_compile=False)
    return model


def written(model, path):
    save = model.save if path.suffix == ".keras" else model.save_weights
    save(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OURS)
def test_a_state_of_ours_is_refused_by_another_optimizer(name, kind, tmp_path):
    model = compiled(OURS[name]())
    faults.train(model, 2)
    path = written(model, tmp_path / f"x{kind}")
    for other in KERAS.values():
        victim = compiled(other(), seed=1)
        faults.train(victim, 1)
        before = faults.state(victim)
        with pytest.raises(ValueError, match="nothing was loaded.*Received: "):
            load_checkpoint(victim, path)
        assert faults.equal(faults.state(victim), before)
    again = compiled(OURS[name](), seed=1)
    load_checkpoint(again, path)
    assert faults.equal(faults.state(again), faults.state(model))


def test_the_error_names_both_optimizers(tmp_path):
    model = compiled(Lanton(name="mine"))
    faults.train(model, 1)
    path = written(model, tmp_path / "x.weights.h5")
    with pytest.raises(ValueError, match="'mine'.*Compile.*Received: .*Adam"):
        load_checkpoint(compiled("adam"), path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KERAS)
def test_optimizers_of_keras_load_their_own(name, kind, tmp_path):
    model = compiled(KERAS[name]())
    faults.train(model, 2)
    path = written(model, tmp_path / f"x{kind}")
    other = compiled(KERAS[name](), seed=1)
    load_checkpoint(other, path)
    assert faults.equal(faults.state(other), faults.state(model))
    with pytest.raises(ValueError, match="nothing was loaded"):
        load_checkpoint(faults.built_model(), path)


def test_adamw_loads_weights_without_a_state(tmp_path):
    """Saved before the first step, and without an optimizer."""
    new = compiled("adamw")
    bare = make_model(6)
    for i, model in enumerate([new, bare]):
        path = written(model, tmp_path / f"{i}.keras")
        other = compiled("adamw", seed=1)
        load_checkpoint(other, path)
        for one, two in zip(other.weights, model.weights, strict=True):
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
            )


# -- Low-rank adapters -------------------------------------------------------
def test_adapters_that_are_loaded_as_zeros_are_told(tmp_path):
    """Keras saves the sum of kernel and adapter."""
    inputs = keras.Input((4,), dtype="int32")
    h = keras.layers.Embedding(9, 6, name="tokens")(inputs)
    h = keras.layers.EinsumDense("btd,de->bte", (4, 6), name="mix")(h)
    h = keras.layers.Flatten()(h)
    model = keras.Model(inputs, keras.layers.Dense(3, name="head")(h))
    for name in ("tokens", "mix", "head"):
        model.get_layer(name).enable_lora(2)
    x = np.arange(32).reshape(8, 4) % 9
    y = np.ones((8, 3), "float32")
    model.compile(lanton(learning_rate=0.01), "mse", jit_compile=False)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "x.keras")
    with pytest.warns(UserWarning, match="never learn.*3 such layers"):
        loaded = keras.models.load_model(tmp_path / "x.keras")
    with pytest.warns(UserWarning, match="never learn.*'tokens' first"):
        load_checkpoint(model, tmp_path / "x.keras")
    outputs = loaded.predict(x, verbose=0)
    for variable in loaded.trainable_variables:  # as the guide says
        if variable.name in ("lora_kernel_a", "lora_embeddings_a"):
            variable.assign(keras.initializers.HeUniform()(variable.shape))
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), outputs)
    loaded.fit(x, y, verbose=0)
    for variable in loaded.trainable_variables:
        if "lora" in variable.name:
            assert np.any(keras.ops.convert_to_numpy(variable))

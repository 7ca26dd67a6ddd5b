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


def compiled(optimizer, seed=0, steps=0):
    model = faults.built_model(seed=seed)
    model.compile(optimizer, loss="mse", jit_compile=False)
    faults.train(model, steps)
    return model


def written(model, path):
    save = model.save if path.suffix == ".keras" else model.save_weights
    save(path)
    return path


def assert_same_weights(found, wanted):
    for one, two in zip(found.weights, wanted.weights, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )


def test_load_checkpoint_names_what_does_not_fit(tmp_path):
    model = faults.built_model()
    before = faults.state(model)
    path = written(faults.built_model(width=5), tmp_path / "x.keras")
    with pytest.raises(ValueError, match="nothing was loaded.*first") as error:
        load_checkpoint(model, path)
    assert f"path='{path}'" in str(error.value)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cut off"):
        load_checkpoint(model, path)
    with pytest.raises(FileNotFoundError):
        load_checkpoint(model, tmp_path / "none.keras")
    assert faults.equal(faults.state(model), before)
    for given in ((3, "x.keras"), (model, 3)):
        with pytest.raises(ValueError, match="model and.*Received: model="):
            load_checkpoint(*given)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OURS)
def test_a_state_of_ours_is_refused_by_another_optimizer(name, kind, tmp_path):
    """It is loaded by its own, which need not be built."""
    model = compiled(OURS[name](), steps=2)
    path = written(model, tmp_path / f"x{kind}")
    for other in KERAS.values():
        victim = compiled(other(), seed=1, steps=1)
        before = faults.state(victim)
        with pytest.raises(ValueError, match="nothing was loaded.*Received: "):
            load_checkpoint(victim, path)
        assert faults.equal(faults.state(victim), before)
    again = compiled(OURS[name](), seed=1)
    load_checkpoint(again, path)
    assert faults.equal(faults.state(again), faults.state(model))


def test_the_error_names_both_optimizers(tmp_path):
    model = compiled(Lanton(name="mine"), steps=1)
    path = written(model, tmp_path / "x.weights.h5")
    with pytest.raises(ValueError, match="'mine'.*Compile.*Received: .*Adam"):
        load_checkpoint(compiled("adam"), path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KERAS)
def test_optimizers_of_keras_load_their_own(name, kind, tmp_path):
    model = compiled(KERAS[name](), steps=2)
    path = written(model, tmp_path / f"x{kind}")
    other = compiled(KERAS[name](), seed=1)
    load_checkpoint(other, path)
    assert faults.equal(faults.state(other), faults.state(model))
    with pytest.raises(ValueError, match="nothing was loaded"):
        load_checkpoint(faults.built_model(), path)


@pytest.mark.parametrize(
    ("saved", "target"),
    [
        (lambda: compiled("adamw"), lambda: compiled("adamw", seed=1)),
        (lambda: make_model(6), lambda: compiled("adamw", seed=1)),
        (faults.built_model, lambda: make_model(6, seed=1)),
    ],
    ids=["before its first step", "of no optimizer", "into no optimizer"],
)
def test_weights_without_a_state(saved, target, tmp_path):
    model, other = saved(), target()
    load_checkpoint(other, written(model, tmp_path / "x.keras"))
    assert_same_weights(other, model)


def test_a_state_without_an_optimizer_is_told(tmp_path):
    path = tmp_path / "model.keras"
    compiled(Lanton(name="mine"), steps=1).save(path)
    with pytest.warns(UserWarning, match="'mine', which is left out"):
        load_checkpoint(make_model(6), path)


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

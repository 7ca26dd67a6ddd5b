"""Adapters of layers whose own kernels are quantized: QLoRA."""

import keras
import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton import Lanton


def make_model():
    """Layers of each kind that Keras can quantize and adapt."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,), dtype="int32")
    h = keras.layers.Embedding(16, 8, name="tokens")(inputs)
    h = keras.layers.EinsumDense("btd,dhk->bthk", (None, 2, 4), name="heads")(h)
    h = keras.layers.Reshape((32,))(h)
    h = keras.layers.Dense(8, name="out")(h)
    return keras.Model(inputs, h)


@pytest.mark.skipif(
    keras.__version__.startswith("3.10."), reason="it has no 4 bits"
)
@logic
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_adapters_of_quantized_layers_learn(bits):
    model = make_model()
    model.quantize(bits)
    for name in ("tokens", "heads", "out"):
        model.get_layer(name).enable_lora(2)
    trained = {v.path for v in model.trainable_variables}
    adapters = {path for path in trained if "lora" in path}
    assert len(adapters) == 6
    frozen = {
        v.path: keras.ops.convert_to_numpy(v)
        for v in model.variables
        if v.path not in trained
    }
    random = np.random.default_rng(0)
    x = random.integers(0, 16, (32, 4))
    y = random.normal(size=(32, 8)).astype("float32")
    optimizer = Lanton.for_fine_tuning(0.02).read_roles(model)
    model.compile(optimizer, loss="mse")
    history = model.fit(x, y, batch_size=16, epochs=4, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < losses[0]
    assert {spec.path for spec in model.optimizer.layers} == trained
    for variable in model.variables:
        if variable.path in frozen:
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(variable), frozen[variable.path]
            )

"""KerasHub's layout maps on a mesh of 2 x 4 devices: the weights of one device.

Each backbone runs in a process of its own, this file as a script: the number
of devices is fixed when JAX starts.
"""

import json
import sys

import keras
import numpy as np
import pytest

from helpers.optimizers import lanton
from helpers.processes import launch
from helpers.processes import outcome
from helpers.roles import hub
from helpers.tiers import exhaustive
from helpers.tiers import keep

# Axes divide by the 2 and the 4 devices that they lie on.
DECODER = {
    "vocabulary_size": 64,
    "num_layers": 1,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 32,
    "intermediate_dim": 48,
}
MIXTURE = {"moe_intermediate_dim": 24, "num_experts": 4, "top_k": 2}
ARGUMENTS = {
    "GemmaBackbone": {"head_dim": 8, "num_key_value_heads": 4},
    "Llama3Backbone": {},
    "LlamaBackbone": {},
    "Qwen2Backbone": {},
    "Qwen3MoeBackbone": {**MIXTURE, "head_dim": 8},
    "QwenBackbone": {},
    "QwenMoeBackbone": {**MIXTURE, "shared_expert_intermediate_dim": 16},
}
STEPS, BATCH, LENGTH = 4, 8, 6


# -- In the process of a case ----------------------------------------------


def make(name):
    """A small backbone, of the same weights each time."""
    keras.utils.set_random_seed(0)
    model = getattr(hub(), name)(**{**DECODER, **ARGUMENTS[name]})
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        value = rng.normal(size=variable.shape) / variable.shape[0] ** 0.5
        variable.assign(value.astype("float32"))
    return model


def train(name):
    """Weights after some steps."""
    model = make(name)
    optimizer = lanton(learning_rate=0.01, noise_interval=2, ns_steps=3)
    model.compile(optimizer=optimizer.read_roles(model), loss="mse")
    rng = np.random.default_rng(1)
    count = STEPS * BATCH
    tokens = rng.integers(0, DECODER["vocabulary_size"], (count, LENGTH))
    x = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    y = rng.normal(size=(count, LENGTH, DECODER["hidden_dim"]))
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return model


def arrays(variables):
    return [np.asarray(keras.ops.convert_to_numpy(v)) for v in variables]


def on_a_mesh(name):
    """Numbers of variables, and of those that lie on several devices."""
    alone = arrays(train(name).trainable_variables)
    mesh = keras.distribution.DeviceMesh(
        (2, 4),
        ["batch", "model"],
        devices=keras.distribution.list_devices("cpu"),
    )
    layout_map = getattr(hub(), name).get_layout_map(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(
            layout_map=layout_map, batch_dim_name="batch"
        )
    )
    model = train(name)
    found = model.trainable_variables
    far = [
        float(np.abs(one - other).max())
        for one, other in zip(arrays(found), alone, strict=True)
    ]
    split = [v for v in found if not v.value.sharding.is_fully_replicated]
    return {"difference": max(far), "split": len(split)}


# -- In the process of the tests -------------------------------------------


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="keras.distribution runs on JAX"
)
@pytest.mark.parametrize("name", keep(ARGUMENTS, ["GemmaBackbone"], exhaustive))
def test_weights_are_those_of_one_device(name):
    hub()
    found = outcome(launch(__file__, name, devices=8))
    assert found["split"] >= 6
    assert found["difference"] < 2e-5  # updates have an RMS of 2e-3


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="keras.distribution runs on JAX"
)
def test_every_backbone_with_a_layout_map_is_here():
    models = hub()
    having = {
        name
        for name, cls in vars(models).items()
        if isinstance(cls, type)
        and issubclass(cls, models.Backbone)
        and hasattr(cls, "get_layout_map")
    }
    assert having == set(ARGUMENTS)


if __name__ == "__main__":
    print(json.dumps(on_a_mesh(sys.argv[1])))

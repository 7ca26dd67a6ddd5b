"""Training without Keras' private methods: the same weights."""

import inspect
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from helpers.processes import environment
from helpers.tiers import logic
from helpers.tiers import private
from keras_lanton import Lanton
from keras_lanton.optimizers import hooks


def train():
    """Weights and config after some steps, with all that the hooks do."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", name="first"),
            keras.layers.Dense(3, name="second"),
        ]
    )
    optimizer = Lanton(
        keras.optimizers.schedules.CosineDecay(0.05, 20),
        weight_decay=0.3,
        gradient_accumulation_steps=2,
        clipnorm=0.5,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer=optimizer, loss="mse")
    x, y = rng.normal(size=(32, 6)), rng.normal(size=(32, 3))
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return {
        "hooks": type(optimizer).__mro__[3].__name__,
        "weights": [w.tolist() for w in model.get_weights()],
        "decay": optimizer.get_config()["weight_decay"],
        "updates": int(optimizer.iterations),
    }


@private
def test_public_methods_give_the_same_weights():
    done = subprocess.run(
        [sys.executable, __file__],
        env=environment(KERAS_LANTON_PUBLIC_API="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, wanted = json.loads(done.stdout.splitlines()[-1]), train()
    assert found.pop("hooks") == "PublicHooks"
    assert wanted.pop("hooks") == "PrivateHooks"
    assert found["updates"] == wanted["updates"] == 8
    assert found["decay"] == wanted["decay"] == 0.3
    for one, other in zip(found["weights"], wanted["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@logic
def test_a_method_that_moved_is_named(monkeypatch):
    monkeypatch.delenv("KERAS_LANTON_PUBLIC_API", raising=False)
    assert hooks.changed_methods() == []
    assert hooks.choose() is hooks.PrivateHooks
    monkeypatch.setitem(hooks.METHODS, "_var_key", ["self", "path"])
    monkeypatch.setitem(hooks.METHODS, "_gone", [])
    with pytest.warns(UserWarning, match="changed _var_key, _gone"):
        assert hooks.choose() is hooks.PublicHooks


@logic
def test_public_hooks_override_public_methods_alone():
    own = [
        name
        for name, _ in inspect.getmembers(hooks.PublicHooks)
        if name[:1] == "_" and name[:2] != "__"
    ]
    assert not [n for n in own if hasattr(keras.optimizers.Optimizer, n)]


if __name__ == "__main__":
    print(json.dumps(train()))

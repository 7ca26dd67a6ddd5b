"""Models that are saved, and steps whose gradients no backend computes."""

import keras
import numpy as np
from keras import ops

from helpers.models import batch_of
from helpers.models import dtype_policy
from helpers.models import make_model

# Few Newton-Schulz steps, since compiling them is most of the time.
OPTIONS = {
    "learning_rate": 0.01,
    "embedding_scale": 64.0,
    "noise_interval": 3,
    "ns_steps": 2,
}
COMPILED = {"loss": "mse", "jit_compile": keras.backend.backend() == "jax"}


def compiled_model(optimizer=None, dtype=None):
    with dtype_policy(dtype):
        model = make_model(6)
    if optimizer is not None:
        model.compile(optimizer=optimizer, **COMPILED)
    return model


def train(model, start, stop):
    """Steps number `start` to `stop`, each on a batch of its own."""
    for t in range(start, stop):
        x, y = batch_of(t)
        if t == 1:
            y[0, 0] = np.nan  # one skipped step
        model.train_on_batch(x, y)


def apply(model, start, stop):
    """Steps with gradients that no backend computes."""
    for t in range(start, stop):
        rng = np.random.default_rng(100 + t)
        model.optimizer.apply(
            [
                ops.convert_to_tensor(
                    rng.standard_normal(v.shape).astype("float32")
                )
                for v in model.trainable_variables
            ],
            model.trainable_variables,
        )


def values(variables):
    return {
        f"{i} {v.path}": np.array(
            ops.convert_to_numpy(ops.cast(v.value, "float32"))
        )
        for i, v in enumerate(variables)
    }


def state(model):
    return values([*model.variables, *model.optimizer.variables])


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for (key, one), two in zip(found.items(), wanted.values(), strict=True):
        np.testing.assert_array_equal(one, two, err_msg=key)


def resumed(model, folder, go_on):
    """The model as it is loaded: of the same state, now and in what follows.

    Args:
        model: Which has trained.
        folder: For its file.
        go_on: Function of a model that trains it on.
    """
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert_same(state(loaded), state(model))
    for one in (model, loaded):
        go_on(one)
    assert_same(state(loaded), state(model))
    return loaded


def with_roles(model, optimizer):
    """Roles that nobody would infer."""
    optimizer.assign_role(
        "embedding", model.get_layer("first").kernel, input_axes=1
    )
    optimizer.assign_role("vector", model.get_layer("second").kernel)
    return optimizer


def arrays_of(file):
    """All arrays of a file of HDF5, by name."""
    import h5py

    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(file) as opened:
        opened.visititems(visit)
    return found


def assert_same_arrays(found, wanted):
    assert found.keys() == wanted.keys()
    assert any(name.startswith("optimizer/") for name in wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, name)

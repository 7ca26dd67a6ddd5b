"""Loading all or nothing."""

import keras
import numpy as np
import pytest

import faults
from helpers.optimizers import lanton
from helpers.tiers import logic
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
    bare = keras.models.clone_model(model)
    load_checkpoint(bare, tmp_path / "model.keras")
    for one, two in zip(bare.weights, model.weights, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two)
        )

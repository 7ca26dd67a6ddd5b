"""State that is loaded: all of it, or nothing."""

import numpy as np
import pytest
from keras import ops

import faults
from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.saves import OPTIONS
from helpers.saves import apply
from helpers.saves import assert_same
from helpers.saves import compiled_model
from helpers.saves import values
from helpers.tiers import logic


@logic
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("noise", np.nan, "never has"),
        ("noise", np.inf, "never has"),
        ("noise", -1.0, "never has"),
        ("measurements", -1, "never has"),
        ("last_step", -(2**31), "never has"),
        ("iteration", -5, "never has"),
        ("learning_rate", np.nan, "never has"),
        ("first_kernel_momentum", np.nan, "never has"),
        ("iteration", 0.5, "dtype"),
        ("noise", 1, "dtype"),
    ],
)
def test_impossible_state_is_refused(name, value, said):
    model = faults.built_model()
    faults.train(model, 3)
    optimizer = model.optimizer
    store = {}
    optimizer.save_own_variables(store)
    store = {key: np.array(ops.convert_to_numpy(x)) for key, x in store.items()}
    (i,) = [i for i, v in enumerate(optimizer.variables) if v.name == name]
    store[str(i)] = np.full_like(
        store[str(i)], value, dtype=None if said != "dtype" else type(value)
    )
    before = faults.state(model)
    with pytest.raises(ValueError, match=f"{name}.*{said}") as error:
        optimizer.load_own_variables(store)
    assert "None of the state was loaded" in str(error.value)
    assert faults.equal(faults.state(model), before)


def test_state_that_lacks_an_array_is_refused():
    optimizer = faults.built_model().optimizer
    store = {}
    optimizer.save_own_variables(store)
    store["x"] = store.pop("2")
    with pytest.raises(ValueError, match="2, .*missing"):
        optimizer.load_own_variables(store)


def test_propagated_nan_is_loaded():
    model = faults.built_model(nonfinite="propagate")
    optimizer = model.optimizer
    store = {}
    optimizer.save_own_variables(store)
    store = {key: np.array(ops.convert_to_numpy(x)) for key, x in store.items()}
    (i,) = [i for i, v in enumerate(optimizer.variables) if v.name == "noise"]
    store[str(i)][:] = np.nan
    optimizer.load_own_variables(store)
    assert np.isnan(to_arrays(optimizer.variables)[i]).all()


# -- State that does not fit -----------------------------------------------
def store_of(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return store


def test_own_variables():
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 3)
    other = paper(**OPTIONS)
    other.build(model.trainable_variables)
    other.load_own_variables(store_of(model.optimizer))
    assert_same(values(other.variables), values(model.optimizer.variables))


@pytest.mark.parametrize("position", ["slot", "last"])
def test_state_of_another_shape(position):
    """A warning, and nothing of it is loaded."""
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 3)
    store = store_of(model.optimizer)
    other = paper(**OPTIONS)
    other.build(model.trainable_variables)
    index = str(5 if position == "slot" else len(store) - 1)
    store[index] = np.zeros((2, 9), "float32")
    before = values(other.variables)
    with pytest.warns(UserWarning, match=r"\(2, 9\).*starts anew"):
        other.load_own_variables(store)
    assert_same(values(other.variables), before)


def test_state_of_other_arguments():
    """With more slots: a warning, and nothing is loaded."""
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 3)
    other = paper(**OPTIONS, noise_reference="momentum")
    other.build(model.trainable_variables)
    before = values(other.variables)
    with pytest.warns(UserWarning, match="starts anew"):
        other.load_own_variables(store_of(model.optimizer))
    assert_same(values(other.variables), before)

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


def store_of(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return {k: np.array(ops.convert_to_numpy(x)) for k, x in store.items()}


def key_of(optimizer, name):
    names = [variable.name for variable in optimizer.variables]
    assert names.count(name) == 1
    return str(names.index(name))


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
    store, key = store_of(optimizer), key_of(optimizer, name)
    store[key] = np.full_like(
        store[key], value, dtype=None if said != "dtype" else type(value)
    )
    before = faults.state(model)
    with pytest.raises(ValueError, match=f"{name}.*{said}") as error:
        optimizer.load_own_variables(store)
    assert "None of the state was loaded" in str(error.value)
    assert faults.equal(faults.state(model), before)


def test_state_that_lacks_an_array_is_refused():
    optimizer = faults.built_model().optimizer
    store = store_of(optimizer)
    store["x"] = store.pop("2")
    with pytest.raises(ValueError, match="2, .*missing"):
        optimizer.load_own_variables(store)


def test_propagated_nan_is_loaded():
    optimizer = faults.built_model(nonfinite="propagate").optimizer
    store, key = store_of(optimizer), key_of(optimizer, "noise")
    store[key][:] = np.nan
    optimizer.load_own_variables(store)
    assert np.isnan(to_arrays(optimizer.variables)[int(key)]).all()


def stored_and_other(**options):
    """State after some steps, and another optimizer of the same model."""
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 3)
    other = paper(**OPTIONS, **options)
    other.build(model.trainable_variables)
    return model.optimizer, store_of(model.optimizer), other


def test_own_variables():
    optimizer, store, other = stored_and_other()
    other.load_own_variables(store)
    assert_same(values(other.variables), values(optimizer.variables))


@pytest.mark.parametrize("wrong", ["slot", "last", "count"])
def test_state_that_does_not_fit(wrong):
    """Of other shapes or arguments: a warning, and nothing is loaded."""
    options = {"noise_reference": "momentum"} if wrong == "count" else {}
    _, store, other = stored_and_other(**options)
    said = "starts anew"
    if wrong != "count":
        index = 5 if wrong == "slot" else len(store) - 1
        store[str(index)] = np.zeros((2, 9), "float32")
        said = r"\(2, 9\).*starts anew"
    before = values(other.variables)
    with pytest.warns(UserWarning, match=said):
        other.load_own_variables(store)
    assert_same(values(other.variables), before)

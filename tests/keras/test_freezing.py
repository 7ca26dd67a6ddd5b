"""Layers that are frozen, before and after the first step."""

import numpy as np
import pytest

from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import OPTIONS
from helpers.runs import apply
from helpers.runs import assert_equal
from helpers.runs import fit
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import model_of_runs
from helpers.runs import needs_none
from helpers.runs import run
from helpers.tiers import logic


# -- Frozen layers ---------------------------------------------------------
@logic
def test_frozen_before_compile():
    model = model_of_runs()
    model.get_layer("conv").trainable = False
    before = to_arrays(model.get_layer("conv").weights)
    fit(model, paper(**OPTIONS))
    assert_equal(to_arrays(model.get_layer("conv").weights), before)
    assert not any("conv" in one.path for one in model.optimizer.layers)


@logic
def test_unfrozen_with_a_new_optimizer():
    model = model_of_runs()
    model.get_layer("conv").trainable = False
    fit(model, paper(**OPTIONS))
    model.get_layer("conv").trainable = True
    before = to_arrays(model.get_layer("conv").weights)
    fit(model, paper(**OPTIONS))
    after = to_arrays(model.get_layer("conv").weights)
    assert np.abs(after[0] - before[0]).max() > 1e-4


def test_frozen_after_build():
    """With the same optimizer: the frozen layer stays, or JAX refuses."""
    model = model_of_runs()
    fit(model, paper(**OPTIONS))
    model.get_layer("conv").trainable = False
    before = to_arrays(model.get_layer("conv").weights)
    if BACKEND == "jax":
        with pytest.raises(ValueError):
            fit(model, model.optimizer)
        return
    fit(model, model.optimizer)
    assert_equal(to_arrays(model.get_layer("conv").weights), before)
    model.get_layer("conv").trainable = True
    fit(model, model.optimizer)
    after = to_arrays(model.get_layer("conv").weights)
    assert np.abs(after[0] - before[0]).max() > 1e-4


@needs_none
def test_unfrozen_after_build():
    model = model_of_runs()
    model.get_layer("conv").trainable = False
    fit(model, paper(**OPTIONS))
    model.get_layer("conv").trainable = True
    # Inside of a graph, Keras 3.10 fails at printing the variable.
    with pytest.raises(ValueError, match="Unknown variable"):
        fit(model, model.optimizer, run_eagerly=True)


def test_unknown_variable():
    optimizer, _ = run(make_gradients(1))
    with pytest.raises(ValueError, match="Unknown variable"):
        apply(optimizer, make_variables(), make_gradients(1)[0])


@logic
def test_lora():
    model = model_of_runs()
    model.get_layer("first").enable_lora(2)
    frozen = to_arrays([model.get_layer("first")._kernel])
    fit(model, paper(**OPTIONS))
    assert_equal(to_arrays([model.get_layer("first")._kernel]), frozen)
    roles = {one.path: one.role for one in model.optimizer.layers}
    assert roles["first/lora_kernel_a"] == "hidden"
    assert roles["first/lora_kernel_b"] == "hidden"

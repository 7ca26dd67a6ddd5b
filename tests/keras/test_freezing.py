"""Layers that are frozen, before and after the first step."""

import numpy as np
import pytest

from helpers import runs
from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.tiers import logic


def fit(trainable, model=None, optimizer=None, **compiled):
    """The model after a run, and how far its convolution moved."""
    model = model or runs.model_of_runs()
    layer = model.get_layer("conv")
    layer.trainable = trainable
    before = to_arrays([layer.kernel])[0]
    runs.fit(model, optimizer or paper(**runs.OPTIONS), **compiled)
    return model, np.abs(to_arrays([layer.kernel])[0] - before).max()


@logic
def test_frozen_before_compile():
    model, moved = fit(trainable=False)
    assert moved == 0.0
    assert not any("conv" in one.path for one in model.optimizer.layers)
    _, moved = fit(True, model)  # with a new optimizer
    assert moved > 1e-4


def test_frozen_after_build():
    """With the same optimizer: the frozen layer stays, or JAX refuses."""
    model, _ = fit(trainable=True)
    if runs.BACKEND == "jax":
        with pytest.raises(ValueError):
            fit(False, model, model.optimizer)
        return
    _, moved = fit(False, model, model.optimizer)
    assert moved == 0.0
    _, moved = fit(True, model, model.optimizer)
    assert moved > 1e-4


@pytest.mark.skipif(
    runs.BACKEND == "jax", reason="JAX demands a gradient for every variable"
)
def test_unfrozen_after_build():
    model, _ = fit(trainable=False)
    # Inside of a graph, Keras 3.10 fails at printing the variable.
    with pytest.raises(ValueError, match="Unknown variable"):
        fit(True, model, model.optimizer, run_eagerly=True)

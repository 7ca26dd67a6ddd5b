"""Reports of the measured noise."""

import keras
import numpy as np
import pytest

from helpers.optimizers import paper_rate
from helpers.optimizers import paper_schedule
from helpers.tiers import logic
from helpers.variables import to_tensors
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate


def test_reported_rate_under_a_schedule():
    """It is the rate of the last step, not the one of the next."""
    shape = (4, 12, 0.03, 0.003)
    variable = keras.Variable(np.zeros((3, 2), "float32"), name="kernel")
    optimizer = Lanton(
        paper_schedule(*shape), noise=NoiseAdaptiveRate(interval=1)
    )
    optimizer.build([variable])
    random = np.random.default_rng(0)
    for t in range(1, 7):
        gradient = random.normal(size=(3, 2)).astype("float32")
        optimizer.apply(to_tensors([gradient]), [variable])
        if t == 1:  # nothing to compare with
            continue
        (one,) = optimizer.noise_report().values()
        np.testing.assert_allclose(
            one["learning_rate"],
            paper_rate(t, *shape) * one["ratio"],
            rtol=1e-4,
        )


@logic
def test_only_what_is_measured_is_reported():
    kernel = keras.Variable(np.zeros((3, 2), "float32"), name="kernel")
    bias = keras.Variable(np.zeros(2, "float32"), name="bias")
    optimizer = Lanton(noise=NoiseAdaptiveRate(interval=1))
    optimizer.build([kernel, bias])
    for step in range(3):
        gradients = [np.full((3, 2), step + 1.0), np.ones(2)]
        optimizer.apply(to_tensors([g.astype("float32") for g in gradients]))
        if step == 0:
            with pytest.warns(UserWarning, match="No noise was measured.*1 st"):
                assert optimizer.noise_report() == {}
    assert list(optimizer.noise_report()) == ["kernel"]


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="only JAX keeps state outside"
)
def test_a_loop_that_keeps_the_state_to_itself():
    """The optimizer measured nothing, as far as it can know."""
    kernel = keras.Variable(np.zeros((3, 2), "float32"), name="kernel")
    optimizer = Lanton(noise=NoiseAdaptiveRate(interval=1))
    optimizer.build([kernel])
    state, value = [v.value for v in optimizer.variables], [kernel.value]
    for step in range(3):
        gradient = to_tensors([np.full((3, 2), step + 1.0, "float32")])
        value, state = optimizer.stateless_apply(state, gradient, value)
    with pytest.warns(UserWarning, match="No noise.*write the state back"):
        assert optimizer.noise_report() == {}
    for variable, new in zip(optimizer.variables, state, strict=True):
        variable.assign(new)
    assert (optimizer.noise_report()["kernel"]["noise"] > 0).all()

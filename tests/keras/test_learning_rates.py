"""Callables and a rate of zero; the oracle has a schedule."""

import keras
import numpy as np

from helpers import runs
from helpers.models import to_arrays
from helpers.optimizers import paper

schedules = keras.optimizers.schedules


def paper_at(rate):
    return paper(**{**runs.OPTIONS, "learning_rate": rate})


def test_callable_is_asked_at_every_step():
    rates = [0.02, 0.01, 0.005, 0.0025]
    current = {}
    optimizer, wanted = paper_at(lambda: current["rate"]), paper_at(0.01)
    variables, others = runs.make_variables(), runs.make_variables()
    for rate, one in zip(rates, runs.make_gradients(4), strict=True):
        current["rate"] = wanted.learning_rate = rate
        runs.apply(optimizer, variables, one)
        runs.apply(wanted, others, one)
    # Observed 0.
    runs.assert_close(variables, others, 1e-7)


def test_rate_zero_moves_nothing():
    """And it is the second step that has the second rate."""
    schedule = schedules.PiecewiseConstantDecay([0], [0.0, 1.0])
    optimizer, variables = runs.run(
        runs.make_gradients(1), learning_rate=schedule
    )
    start = to_arrays(runs.make_variables())
    runs.assert_equal(variables, start)
    runs.apply(optimizer, variables, runs.make_gradients(1)[0])
    # An embedding of features: half of the rate at most.
    assert np.abs(to_arrays(variables)[0] - start[0]).max() > 0.25

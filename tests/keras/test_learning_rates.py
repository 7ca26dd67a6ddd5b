"""Schedules, callables and a rate of zero."""

import keras
import numpy as np

from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.runs import OPTIONS
from helpers.runs import apply
from helpers.runs import assert_close
from helpers.runs import assert_equal
from helpers.runs import fit
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import model_of_runs
from helpers.runs import reference_weights
from helpers.runs import run
from helpers.tiers import logic


# -- Learning rates --------------------------------------------------------
@logic
def test_schedule_is_each_steps_rate():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [1, 9], [0.02, 0.01, 0.005]
    )
    found = fit(
        model_of_runs(), paper(**{**OPTIONS, "learning_rate": schedule})
    )
    rates = [0.02, 0.02, 0.01, 0.01]

    class SetRate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = rates.pop(0)

    wanted = fit(model_of_runs(), paper(**OPTIONS), callbacks=[SetRate()])
    # Observed 0.
    assert_close(found, wanted, 1e-6)


def test_callable_is_asked_at_every_step():
    gradients = make_gradients(4)
    rates = iter([0.02, 0.01, 0.005, 0.0025])
    current = {}
    optimizer = paper(**{**OPTIONS, "learning_rate": lambda: current["rate"]})
    variables = make_variables()
    wanted = paper(**OPTIONS)
    others = make_variables()
    for one in gradients:
        current["rate"] = next(rates)
        apply(optimizer, variables, one)
        wanted.learning_rate = current["rate"]
        apply(wanted, others, one)
    # Observed 0.
    assert_close(to_arrays(variables), to_arrays(others), 1e-7)


@logic
def test_callable_in_fit():
    found = fit(
        model_of_runs(), paper(**{**OPTIONS, "learning_rate": lambda: 0.01})
    )
    # Observed 0.
    assert_close(found, reference_weights(), 1e-6)


def test_rate_zero_moves_nothing():
    """And it is the second step that has the second rate."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [0], [0.0, 1.0]
    )
    optimizer, variables = run(make_gradients(1), learning_rate=schedule)
    assert_equal(to_arrays(variables), to_arrays(make_variables()))
    apply(optimizer, variables, make_gradients(1)[0])
    moved = to_arrays(variables)[0] - to_arrays(make_variables())[0]
    assert np.abs(moved).max() > 0.5

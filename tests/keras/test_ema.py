"""Averages of the weights."""

from helpers import runs
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper

AVERAGED = {"use_ema": True, "ema_momentum": 0.8}


def averages_by_hand(history, momentum=0.8):
    average = history[0]
    for weights in history[1:]:
        average = [
            momentum * a + (1.0 - momentum) * w
            for a, w in zip(average, weights, strict=True)
        ]
    return average


def history_of(optimizer, variables, gradients):
    """The weights after each step."""
    history = []
    for one in gradients:
        runs.apply(optimizer, variables, one)
        history.append(to_arrays(variables))
    return history


@both_presets
def test_ema(preset):
    optimizer = paper(**runs.PRESETS[preset], **AVERAGED)
    variables, gradients = runs.make_variables(), runs.make_gradients(5)
    history = history_of(optimizer, variables, gradients)
    _, plain = runs.run(gradients, **runs.PRESETS[preset])
    runs.assert_equal(history[-1], plain)
    optimizer.finalize_variable_values(variables)
    # Observed 4e-7.
    runs.assert_close(variables, averages_by_hand(history), 2e-6)


def test_ema_overwrite_frequency():
    optimizer = paper(**runs.OPTIONS, **AVERAGED, ema_overwrite_frequency=3)
    gradients = runs.make_gradients(3)
    history = history_of(optimizer, runs.make_variables(), gradients)
    _, plain = runs.run(gradients)
    wanted = averages_by_hand([*history[:2], to_arrays(plain)])
    # Observed 3e-7.
    runs.assert_close(history[2], wanted, 2e-6)

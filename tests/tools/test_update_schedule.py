"""Schedules that count updates."""

import keras
import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import UpdateSchedule

STEP = keras.optimizers.schedules.PiecewiseConstantDecay(
    [1, 2], [1.0, 0.5, 0.0]
)


def rate(schedule, step):
    return float(keras.ops.convert_to_numpy(schedule(step)))


@pytest.mark.parametrize("window", [None, 1, 3])
def test_a_window_is_a_step(window):
    schedule = UpdateSchedule(STEP, window)
    count = window or 1
    for step in range(5 * count):
        assert rate(schedule, step) == rate(STEP, step // count)


def test_an_optimizer_takes_the_rates_of_updates():
    """Rates of 1, 1, 0.5, 0: the last update leaves the weights alone."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = np.random.default_rng(0).standard_normal((64, 3), "float32")
    y = x[:, :2]
    optimizer = Lanton(
        UpdateSchedule(STEP, 2), gradient_accumulation_steps=2, weight_decay=0.0
    )
    model.compile(optimizer=optimizer, loss="mse")
    moved = []
    for micro_step in range(10):
        before = model.get_weights()
        some = slice(4 * micro_step, 4 * micro_step + 4)
        model.train_on_batch(x[some], y[some])
        after = model.get_weights()
        pairs = zip(after, before, strict=True)
        moved.append(any(np.any(one != two) for one, two in pairs))
    assert not any(moved[::2])  # windows that are open
    assert moved[1::2] == [True, True, True, False, False]


@logic
def test_it_is_saved_with_the_optimizer():
    given = Lanton(UpdateSchedule(STEP, 4), gradient_accumulation_steps=4)
    made = Lanton.from_config(given.get_config())
    assert isinstance(made.schedule, UpdateSchedule)
    assert made.schedule.get_config() == given.schedule.get_config()


@logic
@pytest.mark.parametrize(
    ("schedule", "window", "named"),
    [
        (0.1, 2, "schedule"),
        (None, 2, "schedule"),
        (STEP, 0, "gradient_accumulation_steps"),
        (STEP, 2.5, "gradient_accumulation_steps"),
        (STEP, "2", "gradient_accumulation_steps"),
    ],
)
def test_wrong_arguments(schedule, window, named):
    with pytest.raises(ValueError, match=f"`{named}`.*Received: {named}="):
        UpdateSchedule(schedule, window)

"""Reports of the measured noise."""

import keras
import numpy as np

from helpers.optimizers import paper_rate
from helpers.optimizers import paper_schedule
from helpers.variables import to_tensors
from keras_lanton import Lanton


def test_reported_rate_under_a_schedule():
    """It is the rate of the last step, not the one of the next."""
    shape = (4, 12, 0.03, 0.003)
    variable = keras.Variable(np.zeros((3,), "float32"), name="gain")
    optimizer = Lanton(paper_schedule(*shape))
    optimizer.assign_role("vector", [variable])
    optimizer.build([variable])
    for t in range(1, 7):
        optimizer.apply(to_tensors([np.ones(3, "float32")]), [variable])
        (one,) = optimizer.noise_report().values()
        np.testing.assert_allclose(
            one["learning_rate"],
            paper_rate(t, *shape) * one["ratio"],
            rtol=1e-4,
        )

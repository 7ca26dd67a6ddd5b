"""AdaMuon's steps have their size."""

import numpy as np

from helpers.baselines import ETA
from helpers.baselines import make
from helpers.tiers import logic
from helpers.variables import Steps
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import baselines

pytestmark = logic


def test_adamuon_steps_have_their_size():
    paths = ["dense/kernel", "experts/kernel"]
    variables = make_variables(paths)
    steps = Steps(
        make(baselines.AdaMuon, variables, paths, weight_decay=None), variables
    )
    for gradients in make_gradients(3, paths):
        before = to_arrays(variables)
        steps(gradients)
        for one, two in zip(before, to_arrays(variables), strict=True):
            rms = np.sqrt(np.mean((two - one) ** 2, axis=(-2, -1)))
            np.testing.assert_allclose(rms, 0.2 * ETA, rtol=1e-4)

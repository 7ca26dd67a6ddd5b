"""AdamW as a part of Lanton is AdamW."""

import keras
import numpy as np
import pytest

from helpers.baselines import ETA
from helpers.baselines import run
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import Steps
from helpers.variables import deviations
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import Lanton


@pytest.mark.parametrize("role", ["embedding", "vector"])
def test_adamw_in_lanton_is_keras_adamw(role):
    """That one's epsilon has an effect on neither, at gradients of size 1."""
    paths = [path for path in FEW if EXPECTED[path].role == role]
    gradients = make_gradients(6, paths)
    found, start = run(
        Lanton,
        gradients,
        paths,
        adamw_roles=[role],
        adam_lr_ratio=0.5,
        adam_beta_1=0.8,
        adam_beta_2=0.97,
        epsilon=1e-12,
        weight_decay=0.1,
    )
    variables = make_variables(paths)
    adamw = keras.optimizers.AdamW(
        0.5 * ETA, beta_1=0.8, beta_2=0.97, epsilon=1e-12, weight_decay=0.1
    )
    adamw.build(variables)
    steps = Steps(adamw, variables)
    for one in gradients:
        steps(one)
    off = deviations(found, to_arrays(variables), start)
    assert max(off) < 1e-5, off


def test_adamw_in_lanton_has_the_epsilon_of_torch():
    """Added to the debiased root: step 1 is g / (|g| + epsilon)."""
    paths = ["dense/bias", "tokens/embeddings"]
    gradients = make_gradients(1, paths)
    found, start = run(
        Lanton,
        gradients,
        paths,
        adamw_roles=["embedding", "vector"],
        epsilon=0.1,
        weight_decay=None,
    )
    for one, zero, g in zip(found, start, gradients[0], strict=True):
        wanted = zero - ETA * g / (np.abs(g) + 0.1)
        assert max(deviations([one], [wanted], [zero])) < 1e-5

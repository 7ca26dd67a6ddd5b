"""Lamb's steps have the size of the weights."""

import numpy as np
import pytest

from helpers.baselines import ETA
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import make_gradients
from keras_lanton import baselines

pytestmark = logic


def test_lamb_moves_by_the_size_of_the_weights():
    paths = ["dense/kernel", "norm/gamma"]
    found, start = run(
        baselines.Lamb, make_gradients(1, paths), paths, weight_decay=None
    )
    for one, two in zip(start, found, strict=True):
        moved = np.linalg.norm(two - one)
        assert moved == pytest.approx(ETA * np.linalg.norm(one), rel=1e-4)

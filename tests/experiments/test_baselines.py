"""Identities of the optimizers without an LMO, beside their oracles."""

import numpy as np
import pytest

from experiments.baselines import BlockwiseAdamW
from experiments.baselines import Lamb
from experiments.baselines import Mars
from experiments.baselines.blockwise_adamw import MULTIPLIERS
from helpers.baselines import ETA
from helpers.baselines import adamw
from helpers.baselines import assert_equal
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import FEW
from helpers.variables import make_gradients

pytestmark = logic


def test_lamb_moves_by_the_size_of_the_weights():
    paths = ["dense/kernel", "norm/gamma"]
    found, start = run(Lamb, make_gradients(1, paths), paths, weight_decay=None)
    for one, two in zip(start, found, strict=True):
        moved = np.linalg.norm(two - one)
        assert moved == pytest.approx(ETA * np.linalg.norm(one), rel=1e-4)


def test_blockwise_adamw_of_equal_ratios_is_adamw():
    gradients = make_gradients(3, FEW)
    ones = dict.fromkeys(MULTIPLIERS, 1.0)
    found, start = run(BlockwiseAdamW, gradients, multipliers=ones)
    assert_equal(found, adamw(gradients)[0], start)


def test_mars_without_correction_is_adamw():
    gradients = [
        [1e-3 * g for g in one] for one in make_gradients(3, FEW)
    ]  # of norm below 1
    found, start = run(
        Mars,
        gradients,
        gamma=0.0,
        optimize_1d=True,
        weight_decay=0.1,
        beta_1=0.9,
        beta_2=0.95,
    )
    assert_equal(found, adamw(gradients)[0], start)

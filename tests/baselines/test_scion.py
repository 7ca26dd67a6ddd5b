"""Scion, and the optimizers that it should equal."""

import math

import numpy as np
import pytest

from helpers.baselines import ETA
from helpers.baselines import NOISE
from helpers.baselines import NOISE_PART
from helpers.baselines import assert_equal
from helpers.baselines import make
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import Steps
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import Lanton
from keras_lanton import baselines

pytestmark = logic


def test_constrained_scion_is_unconstrained_with_decay_1():
    gradients = make_gradients(3, FEW)
    found, start = run(baselines.Scion, gradients)
    wanted, _ = run(
        baselines.Scion, gradients, constrained=False, weight_decay=1.0
    )
    assert_equal(found, wanted, start)


def test_scion_without_momentum_and_scale_is_sign_descent():
    paths = ["tokens/embeddings"]
    gradients = make_gradients(2, paths)
    found, start = run(
        baselines.Scion,
        gradients,
        paths,
        beta_1=0.0,
        constrained=False,
        embedding_scale=1.0,
        embedding_normalized=False,
    )
    wanted = [start[0] - ETA * sum(np.sign(one[0]) for one in gradients)]
    assert_equal(found, wanted, start)


# The noise-adaptive rate as their part.
def test_scion_with_noise_is_lanton_without_momentum():
    gradients = make_gradients(4, FEW)
    found, start = run(
        baselines.Scion,
        gradients,
        beta_1=0.0,
        constrained=False,
        hidden_scale=1.0,
        embedding_scale=300.0,
        vector_scale=1.0,
        noise=NOISE_PART,
    )
    wanted, _ = run(
        Lanton.paper,
        gradients,
        beta_1=0.0,
        step_scale="operator",
        weight_decay=None,
        **NOISE,
    )
    assert_equal(found, wanted, start)


def test_scion_starts_on_its_balls():
    variables = make_variables(FEW)
    before = to_arrays(variables)
    optimizer = make(baselines.Scion, variables)
    optimizer.initialize(variables)
    for layer, one, two in zip(
        optimizer.layers, before, to_arrays(variables), strict=True
    ):
        if layer.role == "vector":
            np.testing.assert_array_equal(one, two)
            continue
        for positions in EXPECTED[layer.path].matrices():
            m = two.ravel()[positions]
            if layer.role == "hidden":
                found = np.linalg.svd(m, compute_uv=False)
                wanted = 50.0 * math.sqrt(layer.d_out / layer.d_in)
            else:
                found, wanted = np.abs(m), 3000.0 / layer.d_in
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
    steps = Steps(optimizer, variables)
    steps(make_gradients(1, FEW)[0])
    with pytest.raises(ValueError, match="Received: iterations=1"):
        optimizer.initialize(variables)

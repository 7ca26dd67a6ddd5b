"""Gluon, and the Scion that it should equal."""

import pytest

from helpers.baselines import NOISE_PART
from helpers.baselines import assert_equal
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import FEW
from helpers.variables import make_gradients
from helpers.variables import make_variables
from keras_lanton import baselines

pytestmark = logic


@pytest.mark.parametrize("noise", [None, NOISE_PART])
def test_gluon_of_one_radius_is_unconstrained_scion(noise):
    gradients = make_gradients(3, FEW)
    found, start = run(
        baselines.Gluon, gradients, radii={".": 3.0}, noise=noise
    )
    scales = dict.fromkeys(
        ("hidden_scale", "embedding_scale", "vector_scale"), 3.0
    )
    wanted, _ = run(
        baselines.Scion,
        gradients,
        beta_1=0.95,
        constrained=False,
        noise=noise,
        **scales,
    )
    assert_equal(found, wanted, start)


def test_gluon_patterns_must_match():
    variables = make_variables(["dense/kernel"])
    optimizer = baselines.Gluon(radii={"attention": 1.0})
    with pytest.raises(ValueError, match="`radii` has a pattern"):
        optimizer.build(variables)

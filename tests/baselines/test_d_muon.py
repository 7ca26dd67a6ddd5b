"""DMuon, and the optimizers that it should equal."""

import inspect
import math

import keras
import pytest

from helpers.baselines import NOISE
from helpers.baselines import NOISE_PART
from helpers.baselines import assert_equal
from helpers.baselines import run
from helpers.tiers import logic
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import make_gradients
from keras_lanton import Lanton
from keras_lanton import baselines

pytestmark = logic


def test_d_muon_is_muon_of_another_scale():
    paths, gradients = ["dense/kernel"], make_gradients(4, ["dense/kernel"])
    found, start = run(baselines.DMuon, gradients, paths, weight_decay=None)
    muon, _ = run(baselines.Muon, gradients, paths)
    scale = math.sqrt(20) * 0.2 / math.sqrt(20 / 12)
    moved = [start[0] + scale * (muon[0] - start[0])]
    assert_equal(found, moved, start)


def test_d_muon_is_about_keras_muon_in_two_dimensions():
    """Whose epsilon is added to the norm, and whose biases are 1-D."""
    arguments = inspect.signature(keras.optimizers.Muon).parameters
    if "adam_weight_decay" not in arguments:
        pytest.skip("this Keras' Muon has other scales")
    paths = ["dense/kernel", "dense/bias"]
    gradients = make_gradients(4, paths)
    found, start = run(baselines.DMuon, gradients, paths, weight_decay=None)
    wanted, _ = run(
        KerasMuon,
        gradients,
        paths,
        adam_beta_1=0.9,
        adam_beta_2=0.95,
        epsilon=1e-8,
        weight_decay=None,
    )
    assert_equal(found, wanted, start, 1e-3)


class KerasMuon(keras.optimizers.Muon):
    """Takes no roles."""

    def assign_role(self, *args, **kwargs):
        """Not needed for two dimensions."""


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("preset", [Lanton, Lanton.paper])
def test_d_muon_with_noise_moves_hidden_layers_as_lanton(preset, nesterov):
    gradients = make_gradients(4, FEW)
    options = {
        "beta_1": 0.0,
        "nesterov": nesterov,
        "hidden_scale": 0.2,
        "weight_decay": 0.1,
    }
    found, start = run(baselines.DMuon, gradients, noise=NOISE_PART, **options)
    options |= {"ns_coefficients": "jordan", "step_scale": "rms_matched"}
    wanted, _ = run(preset, gradients, **NOISE, **options)
    hidden = [EXPECTED[path].role == "hidden" for path in FEW]
    for one, two, three, chosen in zip(
        found, wanted, start, hidden, strict=True
    ):
        if chosen:
            assert_equal([one], [two], [three])


@pytest.mark.parametrize("group_reduction", ["mean", "max"])
def test_lanton_is_d_muon_with_noise(group_reduction):
    """All roles; without momentum, which starts at G_1 here and at 0 there."""
    gradients = make_gradients(4, FEW)
    noise = {**NOISE, "group_reduction": group_reduction}
    options = {
        "beta_1": 0.0,
        "hidden_scale": 0.2,
        "ns_coefficients": "jordan",
        "nesterov": True,
        "adam_lr_ratio": 0.7,
        "adam_beta_1": 0.8,
        "adam_beta_2": 0.9,
        "epsilon": 1e-20,  # which the two add at different places
        "weight_decay": 0.1,
    }
    both = ["embedding", "vector"]
    found, start = run(
        Lanton,
        gradients,
        adamw_roles=both,
        step_scale="rms_matched",
        **noise,
        **options,
    )
    wanted, _ = run(baselines.DMuon, gradients, **noise, **options)
    assert_equal(found, wanted, start)

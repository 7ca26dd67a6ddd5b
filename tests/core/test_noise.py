"""Lines 7 to 9 of Algorithm 1 against their formulas."""

import warnings

import numpy as np
import pytest
from keras import ops

from helpers.tiers import exhaustive
from helpers.tiers import logic
from keras_lanton.core.noise import group_noise
from keras_lanton.core.noise import layer_ratio
from keras_lanton.core.noise import noise_factor
from keras_lanton.core.noise import update_noise

GROUPS = [np.array([1, 1, 1, 0, 0]) > 0, np.array([0, 0, 0, 1, 1]) > 0]


def tensor(*values: float) -> object:
    return ops.convert_to_tensor(np.array(values, "float32"))


def ratio(noise: object, alpha: float, reduction: str) -> np.ndarray:
    a = noise_factor(noise, alpha=alpha * group_noise(noise, groups=GROUPS))
    return ops.convert_to_numpy(
        layer_ratio(a, noise, groups=GROUPS, reduction=reduction)
    )


def test_noise_is_the_root_of_line_7() -> None:
    H = 0.9 * np.array([4.0, 0.0]) + 0.1 * np.array([9.0, 1.0])
    found = update_noise(tensor(2.0, 0.0), tensor(3.0, 1.0), beta_2=0.9)
    np.testing.assert_allclose(ops.convert_to_numpy(found) ** 2, H, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_noise_of_any_size_is_finite(scale: float) -> None:
    # H itself is not a float32 here.
    noise = update_noise(tensor(0.0, scale), tensor(scale, 0.0), beta_2=0.9)
    expected = np.sqrt([0.1, 0.9]) * scale
    np.testing.assert_allclose(ops.convert_to_numpy(noise), expected, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_huge_noise_of_one_group_is_nothing_to_the_other(
    reduction: str,
) -> None:
    # Its square over the other group's is no float32.
    found = ratio(tensor(1.0, 2.0, 3.0, 1e30, 2e30), 1.0, reduction)
    usual = ratio(tensor(1.0, 2.0, 3.0, 1.0, 2.0), 1.0, reduction)
    np.testing.assert_allclose(found, usual, rtol=1e-6)


@logic
def test_million_updates_do_not_drift() -> None:
    noise = tensor(1.0, 2.0)
    for _ in range(1000):
        noise = update_noise(noise, tensor(1.0, 2.0), beta_2=0.9)
    np.testing.assert_allclose(
        ops.convert_to_numpy(noise), [1.0, 2.0], rtol=1e-5
    )


def test_factor_is_line_8() -> None:
    found = noise_factor(tensor(0.0, 4.0), alpha=3.0)
    np.testing.assert_allclose(ops.convert_to_numpy(found), [1, 0.6], rtol=1e-6)


def test_group_noise_is_the_rms_of_the_measured() -> None:
    found = group_noise(tensor(3.0, 4.0, 0.0, 0.0, 0.0), groups=GROUPS)
    rms = np.sqrt(12.5)
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), [rms, rms, rms, 1, 1], rtol=1e-6
    )


def test_maximum_leaves_the_quietest_layer_of_each_group_at_one() -> None:
    found = ratio(tensor(1.0, 2.0, 3.0, 5.0, 5.0), 0.3, "max")
    np.testing.assert_allclose(found[[0, 3, 4]], 1, rtol=1e-6)
    assert 1 > found[1] > found[2] > 0


def test_mean_leaves_the_mean_rate_at_one() -> None:
    found = ratio(tensor(1.0, 2.0, 3.0, 5.0, 1.0), 0.3, "mean")
    assert found[:3].mean() == pytest.approx(1, abs=1e-6)
    assert found[3:].mean() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_unmeasured_layer_throttles_nobody(reduction: str) -> None:
    with_it = ratio(tensor(0.0, 2.0, 3.0, 1.0, 1.0), 0.3, reduction)
    assert with_it[0] == 1
    without = ratio(tensor(2.0, 2.0, 3.0, 1.0, 1.0), 0.3, reduction)
    if reduction == "max":
        np.testing.assert_allclose(with_it[1], 1)
    assert with_it[1] > with_it[2]
    assert np.all(np.isfinite(without))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_relative_alpha_does_not_see_the_size(size: float) -> None:
    found = ratio(tensor(*(size * np.array([1, 2, 3, 4, 5.0]))), 0.3, "max")
    plain = ratio(tensor(1, 2, 3, 4, 5), 0.3, "max")
    np.testing.assert_allclose(found, plain, rtol=1e-5)


@logic
@pytest.mark.parametrize("beta_2", [0.9, 0.999])
@pytest.mark.parametrize(
    "steps", [20_000, pytest.param(1_000_000, marks=exhaustive)]
)
def test_noise_does_not_drift(steps, beta_2):
    """Up to a million updates of sqrt(H) in float32, against H in float64.

    The step's own function, on NumPy arrays. Rounding does not add up: each
    update forgets a part of what the earlier ones lost.
    """
    layers = 4
    rng = np.random.default_rng(0)
    scales = np.array([1e-12, 1e-3, 1.0, 1e12])
    noise = np.zeros(layers, "float32")
    H = np.zeros(layers)
    worst = 0.0
    block = 1000
    for _ in range(steps // block):
        d = (scales * rng.lognormal(size=(block, layers))).astype("float32")
        for one in d:
            noise = in_numpy(noise, one, beta_2)
            H = beta_2 * H + (1.0 - beta_2) * one.astype("float64") ** 2
        worst = max(worst, np.abs(noise / np.sqrt(H) - 1.0).max())
    assert worst < DRIFT[beta_2]


# Relative, of sqrt(H). Observed in a million steps: 6.4e-7 and 7.3e-6, and
# nine tenths of the latter in the first 100,000.
DRIFT = {0.9: 2e-6, 0.999: 2e-5}


def in_numpy(noise, d, beta_2):
    """`update_noise` in float32, without a backend's cost of a call."""
    scale = np.maximum(noise, d)
    H = np.float32(beta_2) * (noise / scale) ** 2 + np.float32(1.0 - beta_2) * (
        (d / scale) ** 2
    )
    return scale * np.sqrt(H)


def test_noise_in_numpy_is_that_of_the_step():
    rng = np.random.default_rng(1)
    one, two = rng.lognormal(size=(2, 100)).astype("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ops.convert_to_numpy(
            update_noise(
                ops.convert_to_tensor(one),
                ops.convert_to_tensor(two),
                beta_2=0.9,
            )
        )
    # Observed 1e-7.
    np.testing.assert_allclose(found, in_numpy(one, two, 0.9), rtol=3e-7)

"""Clipping, and loss scaling by hand."""

import numpy as np
import pytest

from helpers import runs
from helpers.tiers import keep
from helpers.tiers import logic

INDEPENDENT = {
    "noise_reference": "independent_gradient",
    "gradient_accumulation_steps": 2,
    "noise_interval": 1,
}


def clipped(gradients, clipnorm=None, clipvalue=None, global_clipnorm=None):
    if clipvalue:
        return [np.clip(g, -clipvalue, clipvalue) for g in gradients]
    norms = [np.linalg.norm(g.astype("float64")) for g in gradients]
    if global_clipnorm:
        norms = [np.linalg.norm(norms)] * len(gradients)
    limit = clipnorm or global_clipnorm
    return [
        (g * min(1.0, limit / norm)).astype("float32")
        for g, norm in zip(gradients, norms, strict=True)
    ]


@pytest.mark.parametrize("clip", runs.CLIPS, ids=str)
@pytest.mark.parametrize(
    "reference", keep(["previous_gradient", "momentum"], ["previous_gradient"])
)
def test_clipping_comes_first(clip, reference):
    """Momentum and noise are those of clipped gradients."""
    gradients = runs.make_gradients(5)
    optimizer, found = runs.run(gradients, noise_reference=reference, **clip)
    by_hand = [clipped(one, **clip) for one in gradients]
    other, wanted = runs.run(by_hand, noise_reference=reference)
    # Observed 1e-6.
    runs.assert_close(found, wanted, 1e-5)
    runs.assert_same_noise(optimizer, other, 1e-5)
    _, free = runs.run(gradients, noise_reference=reference)
    pairs = zip(*map(runs.as_arrays, (found, free)), strict=True)
    assert max(np.abs(a - b).max() for a, b in pairs) > 1e-4


@logic
def test_independent_noise_is_measured_before_clipping():
    gradients = runs.make_gradients(4)
    free, _ = runs.run(gradients, **INDEPENDENT)
    clip, _ = runs.run(gradients, global_clipnorm=1.0, **INDEPENDENT)
    # Observed 0.
    runs.assert_same_noise(clip, free, 1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, runs.PRESETS["defaults"], {"clipnorm": 4.0}, INDEPENDENT],
    ids=["plain", "defaults", "clipnorm", "independent_gradient"],
)
def test_loss_scale_factor(options):
    gradients = runs.make_gradients(4)
    scaled = [[1024.0 * g for g in one] for one in gradients]
    optimizer, found = runs.run(scaled, loss_scale_factor=1024.0, **options)
    _, wanted = runs.run(gradients, **options)
    # A power of two: exact.
    runs.assert_equal(found, wanted)
    assert float(optimizer.scale_loss(2.0)) == 2048.0

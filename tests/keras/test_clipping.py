"""Clipping, and loss scaling by hand."""

import numpy as np
import pytest

from helpers.models import to_arrays
from helpers.runs import CLIPS
from helpers.runs import PRESETS
from helpers.runs import assert_close
from helpers.runs import assert_equal
from helpers.runs import make_gradients
from helpers.runs import run
from helpers.tiers import keep
from helpers.tiers import logic


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


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize(
    "reference", keep(["previous_gradient", "momentum"], ["previous_gradient"])
)
def test_clipping_comes_first(clip, reference):
    """Momentum and noise are those of clipped gradients."""
    gradients = make_gradients(5)
    optimizer, found = run(gradients, noise_reference=reference, **clip)
    by_hand = [clipped(one, **clip) for one in gradients]
    other, wanted = run(by_hand, noise_reference=reference)
    _, free = run(gradients, noise_reference=reference)
    # Observed 1e-6.
    assert_close(to_arrays(found), to_arrays(wanted), 1e-5)
    difference = max(
        np.abs(a - b).max()
        for a, b in zip(to_arrays(found), to_arrays(free), strict=True)
    )
    assert difference > 1e-4  # so the option did something
    for path, report in optimizer.noise_report().items():
        np.testing.assert_allclose(
            report["noise"], other.noise_report()[path]["noise"], rtol=1e-5
        )


@logic
def test_independent_noise_is_measured_before_clipping():
    gradients = make_gradients(4)
    options = {
        "noise_reference": "independent_gradient",
        "gradient_accumulation_steps": 2,
        "noise_interval": 1,
    }
    free, _ = run(gradients, **options)
    clip, _ = run(gradients, global_clipnorm=1.0, **options)
    for path, report in clip.noise_report().items():
        # Observed 0.
        np.testing.assert_allclose(
            report["noise"], free.noise_report()[path]["noise"], rtol=1e-6
        )


@pytest.mark.parametrize(
    "options",
    [
        {},
        PRESETS["defaults"],
        {"clipnorm": 4.0},
        {
            "noise_reference": "independent_gradient",
            "gradient_accumulation_steps": 2,
            "noise_interval": 1,
        },
    ],
    ids=["plain", "defaults", "clipnorm", "independent_gradient"],
)
def test_loss_scale_factor(options):
    gradients = make_gradients(4)
    scaled = [[1024.0 * g for g in one] for one in gradients]
    optimizer, found = run(scaled, loss_scale_factor=1024.0, **options)
    _, wanted = run(gradients, **options)
    # A power of two: exact.
    assert_equal(to_arrays(found), to_arrays(wanted))
    assert float(optimizer.scale_loss(2.0)) == 2048.0

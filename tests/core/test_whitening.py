"""Noise of entries at the ends; the oracle has it at usual sizes."""

import numpy as np
import pytest
from keras import ops

from helpers.norms import EXACT
from helpers.norms import lmo
from keras_lanton.backends import backend
from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Sign
from keras_lanton.core.whitening import EntryNoise
from keras_lanton.core.whitening import whiten

SHAPE = (2, 4, 6)


def factored():
    """Noise of rank one: its rows and columns determine it."""
    rng = np.random.default_rng(1)
    rows, columns = (
        rng.uniform(0.5, 2, (2, 4, 1)),
        rng.uniform(0.5, 2, (2, 1, 6)),
    )
    return (rows * columns).astype("float32")


def noise_of(deviations):
    rows, columns = backend.line_rms(ops.convert_to_tensor(deviations))
    return EntryNoise(
        rows=rows,
        columns=columns,
        unit=ops.ones(len(deviations)),
        momentum_share=0.5,
    )


def normals(scale=1.0):
    rng = np.random.default_rng(2)
    return (scale * rng.standard_normal(SHAPE)).astype("float32")


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_signs_shrink_where_the_momentum_is_noise(scale):
    M, V = normals(), factored()
    noise = noise_of(scale * V)
    found = noise.shrunk_signs(ops.convert_to_tensor(np.float32(scale) * M))
    wanted = M / np.sqrt(M**2 + (0.5 * V) ** 2)
    np.testing.assert_allclose(ops.convert_to_numpy(found), wanted, atol=1e-5)


def test_whitening_of_half_precision():
    """Their norm is 1 to rounding in float32: sums are not in bfloat16."""
    M, noise = normals(1e-4), noise_of(factored()).of_each()
    given = ops.cast(ops.convert_to_tensor(M), "bfloat16")
    found, wanted = (
        ops.convert_to_numpy(whiten(x, "float32", noise=noise))
        for x in (given, ops.cast(given, "float32"))
    )
    np.testing.assert_allclose(found, wanted, rtol=2.0**-7)
    norms = np.linalg.norm(found, axis=(1, 2))
    np.testing.assert_allclose(norms, 1.0, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_whitened_entries_are_in_units_of_their_noise(scale):
    """Their sum of squares is 1, which Newton-Schulz relies on."""
    M, V = normals(1e-4), factored()
    given = ops.convert_to_tensor(np.float32(scale) * M)
    found = whiten(given, "float32", noise=noise_of(scale * V).of_each())
    wanted = M / V
    wanted /= np.linalg.norm(wanted, axis=(1, 2), keepdims=True)
    found = ops.convert_to_numpy(found)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("norm", [EXACT, Sign(), RMS()])
def test_what_was_not_measured_has_the_plain_lmo(norm):
    M = normals()
    noise = noise_of(np.zeros(SHAPE, "float32"))
    found = norm.lmo(ops.convert_to_tensor(M), noise)
    # Observed 2e-7.
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), lmo(norm, M), atol=1e-5
    )


@pytest.mark.parametrize("norm", [EXACT, Sign()])
@pytest.mark.parametrize("quiet", ["row", "column", "all"])
def test_lines_without_noise_stay_finite(norm, quiet):
    M, V = normals(), factored()
    if quiet != "column":
        V[:, 1] = 0.0
    if quiet != "row":
        V[:, :, 2] = 0.0
    if quiet == "all":
        V[:] = 0.0
    M[0, 1] = 0.0
    found = ops.convert_to_numpy(
        norm.lmo(ops.convert_to_tensor(M), noise_of(V))
    )
    assert np.isfinite(found).all()
    if isinstance(norm, Sign):
        assert np.abs(found).max() <= 1 + 1e-6

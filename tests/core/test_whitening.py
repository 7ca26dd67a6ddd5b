"""Noise of entries, factored by rows and columns."""

import numpy as np
import pytest
from keras import ops

from helpers.norms import EXACT
from helpers.norms import lmo
from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import Sign
from keras_lanton.core.whitening import EntryNoise
from keras_lanton.core.whitening import line_rms
from keras_lanton.core.whitening import whiten

SHAPE = (2, 4, 6)


def factored(*, scale: float = 1.0) -> np.ndarray:
    """Noise of rank one: its rows and columns determine it."""
    rng = np.random.default_rng(1)
    rows, columns = (
        rng.uniform(0.5, 2, (2, 4, 1)),
        rng.uniform(0.5, 2, (2, 1, 6)),
    )
    return (scale * rows * columns).astype("float32")


def noise_of(deviations: np.ndarray) -> EntryNoise:
    rows, columns = line_rms(ops.convert_to_tensor(deviations))
    return EntryNoise(
        rows=rows,
        columns=columns,
        unit=ops.ones(len(deviations)),
        momentum_share=0.5,
    )


def normals(scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(2)
    return (scale * rng.standard_normal(SHAPE)).astype("float32")


def shrunk(noise: EntryNoise, M: np.ndarray) -> np.ndarray:
    return ops.convert_to_numpy(noise.shrunk_signs(ops.convert_to_tensor(M)))


def whitened(noise: EntryNoise, M: np.ndarray) -> np.ndarray:
    """Of Frobenius norm 1: the scale is left open."""
    found = ops.convert_to_numpy(
        whiten(ops.convert_to_tensor(M), *noise.of_each())
    )
    found = found.astype("float64")
    return found / np.linalg.norm(found, axis=(1, 2), keepdims=True)


def test_lines() -> None:
    D = normals()
    rows, columns = line_rms(ops.convert_to_tensor(D))
    np.testing.assert_allclose(rows, np.sqrt(np.mean(D**2, 2)), rtol=1e-6)
    np.testing.assert_allclose(columns, np.sqrt(np.mean(D**2, 1)), rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_signs_shrink_where_the_momentum_is_noise(scale: float) -> None:
    M, V = normals(), factored()
    found = shrunk(noise_of(scale * V), np.float32(scale) * M)
    wanted = M / np.sqrt(M**2 + (0.5 * V) ** 2)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_whitened_entries_are_in_units_of_their_noise(scale: float) -> None:
    M, V = normals(1e-4), factored()
    found = whitened(noise_of(scale * V), np.float32(scale) * M)
    wanted = M / V
    wanted /= np.linalg.norm(wanted, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_without_noise_to_speak_of_the_lmo_is_the_plain_one() -> None:
    M = normals()
    noise = noise_of(factored(scale=1e-5))
    np.testing.assert_allclose(shrunk(noise, M), np.sign(M), atol=1e-5)
    plain = M / np.linalg.norm(M, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(whitened(noise, M), plain, atol=1e-5)


@pytest.mark.parametrize("norm", [EXACT, Sign(), RMS()])
def test_what_was_not_measured_has_the_plain_lmo(norm: Norm) -> None:
    M = normals()
    noise = noise_of(np.zeros(SHAPE, "float32"))
    found = norm.lmo(ops.convert_to_tensor(M), noise)
    # Observed 2e-7.
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), lmo(norm, M), atol=1e-5
    )


@pytest.mark.parametrize("norm", [EXACT, Sign()])
@pytest.mark.parametrize("quiet", ["row", "column", "all"])
def test_lines_without_noise_stay_finite(norm: Norm, quiet: str) -> None:
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

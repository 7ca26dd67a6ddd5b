"""Steps and dual norms of the roles."""

import numpy as np
import pytest

from helpers.norms import EXACT
from helpers.norms import JORDAN
from helpers.norms import dual
from helpers.norms import lmo
from helpers.norms import matrices
from helpers.tiers import keep
from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import ColNorm
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import RowNorm
from keras_lanton.core.norms import Sign

SHAPES = [(6, 6), (4, 9), (9, 4), (1, 5), (5, 1), (1, 1)]


@pytest.mark.parametrize("shape", keep(SHAPES, [(4, 9), (9, 4)]))
@pytest.mark.parametrize("norm", [EXACT, RMS(), ColNorm(), RowNorm()])
def test_step_and_dual_norm_belong_together(norm: Norm, shape: tuple) -> None:
    # <G, lmo(G)> = dual(G) defines a dual norm, with the factors or without.
    G = matrices(shape)
    product = np.sum(G * lmo(norm, G), axis=(1, 2))
    np.testing.assert_allclose(product, dual(norm, G), rtol=2e-5)
    assert norm.lmo_scale(*shape) == norm.dual_scale(*shape)


@pytest.mark.parametrize("shape", keep(SHAPES, [(4, 9), (9, 4)]))
@pytest.mark.parametrize("norm", [EXACT, Sign(), RMS(), ColNorm(), RowNorm()])
def test_transposed_norm_is_the_norm_of_transposed_matrices(
    norm: Norm, shape: tuple
) -> None:
    G = matrices(shape)
    G_T = np.swapaxes(G, 1, 2)
    assert norm.transposed is not None
    np.testing.assert_allclose(
        np.swapaxes(lmo(norm.transposed, G_T), 1, 2), lmo(norm, G), atol=2e-5
    )
    np.testing.assert_allclose(
        dual(norm.transposed, G_T), dual(norm, G), rtol=1e-5
    )


@pytest.mark.parametrize("norm", [EXACT, Sign(), RMS(), ColNorm(), RowNorm()])
def test_size_of_a_step_is_told(norm: Norm) -> None:
    found = np.sqrt(np.mean(lmo(norm, matrices((4, 9))) ** 2, axis=(1, 2)))
    np.testing.assert_allclose(found, norm.lmo_rms(4, 9), rtol=1e-5)


@pytest.mark.parametrize("shape", keep(SHAPES, [(4, 9), (9, 4)]))
def test_steps_have_norm_one(shape: tuple) -> None:
    d_in, d_out = shape
    B = matrices(shape)

    def step(norm: Norm) -> np.ndarray:
        return norm.lmo_scale(d_in, d_out) * lmo(norm, B)

    spectral = np.linalg.norm(step(EXACT), 2, axis=(1, 2))
    np.testing.assert_allclose(spectral * (d_in / d_out) ** 0.5, 1, rtol=1e-5)
    rms = np.sqrt(np.mean(step(RMS()) ** 2, axis=(1, 2)))
    np.testing.assert_allclose(rms, 1, rtol=1e-5)
    np.testing.assert_allclose(np.abs(step(Sign())), 1 / d_in, rtol=1e-6)
    rows = np.sqrt(np.mean(step(ColNorm()) ** 2, axis=2))
    np.testing.assert_allclose(d_in * rows, 1, rtol=1e-5)
    columns = np.linalg.norm(step(RowNorm()), axis=1)
    np.testing.assert_allclose(d_in**0.5 * columns, 1, rtol=1e-5)


def test_sign_is_pinned_to_the_printed_forms() -> None:
    # The printed dual, max over features of sums over the vocabulary, is not
    # the dual of the printed step; both are as the paper has them.
    D = matrices((4, 9))
    np.testing.assert_allclose(
        dual(Sign(), D), np.abs(D).sum(axis=2).max(axis=1), rtol=1e-6
    )


@pytest.mark.parametrize("norm", [JORDAN, EXACT, Sign(), RMS()])
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_tiny_and_huge_entries(norm: Norm, scale: float) -> None:
    small, large = matrices((5, 8)), matrices((5, 8), scale)
    np.testing.assert_allclose(lmo(norm, large), lmo(norm, small), atol=2e-4)
    np.testing.assert_allclose(
        dual(norm, large), scale * dual(norm, small), rtol=1e-4
    )


@pytest.mark.parametrize("norm", [JORDAN, EXACT, Sign(), RMS()])
def test_zero_gives_zero(norm: Norm) -> None:
    zero = np.zeros((2, 3, 4), "float32")
    np.testing.assert_array_equal(lmo(norm, zero), 0.0)
    np.testing.assert_array_equal(dual(norm, zero), 0.0)

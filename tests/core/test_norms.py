"""Steps and dual norms of the roles; the oracles have their values."""

import numpy as np
import pytest

from helpers.norms import EXACT
from helpers.norms import JORDAN
from helpers.norms import dual
from helpers.norms import lmo
from helpers.norms import matrices
from helpers.tiers import keep
from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Sign

SHAPES = [(6, 6), (4, 9), (9, 4), (1, 5), (5, 1), (1, 1)]


@pytest.mark.parametrize("shape", keep(SHAPES, [(4, 9), (9, 4)]))
@pytest.mark.parametrize("norm", [EXACT, RMS(), Sign()])
def test_step_and_dual_norm_belong_together(norm, shape):
    # <G, lmo(G)> = dual(G) defines a dual norm, with the factors or without.
    if isinstance(norm, Sign) and shape[0] > 1:
        pytest.skip("as printed it is so for vectors alone")
    G = matrices(shape)
    product = np.sum(G * lmo(norm, G), axis=(1, 2))
    np.testing.assert_allclose(product, dual(norm, G), rtol=2e-5)
    assert norm.lmo_scale(*shape) == norm.dual_scale(*shape)


@pytest.mark.parametrize("shape", keep(SHAPES, [(4, 9), (9, 4)]))
@pytest.mark.parametrize("norm", [EXACT, Sign(), RMS()])
def test_transposed_norm_is_the_norm_of_transposed_matrices(norm, shape):
    G = matrices(shape)
    G_T = np.swapaxes(G, 1, 2)
    assert norm.transposed is not None
    np.testing.assert_allclose(
        np.swapaxes(lmo(norm.transposed, G_T), 1, 2), lmo(norm, G), atol=2e-5
    )
    np.testing.assert_allclose(
        dual(norm.transposed, G_T), dual(norm, G), rtol=1e-5
    )


@pytest.mark.parametrize("norm", [EXACT, Sign(), RMS()])
def test_size_of_a_step_is_told(norm):
    found = np.sqrt(np.mean(lmo(norm, matrices((4, 9))) ** 2, axis=(1, 2)))
    np.testing.assert_allclose(found, norm.lmo_rms(4, 9), rtol=1e-5)


@pytest.mark.parametrize("norm", [JORDAN, EXACT, Sign(), RMS()])
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_tiny_and_huge_entries(norm, scale):
    small, large = matrices((5, 8)), matrices((5, 8), scale)
    np.testing.assert_allclose(lmo(norm, large), lmo(norm, small), atol=2e-4)
    np.testing.assert_allclose(
        dual(norm, large), scale * dual(norm, small), rtol=1e-4
    )

"""Products in blocks are the products."""

import numpy as np
import pytest
from keras import ops

from helpers.tiers import keep
from keras_lanton.coefficients import coefficient_rows
from keras_lanton.fast.newton_schulz import gram_newton_schulz
from keras_lanton.fast.newton_schulz import standard_newton_schulz
from keras_lanton.fast.products import BlockProducts


@pytest.mark.parametrize("blocks", keep([2, 3], [2]))
@pytest.mark.parametrize("form", [standard_newton_schulz, gram_newton_schulz])
@pytest.mark.parametrize("shape", [(3, 7, 7), (12, 5), (2, 6, 9)])
def test_blocks_give_the_same(shape: tuple, form: object, blocks: int) -> None:
    X = np.random.default_rng(0).standard_normal(shape, "float32")
    X, rows = ops.convert_to_tensor(X), coefficient_rows("jordan", 5)
    found = form(X, rows, products=BlockProducts(blocks))
    np.testing.assert_allclose(
        ops.convert_to_numpy(found),
        ops.convert_to_numpy(standard_newton_schulz(X, rows)),
        atol=1e-4,
    )

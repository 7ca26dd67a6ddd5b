"""The plain iteration is that of the fast forms."""

import numpy as np
import pytest
from keras import ops

from keras_lanton.coefficients import coefficient_rows
from keras_lanton.core.newton_schulz import newton_schulz
from keras_lanton.fast.dispatch import cheapest_form

# Also of users' own rows, in which a number may be 0.
ROWS = {
    "no a": ((0.0, 1.5, 0.0), (1.5, -0.5, 0.0)),
    "no b": ((1.5, 0.0, -0.5),),
}


@pytest.mark.parametrize("coefficients", ["cubic", "jordan", *ROWS])
@pytest.mark.parametrize("shape", [(2, 9, 9), (12, 5), (3, 4, 20)])
def test_every_fast_form_gives_the_same(
    shape: tuple[int, ...], coefficients: str
) -> None:
    X = np.random.default_rng(0).standard_normal(shape, "float32")
    X = ops.convert_to_tensor(X)
    rows = coefficient_rows(ROWS.get(coefficients, coefficients), 5)
    fast = cheapest_form(*shape[-2:], rows=rows, dtype="float32")
    np.testing.assert_allclose(
        ops.convert_to_numpy(newton_schulz(X, rows)),
        ops.convert_to_numpy(fast(X)),
        atol=1e-4,
    )

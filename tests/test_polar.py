import numpy as np
import pytest
from keras import ops

from keras_lanton.polar import COEFFICIENTS
from keras_lanton.polar import coefficient_rows
from keras_lanton.polar import newton_schulz

EXACT = ((1.875, -1.25, 0.375),)
# Singular values of the result where the input's are at least 5e-3 of the
# Frobenius norm: the polynomials' own range, with 1 % headroom.
BANDS = {
    "jordan": (0.675, 1.165),
    "you": (0.97, 1.12),
    "polar_express": (0.84, 1.135),
}


def polar(X: np.ndarray, rows: tuple) -> np.ndarray:
    return ops.convert_to_numpy(newton_schulz(ops.convert_to_tensor(X), rows))


def plain_newton_schulz(X: np.ndarray, rows: tuple) -> np.ndarray:
    """Float64, one matrix, no transposition."""
    X = X.astype("float64") / np.linalg.norm(X)
    for a, b, c in rows:
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 7), (7, 1)])
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_newton_schulz_against_numpy(name: str, shape: tuple) -> None:
    X = np.random.default_rng(0).standard_normal((3, *shape), "float32")
    rows = coefficient_rows(name, 5)
    expected = np.stack([plain_newton_schulz(x, rows) for x in X])
    # Observed maximum 2e-5, on tall matrices of the set with slope 800.
    np.testing.assert_allclose(polar(X, rows), expected, atol=1e-4)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_singular_values_are_in_the_band_of_the_set(name: str) -> None:
    X = np.random.default_rng(1).standard_normal((2, 24, 64), "float32")
    values = np.linalg.svd(polar(X, coefficient_rows(name, 5)))[1]
    low, high = BANDS[name]
    assert low <= values.min() <= values.max() <= high


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_rank_one_points_downhill(name: str) -> None:
    # A set paired with the wrong normalization points uphill here.
    rng = np.random.default_rng(2)
    X = np.outer(rng.standard_normal(16), rng.standard_normal(9))[None]
    X = X.astype("float32")
    cosine = np.sum(X * polar(X, coefficient_rows(name, 5)))
    assert cosine / np.linalg.norm(X) == pytest.approx(1.0, abs=0.35)


def test_plain_rows_converge_to_the_polar_factor() -> None:
    X = np.random.default_rng(3).standard_normal((2, 6, 9), "float32")
    U, _, V = np.linalg.svd(X.astype("float64"), full_matrices=False)
    rows = coefficient_rows(EXACT, 20)
    np.testing.assert_allclose(polar(X, rows), U @ V, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-8, 1.0, 1e20, 1e30])
def test_any_scale_gives_the_same_result(scale: float) -> None:
    # A norm with an epsilon, or squared first, kills or overflows these.
    X = np.random.default_rng(4).standard_normal((1, 6, 9), "float32")
    rows = coefficient_rows("jordan", 5)
    scaled = (X.astype("float64") * scale).astype("float32")
    np.testing.assert_allclose(polar(scaled, rows), polar(X, rows), atol=2e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_computed_in_float32(dtype: str) -> None:
    X = ops.cast(np.random.default_rng(5).standard_normal((1, 6, 9)), dtype)
    rows = coefficient_rows("jordan", 5)
    result = ops.convert_to_numpy(newton_schulz(X, rows))
    wide = polar(ops.convert_to_numpy(ops.cast(X, "float32")), rows)
    assert result.dtype == "float32"
    np.testing.assert_array_equal(result, wide)


def test_zero_stays_zero_and_the_input_is_left_alone() -> None:
    rows = coefficient_rows("jordan", 5)
    np.testing.assert_array_equal(polar(np.zeros((1, 3, 4), "f"), rows), 0.0)
    X = ops.convert_to_tensor(np.ones((1, 3, 4), "float32"))
    newton_schulz(X, rows)
    np.testing.assert_array_equal(ops.convert_to_numpy(X), 1.0)


def test_rows_repeat_the_last_and_named_sets_are_cut() -> None:
    assert coefficient_rows("jordan", 3) == COEFFICIENTS["jordan"] * 3
    assert coefficient_rows("you", 3) == COEFFICIENTS["you"][:3]
    assert coefficient_rows("you", 7)[5:] == COEFFICIENTS["you"][-1:] * 2
    assert coefficient_rows([(1, 2, 3)], 2) == ((1.0, 2.0, 3.0),) * 2


@pytest.mark.parametrize(
    "rows",
    ["jordon", [], [(1, 2)], 3, [(1, 2, float("nan"))], [("a", "b", "c")]],
)
def test_wrong_coefficients_are_refused(rows: object) -> None:
    with pytest.raises(ValueError, match="Received: ns_coefficients="):
        coefficient_rows(rows, 5)


def test_more_rows_than_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="ns_steps=1"):
        coefficient_rows([(1, 2, 3), (1, 2, 3)], 1)

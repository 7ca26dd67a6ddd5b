"""Which form of Newton-Schulz is taken where."""

import functools
import math

import numpy as np
import pytest
from keras import ops

from keras_lanton import use_gpu_kernels
from keras_lanton.orthogonalization import dispatch
from keras_lanton.orthogonalization.newton_schulz import coefficient_rows
from keras_lanton.orthogonalization.newton_schulz import gram_newton_schulz
from keras_lanton.orthogonalization.newton_schulz import newton_schulz
from keras_lanton.orthogonalization.symmetric_products import BlockProducts
from keras_lanton.orthogonalization.symmetric_products import Products
from keras_lanton.orthogonalization.symmetric_products import add_products


def form_of(
    d_in: int, d_out: int, dtype: str = "auto"
) -> functools.partial[object]:
    rows = coefficient_rows("jordan", 5)
    return dispatch.cheapest_form(d_in, d_out, rows=rows, dtype=dtype)


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5])
@pytest.mark.parametrize(("rows", "restarts"), [(5, 0), (5, 2), (8, 1)])
def test_crossover(share: float, rows: int, restarts: int) -> None:
    r = dispatch.crossover(share)
    both = 2 * share * r + 2 * r  # X X^T, and a product with X
    standard = rows * (both + 2 * share)
    # A row squares R, and multiplies Q and twice R, but for the Q of the
    # first row after a start and the R of the last.
    gram = (restarts + 1) * both + share * 2 * (4 * rows - 3 * (restarts + 1))
    assert standard == pytest.approx(gram)


def test_gram_form_where_it_is_cheaper() -> None:
    assert form_of(32, 40).func is newton_schulz
    assert form_of(32, 64).func is gram_newton_schulz
    assert form_of(64, 32).func is gram_newton_schulz
    assert form_of(512, 512).func is newton_schulz
    # Three quarters of a symmetric product: from a lower aspect ratio on.
    assert form_of(512, 700).func is gram_newton_schulz


def is_plain(products: Products) -> bool:
    return type(products) is Products and products.symmetric is None


def test_blocks_and_single_matrices_on_a_cpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch.backend, "device", lambda: "cpu")
    assert isinstance(dispatch.products(1024), BlockProducts)
    assert is_plain(dispatch.products(64))
    assert dispatch.one_by_one(ops.abs, 1024) is not ops.abs
    assert dispatch.one_by_one(ops.abs, 16) is ops.abs
    monkeypatch.setattr(dispatch.backend, "device", lambda: "gpu")
    assert is_plain(dispatch.products(1024))
    assert dispatch.one_by_one(ops.abs, 1024) is ops.abs


def test_small_stacks_only_where_a_cpu_is_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(dispatch.backend, "device", lambda d=device: d)
        for eager in (True, False):
            monkeypatch.setattr(dispatch.backend, "EAGER", eager)
            small = dispatch.useful_bytes(1024) < math.inf
            assert small == (device == "cpu" and eager)
            assert dispatch.useful_bytes(16) == math.inf


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", "float32"), ("gpu", "float16"), ("tpu", "bfloat16")],
)
def test_dtype_and_restarts_by_device(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: str
) -> None:
    monkeypatch.setattr(dispatch.backend, "device", lambda: device)
    assert dispatch.working_dtype("auto") == dtype
    assert dispatch.working_dtype("bfloat16") == "bfloat16"
    restarts = form_of(64, 256).keywords["restarts"]
    assert bool(restarts) == (device != "cpu")
    # Float32 on a GPU may be rounded to TensorFloat-32.
    for rounded in (True, False):
        monkeypatch.setattr(
            dispatch.backend, "tensorfloat32", lambda rounded=rounded: rounded
        )
        restarts = form_of(64, 256, "float32").keywords["restarts"]
        assert bool(restarts) == (device != "cpu" and rounded)


@pytest.mark.parametrize("enabled", [1, None, "yes"])
def test_gpu_kernels_are_on_or_off(enabled: object) -> None:
    with pytest.raises(ValueError, match="Received: enabled="):
        use_gpu_kernels(enabled)


def test_gpu_kernels_where_there_are_some() -> None:
    if dispatch.backend.gpu_product is None:
        with pytest.raises(ValueError, match="Received: KERAS_BACKEND="):
            use_gpu_kernels()
        return
    use_gpu_kernels()
    try:
        assert dispatch.backends.uses_gpu_kernels()
        # Nothing changes on a CPU.
        if dispatch.backend.device() == "cpu":
            assert is_plain(dispatch.products(64))
    finally:
        use_gpu_kernels(False)
    assert not dispatch.backends.uses_gpu_kernels()


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("count", [1, 2])
def test_the_backend_adds_products_as_the_reference(
    batch: tuple[int, ...], count: int
) -> None:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> object:
        draws = random.standard_normal((*batch, *shape)).astype("float32")
        return ops.convert_to_tensor(draws)

    C, factors = draw(5, 7), [(draw(5, 4), draw(4, 7)) for _ in range(count)]
    found, wanted = (
        ops.convert_to_numpy(add(C, factors, beta=-2.5, alpha=1.5))
        for add in (dispatch.backend.add_products, add_products)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)

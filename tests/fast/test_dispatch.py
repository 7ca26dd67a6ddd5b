"""Which form of Newton-Schulz is taken where."""

import keras
import pytest

from keras_lanton import use_gpu_kernels
from keras_lanton.backends import backend
from keras_lanton.coefficients import coefficient_rows
from keras_lanton.fast import dispatch
from keras_lanton.fast import gpu_kernels
from keras_lanton.fast.newton_schulz import gram_newton_schulz
from keras_lanton.fast.newton_schulz import standard_newton_schulz
from keras_lanton.fast.products import BlockProducts
from keras_lanton.fast.products import Products


def form_of(d_in, d_out, dtype="auto"):
    rows = coefficient_rows("jordan", 5)
    return dispatch.cheapest_form(d_in, d_out, rows=rows, dtype=dtype)


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5])
@pytest.mark.parametrize(("rows", "restarts"), [(5, 0), (5, 2), (8, 1)])
def test_crossover(share, rows, restarts):
    r = dispatch.crossover(share)
    both = 2 * share * r + 2 * r  # X X^T, and a product with X
    standard = rows * (both + 2 * share)
    # A row squares R, and multiplies Q and twice R, but for the Q of the
    # first row after a start and the R of the last.
    gram = (restarts + 1) * both + share * 2 * (4 * rows - 3 * (restarts + 1))
    assert standard == pytest.approx(gram)


@pytest.mark.parametrize("faster", [True, False])
def test_half_precision_where_the_cpu_has_it(faster, monkeypatch):
    monkeypatch.setattr(dispatch.backend, "half_is_faster", lambda: faster)
    large = "bfloat16" if faster else "float32"
    assert dispatch.working_dtype("auto", 256) == large
    assert dispatch.working_dtype("auto", 255) == "float32"
    assert dispatch.working_dtype("float32", 1024) == "float32"
    assert form_of(256, 1024).keywords["dtype"] == large
    blocks = isinstance(form_of(512, 512).keywords["products"], BlockProducts)
    assert blocks == (not faster)


def test_the_probe_says_yes_or_no():
    found = backend.half_is_faster()
    assert isinstance(found, bool)
    if keras.backend.backend() != "torch":
        assert not found  # XLA: measured


def test_gram_form_where_it_is_cheaper(monkeypatch):
    monkeypatch.setattr(dispatch.backend, "half_is_faster", lambda: False)
    assert form_of(32, 40).func is standard_newton_schulz
    assert form_of(32, 64).func is gram_newton_schulz
    assert form_of(64, 32).func is gram_newton_schulz
    assert form_of(512, 512).func is standard_newton_schulz
    # Three quarters of a symmetric product: from a lower aspect ratio on.
    assert form_of(512, 700).func is gram_newton_schulz


def is_plain(products):
    return type(products) is Products and products.symmetric is None


def test_blocks_on_a_cpu_only(monkeypatch):
    monkeypatch.setattr(dispatch.backend, "device", lambda: "cpu")
    assert isinstance(dispatch.products(1024), BlockProducts)
    assert is_plain(dispatch.products(64))
    monkeypatch.setattr(dispatch.backend, "device", lambda: "gpu")
    assert is_plain(dispatch.products(1024))


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", "float32"), ("gpu", "float16"), ("tpu", "bfloat16")],
)
def test_dtype_and_restarts_by_device(monkeypatch, device, dtype):
    monkeypatch.setattr(dispatch.backend, "device", lambda: device)
    assert dispatch.working_dtype("auto", 64) == dtype
    assert dispatch.working_dtype("bfloat16", 64) == "bfloat16"
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
def test_gpu_kernels_are_on_or_off(enabled):
    with pytest.raises(ValueError, match="Received: enabled="):
        use_gpu_kernels(enabled)


def test_gpu_kernels_where_there_are_some():
    if keras.backend.backend() != "torch":
        with pytest.raises(ValueError, match="Received: KERAS_BACKEND="):
            use_gpu_kernels()
        return
    use_gpu_kernels()
    try:
        assert gpu_kernels.uses_gpu_kernels()
        # Nothing changes on a CPU.
        if dispatch.backend.device() == "cpu":
            assert is_plain(dispatch.products(64))
    finally:
        use_gpu_kernels(False)
    assert not gpu_kernels.uses_gpu_kernels()

"""One backend per process: KERAS_BACKEND, JAX where it is not set."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis  # noqa: E402
import keras  # noqa: E402
import pytest  # noqa: E402

from keras_lanton.backends import backend  # noqa: E402
from keras_lanton.fast import dispatch  # noqa: E402
from keras_lanton.fast import spectral  # noqa: E402

# Timings of a first call hold a compilation.
hypothesis.settings.register_profile(
    "keras_lanton", deadline=None, max_examples=40, derandomize=True
)
hypothesis.settings.load_profile("keras_lanton")
ON_GPU = backend.device() == "gpu"
ON_TORCH = keras.backend.backend() == "torch"
# Marks of tests that `--all` alone runs; the rest runs in `make test`.
LEFT_OUT = ["exhaustive"] if ON_TORCH else ["exhaustive", "logic"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all`, for `make test-all`."""
    parser.addoption(
        "--all",
        action="store_true",
        help="also what `make test` leaves out on this backend",
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselects what is not of this backend's part of `make test`."""
    if config.getoption("--all"):
        return
    kept, left = [], []
    for item in items:
        is_left = any(item.get_closest_marker(mark) for mark in LEFT_OUT)
        (left if is_left else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every test, whatever ran before it."""
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The references are exact: a GPU calculates as a CPU does here."""
    if ON_GPU:
        monkeypatch.setattr(
            spectral, "fastest_nuclear_norm", spectral.lanczos_nuclear_norm
        )
        monkeypatch.setattr(
            dispatch,
            "working_dtype",
            lambda dtype, side: "float32" if dtype == "auto" else dtype,
        )


def pytest_report_header() -> str:
    """What was tested, for the log."""
    backend = keras.backend.backend()
    return f"keras {keras.__version__}, backend {backend}"

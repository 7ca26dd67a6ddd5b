"""One backend per process: KERAS_BACKEND, JAX where it is not set."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis  # noqa: E402
import keras  # noqa: E402
import pytest  # noqa: E402

# Timings of a first call hold a compilation.
hypothesis.settings.register_profile(
    "keras_lanton", deadline=None, max_examples=40, derandomize=True
)
hypothesis.settings.load_profile("keras_lanton")


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every test, whatever ran before it."""
    keras.utils.set_random_seed(0)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where steps are compiled, tests that compile a lot are slow ones."""
    if keras.backend.backend() == "torch":
        return
    for item in items:
        if item.get_closest_marker("compiles_a_lot"):
            item.add_marker("slow")


def pytest_report_header() -> str:
    """What was tested, for the log."""
    backend = keras.backend.backend()
    return f"keras {keras.__version__}, backend {backend}"

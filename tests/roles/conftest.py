"""What the tests of roles share."""

import warnings

import keras
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def no_warnings():
    """Every warning that a test does not expect is a failure."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*guesses.*")
        yield


@pytest.fixture(autouse=True, scope="module")
def cheap_initializers():
    """Roles do not depend on values: no random numbers to compile for."""
    with pytest.MonkeyPatch.context() as patch:
        for initializer in (
            keras.initializers.VarianceScaling,
            keras.initializers.RandomUniform,
            keras.initializers.RandomNormal,
            keras.initializers.TruncatedNormal,
            keras.initializers.Orthogonal,
        ):
            patch.setattr(initializer, "__call__", ones)
        yield


def ones(initializer, shape, dtype=None, **kwargs):
    return keras.ops.convert_to_tensor(np.ones(shape), dtype or "float32")

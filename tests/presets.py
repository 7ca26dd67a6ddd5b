"""The settings of `Lanton`, as options of `Lanton.paper`."""

import inspect

import pytest
from marks import some_fast
from oracle import Oracle

from keras_lanton import Lanton

# `Lanton.paper(**DEFAULTS)` is `Lanton()`, whatever its defaults are, and the
# oracle gets the same. Read without making one: TensorFlow's devices are fixed
# from its first variable on, and test_distribution.py splits them.
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(Lanton).parameters.items()
    if name in inspect.signature(Oracle).parameters
    and parameter.default is not inspect.Parameter.empty
}
PRESETS = {"paper": {}, "defaults": DEFAULTS}
both_presets = pytest.mark.parametrize(
    "preset", some_fast(PRESETS, ["defaults"])
)

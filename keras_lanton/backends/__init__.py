"""What differs between the backends, one module each, imported lazily.

Every module has the same names: `cond`, `no_grad`, `SUMS_OVER_REPLICAS` and
the mixin `OptimizerHooks`, which leads Keras' per-backend calls to the one
joint update `update_variables` of the base class.
"""

import importlib
from types import ModuleType

import keras

SUPPORTED = ("jax", "tensorflow", "torch")


def load() -> ModuleType:
    """The module of the backend that Keras runs on.

    Raises:
        RuntimeError: If Keras runs on a backend that cannot train.
    """
    name = keras.backend.backend()
    if name not in SUPPORTED:
        raise RuntimeError(
            f"keras_lanton needs one of the backends {SUPPORTED}: set "
            "KERAS_BACKEND before importing keras. "
            f"Received: KERAS_BACKEND={name!r}"
        )
    return importlib.import_module(f"{__name__}.{name}")

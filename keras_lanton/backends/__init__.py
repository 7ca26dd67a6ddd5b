"""Everything that differs between the backends: one class each.

`backend` is the one that Keras runs on; only its module is imported.
`reference.Backend` says what each method does.
"""

import importlib

import keras

from keras_lanton.backends.reference import Backend
from keras_lanton.backends.reference import Devices as Devices

CLASSES = {
    "jax": "JaxBackend",
    "tensorflow": "TensorFlowBackend",
    "torch": "TorchBackend",
}


def load() -> Backend:
    """The backend that Keras runs on.

    Raises:
        RuntimeError: If Keras runs on a backend that cannot train.
    """
    name = keras.backend.backend()
    if name not in CLASSES:
        raise RuntimeError(
            f"keras_lanton needs one of the backends {tuple(CLASSES)}: set "
            "KERAS_BACKEND before importing keras. "
            f"Received: KERAS_BACKEND={name!r}"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    made: Backend = getattr(module, CLASSES[name])()
    return made


backend = load()

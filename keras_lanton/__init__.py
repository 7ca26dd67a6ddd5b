"""LANTON for Keras: noise-adaptive layerwise learning rates.

`model.compile(optimizer=Lanton())`, on JAX, PyTorch and TensorFlow.
"""

import keras

from keras_lanton import baselines
from keras_lanton import callbacks
from keras_lanton.fast.gpu_kernels import use_gpu_kernels
from keras_lanton.lanton import Lanton
from keras_lanton.settings import AuxiliaryAdamW
from keras_lanton.settings import NewtonSchulz
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.tools.checkpoints import load_checkpoint
from keras_lanton.tools.explain import explain
from keras_lanton.tools.layerwise_decay import layerwise_decay
from keras_lanton.tools.rate_finder import find_learning_rate
from keras_lanton.tools.update_schedule import UpdateSchedule
from keras_lanton.version import __version__

__all__ = [
    "AuxiliaryAdamW",
    "Lanton",
    "NewtonSchulz",
    "NoiseAdaptiveRate",
    "UpdateSchedule",
    "__version__",
    "baselines",
    "callbacks",
    "explain",
    "find_learning_rate",
    "layerwise_decay",
    "load_checkpoint",
    "use_gpu_kernels",
]

# `model.compile(optimizer="lanton")`, `keras.optimizers.get("lanton")`.
keras.saving.get_custom_objects()["lanton"] = Lanton

"""LANTON for Keras: noise-adaptive layerwise learning rates.

`model.compile(optimizer=Lanton())`, on JAX, PyTorch and TensorFlow.
"""

import keras

from keras_lanton import baselines
from keras_lanton import callbacks
from keras_lanton.backends import use_gpu_kernels
from keras_lanton.lanton import Lanton
from keras_lanton.noise.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.optimizers.auxiliary_adamw import AuxiliaryAdamW
from keras_lanton.orthogonalization.newton_schulz import NewtonSchulz
from keras_lanton.utils.batch_size import advise_batch_size
from keras_lanton.utils.checkpoints import load_checkpoint
from keras_lanton.utils.explain import explain
from keras_lanton.utils.layerwise_decay import layerwise_decay
from keras_lanton.utils.rate_finder import find_learning_rate
from keras_lanton.utils.update_schedule import UpdateSchedule
from keras_lanton.version import __version__

__all__ = [
    "AuxiliaryAdamW",
    "Lanton",
    "NewtonSchulz",
    "NoiseAdaptiveRate",
    "UpdateSchedule",
    "__version__",
    "advise_batch_size",
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

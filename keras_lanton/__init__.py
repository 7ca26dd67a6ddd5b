"""LANTON for Keras: noise-adaptive layerwise learning rates.

`model.compile(optimizer=Lanton())`, on JAX, PyTorch and TensorFlow.
"""

from keras_lanton.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.backends import use_gpu_kernels
from keras_lanton.lanton import Lanton
from keras_lanton.version import __version__

__all__ = ["Lanton", "NoiseAdaptiveRate", "__version__", "use_gpu_kernels"]

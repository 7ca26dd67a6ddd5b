"""The optimizers that Lanton is compared with, of the same parts.

Each is a Keras optimizer on JAX, PyTorch and TensorFlow. Keras' own AdamW and
SGD are used as they are.
"""

from keras_lanton.baselines.adamuon import AdaMuon
from keras_lanton.baselines.d_muon import DMuon
from keras_lanton.baselines.muon import Muon
from keras_lanton.baselines.normuon import NorMuon
from keras_lanton.baselines.scion import Scion

__all__ = [
    "AdaMuon",
    "DMuon",
    "Muon",
    "NorMuon",
    "Scion",
]

"""Norms and stacks of matrices to try them on."""

import numpy as np
from keras import ops

from keras_lanton.coefficients import coefficient_rows
from keras_lanton.core.norms import Norm
from keras_lanton.core.norms import Spectral
from keras_lanton.core.nuclear_norm import svd_nuclear_norm

# Thirty plain steps: the exact polar factor.
EXACT = Spectral(
    rows=coefficient_rows([(1.875, -1.25, 0.375)], 30),
    nuclear_norm=svd_nuclear_norm,
)
JORDAN = Spectral(rows=coefficient_rows("jordan", 5))
YOU = Spectral(rows=coefficient_rows("you", 5))


def matrices(shape: tuple, scale: float = 1.0) -> np.ndarray:
    X = np.random.default_rng(0).standard_normal((3, *shape)) * scale
    return X.astype("float32")


def lmo(norm: Norm, B: np.ndarray) -> np.ndarray:
    return ops.convert_to_numpy(norm.lmo(ops.convert_to_tensor(B)))


def dual(norm: Norm, D: np.ndarray) -> np.ndarray:
    return ops.convert_to_numpy(norm.dual(ops.convert_to_tensor(D)))

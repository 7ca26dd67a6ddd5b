"""Checks that Lanton works on this machine, and names its fast paths here.

`python -m keras_lanton` prints both. The self-check compares two compiled steps
of a tiny model with NumPy, and orthogonalizes one large matrix, in seconds.
"""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.fast import batching
from keras_lanton.fast import dispatch
from keras_lanton.fast import gpu_kernels
from keras_lanton.lanton import WIDTH
from keras_lanton.lanton import Lanton
from keras_lanton.settings import NewtonSchulz

# A side whose matrices take every fast path of large ones.
LARGE = 1024
ETA, HIDDEN_SCALE = 0.01, 0.2
# Enough steps of Newton-Schulz to reach the polar factor itself.
POLAR = NewtonSchulz(coefficients="polar_express", steps=8)
# Allowed errors of the polar factor, by the dtype of the products.
ALLOWED = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


def fast_paths() -> dict[str, str]:
    """The choices for this backend and device, in words."""
    dtype = dispatch.working_dtype("auto", LARGE)
    products = dispatch.products(LARGE, dtype)
    ratio = dispatch.crossover(products.share)
    at_once = batching.one_by_one(np.abs, LARGE) is np.abs
    return {
        "backend": keras.backend.backend(),
        "devices": ", ".join(backend.list_devices()),
        "float type": keras.config.floatx(),
        "dtype policy": keras.config.dtype_policy().name,
        'dtype "auto"': _by_side(dtype),
        "products": type(products).__name__,
        "Gram form": f"from aspect ratio {ratio:.2f}",
        "stacks": "all at once" if at_once else "one matrix after the other",
        "GPU kernels": _gpu_kernels(),
        "shared out": _shared_out(),
    }


def _by_side(dtype: str) -> str:
    """The dtype of large matrices, and that of small ones if it is another."""
    small = dispatch.working_dtype("auto", 1)
    if small == dtype:
        return dtype
    return f"{dtype}; {small} below a short side of {dispatch.HALF_FROM}"


def _gpu_kernels() -> str:
    if keras.backend.backend() != "torch":
        return "none on this backend"
    return "on" if gpu_kernels.uses_gpu_kernels() else "off"


def _shared_out() -> str:
    devices = backend.devices([keras.Variable(np.zeros((2, 2)))], None)
    return f"over {devices.count} devices" if devices else "no"


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison with NumPy.

    Args:
        name: The compared quantity.
        error: The largest error.
        allowed: The largest error that is allowed.
    """

    name: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """True if they agree; with NaN they do not."""
        return self.error <= self.allowed


def self_check() -> list[Check]:
    """Holds a step, and the polar factor of a large matrix, against NumPy."""
    return [_step(), _large_matrix()]


def _step() -> Check:
    """A step from weights of zero, then one with NaN, which is skipped.

    The inputs are the unit vectors: the kernel's gradient is the targets.
    """
    layer = keras.layers.Dense(48, kernel_initializer="zeros", dtype="float32")
    model = keras.Sequential([keras.Input((64,), dtype="float32"), layer])
    optimizer = Lanton(
        ETA,
        hidden_scale=HIDDEN_SCALE,
        weight_decay=None,
        newton_schulz=POLAR,
    )
    optimizer.assign_role("hidden", layer.kernel)
    model.compile(optimizer=optimizer, loss=lambda y, out: y * out)
    # Small integers, which each precision of products has exactly.
    G = np.random.default_rng(0).integers(-8, 9, (64, 48)).astype("float32")
    for targets in (G, np.full_like(G, np.nan)):
        model.train_on_batch(np.eye(64, dtype="float32"), targets)
    U, _, Vt = np.linalg.svd(G, full_matrices=False)
    rms = HIDDEN_SCALE * math.sqrt(WIDTH / 64)
    wanted = rms * math.sqrt(64) * U @ Vt, np.sign(G.sum(0))
    error = [
        np.max(np.abs(x / -ETA - direction)) / np.max(np.abs(direction))
        for x, direction in zip(model.get_weights(), wanted, strict=True)
    ]
    dtype = dispatch.working_dtype(POLAR.dtype, 48)
    return Check("step", float(np.max(error)), ALLOWED[dtype])


def _large_matrix() -> Check:
    """O O^T is 1 for the polar factor O, on the fast path."""
    dtype = dispatch.working_dtype(POLAR.dtype, LARGE)
    G = np.random.default_rng(0).normal(size=(LARGE, 2 * LARGE))
    polar = dispatch.cheapest_form(*G.shape, rows=POLAR.rows, dtype=dtype)
    with backend.no_grad():
        O = ops.convert_to_numpy(polar(ops.convert_to_tensor(G, "float32")))
    error = np.max(np.abs(O @ O.T - np.eye(LARGE)))
    return Check("large matrix", float(error), ALLOWED[dtype])

"""Checks that Lanton works on this machine, and names its fast paths here.

`python -m keras_lanton` prints both. The self-check compares three compiled
steps of tiny weights with NumPy, in seconds.
"""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton import backends
from keras_lanton.lanton import WIDTH
from keras_lanton.lanton import Lanton
from keras_lanton.noise.adaptive_rate import NoiseAdaptiveRate
from keras_lanton.orthogonalization import batching
from keras_lanton.orthogonalization import dispatch
from keras_lanton.orthogonalization.newton_schulz import NewtonSchulz

Array = Any
Arrays = dict[str, Array]

backend = backends.load()

# A side whose matrices take every fast path of large ones.
LARGE = 1024
ETA, HIDDEN_SCALE, EMBEDDING_SCALE = 0.01, 0.2, 300.0
# Weights of every role; one hidden matrix for each form of Newton-Schulz.
SHAPES = {
    "hidden_square": (64, 48),
    "hidden_wide": (24, 96),
    "embedding": (40, 16),
    "vector": (16,),
}
# Allowed errors: of float32; of an entry of a polar factor, by the dtype of its
# products; of Lanton's estimate of a nuclear norm.
EXACT = 1e-4
POLAR = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
ESTIMATE = 0.1


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
    if backend.gpu_product is None:
        return "none on this backend"
    return "on" if backends.uses_gpu_kernels() else "off"


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
    """Three steps of Lanton: two of noisy gradients, one with a NaN.

    Returns:
        The comparisons with NumPy, in the order in which they were made.
    """
    model, rng = _compiled_model(), np.random.default_rng(0)
    first, second = (
        {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
        for _ in range(2)
    )
    checks = _first_step(first, _step(model, first))
    before = _step(model, second)
    checks += _noise(model.optimizer, first, second)
    after = _step(model, {**second, "vector": np.full(16, np.nan)})
    return [*checks, _skip(model.optimizer, before, after)]


class _Product(keras.layers.Layer):  # type: ignore[misc]
    """<G, X> of the input G and the weights X, whose gradient is G."""

    def build(self, input_shape: Any) -> None:
        self.X = [
            self.add_weight(shape=shape, initializer="zeros", name=name)
            for name, shape in SHAPES.items()
        ]

    def call(self, G: Any) -> Any:
        X = ops.concatenate([ops.reshape(x, (-1,)) for x in self.X])
        return ops.sum(G * X, axis=-1, keepdims=True)


def _compiled_model() -> Any:
    """A model whose input is the gradients of its weights."""
    size = sum(math.prod(shape) for shape in SHAPES.values())
    layer = _Product(dtype="float32")
    model = keras.Sequential([keras.Input((size,), dtype="float32"), layer])
    optimizer = Lanton(
        ETA,
        hidden_scale=HIDDEN_SCALE,
        embedding_scale=EMBEDDING_SCALE,
        weight_decay=None,
        # All noise is measured in the second step.
        noise=NoiseAdaptiveRate(interval=1),
        # Enough steps to reach the polar factor itself.
        newton_schulz=NewtonSchulz(coefficients="polar_express", steps=8),
    )
    for name, x in zip(SHAPES, layer.X, strict=True):
        optimizer.assign_role(name.split("_")[0], x)
    model.compile(optimizer=optimizer, loss=lambda _, product: product)
    return model


def _step(model: Any, G: Arrays) -> Arrays:
    """The weights after one more step, of gradients G."""
    flat = np.concatenate([g.ravel() for g in G.values()])[None]
    model.train_on_batch(flat.astype("float32"), np.zeros((1, 1)))
    return dict(zip(SHAPES, model.get_weights(), strict=True))


def _first_step(G: Arrays, X: Arrays) -> list[Check]:
    """Checks of the first step, from weights of zero."""
    return [
        Check(
            f"step of {name}",
            _distance(X[name] / -ETA, _direction(name, g)),
            _allowed(g) if name.startswith("hidden") else EXACT,
        )
        for name, g in G.items()
    ]


def _allowed(g: Array) -> float:
    """The allowed error of a polar factor."""
    return POLAR[dispatch.working_dtype("auto", min(g.shape))]


def _direction(name: str, g: Array) -> Array:
    """The first update at rate 1; for vectors AdamW's."""
    if name == "vector":
        return np.sign(g)
    if name == "embedding":
        return EMBEDDING_SCALE * np.sign(g) / g.shape[-1]
    U, _, Vt = np.linalg.svd(g, full_matrices=False)
    rms = HIDDEN_SCALE * math.sqrt(WIDTH / g.shape[0])
    return rms * math.sqrt(max(g.shape)) * U @ Vt


def _noise(optimizer: Lanton, first: Arrays, second: Arrays) -> list[Check]:
    """Checks of the noise, and of the rates that follow."""
    found = list(optimizer.noise_report().values())
    noise = np.array([one["noise"][0] for one in found])
    ratio = np.array([one["ratio"][0] for one in found])
    # In units of the momentum, which starts at the first gradient.
    wanted = [
        _dual_norm(name, second[name] - first[name])
        / _dual_norm(name, first[name])
        for name in SHAPES
        if name != "vector"
    ]
    root = (1.0 + noise[:3] ** 2) ** -0.25
    return [
        Check("noise", _distance(noise[:3] / wanted, np.ones(3)), ESTIMATE),
        Check("layer rates", _distance(ratio[:3], root / np.mean(root)), EXACT),
    ]


def _dual_norm(name: str, d: Array) -> float:
    if name == "embedding":
        return float(np.max(np.sum(np.abs(d), axis=0)))
    nuclear = np.sum(np.linalg.svd(d, compute_uv=False))
    return math.sqrt(d.shape[1] / d.shape[0]) * float(nuclear)


def _skip(optimizer: Lanton, before: Arrays, after: Arrays) -> Check:
    changed = [_distance(before[name], after[name]) for name in SHAPES]
    missed = abs(optimizer.skipped_steps - 1.0)
    return Check("a NaN is skipped", float(np.max([*changed, missed])), 0.0)


def _distance(one: Array, two: Array) -> float:
    """The largest relative difference of two entries, or NaN."""
    return float(np.max(np.abs(one - two)) / np.max(np.abs(two)))

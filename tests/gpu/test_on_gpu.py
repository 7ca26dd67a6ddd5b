"""What differs on a GPU: products in half precision, and who waits for whom."""

import keras
import numpy as np
import pytest

from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton.backends import backend

if backend.device() != "gpu":
    pytest.skip("there is no GPU", allow_module_level=True)

SHAPES = {
    "embeddings": (300, 64),
    "kernel_0": (64, 192),
    "kernel_1": (192, 64),
    "kernel_2": (64, 64),
    "bias": (64,),
}
STEPS = 12  # more than the noise takes to measure every matrix
HALF = 2e-2  # relative to the change of the weights


def take_steps(missing=(), **options):
    """Weights before and after some steps with the same gradients."""
    random = np.random.default_rng(0)
    variables = [
        keras.Variable(random.normal(size=shape).astype("float32"), name=name)
        for name, shape in SHAPES.items()
    ]
    before = [keras.ops.convert_to_numpy(v) for v in variables]
    optimizer = Lanton(1e-2, **options)
    optimizer.build(variables)
    steady = [random.normal(size=v.shape) for v in variables]
    for _ in range(STEPS):
        gradients = [
            None
            if name in missing
            else keras.ops.convert_to_tensor(
                (x + random.normal(size=x.shape)).astype("float32")
            )
            for name, x in zip(SHAPES, steady, strict=True)
        ]
        optimizer.apply(gradients, variables)
    after = [keras.ops.convert_to_numpy(v) for v in variables]
    return dict(zip(SHAPES, zip(before, after, strict=True), strict=True))


@pytest.mark.parametrize("options", [{}, {"noise": None}])
def test_half_precision_moves_weights_little(options):
    half = NewtonSchulz(dtype="float16")
    found = take_steps(newton_schulz=half, **options)
    for name, (before, wanted) in take_steps(**options).items():
        change = np.linalg.norm(wanted - before)
        assert 0 < change < np.inf
        assert np.linalg.norm(found[name][1] - wanted) < HALF * change, name


def test_missing_gradients_leave_weights_alone():
    missing = ("kernel_1", "embeddings")
    for name, (before, after) in take_steps(missing).items():
        assert np.isfinite(after).all()
        assert np.array_equal(before, after) == (name in missing), name


@pytest.mark.parametrize("accumulated", [None, 3])
def test_fit_ends_lower(accumulated):
    layers = keras.layers
    model = keras.Sequential(
        [layers.Embedding(50, 32), layers.Dense(64), layers.Dense(50)]
    )
    optimizer = Lanton(5e-3, gradient_accumulation_steps=accumulated)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    tokens = np.random.default_rng(0).integers(50, size=(480, 16))
    history = model.fit(tokens, tokens, batch_size=16, epochs=3, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("entries", [2**10, 2**21])
def test_steps_of_half_precision(entries):
    """Sums with weights are rounded once, the decay factor is not."""
    random = np.random.default_rng(0)
    weights, steps = (
        keras.ops.convert_to_tensor(scale * random.normal(size=entries))
        for scale in (1.0, 0.01)
    )
    weights = keras.ops.cast(weights, "bfloat16")
    dtype = backend.step_dtype([weights])
    steps = keras.ops.cast(steps, dtype)
    wide = [keras.ops.cast(x, "float32") for x in (weights, steps)]
    wanted = keras.ops.cast(0.999 * wide[0] + wide[1], "bfloat16")
    (found,) = backend.update_([weights], [steps], [0.999])
    differ = keras.ops.cast(found != wanted, "float32")
    # A fused sum may end on the other side of the middle of two numbers.
    assert float(keras.ops.mean(differ)) < 1e-3

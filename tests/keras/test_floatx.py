"""Other float types than Keras' and JAX' usual ones."""

import contextlib

import keras
import numpy as np
import pytest
from keras import layers

from helpers.baselines import BASELINES
from helpers.models import dtype_policy
from helpers.runs import BACKEND
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from helpers.variables import to_tensors
from keras_lanton import Lanton
from keras_lanton import baselines


def fit(optimizer):
    """The losses of two epochs, and the model."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            layers.Embedding(50, 16),
            layers.Dense(160),
            layers.Dense(50, name="head"),
        ]
    )
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    x = np.random.default_rng(0).integers(0, 50, (64, 8)).astype("int32")
    history = model.fit(x, x, batch_size=8, epochs=2, verbose=0)
    return [float(loss) for loss in history.history["loss"]], model


@pytest.fixture
def floatx(request):
    before = keras.config.floatx()
    # The policy first: `set_floatx` changes the default one, which it notes.
    with dtype_policy(request.param):
        keras.config.set_floatx(request.param)
        yield request.param
        keras.config.set_floatx(before)


@pytest.mark.parametrize(
    "floatx", keep(["bfloat16", "float16"], ["bfloat16"]), indirect=True
)
@pytest.mark.parametrize(
    "make",
    keep(
        [
            Lanton,
            lambda rate: Lanton(rate, noise=None, momentum_dtype="int8"),
            Lanton.paper,
            baselines.Scion,
        ],
        [Lanton],
    ),
)
def test_floatx(floatx, make):
    losses, model = fit(make(1e-3))
    assert losses[1] <= losses[0]
    assert model.layers[1].kernel.dtype == floatx
    if isinstance(model.optimizer, Lanton) and model.optimizer.noise:
        for report in model.optimizer.noise_report().values():
            assert np.isfinite(report["noise"]).all()


@pytest.mark.skipif(BACKEND != "jax", reason="JAX alone has it")
def test_64_bit_numbers():
    jax = pytest.importorskip("jax")
    with contextlib.ExitStack() as stack:
        stack.callback(
            jax.config.update, "jax_enable_x64", jax.config.jax_enable_x64
        )
        jax.config.update("jax_enable_x64", True)
        losses, model = fit(Lanton(1e-3))
    assert losses[1] < losses[0]
    dtypes = {variable.dtype for variable in model.optimizer.variables}
    assert dtypes == {"int32", "float32"}


STEPPERS = {
    "lanton": Lanton,
    "int8": lambda: Lanton(noise=None, momentum_dtype="int8"),
    "paper": Lanton.paper,
    **BASELINES,
}


def steps(optimizer, context=contextlib.nullcontext):
    """Weights after three steps on variables of all views."""
    variables = make_variables()
    optimizer.build(variables)
    for gradients in make_gradients(3):
        with context():
            optimizer.apply(to_tensors(gradients))
    return to_arrays(variables)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch alone has it")
@pytest.mark.parametrize("make", [Lanton, Lanton.paper, baselines.Scion])
def test_a_step_within_autocast_is_the_same(make):
    torch = pytest.importorskip("torch")
    found = steps(make(1e-2), lambda: torch.autocast("cpu", torch.bfloat16))
    for one, other in zip(found, steps(make(1e-2)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX alone has it")
@pytest.mark.parametrize("name", keep(STEPPERS, ["lanton", "int8"], exhaustive))
def test_ranks_are_not_promoted(name):
    """All branches of a step, as shapes alone."""
    jax = pytest.importorskip("jax")
    variables, optimizer = make_variables(), STEPPERS[name]()
    optimizer.build(variables)
    values = [v.value for v in variables]
    with jax.numpy_rank_promotion("raise"):
        jax.eval_shape(
            optimizer.stateless_apply,
            [v.value for v in optimizer.variables],
            values,
            values,
        )

"""Training loops as users write them, against `fit`."""

import functools

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

from helpers import runs
from helpers.models import make_data
from helpers.models import make_model
from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import OPTIONS
from helpers.runs import PRESETS
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton

BATCH = 4
TOLERANCE = 1e-5  # observed 4e-7

on_jax = pytest.mark.skipif(BACKEND != "jax", reason="a loop of JAX")
on_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="a loop of TensorFlow"
)
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="a loop of PyTorch")


def batch_normalized():
    """A model with state beside its weights."""
    return make_model(6, norm=layers.BatchNormalization)


def batches():
    x, y = make_data(6 * BATCH)
    return [
        (x[start : start + BATCH], y[start : start + BATCH])
        for start in range(0, len(x), BATCH)
    ]


SETTINGS = {
    "previous_gradient": OPTIONS,
    "independent_gradient": {
        **OPTIONS,
        "noise_reference": "independent_gradient",
        "gradient_accumulation_steps": 2,
    },
    # With what this model of width 4 needs to be smaller.
    "defaults": {**PRESETS["defaults"], "embedding_scale": 64.0},
}


def optimizer_for(setting):
    return paper(**SETTINGS[setting])


all_settings = pytest.mark.parametrize("setting", keep(SETTINGS, ["defaults"]))


@functools.cache
def weights_of_fit(setting):
    model, optimizer = batch_normalized(), optimizer_for(setting)
    model.compile(optimizer, "mse", jit_compile=BACKEND == "jax")
    x, y = make_data(6 * BATCH)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return to_arrays(model.variables)


def assert_like_fit(model, setting):
    found, wanted = to_arrays(model.variables), weights_of_fit(setting)
    for variable, one, two in zip(model.variables, found, wanted, strict=True):
        np.testing.assert_allclose(
            one, two, rtol=0.0, atol=TOLERANCE, err_msg=variable.path
        )


def gradients_of(model, compute_loss, x, y):
    """Of the trainable variables, on TensorFlow and PyTorch."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = compute_loss(y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)
    model.zero_grad()
    compute_loss(y, model(x, training=True)).backward()
    return [v.value.grad for v in model.trainable_variables]


# -- JAX -------------------------------------------------------------------


def jax_step(model, optimizer):
    import jax

    loss_fn = keras.losses.MeanSquaredError()

    def compute_loss(trainable, non_trainable, x, y):
        predicted, non_trainable = model.stateless_call(
            trainable, non_trainable, x, training=True
        )
        return loss_fn(y, predicted), non_trainable

    gradient_fn = jax.value_and_grad(compute_loss, has_aux=True)

    def step(state, batch):
        trainable, non_trainable, optimizer_variables = state
        (loss, non_trainable), gradients = gradient_fn(
            trainable, non_trainable, *batch
        )
        trainable, optimizer_variables = optimizer.stateless_apply(
            optimizer_variables, gradients, trainable
        )
        return (trainable, non_trainable, optimizer_variables), loss

    return step


def all_variables(model, optimizer):
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
    )


def jax_state(model, optimizer):
    """Copies: a step may give up their memory."""
    optimizer.build(model.trainable_variables)
    return tuple(
        [v.value.copy() for v in one] for one in all_variables(model, optimizer)
    )


def put_back(model, optimizer, state):
    for variables, values in zip(
        all_variables(model, optimizer), state, strict=True
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


@on_jax
@all_settings
def test_stateless_apply_under_jit(setting):
    """Compiled once, with the old state's memory given up."""
    import jax

    model, optimizer = batch_normalized(), optimizer_for(setting)
    step = jax.jit(jax_step(model, optimizer), donate_argnums=0)
    state = jax_state(model, optimizer)
    for batch in batches():
        state, loss = step(state, batch)
        assert np.isfinite(loss)
    assert step._cache_size() == 1
    put_back(model, optimizer, state)
    assert_like_fit(model, setting)
    assert optimizer.noise_report()["first/kernel"]["noise"] > 0.0


@on_jax
def test_stateless_apply_in_scan():
    """Shapes and dtypes of the state stay, or `scan` refuses."""
    import jax

    setting = "previous_gradient"
    model, optimizer = batch_normalized(), optimizer_for(setting)
    stacked = [np.stack(one) for one in zip(*batches(), strict=True)]
    state, _ = jax.lax.scan(
        jax_step(model, optimizer), jax_state(model, optimizer), stacked
    )
    put_back(model, optimizer, state)
    assert_like_fit(model, setting)


@on_jax
def test_stateless_apply_needs_build():
    with pytest.raises(ValueError, match="built"):
        Lanton().stateless_apply([], [], [])


# -- TensorFlow ------------------------------------------------------------


def step_of(model, optimizer, style):
    loss_fn = keras.losses.MeanSquaredError()

    def step(x, y):
        variables = model.trainable_variables
        gradients = gradients_of(model, loss_fn, x, y)
        if style == "apply":
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return step


@on_tensorflow
@all_settings
@pytest.mark.parametrize(
    "style",
    keep(
        ["apply", "apply_gradients", "built", "xla"],
        ["apply_gradients", "xla"],
        exhaustive,
    ),
)
def test_gradient_tape_in_function(style, setting):
    """Built inside of the trace, or before it."""
    import tensorflow as tf

    model, optimizer = batch_normalized(), optimizer_for(setting)
    if style in ("built", "xla"):
        optimizer.build(model.trainable_variables)
    step = tf.function(
        step_of(model, optimizer, style), jit_compile=style == "xla"
    )
    for x, y in batches():
        step(tf.constant(x), tf.constant(y))
    if style in ("built", "xla"):
        assert step.experimental_get_tracing_count() == 1
    assert_like_fit(model, setting)
    assert optimizer.noise_report()["first/kernel"]["noise"] > 0.0


@on_tensorflow
@all_settings
def test_gradient_tape_eager(setting):
    model, optimizer = batch_normalized(), optimizer_for(setting)
    step = step_of(model, optimizer, "apply")
    for x, y in batches():
        step(x, y)
    assert_like_fit(model, setting)


@on_tensorflow
def test_bare_variables():
    """`tf.Variable`s without Keras: names for paths."""
    import tensorflow as tf

    kept = runs.make_variables()
    paths = [variable.path for variable in kept]
    bare = [tf.Variable(v.value, name=v.path) for v in kept]
    for variables in (bare, kept):
        optimizer = paper(**OPTIONS, weight_decay_exclude=["bias"])
        for one in runs.make_gradients(4):
            pairs = zip(map(tf.constant, one), variables, strict=True)
            optimizer.apply_gradients(pairs)
        assert list(optimizer.noise_report()) == paths
    runs.assert_equal([v.numpy() for v in bare], kept)


@on_tensorflow
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_bare_variables_beside_those_of_keras(rounding):
    """Of two dtypes."""
    import tensorflow as tf

    kernel = keras.Variable(np.ones((3, 2), "float32"), name="kernel")
    bare = [
        tf.Variable(tf.ones((4, 3), dtype), name=f"{dtype}_kernel")
        for dtype in ("bfloat16", "float32")
    ]
    variables = [kernel, *bare]
    gradients = [tf.ones(v.shape, v.dtype) for v in variables]
    Lanton(1e-2, rounding=rounding).apply(gradients, variables)
    for one in variables:
        assert (ops.convert_to_numpy(ops.cast(one, "float32")) != 1).all()


# -- PyTorch ---------------------------------------------------------------


@on_torch
@all_settings
@pytest.mark.parametrize("style", ["no_grad", "recording"])
def test_backward_and_apply(style, setting):
    """Also without `no_grad`, as PyTorch's own optimizers do."""
    import torch

    model, optimizer = batch_normalized(), optimizer_for(setting)
    loss_fn = keras.losses.MeanSquaredError()
    for x, y in batches():
        given = torch.as_tensor(x), torch.as_tensor(y)
        gradients = gradients_of(model, loss_fn, *given)
        with torch.set_grad_enabled(style == "recording"):
            optimizer.apply(gradients, model.trainable_variables)
    assert_like_fit(model, setting)
    for variable in optimizer.variables:
        assert not variable.value.requires_grad
        assert variable.value.grad_fn is None
    for variable in model.trainable_variables:
        assert variable.value.requires_grad
        assert variable.value.is_leaf


# -- The same on all -------------------------------------------------------


def test_apply_without_variables():
    """After build the order of the variables is known."""
    arrays = []
    for named in (True, False):
        model = batch_normalized()
        optimizer = optimizer_for("previous_gradient")
        variables = model.trainable_variables
        optimizer.build(variables)
        gradients = [ops.ones(v.shape) for v in variables]
        optimizer.apply(gradients, *([variables] if named else []))
        arrays.append(to_arrays(variables))
    runs.assert_equal(*arrays)


def test_apply_gradients_returns_the_count():
    model, optimizer = batch_normalized(), paper(**OPTIONS)
    variables = model.trainable_variables
    for step in (1, 2):
        count = optimizer.apply_gradients(
            [(ops.ones(v.shape), v) for v in variables]
        )
        assert int(ops.convert_to_numpy(count)) == step


@logic
def test_subset_of_the_variables():
    """Two calls on two halves are two steps, each of its half.

    Generators and discriminators are trained like this: with an optimizer
    each, or with one that is built on all.
    """
    model, optimizer = batch_normalized(), paper(**OPTIONS)
    optimizer.build(model.trainable_variables)
    first, second = (
        [v for v in model.trainable_variables if name in v.path]
        for name in ("first", "second")
    )
    before = to_arrays(first), to_arrays(second)
    optimizer.apply([ops.ones(v.shape) for v in first], first)
    runs.assert_equal(second, before[1])
    moved = to_arrays(first)
    optimizer.apply([ops.ones(v.shape) for v in second], second)
    runs.assert_equal(first, moved)
    for one, two in zip(moved, before[0], strict=True):
        assert np.abs(one - two).max() > 1e-4


@on_jax
@pytest.mark.parametrize("use_ema", keep([True, False], [False]))
def test_no_tracer_outlives_a_step(use_ema):
    jax = pytest.importorskip("jax")
    variable = keras.Variable(np.ones((3, 2), "float32"), name="kernel")
    optimizer = Lanton(0.1, noise=None, use_ema=use_ema)
    optimizer.build([variable])
    with jax.checking_leaks():
        jax.jit(optimizer.stateless_apply)(
            [v.value for v in optimizer.variables],
            [np.ones((3, 2), "float32")],
            [variable.value],
        )

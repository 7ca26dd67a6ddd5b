"""Training loops as users write them, against `fit`."""

import functools

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

from helpers.models import make_data
from helpers.models import make_model
from helpers.models import to_arrays
from helpers.optimizers import DEFAULTS
from helpers.optimizers import paper
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton

BACKEND = keras.backend.backend()
# Few Newton-Schulz steps, since compiling them is most of the time.
OPTIONS = {
    "learning_rate": 0.01,
    "embedding_scale": 4.0,
    "noise_interval": 2,
    "ns_steps": 2,
}
BATCH = 4
TOLERANCE = 1e-5  # observed 4e-7

on_jax = pytest.mark.skipif(BACKEND != "jax", reason="a loop of JAX")
on_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="a loop of TensorFlow"
)
on_torch = pytest.mark.skipif(BACKEND != "torch", reason="a loop of PyTorch")


def batch_normalized(cls=keras.Model):
    """A model with state beside its weights."""
    return make_model(6, norm=layers.BatchNormalization, cls=cls)


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
    # Of `Lanton()`, but for what this model of width 4 needs to be smaller.
    "defaults": {
        **OPTIONS,
        **DEFAULTS,
        **{
            n: OPTIONS[n]
            for n in ("embedding_scale", "noise_interval", "ns_steps")
        },
    },
}


def optimizer_for(setting):
    return paper(**SETTINGS[setting])


all_settings = pytest.mark.parametrize("setting", keep(SETTINGS, ["defaults"]))


@functools.cache
def weights_of_fit(setting):
    model = batch_normalized()
    model.compile(
        optimizer=optimizer_for(setting),
        loss="mse",
        jit_compile=BACKEND == "jax",
    )
    x, y = make_data(6 * BATCH)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return to_arrays(model.variables)


def assert_like_fit(model, setting):
    wanted = weights_of_fit(setting)
    for variable, one in zip(model.variables, wanted, strict=True):
        np.testing.assert_allclose(
            to_arrays([variable])[0],
            one,
            rtol=0.0,
            atol=TOLERANCE,
            err_msg=variable.path,
        )


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


def jax_state(model, optimizer):
    optimizer.build(model.trainable_variables)
    lists = (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
    )
    return tuple([v.value for v in one] for one in lists)


def put_back(model, optimizer, state):
    lists = (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
    )
    for variables, values in zip(lists, state, strict=True):
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
    # The variables keep what they hold; copies are given up.
    state = jax.tree.map(lambda x: x.copy(), state)
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


def tensorflow_step(model, optimizer, style):
    import tensorflow as tf

    loss_fn = keras.losses.MeanSquaredError()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        if style == "tf variables":
            variables = [v.value for v in model.trainable_variables]
        else:
            variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if style == "apply":
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

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
        tensorflow_step(model, optimizer, style), jit_compile=style == "xla"
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
    step = tensorflow_step(model, optimizer, "apply")
    for x, y in batches():
        step(x, y)
    assert_like_fit(model, setting)


@on_tensorflow
def test_bare_variables():
    """`tf.Variable`s without Keras: names for paths."""
    import tensorflow as tf

    values = {
        "tokens/embeddings": np.ones((7, 4), "float32"),
        "first/kernel": np.ones((4, 6), "float32"),
        "first/bias": np.ones(6, "float32"),
    }
    rng = np.random.default_rng(3)
    gradients = [
        [
            rng.standard_normal(v.shape).astype("float32")
            for v in values.values()
        ]
        for _ in range(4)
    ]
    bare = [tf.Variable(v, name=path) for path, v in values.items()]
    kept = []
    for path, value in values.items():
        layer, name = path.split("/")
        with keras.name_scope(layer):
            kept.append(keras.Variable(value, name=name))
    for variables in (bare, kept):
        optimizer = paper(**OPTIONS, weight_decay_exclude=["bias"])
        for one in gradients:
            pairs = zip(map(tf.constant, one), variables, strict=True)
            optimizer.apply_gradients(pairs)
        assert list(optimizer.noise_report()) == list(values)
    for one, two in zip(bare, kept, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


# -- PyTorch ---------------------------------------------------------------


def torch_step(model, optimizer, style):
    import torch

    loss_fn = keras.losses.MeanSquaredError()

    def step(x, y):
        model.zero_grad()
        loss = loss_fn(
            torch.as_tensor(y), model(torch.as_tensor(x), training=True)
        )
        loss.backward()
        variables = model.trainable_variables
        gradients = [v.value.grad for v in variables]
        if style == "no_grad":
            with torch.no_grad():
                optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


@on_torch
@all_settings
@pytest.mark.parametrize("style", ["no_grad", "recording"])
def test_backward_and_apply(style, setting):
    """Also without `no_grad`, as PyTorch's own optimizers do."""
    model, optimizer = batch_normalized(), optimizer_for(setting)
    step = torch_step(model, optimizer, style)
    for x, y in batches():
        step(x, y)
    assert_like_fit(model, setting)
    for variable in optimizer.variables:
        assert not variable.value.requires_grad
        assert variable.value.grad_fn is None
    for variable in model.trainable_variables:
        assert variable.value.requires_grad
        assert variable.value.is_leaf


# -- The same on all -------------------------------------------------------


class OwnStep(keras.Model):
    """`train_step` overridden as Keras' guides do."""

    def train_step(self, *args):
        return getattr(self, f"_{BACKEND}_step")(*args)

    def _jax_step(self, state, data):
        import jax

        trainable, non_trainable, optimizer_variables, metrics = state
        x, y = data

        def compute_loss(trainable, non_trainable):
            predicted, non_trainable = self.stateless_call(
                trainable, non_trainable, x, training=True
            )
            return self.compute_loss(x, y, predicted), non_trainable

        (loss, non_trainable), gradients = jax.value_and_grad(
            compute_loss, has_aux=True
        )(trainable, non_trainable)
        trainable, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, gradients, trainable
        )
        logs = {"loss": loss}
        return logs, (trainable, non_trainable, optimizer_variables, metrics)

    def _tensorflow_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}

    def _torch_step(self, data):
        import torch

        x, y = data
        self.zero_grad()
        loss = self.compute_loss(x, y, self(x, training=True))
        loss.backward()
        gradients = [v.value.grad for v in self.trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, self.trainable_weights)
        return {"loss": loss}


def test_own_train_step():
    model = batch_normalized(OwnStep)
    model.compile(
        optimizer=optimizer_for("previous_gradient"),
        loss="mse",
        jit_compile=BACKEND == "jax",
    )
    x, y = make_data(6 * BATCH)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_like_fit(model, "previous_gradient")


def test_apply_without_variables():
    """After build the order of the variables is known."""
    model = batch_normalized()
    arrays = []
    for named in (True, False):
        optimizer = optimizer_for("previous_gradient")
        optimizer.build(model.trainable_variables)
        before = to_arrays(model.trainable_variables)
        gradients = [ops.ones(v.shape) for v in model.trainable_variables]
        more = (model.trainable_variables,) if named else ()
        optimizer.apply(gradients, *more)
        arrays.append(to_arrays(model.trainable_variables))
        for variable, value in zip(
            model.trainable_variables, before, strict=True
        ):
            variable.assign(value)
    for one, two in zip(*arrays, strict=True):
        np.testing.assert_array_equal(one, two)


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
    for one, two in zip(to_arrays(second), before[1], strict=True):
        np.testing.assert_array_equal(one, two)
    moved = to_arrays(first)
    optimizer.apply([ops.ones(v.shape) for v in second], second)
    for one, two in zip(to_arrays(first), moved, strict=True):
        np.testing.assert_array_equal(one, two)
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

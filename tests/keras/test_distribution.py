"""Data parallel training gives the weights of a single device.

The cases run in processes of their own, this file as a script: the number of
devices is fixed when a backend starts.
"""

import functools
import json
import sys

import keras
import numpy as np
import pytest
from keras import ops

from helpers.models import make_data
from helpers.models import make_model
from helpers.optimizers import DEFAULTS
from helpers.optimizers import paper
from helpers.processes import launch
from helpers.processes import outcome
from helpers.tiers import exhaustive
from keras_lanton import advise_batch_size
from keras_lanton import find_learning_rate
from keras_lanton import load_checkpoint

BACKEND = keras.backend.backend()
# Few Newton-Schulz steps, since compiling them is most of the time.
OPTIONS = {
    "learning_rate": 0.01,
    "embedding_scale": 4.0,
    "noise_interval": 2,
    "ns_steps": 2,
}

on_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="MirroredStrategy is of TensorFlow"
)
on_jax = pytest.mark.skipif(
    BACKEND != "jax", reason="keras.distribution runs on JAX"
)


# -- In the process of a case ----------------------------------------------


def divisible_model():
    """Of even widths, which two devices share."""
    widths = {"vocabulary": 8, "outputs": 4}
    return make_model(8, 6, constraints={"second": "unit_norm"}, **widths)


def divisible_data():
    return make_data(40, vocabulary=8, outputs=4)


def report(model):
    """The weights, and the optimizer's own numbers."""
    optimizer = model.optimizer
    return {
        "weights": [
            np.asarray(ops.convert_to_numpy(v.value)).tolist()
            for v in model.trainable_variables
        ],
        "noise": [
            one["noise"].tolist() for one in optimizer.noise_report().values()
        ],
        "iterations": int(ops.convert_to_numpy(optimizer.iterations)),
        "skipped_steps": optimizer.skipped_steps,
    }


def fit(options, compiled, nan=False):
    model = divisible_model()
    model.compile(
        optimizer=paper(**{**OPTIONS, **options}),
        loss="mse",
        **{"jit_compile": BACKEND == "jax", **compiled},
    )
    x, y = divisible_data()
    if nan:
        y[13, 2] = np.nan  # on the second device, in the second step
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return report(model)


@functools.cache
def two_cpus():
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def mirrored_fit(**arguments):
    with two_cpus().scope():
        return fit(**arguments)


def mirrored_loop(options):
    """The loop of TensorFlow's tutorials, on batches of 8."""
    import tensorflow as tf

    strategy = two_cpus()
    with strategy.scope():
        model = divisible_model()
        optimizer = paper(**{**OPTIONS, **options})
        model.optimizer = optimizer
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            errors = tf.reduce_mean((model(x, training=True) - y) ** 2, -1)
            loss = tf.reduce_sum(errors) / 8.0
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    @tf.function
    def step(x, y):
        losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    data = tf.data.Dataset.from_tensor_slices(divisible_data()).batch(8)
    for x, y in strategy.experimental_distribute_dataset(data):
        step(x, y)
    return report(model)


def mirrored_replicas(options):
    """Both replicas hold the same weights and state after `fit`."""
    strategy = two_cpus()
    with strategy.scope():
        model = divisible_model()
        model.compile(
            optimizer=paper(**{**OPTIONS, **options}),
            loss="mse",
            jit_compile=False,
        )
    x, y = divisible_data()
    model.fit(x, y, batch_size=8, verbose=0)
    apart = {}
    for variable in [*model.variables, *model.optimizer.variables]:
        first, *others = strategy.experimental_local_results(variable.value)
        for other in others:
            off = np.abs(np.subtract(first.numpy(), other.numpy())).max()
            apart[variable.path] = float(off)
    return {"apart": apart}


def made_outside(options):
    model_strategy = two_cpus()
    optimizer = paper(**OPTIONS, **options)
    with model_strategy.scope():
        model = divisible_model()
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    x, y = divisible_data()
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return report(model)


def after_the_scope(file):
    """What changes or trains a model, called outside of the scope."""
    made = []
    for _ in range(2):
        with two_cpus().scope():
            model = divisible_model()
            model.compile(optimizer=paper(**OPTIONS), loss="mse")
        made.append(model)
    other, model = made
    with two_cpus().scope():
        other.optimizer.build(other.trainable_variables)
        other.set_weights([2 * weight for weight in other.get_weights()])
    other.save_weights(file)
    x, y = divisible_data()
    advice = advise_batch_size(model, x, y, batch_size=8, verbose=False)
    found = find_learning_rate(
        model, x, y, batch_size=8, steps=10, verbose=False
    )
    load_checkpoint(model, file)
    return {
        "advice": advice.batch_size,
        "rate": found.learning_rate,
        "saved": report(other),
        "loaded": report(model),
    }


def data_parallel(options):
    devices = keras.distribution.list_devices("cpu")
    assert len(devices) == 4
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices)
    )
    return fit(options, {})


def model_parallel(options):
    """Batches over two devices, kernels over two."""
    mesh = keras.distribution.DeviceMesh(
        (2, 2),
        ["batch", "model"],
        devices=keras.distribution.list_devices("cpu"),
    )
    layout = keras.distribution.LayoutMap(mesh)
    layout["tokens/embeddings"] = (None, "model")
    layout["first/kernel"] = (None, "model")
    layout["first/bias"] = ("model",)
    layout["second/kernel"] = ("model", None)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(
            layout_map=layout, batch_dim_name="batch"
        )
    )
    return fit(options, {})


CASES = {
    one.__name__: one
    for one in (
        mirrored_fit,
        mirrored_loop,
        mirrored_replicas,
        made_outside,
        after_the_scope,
        data_parallel,
        model_parallel,
    )
}


def run_cases(cases):
    """One result or one error for each pair of a case and its arguments."""
    results = []
    for name, arguments in cases:
        try:
            results.append(CASES[name](**arguments))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            results.append({"error": message[:2000]})
    return results


# -- In the process of the tests -------------------------------------------


def start(*cases):
    return outcome(launch(__file__, json.dumps(cases), devices=4))


def assert_same(found, wanted, atol):
    assert "error" not in found, found["error"]
    assert found["iterations"] == wanted["iterations"]
    assert found["skipped_steps"] == wanted["skipped_steps"]
    for key in ("weights", "noise"):
        for one, two in zip(found[key], wanted[key], strict=True):
            one, two = np.array(one), np.array(two)
            apart = ~np.isclose(one, two, rtol=atol, atol=atol)
            # An entry of a table whose momentum is near 0: its sign, however
            # shrunk, makes rounding a hundred times as large.
            assert apart.sum() <= (key == "weights"), np.abs(one - two).max()
            np.testing.assert_allclose(one, two, rtol=10 * atol, atol=10 * atol)


OPTION_I = {"noise_reference": "previous_gradient", "nesterov": True}
MOMENTUM = {"noise_reference": "momentum", "weight_decay_exclude": ["bias"]}
INDEPENDENT = {
    "noise_reference": "independent_gradient",
    "gradient_accumulation_steps": 2,
}
OF_LANTON = {**DEFAULTS, "noise_interval": 2, "ns_steps": 2}
WITHIN = {**OF_LANTON, "within_matrices": True, "alpha_unit": "signal"}


@on_tensorflow
def test_mirrored_fit(tmp_path):
    """A NaN on one replica skips the step on both; the rest is as on one."""
    arguments = {"options": OF_LANTON, "compiled": {}, "nan": True}
    found, after = start(
        ("mirrored_fit", arguments),
        ("after_the_scope", {"file": str(tmp_path / "x.weights.h5")}),
    )
    assert "error" not in after, after["error"]
    assert after["loaded"] == after["saved"]
    assert after["advice"] >= 1 and after["rate"] > 0
    assert found["skipped_steps"] == 1
    # Observed 3e-7.
    assert_same(found, fit(**arguments), 1e-5)


@exhaustive
@on_tensorflow
@pytest.mark.parametrize(
    "options",
    [OPTION_I, MOMENTUM, OF_LANTON, WITHIN],
    ids=["previous_gradient", "momentum", "defaults", "within"],
)
def test_mirrored(options):
    in_fit, in_loop, replicas = start(
        ("mirrored_fit", {"options": options, "compiled": {}}),
        ("mirrored_loop", {"options": options}),
        ("mirrored_replicas", {"options": options}),
    )
    wanted = fit(options, {})
    # Observed 3e-7.
    assert_same(in_fit, wanted, 1e-5)
    assert_same(in_loop, wanted, 1e-5)
    assert replicas["apart"]
    assert not any(replicas["apart"].values()), replicas


@exhaustive
@on_tensorflow
def test_mirrored_edges():
    with_nan = {"options": {}, "compiled": {}, "nan": True}
    with_ema = {"options": {"use_ema": True}, "compiled": {}}
    nan, ema, outside = start(
        ("mirrored_fit", with_nan),
        ("mirrored_fit", with_ema),
        ("made_outside", {"options": {}}),
    )
    # A NaN on one replica skips the step on both.
    assert nan["skipped_steps"] == 1
    # Observed 3e-7.
    assert_same(nan, fit(**with_nan), 1e-5)
    assert_same(ema, fit(**with_ema), 1e-5)
    # An optimizer from outside of the scope: an error, not other weights.
    assert "Strategy" in outside["error"]


@exhaustive
@on_tensorflow
def test_mirrored_without_keras():
    """What Keras cannot do there with any optimizer: it raises."""
    cases = [
        {"options": options, "compiled": compiled}
        for options, compiled in (
            ({"gradient_accumulation_steps": 2}, {}),
            ({"use_ema": True, "ema_overwrite_frequency": 2}, {}),
            ({}, {"steps_per_execution": 2}),
            ({}, {"jit_compile": True}),
        )
    ]
    results = start(*(("mirrored_fit", one) for one in cases))
    for case, result in zip(cases, results, strict=True):
        if "error" not in result:  # a Keras that can
            assert_same(result, fit(**case), 1e-5)


@exhaustive
@on_jax
def test_keras_distribution():
    data, accumulated, split, defaults, within = start(
        ("data_parallel", {"options": OPTION_I}),
        ("data_parallel", {"options": INDEPENDENT}),
        ("model_parallel", {"options": MOMENTUM}),
        ("model_parallel", {"options": OF_LANTON}),
        ("model_parallel", {"options": WITHIN}),
    )
    # Observed 3e-7.
    assert_same(data, fit(OPTION_I, {}), 1e-5)
    assert_same(accumulated, fit(INDEPENDENT, {}), 1e-5)
    assert_same(split, fit(MOMENTUM, {}), 1e-5)
    assert_same(defaults, fit(OF_LANTON, {}), 1e-5)
    assert_same(within, fit(WITHIN, {}), 1e-5)


if __name__ == "__main__":
    print(json.dumps(run_cases(json.loads(sys.argv[1]))))

"""A batch size from the noise: what is measured, what stays as it was."""

import keras
import numpy as np
import pytest
from keras import layers

from helpers.models import to_arrays
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import advise_batch_size
from keras_lanton import find_learning_rate
from keras_lanton.baselines import DMuon

BACKEND = keras.backend.backend()
COUNT = 4096


def make_model(optimizer="sgd"):
    """One linear layer: its noise scale has a formula."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((1,)), layers.Dense(1, use_bias=False, name="line")]
    )
    model.compile(optimizer, "mse", jit_compile=BACKEND == "jax")
    model.layers[0].kernel.assign([[0.0]])
    return model


def make_data(slope):
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], (COUNT, 1)).astype("float32")
    noise = rng.standard_normal((COUNT, 1)).astype("float32")
    return x, slope * x + noise


def advise(model, *data, steps=8, **options):
    return advise_batch_size(
        model, *data, steps=steps, verbose=False, **options
    )


@pytest.mark.parametrize("slope", keep([0.2, 0.5], [0.5]))
def test_noise_scale_of_a_line(slope):
    """Of gradients -2 (slope + noise x), about 1 / slope^2."""
    x, y = make_data(slope)
    advice = advise(make_model(), x, y, batch_size=16, steps=256)
    gradients = -2 * x * y
    exact = gradients.var() / gradients.mean() ** 2
    # Kernels of one unit are one matrix like any other.
    (found,) = advice.noise_scale.values()
    assert found == pytest.approx(exact, rel=0.25)
    assert advice.batch_size == round(found)
    assert advice.measured_at == 16
    assert not advice.is_lower_bound
    assert advice.steps(round(found)) == pytest.approx(2.0, rel=0.05)
    assert f"about {round(found):,} examples" in str(advice)
    with pytest.raises(ValueError, match="Received: 0|batch_size"):
        advice.steps(0)


@logic
def test_only_noise():
    x, y = make_data(0.0)
    advice = advise(make_model(), x, y - (x * y).mean() * x)
    assert advice.is_lower_bound
    assert advice.batch_size == 8 * 32
    assert "more `steps`" in str(advice)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.AdamW(1e-3),
        Lanton,
        DMuon,
        lambda: keras.optimizers.LossScaleOptimizer(Lanton()),
    ],
    ids=["adamw", "lanton", "d_muon", "loss_scale"],
)
def test_model_and_optimizer_are_as_they_were(make):
    model = make_model(make())
    x, y = make_data(0.3)
    model.fit(x[:64], y[:64], batch_size=32, verbose=0)
    optimizer = model.optimizer
    before = to_arrays([*model.variables, *optimizer.variables])
    advise(model, x, y)
    assert model.optimizer is optimizer
    after = to_arrays([*model.variables, *optimizer.variables])
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    model.fit(x[:64], y[:64], batch_size=32, verbose=0)  # and it goes on


@logic
def test_roles_of_the_model_s_optimizer():
    model = make_model(Lanton())
    model.optimizer.assign_role(
        "embedding", model.layers[0].kernel, input_axes=0, output_axes=1
    )
    advice = advise(model, *make_data(0.5))
    assert set(advice.noise_scale) == {"embedding"}


@logic
@pytest.mark.parametrize("steps", [8, 9])
def test_batches(capsys, steps):
    """A smaller last one is left out."""
    x, y = make_data(0.5)
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 48, 16)]
    batches.append((x[:1], y[:1]))
    advice = advise_batch_size(make_model(), batches, steps=steps)
    assert advice.measured_at == 16
    assert f"{steps}/{steps}" in capsys.readouterr().out


def nan_gradient(y, y_pred):
    """A finite loss whose gradient is not a number."""
    return keras.ops.sqrt(keras.ops.sum((y_pred * 0.0) ** 2, -1)) + 1.0


def normalization_alone():
    model = keras.Sequential([keras.Input((1,)), layers.LayerNormalization()])
    model.compile("sgd", "mse")
    return model


@logic
@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"steps": 4}, "at least 8. Received: steps=4"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"x": [], "y": None}, "Received: none in loop 1"),
        ({"x": 3, "y": None}, "Received: x=3"),
        ({"model": keras.Sequential()}, "compiled model. Received: model="),
        ({"y": np.full((COUNT, 1), np.nan)}, "Received: nan on batch 1"),
        (
            {"x": ((np.ones((n, 1)),) * 2 for n in range(1, COUNT)), "y": None},
            "must have one size",
        ),
        ({"model": normalization_alone}, "trainable matrices. Received:"),
    ],
    ids=[
        *("steps", "batch_size", "empty", "number", "model", "nan", "sizes"),
        "no matrices",
    ],
)
def test_wrong_arguments(arguments, said):
    x, y = make_data(0.5)
    given = {"model": make_model, "x": x, "y": y, "steps": 8, **arguments}
    if isinstance(given["model"], type(make_model)):
        given["model"] = given["model"]()
    with pytest.raises(ValueError, match=said):
        advise_batch_size(**given, verbose=False)


@logic
@pytest.mark.parametrize("search", [advise_batch_size, find_learning_rate])
def test_gradients_that_are_never_finite(search):
    model = make_model(Lanton())
    model.compile(Lanton(), nan_gradient)
    x, y = make_data(0.5)
    with pytest.raises(ValueError, match="radient.* must be finite"):
        search(model, x, y, steps=10, verbose=False)

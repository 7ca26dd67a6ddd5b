"""The search for a rate: what it suggests, what it leaves as it was."""

import keras
import numpy as np
import pytest
from keras import layers

from helpers.models import to_arrays
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import find_learning_rate
from keras_lanton.tools import rate_finder
from keras_lanton.tools.rate_finder import lowest_point

BACKEND = keras.backend.backend()
SHORT = NewtonSchulz(steps=2)
FEW = {"rates": (1e-3, 2e-3), "steps": 10}


def make_model(optimizer=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,))
    x = layers.Dense(16, activation="relu", name="first")(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    model = keras.Model(inputs, layers.Dense(3, name="second")(x))
    model.compile(
        optimizer or Lanton(1e-3, newton_schulz=SHORT),
        "mse",
        jit_compile=BACKEND == "jax",
    )
    return model


def make_data(count=96):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 8)).astype("float32")
    return x, np.tanh(x[:, :3] + x[:, 3:6])


def find(model, x, y=None, **options):
    return find_learning_rate(model, x, y, **{**FEW, **options}, verbose=False)


@logic
def test_suggestion():
    model, data = make_model(), make_data()
    found = find_learning_rate(model, *data, steps=30, verbose=False)
    assert 1e-3 < found.learning_rate < 0.25
    np.testing.assert_allclose(found.rates[1:] / found.rates[:-1], 2.0)
    best = np.argmin(found.losses)
    assert 0 < best < len(found.rates) - 1  # the grid grows until it is so
    assert 0.5 < found.learning_rate / found.rates[best] < 2.0
    # It is worth something: better than far below and far above.
    ends = []
    for rate in (found.learning_rate / 30, found.learning_rate, 3.0):
        model = make_model(Lanton(float(rate), newton_schulz=SHORT))
        history = model.fit(*data, batch_size=32, epochs=5, verbose=0)
        ends.append(history.history["loss"][-1])
    assert ends[1] < ends[0] and ends[1] < ends[2], ends


def test_model_and_optimizer_are_as_they_were():
    model, data = make_model(), make_data()
    model.fit(*data, batch_size=32, verbose=0)
    optimizer = model.optimizer
    before = to_arrays([*model.variables, *optimizer.variables])
    find(model, *data)
    assert model.optimizer is optimizer
    after = to_arrays([*model.variables, *optimizer.variables])
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    model.fit(*data, batch_size=32, verbose=0)  # and it goes on
    assert int(optimizer.iterations) == 6


@logic
def test_interrupted():
    model, (x, y) = make_model(), make_data()
    before = to_arrays(model.variables)
    optimizer = model.optimizer

    def batches():
        yield x[:32], y[:32]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_learning_rate(model, batches(), verbose=False)
    assert model.optimizer is optimizer
    for one, two in zip(before, to_arrays(model.variables), strict=True):
        np.testing.assert_array_equal(one, two)


@logic
def test_schedule_and_loss_scaling():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    inner = Lanton(schedule, newton_schulz=SHORT)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    model = make_model(scaled)
    x, y = make_data()
    batches = [(x[:48], y[:48]), (x[48:], y[48:])]
    assert len(find(model, batches).rates) >= 2
    assert model.optimizer.inner_optimizer is inner
    with rate_finder._trial(model, batches[0]):
        assert float(model.optimizer.dynamic_scale) == 8.0


@logic
def test_diverging_run_is_not_the_best(tmp_path, capsys):
    model, data = make_model(), make_data()
    found = find_learning_rate(model, *data, rates=(0.1, 1e4), steps=20)
    assert np.isinf(found.losses[-1])
    assert found.learning_rate < 1
    assert "20/20" in capsys.readouterr().out
    with pytest.raises(ValueError, match="at one of the rates. Received: .*1e"):
        find(model, *data, rates=(1e8,))
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 5_000


@logic
def test_an_easy_first_batch_ends_no_run():
    x, y = make_data()
    easy = (x[:32], np.zeros_like(y[:32]))
    batches = [easy, *((x[i : i + 32], 3 * y[i : i + 32]) for i in (32, 64))]
    found = find(make_model(), batches)
    assert np.isfinite(found.losses).all()


@logic
def test_each_run_starts_from_the_same_state():
    """So the order of the rates does not matter."""
    both, one = (
        find(make_model(), *make_data(), rates=rates)
        for rates in ((1e-3, 1e-2), (1e-2,))
    )
    assert both.losses[both.rates == 1e-2] == one.losses[one.rates == 1e-2]


def test_inputs_by_name():
    """As KerasHub's models have them."""
    inputs = {name: keras.Input((8,), name=name) for name in ("a", "b")}
    outputs = layers.Dense(3)(layers.Add()(list(inputs.values())))
    model = keras.Model(inputs, outputs)
    model.compile(Lanton(1e-3, newton_schulz=SHORT), "mse")
    x, y = make_data()
    x = {"a": x, "b": x}
    assert find(model, x, y).learning_rate
    with pytest.raises(ValueError, match="Received: lengths 96, 5, 96"):
        find(model, {**x, "b": x["b"][:5]}, y)


@logic
def test_model_that_is_not_built():
    model = keras.Sequential([layers.Dense(3)])
    model.compile(Lanton(1e-3, newton_schulz=SHORT), "mse")
    find(model, *make_data())
    assert model.built


@logic
def test_lowest_point():
    rates = [1.0, 2.0, 4.0]
    assert lowest_point(rates, [2.0, 1.0, 2.0]) == pytest.approx(2.0)
    assert lowest_point(rates, [2.0, 1.0, 1.0]) == pytest.approx(2 * 2**0.5)
    assert lowest_point(rates, [1.0, 1.0, 1.0]) == 1.0
    assert lowest_point(rates, [2.0, 1.0, np.inf]) == 2.0
    assert lowest_point(rates, [2.0, 1.5, 1.0]) == 4.0


@logic
def test_roles_and_exclusions_are_kept():
    model, data = make_model(), make_data()
    model.optimizer.assign_role("vector", model.layers[1].kernel)
    model.optimizer.exclude_from_weight_decay([model.layers[-1].kernel])
    with rate_finder._trial(model, [one[:4] for one in data]) as trial:
        decayed = dict(zip(trial.layers, trial._layout.decayed, strict=True))
    found = {spec.path: one for spec, one in decayed.items()}
    assert found["first/kernel"] and not found["second/kernel"]
    find(model, *data)
    model.optimizer.build(model.trainable_variables)
    assert model.optimizer.layers[0].role == "vector"


def nan_gradient(y, y_pred):
    """A finite loss whose gradient is not a number."""
    return keras.ops.sqrt(keras.ops.sum((y_pred * 0.0) ** 2, -1)) + 1.0


@logic
def test_gradients_that_are_never_finite():
    model = make_model()
    model.compile(Lanton(), nan_gradient)
    with pytest.raises(ValueError, match="radient.* must be finite"):
        find(model, *make_data())


@logic
@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"rates": (0.0, 1.0)}, "`rates` must be numbers above 0"),
        ({"rates": (0.1, 0.1)}, "each above the one before"),
        ({"rates": ()}, "Received: rates=()"),
        ({"rates": 0.1}, "Received: rates=0.1"),
        ({"steps": 9}, "`steps` must be at least 10. Received: 9"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"x": np.zeros((0, 8))}, "Received: lengths 0, 96"),
        ({"x": [], "y": None}, "Received: none in loop 1"),
        ({"x": 3, "y": None}, "Received: x=3"),
        ({"y": np.full((96, 3), np.nan)}, "Received: nan"),
        ({"model": "sgd"}, "Received: optimizer="),
    ],
    ids=range(11),
)
def test_wrong_arguments(arguments, said):
    x, y = make_data()
    given = {"x": x, "y": y, **arguments}
    model = make_model(given.pop("model", None))
    with pytest.raises(ValueError, match=said):
        find_learning_rate(model, **given, verbose=False)

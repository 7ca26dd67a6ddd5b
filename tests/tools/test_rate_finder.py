"""The search for a rate: what it suggests, what it leaves as it was."""

import keras
import numpy as np
import pytest
from keras import layers

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


def values(variables):
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


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
    before = values([*model.variables, *optimizer.variables])
    find_learning_rate(model, *data, **FEW, verbose=False)
    assert model.optimizer is optimizer
    after = values([*model.variables, *optimizer.variables])
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    model.fit(*data, batch_size=32, verbose=0)  # and it goes on
    assert int(optimizer.iterations) == 6


@logic
def test_interrupted():
    model, (x, y) = make_model(), make_data()
    before = values(model.variables)
    optimizer = model.optimizer

    def batches():
        yield x[:32], y[:32]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_learning_rate(model, batches(), verbose=False)
    assert model.optimizer is optimizer
    for one, two in zip(before, values(model.variables), strict=True):
        np.testing.assert_array_equal(one, two)


@logic
def test_schedule_and_loss_scaling():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    inner = Lanton(schedule, newton_schulz=SHORT)
    model = make_model(keras.optimizers.LossScaleOptimizer(inner))
    x, y = make_data()
    batches = [(x[:48], y[:48]), (x[48:], y[48:])]
    found = find_learning_rate(model, batches, **FEW, verbose=False)
    assert len(found.rates) >= 2
    assert model.optimizer.inner_optimizer is inner


@logic
def test_diverging_run_is_not_the_best(capsys):
    model, data = make_model(), make_data()
    found = find_learning_rate(model, *data, rates=(0.1, 1e4), steps=20)
    assert np.isinf(found.losses[-1])
    assert found.learning_rate < 1
    assert "20/20" in capsys.readouterr().out
    with pytest.raises(ValueError, match="at one of the rates. Received: .*1e"):
        find_learning_rate(model, *data, rates=(1e8,), steps=10, verbose=False)


@logic
def test_each_run_starts_from_the_same_state():
    """So the order of the rates does not matter."""
    data = make_data()
    both = find_learning_rate(
        make_model(), *data, rates=(1e-3, 1e-2), steps=10, verbose=False
    )
    one = find_learning_rate(
        make_model(), *data, rates=(1e-2,), steps=10, verbose=False
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
    assert find_learning_rate(model, x, y, **FEW, verbose=False).learning_rate
    with pytest.raises(ValueError, match="Received: lengths 96, 5, 96"):
        find_learning_rate(model, {**x, "b": x["b"][:5]}, y, verbose=False)


@logic
def test_model_that_is_not_built():
    model = keras.Sequential([layers.Dense(3)])
    model.compile(Lanton(1e-3, newton_schulz=SHORT), "mse")
    find_learning_rate(model, *make_data(), **FEW, verbose=False)
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
def test_picture_and_progress(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    found = find_learning_rate(make_model(), *make_data(), **FEW)
    assert "10/10" in capsys.readouterr().out
    found.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 5_000


@logic
def test_roles_set_by_hand_are_kept():
    model = make_model()
    model.optimizer.assign_role("vector", model.layers[1].kernel)
    find_learning_rate(model, *make_data(), **FEW, verbose=False)
    model.optimizer.build(model.trainable_variables)
    assert model.optimizer.layers[0].role == "vector"


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
    ],
    ids=str,
)
def test_wrong_arguments(arguments, said):
    x, y = make_data()
    with pytest.raises(ValueError, match=said):
        find_learning_rate(
            make_model(), **{"x": x, "y": y, "verbose": False, **arguments}
        )


@logic
def test_another_optimizer():
    with pytest.raises(ValueError, match="Received: optimizer="):
        find_learning_rate(make_model("sgd"), *make_data())


@logic
def test_loss_that_is_nan():
    x, y = make_data()
    with pytest.raises(ValueError, match="Received: nan"):
        find_learning_rate(make_model(), x, y * np.nan, verbose=False)


@logic
def test_variables_that_do_not_decay_do_not_in_the_search():
    model = make_model()
    kernel = model.trainable_variables[0]
    model.optimizer.exclude_from_weight_decay([kernel])
    x, y = make_data()
    batch = next(iter([(x[:4], y[:4])]))
    with rate_finder._trial(model, batch) as trial:
        assert not trial._layout.decayed[0]
        assert trial._layout.decayed[1]


@logic
def test_the_loss_scale_is_kept():
    model = make_model(
        keras.optimizers.LossScaleOptimizer(Lanton(1e-3), initial_scale=8.0)
    )
    x, y = make_data()
    with rate_finder._trial(model, (x[:4], y[:4])):
        assert float(model.optimizer.dynamic_scale) == 8.0

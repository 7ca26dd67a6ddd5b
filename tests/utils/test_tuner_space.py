"""The search space of KerasTuner."""

import keras
import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import tuner_space

pytestmark = logic
keras_tuner = pytest.importorskip("keras_tuner")


def build(hp):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(optimizer=tuner_space(hp), loss="mse")
    return model


def test_a_search_tries_different_optimizers(tmp_path):
    tuner = keras_tuner.RandomSearch(
        build, objective="loss", max_trials=3, seed=1, directory=tmp_path
    )
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, n)).astype("float32") for n in (4, 2))
    tuner.search(x, y, epochs=1, verbose=0)
    found = [hp.values for hp in tuner.get_best_hyperparameters(3)]
    assert len({values["learning_rate"] for values in found}) == 3
    for values in found:
        assert values.keys() == {"learning_rate", "weight_decay", "beta_1"}
        assert 1e-3 <= values["learning_rate"] <= 4e-2
    best = tuner.get_best_models(1)[0].optimizer
    assert isinstance(best, Lanton)
    assert best.beta_1 == found[0]["beta_1"]


def test_what_is_given_is_not_searched():
    hp = keras_tuner.HyperParameters()
    optimizer = tuner_space(hp, weight_decay=0.02, nesterov=False)
    assert optimizer.weight_decay == 0.02 and not optimizer.nesterov
    assert hp.values.keys() == {"learning_rate", "beta_1"}


def test_rates():
    hp = keras_tuner.HyperParameters()
    tuner_space(hp, rates=(1e-4, 1e-3))
    space = hp.space[0]
    assert (space.min_value, space.max_value) == (1e-4, 1e-3)
    assert space.sampling == "log"


@pytest.mark.parametrize(
    "rates", [1e-3, (1e-3,), (1e-2, 1e-3), (0.0, 1e-2), (1e-3, "1"), None]
)
def test_wrong_rates(rates):
    with pytest.raises(ValueError, match=r"`rates`.*Received: rates="):
        tuner_space(keras_tuner.HyperParameters(), rates=rates)


def test_wrong_hyperparameters():
    with pytest.raises(ValueError, match=r"`hp`.*Received: hp=3"):
        tuner_space(3)

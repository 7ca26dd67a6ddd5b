"""The optimizers without an LMO, beside their oracles."""

import copy
import json

import keras
import numpy as np
import pytest

from experiments.baselines import MULTIPLIERS
from experiments.baselines import BlockwiseAdamW
from experiments.baselines import Lamb
from experiments.baselines import Mars
from helpers.baselines import ETA
from helpers.baselines import LATE
from helpers.baselines import PLAIN
from helpers.baselines import adamw
from helpers.baselines import assert_equal
from helpers.baselines import run
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.variables import FEW
from helpers.variables import make_gradients
from helpers.variables import to_arrays


@logic
def test_lamb_moves_by_the_size_of_the_weights():
    paths = ["dense/kernel", "norm/gamma"]
    found, start = run(Lamb, make_gradients(1, paths), paths, weight_decay=None)
    for one, two in zip(start, found, strict=True):
        moved = np.linalg.norm(two - one)
        assert moved == pytest.approx(ETA * np.linalg.norm(one), rel=1e-4)


@logic
def test_blockwise_adamw_of_equal_ratios_is_adamw():
    gradients = make_gradients(3, FEW)
    ones = dict.fromkeys(MULTIPLIERS, 1.0)
    found, start = run(BlockwiseAdamW, gradients, multipliers=ones)
    assert_equal(found, adamw(gradients)[0], start)


@logic
def test_mars_without_correction_is_adamw():
    gradients = [
        [1e-3 * g for g in one] for one in make_gradients(3, FEW)
    ]  # of norm below 1
    found, start = run(
        Mars,
        gradients,
        gamma=0.0,
        optimize_1d=True,
        weight_decay=0.1,
        beta_1=0.9,
        beta_2=0.95,
    )
    assert_equal(found, adamw(gradients)[0], start)


@pytest.mark.parametrize("name", keep(PLAIN, ["Mars"]))
def test_fit_save_and_resume(name, tmp_path):
    """Also of a table, whose gradient on TensorFlow holds a few rows."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(11, 8),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(PLAIN[name](1e-3, global_clipnorm=1.0), loss="mse")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 11, (12, 5)).astype("int32")
    y = rng.standard_normal((12, 3)).astype("float32")
    options = {"batch_size": 4, "shuffle": False, "verbose": 0}
    model.fit(x, y, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is PLAIN[name]
    for one in (model, loaded):
        one.fit(x, y, **options)
    for one, two in zip(
        to_arrays(model.variables), to_arrays(loaded.variables), strict=True
    ):
        np.testing.assert_array_equal(one, two)


@logic
@pytest.mark.parametrize("name", PLAIN)
def test_config_round_trip(name):
    options = LATE if name == "BlockwiseAdamW" else {}
    optimizer = PLAIN[name](0.5, weight_decay=0.2, **options)
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config["weight_decay"] == 0.2
    again = PLAIN[name].from_config(copy.deepcopy(config))
    assert again.get_config() == config


@logic
@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"multipliers": {"ffn": 1.0}}, "multipliers"),
        ({"multipliers": {"qk": 0.0}}, "multipliers"),
        ({"minimum_learning_rate": 1e-4}, "maximum_learning_rate"),
        (LATE | {"maximum_learning_rate": 1e-9}, "maximum_learning_rate"),
    ],
)
def test_wrong_argument(options, argument):
    with pytest.raises(ValueError, match=f"`{argument}.*Received: "):
        BlockwiseAdamW(**options)


def test_excluded_variables_do_not_decay():
    moved = []
    for excluded in (False, True):
        bias = keras.Variable(np.ones(3, "float32"), name="bias")
        optimizer = Lamb(0.1, weight_decay=0.5)
        if excluded:
            optimizer.exclude_from_weight_decay(var_list=[bias])
        optimizer.apply([keras.ops.array([1.0, -2.0, 3.0])], [bias])
        moved.append(keras.ops.convert_to_numpy(bias.value))
    assert not np.allclose(*moved)

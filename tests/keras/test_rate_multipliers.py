"""Learning rates by variable path."""

import keras
import numpy as np
import pytest

from helpers.baselines import BASELINES
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.variables import Steps
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton

OPTIMIZERS = {
    "default": Lanton,
    "paper": Lanton.paper,
    "adamw": lambda *args, **kwargs: Lanton(
        *args,
        auxiliary_adamw=AuxiliaryAdamW(roles=("embedding", "vector")),
        **kwargs,
    ),
    **BASELINES,
}
PATHS = [
    "dense/kernel",
    "dense/bias",
    "attention/query/kernel",
    "attention/query/bias",
    "tokens/embeddings",
    "norm/beta",
]
MULTIPLIERS = {"kernel$": 0.5, "^attention": 0.5, "^tokens": 0.0}


def moves(make, steps=1, **options):
    """How far each variable moves."""
    variables = make_variables(PATHS)
    start = to_arrays(variables)
    optimizer = make(0.01, **options)
    optimizer.build(variables)
    step = Steps(optimizer, variables)
    for gradients in make_gradients(steps, PATHS):
        step(gradients)
    found = to_arrays(variables)
    return [x - y for x, y in zip(found, start, strict=True)], optimizer


@pytest.mark.parametrize("name", keep(OPTIMIZERS, ["default"]))
def test_a_first_step_is_multiplied(name):
    """Update and weight decay alike."""
    usual, _ = moves(OPTIMIZERS[name])
    found, optimizer = moves(OPTIMIZERS[name], rate_multipliers=MULTIPLIERS)
    for path, one, whole in zip(PATHS, found, usual, strict=True):
        factor = 0.5 if path.endswith("kernel") else 1.0
        factor *= 0.5 if path.startswith("attention") else 1.0
        factor *= 0.0 if path.startswith("tokens") else 1.0
        # Weights of 0.1 are rounded to 7e-9.
        np.testing.assert_allclose(one, factor * whole, rtol=2e-4, atol=5e-8)
        assert np.any(whole != 0)
    assert optimizer.get_config()["rate_multipliers"] == MULTIPLIERS


def test_zero_freezes():
    found, optimizer = moves(Lanton, 4, rate_multipliers={"^dense": 0.0})
    for path, move in zip(PATHS, found, strict=True):
        assert np.any(move != 0) == (not path.startswith("dense")), path
    report = optimizer.noise_report()
    assert report["dense/kernel"]["learning_rate"][0] == 0
    assert report["attention/query/kernel"]["learning_rate"][0] > 0


@logic
def test_the_summary_tells():
    lines = []
    _, optimizer = moves(Lanton, rate_multipliers=MULTIPLIERS)
    optimizer.summary(print_fn=lines.append)
    text = " ".join(" ".join(lines).split())
    assert "frozen: tokens/embeddings" in text
    assert "0.25 times the rate: attention/query/kernel" in text


@logic
def test_a_pattern_without_a_variable_is_told():
    optimizer = Lanton(rate_multipliers={"no_such_layer": 2.0})
    with pytest.warns(UserWarning, match="rate_multipliers.*no_such_layer"):
        optimizer.build(make_variables(PATHS))


def finds_custom_names():
    """Whether this Keras looks for an optimizer's name in custom objects."""
    with keras.saving.custom_object_scope({"another": keras.optimizers.SGD}):
        try:
            keras.optimizers.get("another")
        except ValueError:
            return False
    return True


@pytest.mark.skipif(
    not finds_custom_names(), reason="this Keras takes its own names alone"
)
def test_a_name_for_compile():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer="lanton", loss="mse")
    assert isinstance(model.optimizer, Lanton)
    assert isinstance(keras.optimizers.get("lanton"), Lanton)
    config = model.get_compile_config()["optimizer"]
    assert config["registered_name"] == "keras_lanton>Lanton"

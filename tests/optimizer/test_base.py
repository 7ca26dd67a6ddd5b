"""What the base class refuses, and when."""

import keras
import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton import Lanton


def variables(*shapes: tuple[int, ...]) -> list[keras.Variable]:
    return [
        keras.Variable(np.ones(shape, "float32"), name=f"v{i}")
        for i, shape in enumerate(shapes)
    ]


@logic
def test_assign_role_refuses_what_cannot_be() -> None:
    optimizer = Lanton()
    (v,) = variables((2, 3, 4))
    with pytest.raises(ValueError, match="one of.*hidden.*Received.*'matrix'"):
        optimizer.assign_role("matrix", [v])
    with pytest.raises(ValueError, match="overlap(?s:.)*Received"):
        optimizer.assign_role("hidden", [v], (0, 1), (1, 2))
    with pytest.raises(ValueError, match="Received.*7"):
        optimizer.assign_role("hidden", [v], 7)
    for axes in ("ab", 1.0, [None]):
        with pytest.raises(ValueError, match="different axes.*Received"):
            optimizer.assign_role("hidden", [v], axes)
    with pytest.raises(ValueError, match="Received: variables=\\[\\]"):
        optimizer.assign_role("hidden", [])
    with pytest.raises(ValueError, match="of the model. Received: 3"):
        optimizer.assign_role("hidden", [3])
    with pytest.raises(ValueError, match="once(?s:.)*Received.*v0"):
        optimizer.assign_role("hidden", [v, v])
    optimizer.assign_role("hidden", v)
    with pytest.raises(ValueError, match="once(?s:.)*Received.*v0"):
        optimizer.assign_role("vector", [v])


@logic
def test_roles_are_for_the_variables_of_build() -> None:
    optimizer = Lanton()
    v, other = variables((2, 3), (2, 3))
    optimizer.assign_role("hidden", [other])
    with pytest.raises(ValueError, match="Allowed.*v0(?s:.)*Received.*v1"):
        optimizer.build([v])


def test_too_late_and_too_early() -> None:
    optimizer = Lanton()
    (v,) = variables((2, 3))
    for early in (
        lambda: optimizer.layers,
        optimizer.summary,
        optimizer.noise_report,
    ):
        with pytest.raises(ValueError, match="built.*Received: Lanton"):
            early()
    assert optimizer.skipped_steps == 0
    with pytest.raises(ValueError, match="built model(?s:.)*Received: model="):
        optimizer.read_roles(keras.Sequential([keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="built model(?s:.)*Received: model=3"):
        optimizer.read_roles(3)
    optimizer.build([v])
    for late in (
        lambda: optimizer.assign_role("hidden", [v]),
        lambda: optimizer.read_roles(keras.Sequential()),
        lambda: optimizer.exclude_from_weight_decay([v]),
    ):
        with pytest.raises(ValueError, match="before(?s:.)*Received"):
            late()


@logic
def test_names_without_decay_are_a_list() -> None:
    with pytest.raises(ValueError, match="list.*Received: var_names='bias'"):
        Lanton().exclude_from_weight_decay(var_names="bias")


@logic
def test_complex_variables_are_refused() -> None:
    v = keras.Variable(np.ones((2, 3), "complex64"), name="v")
    with pytest.raises(ValueError, match="real.*Received: 'v' of complex64"):
        Lanton().build([v])


@logic
@pytest.mark.parametrize("others", [[], [(2, 3)]])
def test_variables_without_an_entry(others) -> None:
    optimizer = Lanton(0.1)
    made = variables((4, 0), *others)
    optimizer.apply([np.ones(v.shape, "float32") for v in made], made)
    assert int(optimizer.iterations) == 1
    for v in made[1:]:
        assert np.all(keras.ops.convert_to_numpy(v) != 1)
    lines = []
    optimizer.summary(lines.append)
    assert "(4, 0)" in "".join(lines)


def test_other_variables_than_it_was_built_with() -> None:
    optimizer = Lanton()
    v, other = variables((2, 3), (2, 3))
    optimizer.build([v])
    with pytest.raises(ValueError, match="originally built with"):
        optimizer.apply([np.ones((2, 3), "float32")], [other])


def test_gradient_of_another_shape() -> None:
    optimizer = Lanton()
    (v,) = variables((2, 3))
    with pytest.raises(
        ValueError, match="v0.*\\(2, 3\\).*Received.*\\(3, 2\\)"
    ):
        optimizer.apply([np.ones((3, 2), "float32")], [v])


# -- Arguments of the base class -------------------------------------------
@logic
@pytest.mark.parametrize(
    "argument, value",
    [
        ("learning_rate", 1),
        ("learning_rate", -0.1),
        ("learning_rate", float("nan")),
        ("learning_rate", True),
        ("learning_rate", "0.1"),
        ("learning_rate", None),
        ("clipnorm", -1.0),
        ("clipnorm", 0.0),
        ("clipvalue", -1.0),
        ("clipvalue", "1"),
        ("global_clipnorm", float("inf")),
        ("global_clipnorm", 0),
        ("loss_scale_factor", 0.0),
        ("loss_scale_factor", -2.0),
        ("gradient_accumulation_steps", 0),
        ("gradient_accumulation_steps", 1),
        ("gradient_accumulation_steps", 2.5),
        ("gradient_accumulation_steps", True),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("weight_decay", "0.1"),
        ("weight_decay_exclude", "bias"),
        ("weight_decay_exclude", ["("]),
        ("weight_decay_exclude", [1]),
        ("ema_momentum", 1.5),
        ("ema_momentum", -0.1),
        ("ema_overwrite_frequency", -1),
        ("ema_overwrite_frequency", 1.5),
        ("nonfinite", "ignore"),
        ("nonfinite", None),
    ],
    ids=str,
)
def test_bad_argument(argument, value):
    extra = {"use_ema": True} if argument.startswith("ema_") else {}
    with pytest.raises(ValueError) as error:
        Lanton(**{argument: value}, **extra)
    message = str(error.value)
    assert argument in message
    assert "Received" in message
    assert str(value) in message


@logic
def test_two_clip_options():
    with pytest.raises(ValueError, match="clipvalue"):
        Lanton(clipnorm=1.0, clipvalue=1.0)


@logic
def test_unknown_argument():
    with pytest.raises(ValueError, match="momentun"):
        Lanton(momentun=0.9)

"""What the base class refuses, and when."""

import keras
import numpy as np
import pytest

from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import baselines


def variables(*shapes):
    return [
        keras.Variable(np.ones(shape, "float32"), name=f"v{i}")
        for i, shape in enumerate(shapes)
    ]


@logic
def test_assign_role_refuses_what_cannot_be():
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
def test_roles_are_for_the_variables_of_build():
    optimizer = Lanton()
    v, other = variables((2, 3), (2, 3))
    optimizer.assign_role("hidden", [other])
    with pytest.raises(ValueError, match="Allowed.*v0(?s:.)*Received.*v1"):
        optimizer.build([v])


def test_too_late_and_too_early():
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
def test_names_without_decay_are_a_list():
    with pytest.raises(ValueError, match="list.*Received: var_names='bias'"):
        Lanton().exclude_from_weight_decay(var_names="bias")


@logic
def test_complex_variables_are_refused():
    v = keras.Variable(np.ones((2, 3), "complex64"), name="v")
    with pytest.raises(ValueError, match="real.*Received: 'v' of complex64"):
        Lanton().build([v])


@pytest.mark.parametrize("others", keep([(), ((2, 3),)], [((2, 3),)]))
@pytest.mark.parametrize(
    "make", keep([Lanton, Lanton.paper, baselines.Scion], [Lanton])
)
def test_variables_without_an_entry(make, others):
    optimizer = make(0.1)
    made = variables((4, 0), (0,), *others)
    for _ in range(2):
        optimizer.apply([np.ones(v.shape, "float32") for v in made], made)
    assert int(optimizer.iterations) == 2
    for v in made[2:]:
        assert np.all(keras.ops.convert_to_numpy(v) != 1)
    assert tuple(s.shape for s in optimizer.updated_specs) == others
    lines = []
    optimizer.summary(lines.append)
    assert "(4, 0)" in "".join(lines)


def test_other_variables_than_it_was_built_with():
    optimizer = Lanton()
    v, other = variables((2, 3), (2, 3))
    optimizer.build([v])
    with pytest.raises(ValueError, match="originally built with"):
        optimizer.apply([np.ones((2, 3), "float32")], [other])


def test_gradient_of_another_shape():
    optimizer = Lanton()
    (v,) = variables((2, 3))
    with pytest.raises(
        ValueError, match="v0.*\\(2, 3\\).*Received.*\\(3, 2\\)"
    ):
        optimizer.apply([np.ones((3, 2), "float32")], [v])

"""Where roles come from: by hand, read from layers, or from a config."""

import json
import warnings

import keras
import pytest
from keras import layers

from helpers.saves import compiled_model
from helpers.saves import with_roles
from helpers.tiers import logic
from keras_lanton import Lanton

pytestmark = logic


def dense(*names):
    return keras.Sequential(
        [keras.Input((4,)), *(layers.Dense(4, name=name) for name in names)]
    )


def with_table(model, role="embedding"):
    """An optimizer whose first kernel has a role by hand."""
    optimizer = Lanton()
    optimizer.assign_role(role, model.layers[0].kernel)
    optimizer.build(model.trainable_variables)
    return optimizer


def loaded(optimizer, model):
    """An optimizer of the config, on a model."""
    config = json.loads(json.dumps(optimizer.get_config()))
    made = Lanton.from_config(config)
    made.build(model.trainable_variables)
    return made


def roles(optimizer):
    """Of the kernels."""
    return [spec.role for spec in optimizer.layers][::2]


def test_roles_survive_before_the_first_step():
    """The config of an optimizer that was never built."""
    model = compiled_model()
    direct = with_roles(model, Lanton())
    direct.build(model.trainable_variables)
    assert loaded(with_roles(model, Lanton()), model).layers == direct.layers


@pytest.mark.parametrize(
    ("names", "others"),
    [
        ("a b", "a c"),  # roles that no variable has are dropped
        ("dense dense_1 dense_2", "dense_1 dense_2 dense_3"),
    ],
)
def test_config_of_another_model(names, others):
    optimizer = with_table(dense(*names.split()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = roles(loaded(optimizer, dense(*others.split())))
    assert found == ["embedding", "hidden", "hidden"][: len(found)]


def test_a_role_of_a_renamed_variable_is_told():
    optimizer = with_table(dense("a", "b"))
    with pytest.warns(UserWarning, match="a/kernel was embed.*c/kernel"):
        loaded(optimizer, dense("c", "b"))


def test_names_may_be_numbered_otherwise():
    """Keras numbers unnamed layers anew in each process."""
    optimizer = with_table(dense(None, None), "vector")
    found = loaded(optimizer, dense(None, None))
    assert roles(found) == roles(optimizer) == ["vector", "hidden"]


def test_roles_that_were_read_with_a_frozen_layer():
    model = dense("a", "b", "c")
    model.layers[0].trainable = False
    found = loaded(Lanton().read_roles(model), model).layers
    assert [spec.path.split("/")[-2] for spec in found] == [*"bbcc"]


def test_roles_that_are_set_again_win():
    model = dense("a", "b")
    again = Lanton.from_config(Lanton().read_roles(model).get_config())
    again.assign_role("embedding", model.layers[0].kernel)
    assert roles(loaded(again, model)) == ["embedding", "hidden"]

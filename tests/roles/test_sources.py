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

# -- Roles -----------------------------------------------------------------


@logic
def test_roles_survive_before_the_first_step():
    """The config of an optimizer that was never built."""
    model = compiled_model()
    config = with_roles(model, Lanton()).get_config()
    loaded = Lanton.from_config(json.loads(json.dumps(config)))
    loaded.build(model.trainable_variables)
    direct = with_roles(model, Lanton())
    direct.build(model.trainable_variables)
    assert loaded.layers == direct.layers


@logic
def test_config_of_another_model():
    """Roles that no variable has are dropped; what fits is kept."""
    model = three("a", "b")
    optimizer = Lanton()
    optimizer.assign_role("embedding", model.layers[0].kernel)
    optimizer.build(model.trainable_variables)
    other = keras.Sequential(
        [keras.Input((4,)), *(layers.Dense(4, name=name) for name in "ac")]
    )
    loaded = Lanton.from_config(optimizer.get_config())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded.build(other.trainable_variables)
    assert [spec.role for spec in loaded.layers][::2] == ["embedding", "hidden"]


@logic
def test_a_role_of_a_renamed_variable_is_told():
    model = three("a", "b")
    optimizer = Lanton()
    optimizer.assign_role("embedding", model.layers[0].kernel)
    optimizer.build(model.trainable_variables)
    loaded = Lanton.from_config(optimizer.get_config())
    with pytest.warns(UserWarning, match="a/kernel was embed.*c/kernel"):
        loaded.build(three("c", "b").trainable_variables)


@logic
def test_names_may_be_numbered_otherwise(tmp_path):
    """Keras numbers unnamed layers anew in each process."""

    def unnamed():
        return keras.Sequential(
            [keras.Input((4,)), layers.Dense(5), layers.Dense(3)]
        )

    first, second = unnamed(), unnamed()
    optimizer = Lanton()
    optimizer.assign_role("vector", first.layers[0].kernel)
    optimizer.build(first.trainable_variables)
    loaded = Lanton.from_config(optimizer.get_config())
    loaded.build(second.trainable_variables)
    assert [one.role for one in loaded.layers] == [
        one.role for one in optimizer.layers
    ]


def three(*names):
    return keras.Sequential(
        [keras.Input((4,)), *(layers.Dense(4, name=name) for name in names)]
    )


@logic
def test_roles_that_were_read_with_a_frozen_layer():
    model = three("a", "b", "c")
    model.layers[0].trainable = False
    config = Lanton().read_roles(model).get_config()
    loaded = Lanton.from_config(config)
    loaded.build(model.trainable_variables)
    assert [spec.path.split("/")[-2] for spec in loaded.layers] == [*"bbcc"]


@logic
def test_roles_that_are_set_again_win():
    model = three("a", "b")
    optimizer = Lanton().read_roles(model)
    again = Lanton.from_config(optimizer.get_config())
    again.assign_role("embedding", model.layers[0].kernel)
    last = Lanton.from_config(again.get_config())
    last.build(model.trainable_variables)
    assert [spec.role for spec in last.layers][::2] == ["embedding", "hidden"]


@logic
def test_names_that_are_shifted_by_one():
    model = three("dense", "dense_1", "dense_2")
    optimizer = Lanton()
    optimizer.assign_role("embedding", model.layers[0].kernel)
    optimizer.build(model.trainable_variables)
    loaded = Lanton.from_config(optimizer.get_config())
    loaded.build(three("dense_1", "dense_2", "dense_3").trainable_variables)
    roles = [spec.role for spec in loaded.layers][::2]
    assert roles == ["embedding", "hidden", "hidden"]

"""What the import says where Keras has moved a hook."""

import runpy

import keras
import pytest

from helpers.tiers import logic
from keras_lanton.optimizer import hooks

pytestmark = logic


def test_the_import_fails_where_a_hook_is_gone(monkeypatch):
    (owner,) = (
        one
        for one in keras.optimizers.Optimizer.__mro__
        if "_var_key" in vars(one)
    )
    monkeypatch.delattr(owner, "_var_key")
    with pytest.raises(ImportError, match="keras_lanton needs _var_key of"):
        runpy.run_path(hooks.__file__)


def test_each_method_that_moved_is_named(monkeypatch):
    hooks.check_keras()
    monkeypatch.setitem(hooks.METHODS, "_var_key", ["self", "path"])
    monkeypatch.setitem(hooks.METHODS, "_gone", [])
    with pytest.raises(
        ImportError, match="needs _var_key, _gone of .* works is 3.15"
    ):
        hooks.check_keras()

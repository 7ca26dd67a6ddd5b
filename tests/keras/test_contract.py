"""The private methods of Keras in hooks.py: fails when one changes."""

import inspect

import keras
import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton.fast import dispatch
from keras_lanton.optimizer import hooks
from keras_lanton.roles import from_layers


@pytest.mark.parametrize("name", hooks.METHODS)
def test_hook_has_its_signature(name):
    method = getattr(keras.optimizers.Optimizer, name)
    assert list(inspect.signature(method).parameters) == [
        "self",
        *hooks.METHODS[name],
    ], f"Keras {keras.__version__} changed {name}"


def test_the_first_variable_counts_micro_steps():
    optimizer = Lanton(gradient_accumulation_steps=2)
    v = keras.Variable(np.ones((2, 2), "float32"))
    optimizer.apply([keras.ops.ones((2, 2))], [v])
    assert int(optimizer.micro_steps.value) == 1
    assert int(optimizer.iterations) == 0


def test_layers_have_what_roles_reads():
    layer = keras.layers.MultiHeadAttention(2, 3)
    layer.build((None, 4, 6), (None, 4, 6))
    query = layer._query_dense
    assert query in layer._flatten_layers()
    assert query._trainable_variables == [query.kernel, query.bias]
    for name in ("_flatten_layers", "_trainable_variables"):
        assert name in from_layers.__doc__


def test_keras_calls_the_hooks_in_this_order():
    names = [
        "_backend_apply_gradients",
        "_clip_gradients",
        "_apply_weight_decay",
        "_backend_update_step",
    ]
    calls, cls = [], type("Traced", (keras.optimizers.SGD,), {})
    for name in names:
        real = getattr(cls, name)

        def hook(self, *args, name=name, real=real, **kwargs):
            calls.append((name, int(self._iterations.value)))
            return real(self, *args, **kwargs)

        setattr(cls, name, hook)
    optimizer = cls(1.0, weight_decay=0.1, clipvalue=0.5)
    v = keras.Variable(np.ones((2, 2), "float32"))
    optimizer.apply([keras.ops.ones((2, 2))], [v])
    # The counter is raised after the update.
    assert calls == [(name, 0) for name in names]
    assert int(optimizer.iterations.value) == 1


@logic
def test_one_gradient_passes_at_most_eight_functions(monkeypatch):
    """Our functions on the way from `apply` to Newton-Schulz."""
    names, real = [], dispatch.standard_newton_schulz

    def probe(B, **options):
        frame = inspect.currentframe().f_back
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            name = frame.f_code.co_name
            if module.startswith("keras_lanton") and name[0] != "<":
                names.append(name)
            frame = frame.f_back
        return real(B, **options)

    monkeypatch.setattr(dispatch, "standard_newton_schulz", probe)
    v = keras.Variable(np.ones((70, 80), "float32"))
    Lanton().apply([keras.ops.ones((70, 80))], [v])
    assert "apply" in names
    ours = [name for name in names if name != "apply"]
    assert len(ours) <= 7, ours

"""The private methods of Keras in hooks.py: fails when one changes."""

import inspect

import keras
import numpy as np
import pytest

from keras_lanton import Lanton
from keras_lanton.optimizer import hooks
from keras_lanton.roles import from_layers


@pytest.mark.parametrize("name", hooks.METHODS)
def test_hook_has_its_signature(name: str) -> None:
    method = getattr(keras.optimizers.Optimizer, name)
    assert list(inspect.signature(method).parameters) == [
        "self",
        *hooks.METHODS[name],
    ], f"Keras {keras.__version__} changed {name}"


def test_the_first_variable_counts_micro_steps() -> None:
    optimizer = Lanton(gradient_accumulation_steps=2)
    v = keras.Variable(np.ones((2, 2), "float32"))
    optimizer.apply([keras.ops.ones((2, 2))], [v])
    assert int(optimizer.micro_steps.value) == 1
    assert int(optimizer.iterations) == 0


def test_layers_have_what_roles_reads() -> None:
    layer = keras.layers.MultiHeadAttention(2, 3)
    layer.build((None, 4, 6), (None, 4, 6))
    query = layer._query_dense
    assert query in layer._flatten_layers()
    assert query._trainable_variables == [query.kernel, query.bias]
    for name in ("_flatten_layers", "_trainable_variables"):
        assert name in from_layers.__doc__


class Traced(keras.optimizers.SGD):
    """Notes the order in which Keras calls the hooks."""

    def __init__(self) -> None:
        super().__init__(1.0, weight_decay=0.1, clipvalue=0.5)
        self.calls = []


def _note(name: str) -> None:
    def hook(self: Traced, *args: object, **kwargs: object) -> object:
        self.calls.append((name, int(self._iterations.value)))
        return getattr(keras.optimizers.SGD, name)(self, *args, **kwargs)

    setattr(Traced, name, hook)


ORDER = [
    "_backend_apply_gradients",
    "_clip_gradients",
    "_apply_weight_decay",
    "_backend_update_step",
]
for _name in ORDER:
    _note(_name)


def test_keras_calls_the_hooks_in_this_order() -> None:
    optimizer = Traced()
    v = keras.Variable(np.ones((2, 2), "float32"))
    optimizer.apply([keras.ops.ones((2, 2))], [v])
    # The counter is raised after the update.
    assert optimizer.calls == [(name, 0) for name in ORDER]
    assert int(optimizer.iterations.value) == 1


def test_one_gradient_passes_at_most_eight_functions() -> None:
    """Our functions on the way from `apply` to Newton-Schulz."""
    stacks = []

    def probe(B: object, **options: object) -> object:
        frame, names = inspect.currentframe().f_back, ["newton_schulz"]
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            name = frame.f_code.co_name
            if module.startswith("keras_lanton") and name[0] != "<":
                names.insert(0, name)
            frame = frame.f_back
        stacks.append(names)
        return real(B, **options)

    from keras_lanton.fast import dispatch

    real = dispatch.standard_newton_schulz
    dispatch.standard_newton_schulz = probe
    try:
        v = keras.Variable(np.ones((70, 80), "float32"))
        Lanton().apply([keras.ops.ones((70, 80))], [v])
    finally:
        dispatch.standard_newton_schulz = real
    ours = [name for name in stacks[0] if name != "apply"]
    print(" -> ".join(["apply", *ours]))
    assert len(ours) <= 8

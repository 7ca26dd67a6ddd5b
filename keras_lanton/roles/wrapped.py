"""Weights inside Keras' wrappers of other libraries, by their own names.

Keras numbers these weights: `variable_3`. The names that PyTorch's modules,
JAX's trees of parameters and TensorFlow's saved models have for them say more.
"""

import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keras import layers as keras_layers

from keras_lanton.roles.from_torch import is_table
from keras_lanton.roles.spec import variable_path
from keras_lanton.types import Variable

Wrapped = dict[int, tuple[str, list[Any]]]


def find_wrapped(layers: Sequence[Any]) -> Wrapped:
    """Paths and holders of the variables inside wrappers.

    Returns:
        By the variable's `id` its path, and what holds it: modules of PyTorch,
        an embedding before others, or else the wrapper.
    """
    found: Wrapped = {}
    parameters = _torch_parameters(layers)
    for layer in layers:
        if isinstance(layer, keras_layers.TorchModuleWrapper):
            for variable in layer.variables:
                held = parameters.get(id(variable.value))
                if held is not None:
                    found[id(variable)] = held
        elif isinstance(layer, keras_layers.JaxLayer):
            for path, variable in _leaves(layer.params, _root(layer)):
                found[id(variable)] = (path, [layer])
        elif isinstance(layer, keras_layers.TFSMLayer):
            for variable in layer.variables:
                path = f"{_root(layer)}/{variable_path(variable.value)}"
                found[id(variable)] = (path, [layer])
    return found


def _root(layer: Any) -> str:
    return str(layer.path or layer.name)


def _torch_parameters(layers: Sequence[Any]) -> Wrapped:
    """Paths and modules of all parameters, those of embeddings first."""
    members = [
        member
        for layer in layers
        if isinstance(layer, keras_layers.TorchModuleWrapper)
        for member in _members(layer)
    ]
    members.sort(key=lambda member: not is_table(member[1]))
    modules = collections.defaultdict(list)
    paths: dict[int, str] = {}
    for path, module, parameter in members:
        paths.setdefault(id(parameter), path)
        modules[id(parameter)].append(module)
    return {key: (path, modules[key]) for key, path in paths.items()}


def _members(layer: Any) -> Iterator[tuple[str, Any, Any]]:
    """Path, module and parameter of all that a wrapped module holds."""
    for name, module in layer.module.named_modules():
        parents = [_root(layer), *filter(None, name.split("."))]
        for own, parameter in module.named_parameters(recurse=False):
            yield "/".join([*parents, own]), module, parameter


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Variable]]:
    """Path and variable of each leaf; of mappings and sequences alone."""
    items: Any = ()
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    else:
        yield path, tree
    for key, value in items:
        yield from _leaves(value, f"{path}/{key}")

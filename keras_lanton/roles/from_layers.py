"""Roles and matrix views from the model's own layers: exact.

The layers know what paths cannot tell: the equation of an `EinsumDense`, the
groups of a convolution. Where a variable's layer is unknown, `from_paths`
answers; where that cannot, role and view are a guess, and `read_model` warns.

Two private names of Keras are used here, and nowhere else in this room.
`Layer._flatten_layers()` has all sublayers, which `Model.layers` does not
reach. `Layer._trainable_variables` has a layer's own weights, without those of
its sublayers, also while the layer is frozen.
"""

import collections
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import keras

from keras_lanton.roles.from_paths import apply_rules
from keras_lanton.roles.from_paths import experts
from keras_lanton.roles.from_paths import warn_of_guesses
from keras_lanton.roles.from_torch import read_module
from keras_lanton.roles.names import TRANSPOSED
from keras_lanton.roles.names import VECTOR
from keras_lanton.roles.siblings import NamedVariable
from keras_lanton.roles.siblings import Siblings
from keras_lanton.roles.siblings import find_heads
from keras_lanton.roles.siblings import guess
from keras_lanton.roles.siblings import last_output
from keras_lanton.roles.siblings import spec_of
from keras_lanton.roles.siblings import transposed
from keras_lanton.roles.siblings import vector
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import variable_path
from keras_lanton.roles.wrapped import find_wrapped
from keras_lanton.types import Variable

# From the layers themselves: each reader answers for the weights it knows.

_Reader = Callable[[Any, NamedVariable], VariableSpec | None]


def _read_dense(layer: Any, variable: NamedVariable) -> VariableSpec | None:
    return last_output(variable) if "kernel" in variable.name else None


def _read_einsum_dense(
    layer: Any, variable: NamedVariable
) -> VariableSpec | None:
    """Axes of the kernel's letters.

    In the input and the output: batch. In the output alone: output. Else the
    letter is summed over: input. The LoRA pair (..., r) (r, last) stands for
    the kernel with r in the place of its last letter.
    """
    if "kernel" not in variable.name:
        return None
    equation = re.sub(r"[.\s]", "", layer.equation)
    inputs, kernel, output = re.split(r",|->", equation)
    if variable.name == "lora_kernel_b":
        return spec_of(variable, outputs=(int(kernel[-1] in output),))
    kept = [axis for axis, letter in enumerate(kernel) if letter in output]
    batch = tuple(axis for axis in kept if kernel[axis] in inputs)
    outputs = tuple(axis for axis in kept if kernel[axis] not in inputs)
    if len(batch) + len(outputs) == len(kernel):
        return vector(variable)
    return spec_of(variable, batch=batch, outputs=outputs)


def _read_convolution(
    layer: Any, variable: NamedVariable
) -> VariableSpec | None:
    if variable.name != "kernel":
        return _read_dense(layer, variable)
    # One channel in per group is a depthwise convolution by another name.
    if layer.groups > 1 and variable.shape[-2] == 1:
        return vector(variable)
    return last_output(variable, blocks=layer.groups)


def _read_transposed(
    layer: Any, variable: NamedVariable
) -> VariableSpec | None:
    return transposed(variable) if variable.name == "kernel" else None


def _read_depthwise(layer: Any, variable: NamedVariable) -> VariableSpec | None:
    if variable.name == "pointwise_kernel":
        return last_output(variable)
    return vector(variable)


def _read_gates(gates: int) -> _Reader:
    def read(layer: Any, variable: NamedVariable) -> VariableSpec | None:
        known = variable.name in ("kernel", "recurrent_kernel")
        return last_output(variable, blocks=gates) if known else None

    return read


def _read_vector(layer: Any, variable: NamedVariable) -> VariableSpec | None:
    return vector(variable)


# Embeddings are not here: their names say all there is to know. Neither are
# ConvLSTM cells (not public), whose recurrent kernel says it.
_READERS: tuple[tuple[tuple[type, ...], _Reader], ...] = (
    ((keras.layers.Dense,), _read_dense),
    ((keras.layers.EinsumDense,), _read_einsum_dense),
    (
        (
            keras.layers.Conv1DTranspose,
            keras.layers.Conv2DTranspose,
            keras.layers.Conv3DTranspose,
        ),
        _read_transposed,
    ),
    (
        (
            keras.layers.DepthwiseConv1D,
            keras.layers.DepthwiseConv2D,
            keras.layers.SeparableConv1D,
            keras.layers.SeparableConv2D,
        ),
        _read_depthwise,
    ),
    (
        (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D),
        _read_convolution,
    ),
    ((keras.layers.SimpleRNNCell,), _read_gates(1)),
    ((keras.layers.GRUCell,), _read_gates(3)),
    ((keras.layers.LSTMCell,), _read_gates(4)),
    (
        (
            keras.layers.BatchNormalization,
            keras.layers.GroupNormalization,
            keras.layers.LayerNormalization,
            keras.layers.RMSNormalization,
            keras.layers.PReLU,
            keras.layers.Attention,
            keras.layers.AdditiveAttention,
        ),
        _read_vector,
    ),
)


def _read(
    layer: Any, variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """The spec of a known layer's own weight, or None."""
    if _is_torch(layer):
        return read_module(layer, variable, siblings)
    if variable.rank < 2 or VECTOR.fullmatch(variable.name):
        return vector(variable)
    if isinstance(layer, keras.layers.JaxLayer):
        return _read_jax(variable, siblings)
    for classes, reader in _READERS:
        if isinstance(layer, classes):
            return reader(layer, variable)
    names = (cls.__name__ for cls in type(layer).__mro__)
    if variable.rank == 3 and any(name.endswith("Experts") for name in names):
        return experts(variable, siblings)
    return None


def _is_torch(layer: Any) -> bool:
    """Returns whether it is a module of PyTorch, or the wrapper of one."""
    wraps = isinstance(layer, keras.layers.TorchModuleWrapper)
    return wraps or not isinstance(layer, keras.layers.Layer)


def _read_jax(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """A transposed convolution: Flax has (..., in, out), Haiku (..., out, in).

    Their bias tells one from the other, if the two sizes differ.
    """
    if variable.rank < 3 or not TRANSPOSED.search(variable.subject):
        return None
    *_, before, last = variable.shape
    told = before != last and siblings.channels(variable) is not None
    return None if told else guess(last_output(variable))


def _may_be_head(layer: Any) -> bool:
    """A Dense whose outputs are logits or probabilities, or an unknown one."""
    if _is_torch(layer):
        return True
    activation = getattr(layer, "activation", None)
    name = getattr(activation, "__name__", "linear")
    plain = name in ("linear", "softmax", "log_softmax")
    return plain and isinstance(
        layer,
        (
            keras.layers.Dense,
            keras.layers.EinsumDense,
            keras.layers.JaxLayer,
            keras.layers.TFSMLayer,
        ),
    )


def _owners(
    model: Any,
) -> tuple[list[Variable], list[list[Any]], dict[int, str]]:
    """Every trainable variable, frozen ones too, and what holds it.

    Returns:
        The variables, per variable its layers or modules, and the paths inside
        wrappers, by the variable's `id`.
    """
    layers = list(model._flatten_layers())
    wrapped = find_wrapped(layers)
    holders = collections.defaultdict(list)
    for layer in layers:
        for variable in layer._trainable_variables:
            holders[id(variable)].append(layer)
    variables = [v for v in model.variables if v.trainable or id(v) in holders]
    holders.update({key: held for key, (_, held) in wrapped.items()})
    owners = [holders[id(variable)] for variable in variables]
    return variables, owners, {key: path for key, (path, _) in wrapped.items()}


def read_model(model: Any) -> list[tuple[Variable, VariableSpec]]:
    """Roles and views from the model's layers.

    Args:
        model: A built `keras.Model` or `keras.Layer`.

    Returns:
        Pairs of a variable and its record, one per trainable variable (also
        of layers that are frozen now), shared variables once.

    Raises:
        ValueError: If the model has no variables yet.
    """
    variables, owners, paths = _owners(model)
    if not variables:
        raise ValueError(
            "The model must be built (call it once, or `model.build`) before "
            f"its layers can be read. Received: model={model}"
        )
    siblings = Siblings(variables, paths)
    found = apply_rules(siblings)
    for variable, layers in zip(siblings.members, owners, strict=True):
        answers = (_read(layer, variable, siblings) for layer in layers)
        known = next((answer for answer in answers if answer), None)
        found[variable.index] = known or found[variable.index]
    for index in find_heads(siblings, found):
        named = siblings.members[index].name == "output_kernel"
        if named or any(_may_be_head(layer) for layer in owners[index]):
            found[index] = dataclasses.replace(found[index], role="embedding")
    found = [
        dataclasses.replace(spec, path=variable_path(variable))
        for variable, spec in zip(variables, found, strict=True)
    ]
    warn_of_guesses(
        found,
        "`optimizer.read_roles(model)` does not know their layers. Before "
        "the first step, call `optimizer.assign_role(role, variables, "
        "input_axes, output_axes)` to set them by hand.",
    )
    return list(zip(variables, found, strict=True))

"""Roles and views of parameters, from the PyTorch modules that hold them.

A module's weight is (out, in). Its class says which axis is what; PyTorch is
not imported, since the names of the classes say enough.
"""

from collections.abc import Callable
from typing import Any

from keras_lanton.roles.from_paths import by_rank_or_name
from keras_lanton.roles.siblings import NamedVariable
from keras_lanton.roles.siblings import Siblings
from keras_lanton.roles.siblings import guess
from keras_lanton.roles.siblings import last_output
from keras_lanton.roles.siblings import spec_of
from keras_lanton.roles.siblings import table
from keras_lanton.roles.siblings import vector
from keras_lanton.roles.spec import VariableSpec

_Reader = Callable[[Any, NamedVariable], VariableSpec | None]


def read_module(
    module: Any, variable: NamedVariable, siblings: Siblings
) -> VariableSpec:
    """The spec of a module's own parameter.

    Args:
        module: A `torch.nn.Module` of any class.
        variable: The parameter, by the name that the module has for it.
        siblings: All variables.

    Returns:
        The spec; a guess for a class or a name that is not known.
    """
    reader = next(
        (_READERS[n] for n in _classes(module) if n in _READERS), None
    )
    known = reader(module, variable) if reader and variable.rank > 1 else None
    known = known or by_rank_or_name(variable, siblings)
    return known or guess(last_output(variable))


def is_table(module: Any) -> bool:
    """Returns whether a module is an embedding.

    Args:
        module: A `torch.nn.Module` of any class.
    """
    return not {"Embedding", "EmbeddingBag"}.isdisjoint(_classes(module))


def _classes(module: Any) -> list[str]:
    """Names of the classes of `torch.nn` that a module's class is made of."""
    return [
        cls.__name__
        for cls in type(module).__mro__
        if cls.__module__.startswith("torch.nn.")
    ]


def _read_table(module: Any, variable: NamedVariable) -> VariableSpec | None:
    return table(variable) if variable.name == "weight" else None


def _read_vector(module: Any, variable: NamedVariable) -> VariableSpec | None:
    return vector(variable)


def _read_outputs(module: Any, variable: NamedVariable) -> VariableSpec | None:
    """(out, in) of `Linear`, (out, in, in) of `Bilinear`."""
    return _outputs_first(variable) if variable.name == "weight" else None


def _outputs_first(variable: NamedVariable, blocks: int = 1) -> VariableSpec:
    return spec_of(variable, outputs=(0,), blocks=blocks)


def _read_attention(
    module: Any, variable: NamedVariable
) -> VariableSpec | None:
    """Queries, keys and values (3 model, model), or each on its own."""
    if variable.name == "in_proj_weight":
        return _outputs_first(variable, blocks=3)
    if variable.name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        return _outputs_first(variable)
    return None


def _read_convolution(
    module: Any, variable: NamedVariable
) -> VariableSpec | None:
    """(out, in / groups, ...); one channel in per group is depthwise."""
    if variable.name != "weight":
        return None
    if module.groups > 1 and variable.shape[1] == 1:
        return vector(variable)
    return _outputs_first(variable, blocks=module.groups)


def _read_transposed(
    module: Any, variable: NamedVariable
) -> VariableSpec | None:
    """(in, out / groups, ...): no view cuts groups of inputs."""
    if variable.name != "weight":
        return None
    if module.groups == variable.shape[0] > 1:
        return vector(variable)
    spec = spec_of(variable, outputs=(1,))
    return spec if module.groups == 1 else guess(spec)


def _read_gates(gates: int) -> _Reader:
    def read(module: Any, variable: NamedVariable) -> VariableSpec | None:
        """(gates * hidden, in), or a projection (out, hidden)."""
        if variable.name.startswith(("weight_ih", "weight_hh")):
            return _outputs_first(variable, blocks=gates)
        projects = variable.name.startswith("weight_hr")
        return _outputs_first(variable) if projects else None

    return read


_READERS: dict[str, _Reader] = {
    "Linear": _read_outputs,
    "Bilinear": _read_outputs,
    "Conv1d": _read_convolution,
    "Conv2d": _read_convolution,
    "Conv3d": _read_convolution,
    "ConvTranspose1d": _read_transposed,
    "ConvTranspose2d": _read_transposed,
    "ConvTranspose3d": _read_transposed,
    "Embedding": _read_table,
    "EmbeddingBag": _read_table,
    # All that have parameters of rank 2 or more.
    "LayerNorm": _read_vector,
    "RMSNorm": _read_vector,
    "MultiheadAttention": _read_attention,
    "RNN": _read_gates(1),
    "RNNCell": _read_gates(1),
    "GRU": _read_gates(3),
    "GRUCell": _read_gates(3),
    "LSTM": _read_gates(4),
    "LSTMCell": _read_gates(4),
}

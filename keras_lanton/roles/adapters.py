"""Low-rank adapters (LoRA) of Keras' layers."""

import re
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_lanton.roles.spec import variable_path

FACTOR = re.compile(r"(.+)/lora_\w+_[ab]$")


def zero_adapters(variables: Sequence[Any]) -> list[str]:
    """The layers whose adapter can never learn: both factors are zero.

    Each factor's gradient has the other as a factor. Keras loads a layer's
    weights so: it saves the sum of kernel and adapter.

    Args:
        variables: With concrete values. A layer of which one factor is not
            among them is left out.

    Returns:
        The paths of the layers, in the order of the variables.
    """
    factors: dict[str, list[Any]] = {}
    for variable in variables:
        match = FACTOR.match(variable_path(variable))
        if match:
            factors.setdefault(match[1], []).append(variable)
    return [
        path
        for path, pair in factors.items()
        if len(pair) == 2 and all(map(_is_zero, pair))
    ]


def _is_zero(variable: Any) -> bool:
    # On the device: one process may hold a part of the variable.
    found = ops.any(ops.not_equal(variable, 0))
    return not bool(ops.convert_to_numpy(found))

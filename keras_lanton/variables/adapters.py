"""Low-rank adapters (LoRA) of Keras' layers."""

import re
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_lanton.variables.spec import variable_path

FACTOR = re.compile(r"(.+)/lora_\w+_[ab]$")


def zero_adapters(variables: Sequence[Any]) -> list[str]:
    """The layers whose adapter can never learn: both factors are zero.

    Each factor's gradient has the other as a factor. Keras loads a layer's
    weights so: it saves the sum of kernel and adapter.

    Args:
        variables: With concrete values.

    Returns:
        The paths of the layers, in the order of the variables.
    """
    is_zero: dict[str, bool] = {}
    for variable in variables:
        match = FACTOR.match(variable_path(variable))
        if match and is_zero.get(match[1], True):
            found = ops.any(ops.not_equal(variable, 0))
            is_zero[match[1]] = not bool(ops.convert_to_numpy(found))
    return [path for path, zero in is_zero.items() if zero]

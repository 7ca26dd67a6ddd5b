"""Keras' `where`, `maximum` and the like, of tensors and numbers.

On PyTorch Keras makes a tensor of each number, which is copied to the device,
and so does `torch.where`. PyTorch waits for a GPU when it copies to it. Here
numbers are arguments of the operations.
"""

from typing import Any

import keras
from keras import ops

from keras_lanton.types import Tensor

if keras.backend.backend() == "torch":
    import torch

    def where(condition: Any, x: Any, y: Any) -> Tensor:
        """`keras.ops.where`; x or y is a tensor, which keeps its dtype."""
        if isinstance(condition, bool):
            return x if condition else y
        if not isinstance(condition, torch.Tensor):
            condition = ops.convert_to_tensor(condition)
        if not isinstance(y, torch.Tensor):
            return x.masked_fill(~condition, y)
        if not isinstance(x, torch.Tensor):
            return y.masked_fill(condition, x)
        return torch.where(condition, x, y)

    def maximum(x: Tensor, y: Any) -> Tensor:
        """`keras.ops.maximum`."""
        if isinstance(y, torch.Tensor):
            return torch.maximum(x, y)
        return torch.clamp(x, min=y)

    def minimum(x: Tensor, y: Any) -> Tensor:
        """`keras.ops.minimum`."""
        if isinstance(y, torch.Tensor):
            return torch.minimum(x, y)
        return torch.clamp(x, max=y)

    def clip(x: Tensor, x_min: float, x_max: float) -> Tensor:
        """`keras.ops.clip`."""
        return torch.clamp(x, x_min, x_max)

    def take(x: Tensor, indices: Tensor) -> Tensor:
        """`keras.ops.take` of a vector."""
        return x[indices]

    def power(x: Any, y: Tensor) -> Tensor:
        """`keras.ops.power`."""
        return torch.pow(x, y)

else:
    where = ops.where
    maximum = ops.maximum
    minimum = ops.minimum
    clip = ops.clip
    power = ops.power
    take = ops.take

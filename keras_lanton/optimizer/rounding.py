"""Stochastic rounding: small updates are not lost, on average.

The random bits are a hash of the step, the variable and the entry: the same
on all backends, and the same when a run is resumed.
"""

import functools
import math
from typing import Any

import numpy as np
from keras import ops

from keras_lanton.backends import backend
from keras_lanton.types import Tensor

ROUNDINGS = ("nearest", "stochastic")
STEP_FACTOR, VARIABLE_FACTOR = 0x9E3779B1, 0x85EBCA77  # odd, well mixed
MIX = ((16, 0x7FEB352D), (15, 0x846CA68B))  # shifts and factors


def signed(number: int) -> int:
    """A number modulo 2^32 as int32 has it."""
    return (number + 2**31) % 2**32 - 2**31


def random_bits(shape: tuple[int, ...], *, t: Tensor, number: int) -> Tensor:
    """32 random bits for each entry of a variable.

    Args:
        shape: Of the variable; at most 2^32 entries differ.
        t: Number of the step, int32 scalar.
        number: Of the variable.

    Returns:
        A tensor of the shape, int32.

    References:
        The mixing of bits is that of Wellons 2018, Prospecting for Hash
        Functions ("lowbias32").
    """
    x = ops.reshape(ops.arange(math.prod(shape), dtype="int32"), shape)
    key = ops.cast(t, "int32") * signed(STEP_FACTOR)
    key = _mixed(key + signed(VARIABLE_FACTOR * (number + 1)))
    return _mixed(ops.bitwise_xor(x, key))


def _mixed(x: Tensor) -> Tensor:
    """Makes each bit depend on all, by shifts, XOR and products."""
    for shift, factor in MIX:
        x = _shifted_xor(x, shift) * signed(factor)
    return _shifted_xor(x, 16)


def _int32(number: int) -> Tensor:
    return backend.constant(_scalar(number))


@functools.cache
def _scalar(number: int) -> np.ndarray:
    """One array for each number, so that PyTorch copies it to a GPU once."""
    return np.array(number, "int32")


def _shifted_xor(x: Tensor, shift: int) -> Tensor:
    # Of int32 the shift repeats the sign: the mask takes that away.
    right = ops.bitwise_right_shift(x, _int32(shift))
    mask = _int32(2 ** (32 - shift) - 1)
    return ops.bitwise_xor(x, ops.bitwise_and(right, mask))


def uniform(bits: Tensor) -> Tensor:
    """Numbers in [0, 1) of 24 of the bits, float32.

    Args:
        bits: From `random_bits`.
    """
    low = ops.bitwise_and(bits, _int32(2**24 - 1))
    return ops.cast(low, "float32") * 2.0**-24


def stochastic_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    """X up or down to bfloat16, by chance: the mean of many is x.

    Args:
        x: Float32. Infinities and NaN stay as they are.
        bits: From `random_bits`, of the shape of x.

    Returns:
        A tensor of the shape of x, bfloat16.
    """
    # Half of the bits go: added to them, random ones carry by chance.
    low = ops.bitwise_and(bits, _int32(0xFFFF))
    whole = backend.bitcast(x, "int32") + low
    kept = ops.bitwise_and(whole, _int32(-0x10000))
    rounded = backend.where(
        ops.isfinite(x), backend.bitcast(kept, "float32"), x
    )
    return ops.cast(rounded, "bfloat16")


def stochastic_cast(x: Tensor, dtype: Any, *, t: Tensor, number: int) -> Tensor:
    """A cast that rounds stochastically, where it is to bfloat16.

    Args:
        x: Float32.
        dtype: The backend's or a name.
        t: Number of the step, int32 scalar.
        number: Of the variable.
    """
    if not str(dtype).endswith("bfloat16"):
        return ops.cast(x, dtype)
    return stochastic_bfloat16(
        x, random_bits(tuple(x.shape), t=t, number=number)
    )

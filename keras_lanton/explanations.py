"""What an optimizer would do to a model, in words."""

import collections
import math
import re
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.arguments import is_number
from keras_lanton.arguments import shown
from keras_lanton.base import LayerwiseOptimizer
from keras_lanton.base import backend
from keras_lanton.blocks import block_of
from keras_lanton.lanton import Lanton
from keras_lanton.migration import RATE_OVER_ADAMW
from keras_lanton.migration import rate_of
from keras_lanton.norm_optimizer import NormOptimizer
from keras_lanton.roles import ROLES
from keras_lanton.roles import Layer

FUSED = re.compile(r"qkv|c_attn|in_proj|query_key_value", re.IGNORECASE)
ATTENTION = re.compile(r"attention|attn|/mha", re.IGNORECASE)
MANY_OUTPUTS = 8192
USUAL_RATES = (1e-3, 0.1)  # of Lanton: docs/paper.md, sections 1 and 11
# Lanton's best rate over AdamW's: the least of docs/paper.md, rounded down, and
# the most of the paper's tables.
OVER_ADAMW = (2.0, 50.0)


def explain(
    model: Any,
    optimizer: Any = None,
    *,
    adamw: Any = None,
    print_fn: Callable[[str], Any] | None = None,
) -> None:
    """Tells in words what the optimizer would do to a model.

    Before training, and without making any state: which layers are what, how
    large their steps are, what is measured, and what looks suspicious: views
    that are guesses, a head that is treated as hidden, a kernel that holds
    queries, keys and values, an unusual learning rate.

    Args:
        model: A built model.
        optimizer: Of this package. Defaults to the one that the model is
            compiled with, or to `Lanton()`.
        adamw: What trained the model until now, a `keras.optimizers.AdamW` or
            its learning rate, to compare rates; or None.
        print_fn: Takes the text. Defaults to `print`.

    Raises:
        ValueError: If the model is not built, for an optimizer of another
            package, or an `adamw` that is none.

    Examples:
        >>> explain(model)  # doctest: +ELLIPSIS
        ...
    """
    variables = getattr(model, "trainable_variables", None)
    if not variables:
        raise ValueError(
            "`explain` needs a built model with trainable variables: call it "
            "on data once, or `model.build(input_shape)`. "
            f"Received: model={shown(model)}"
        )
    adamw_rate = None if adamw is None else _rate_of_adamw(adamw)
    optimizer = _own(optimizer, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # guesses are told below
        layers = (
            optimizer.layers
            if optimizer.built
            else optimizer.decide_layers(variables)
        )
    rate = _highest(optimizer.schedule or optimizer.learning_rate)
    lines = [_heading(model, optimizer, layers, rate)]
    lines += [
        _role(role, [x for x in layers if x.role == role], optimizer, rate)
        for role in ROLES
        if any(layer.role == role for layer in layers)
    ]
    lines += list(_rest(optimizer))
    found = list(_suspicions(layers, optimizer, rate, adamw_rate))
    lines.append("Look at:" if found else "Nothing looks suspicious.")
    lines += [f"- {one}" for one in found]
    (print_fn or print)("\n".join(lines))


def _own(optimizer: Any, model: Any) -> LayerwiseOptimizer:
    """The optimizer to tell of."""
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        return inner if isinstance(inner, LayerwiseOptimizer) else Lanton()
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(inner, LayerwiseOptimizer):
        raise ValueError(
            "`optimizer` must be one of keras_lanton. "
            f"Received: optimizer={shown(optimizer)}"
        )
    return inner


def _rate_of_adamw(adamw: Any) -> float:
    """What it was told, or is at most."""
    if is_number(adamw, lambda x: x > 0):
        return float(adamw)
    if isinstance(adamw, keras.optimizers.Adam):  # AdamW is one
        return _highest(rate_of(adamw.get_config()))
    raise ValueError(
        "`adamw` must be None, a `keras.optimizers.AdamW` or `Adam`, or its "
        f"learning rate, above 0. Received: adamw={shown(adamw)}"
    )


def _highest(rate: Any) -> float:
    """Of a schedule the highest of 60 steps spread over a million."""
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return float(ops.convert_to_numpy(rate))
    steps = np.unique(np.geomspace(1, 1e6, 60).astype(int)) - 1
    rates = [backend.value_of(rate, int(step)) for step in steps]
    return max(float(ops.convert_to_numpy(one)) for one in rates)


# -- What it does ------------------------------------------------------------


def _heading(
    model: Any,
    optimizer: LayerwiseOptimizer,
    layers: Sequence[Layer],
    rate: float,
) -> str:
    return (
        f"{type(optimizer).__name__} moves the {_size(layers):,} trainable "
        f"weights of {model.name} ({len(layers)} variables) at a learning "
        f"rate of up to {rate:.3g}."
    )


def _size(layers: Sequence[Layer]) -> int:
    return sum(math.prod(layer.shape) for layer in layers)


def _role(
    role: str,
    layers: Sequence[Layer],
    optimizer: LayerwiseOptimizer,
    rate: float,
) -> str:
    """How many there are, and how they move."""
    matrices = sum(layer.batch for layer in layers)
    blocks = collections.Counter(block_of(layer) for layer in layers)
    kinds = ", ".join(f"{count} {name}" for name, count in blocks.items())
    text = (
        f"{role}: {len(layers)} variables ({kinds}), {_size(layers):,} weights"
    )
    if matrices > len(layers):
        text += f" in {matrices} matrices"
    steps = sorted({optimizer.describe_step(layer) for layer in layers})
    if steps == [""]:
        return f"{text}."
    if steps == ["AdamW"]:
        ratio = getattr(optimizer, "adam_lr_ratio", 1.0)
        return f"{text}; AdamW moves them, at {ratio:g} times the rate."
    sizes = sorted(float(step) for step in steps)
    span = " to ".join(
        f"{x * rate:.3g}" for x in dict.fromkeys((sizes[0], sizes[-1]))
    )
    return f"{text}; {HOW[role]}, steps of RMS {span}."


HOW = {
    "hidden": "their momentum is orthogonalized",
    "embedding": "by their momentum's signs or rows",
    "vector": "by their normalized momentum",
}
REFERENCES = {
    "previous_gradient": "the gradient minus that of the step before",
    "independent_gradient": "odd minus even micro-batches",
    "momentum": "the gradient minus the momentum",
}


def _rest(optimizer: LayerwiseOptimizer) -> Iterator[str]:
    """Noise and weight decay."""
    if isinstance(optimizer, NormOptimizer) and optimizer.noise is not None:
        rate = optimizer.noise
        roles = " and ".join(r for r in ROLES if r in optimizer.norms_by_role())
        yield (
            f"Noise of {roles} layers: {REFERENCES[rate.noise_reference]}, "
            f"each matrix once in {rate.noise_interval} steps; within a role "
            "the noisier layers take smaller steps "
            f"(alpha={rate.alpha:g}, relative to the role's "
            f"{rate.group_reduction})."
        )
    decay = optimizer.weight_decay
    excluded = optimizer.get_config()["weight_decay_exclude"]
    yield (
        f"Weight decay {decay:g} times the learning rate"
        + (f", but for {', '.join(excluded)}." if excluded else ".")
        if decay
        else "No weight decay."
    )


# -- What looks suspicious ---------------------------------------------------


def _suspicions(
    layers: Sequence[Layer],
    optimizer: LayerwiseOptimizer,
    rate: float,
    adamw: float | None,
) -> Iterator[str]:
    for layer in layers:
        if layer.guessed:
            yield (
                f"{layer.path} {layer.shape}: nothing explains its view, the "
                "last axis is taken as output. `optimizer.read_roles(model)` "
                "reads it from the model's layers, `assign_role` sets it."
            )
    yield from _heads(layers)
    for layer in layers:
        if layer.role == "hidden" and _fused(layer):
            yield (
                f"{layer.path} {layer.shape} seems to hold queries, keys and "
                "values: they are orthogonalized, and slowed down, as one "
                "matrix. Three kernels would be three layers."
            )
    if isinstance(optimizer, Lanton):
        yield from _rates(rate, adamw)


def _heads(layers: Sequence[Layer]) -> Iterator[str]:
    """Hidden kernels that look like heads."""
    tables = {
        layer.d_out: layer.path
        for layer in layers
        if layer.role == "embedding"
        and block_of(layer) in ("embedding", "position")
    }
    for layer in layers:
        if layer.role != "hidden" or len(layer.shape) != 2:
            continue
        if layer.d_out in tables and layer.d_out > layer.d_in:
            why = f"as many outputs as {tables[layer.d_out]} has rows"
        elif layer.d_out >= MANY_OUTPUTS and layer.d_out > 4 * layer.d_in:
            why = f"{layer.d_out:,} outputs"
        else:
            continue
        yield (
            f"{layer.path} {layer.shape} is treated as hidden, with {why}. If "
            'it is the head: `optimizer.assign_role("embedding", kernel, '
            "input_axes=0, output_axes=1)`."
        )


def _fused(layer: Layer) -> bool:
    if layer.batch > 1 or not layer.d_out > layer.d_in:
        return False
    wide = layer.d_out == 3 * layer.d_in and ATTENTION.search(layer.path)
    return bool(wide or FUSED.search(layer.path))


def _rates(rate: float, adamw: float | None) -> Iterator[str]:
    """A rate far from those that Lanton trains well with."""
    low, high = USUAL_RATES
    if adamw is not None:
        least, most = (factor * adamw for factor in OVER_ADAMW)
        if not least <= rate <= most:
            yield (
                f"AdamW's learning rate was {adamw:g}, Lanton's is {rate:g}: "
                "its best was 2.5 to 5 times AdamW's in docs/paper.md, 6 to 50 "
                f"times in the paper. `Lanton.from_adamw` takes "
                f"{RATE_OVER_ADAMW:g} times."
            )
    elif rate < low:
        yield (
            f"A learning rate of {rate:g} would suit AdamW: Lanton trains best "
            "with several times that, its default is 0.005. See "
            "`Lanton.from_adamw` and `keras_lanton.find_learning_rate`."
        )
    if rate > high:
        yield (
            f"A learning rate of {rate:g} is high: a hidden step has an RMS of "
            "0.2 times that. See `keras_lanton.find_learning_rate`."
        )

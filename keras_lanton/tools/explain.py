"""Explains in words how an optimizer will update a model."""

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

from keras_lanton.backends import backend
from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Sign
from keras_lanton.core.norms import Spectral
from keras_lanton.lanton import Lanton
from keras_lanton.optimizer.base import LayerwiseOptimizer
from keras_lanton.optimizer.deciding import matching
from keras_lanton.optimizer.lmo import LMOOptimizer
from keras_lanton.optimizer.migration import RATE_OVER_ADAMW
from keras_lanton.optimizer.migration import rate_of
from keras_lanton.roles import table
from keras_lanton.roles.adapters import zero_adapters
from keras_lanton.roles.block_kinds import block_of
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import in_words
from keras_lanton.roles.spec import variable_path
from keras_lanton.settings import NoiseAdaptiveRate
from keras_lanton.types import ROLES
from keras_lanton.validation import is_number
from keras_lanton.validation import shown

QKV = "queries, keys and values"
# What a fused kernel holds, its names, and how many parts it usually has.
FUSED = {
    QKV: (re.compile(r"(?i)qkv|c_attn|in_proj|query_key_value"), 3),
    "keys and values": (re.compile(r"(?i)(^|[/_])(kv|key_value)([/_]|$)"), 2),
    "gate and up": (re.compile(r"(?i)gate_?(and_?)?up|w13"), 2),
}
ATTENTION = re.compile(r"attention|attn|/mha", re.IGNORECASE)
MANY_OUTPUTS = 8192
# Of Lanton, docs/guides/learning_rate.md: constant ones, peaks of schedules.
CONSTANT_RATES, PEAK_RATES = (2.5e-4, 0.02), (1e-3, 0.1)
# Lanton's rate over AdamW's, as is usual: at their best rates on a small GPT-2
# (docs/method.md), and the most of the paper's tables.
OVER_ADAMW = (1.0, 50.0)
# Of low-rank adapters, to start with: a constant one, and a schedule's peak.
LORA_RATES = 2e-3, 5e-3


def explain(
    model: Any,
    optimizer: Any = None,
    *,
    adamw: Any = None,
    print_fn: Callable[[str], Any] | None = None,
) -> None:
    """Explains in words how the optimizer will update a model.

    It does so before training, and makes no state. It names the role of every
    variable, the size of its updates, and the noise that is measured. It warns
    of what looks suspicious: roles and views that are guesses, a head that is
    treated as hidden, a kernel that holds queries, keys and values, an unusual
    learning rate. It also names patterns of arguments that match no variable.

    Args:
        model: A built model.
        optimizer: An optimizer of this package. Defaults to the one that the
            model is compiled with, or to `Lanton()`.
        adamw: The optimizer that trained the model before, to compare rates:
            a `keras.optimizers.AdamW`, its learning rate, or None.
        print_fn: Takes the text. Defaults to `print`.

    Raises:
        ValueError: If the model is not built, for an optimizer of another
            package or another model, or an `adamw` that is not an AdamW.

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
    given = optimizer
    optimizer = _own(given, model)
    if given is not None:
        _check_built_on(optimizer, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # guesses are told below
        specs = (
            optimizer.layers
            if optimizer.built
            else optimizer.decide_specs(variables)
        )
    rate = _highest(optimizer.schedule or optimizer.learning_rate)
    lines = [_heading(model, optimizer, specs, rate)]
    lines += [
        _role(role, [x for x in specs if x.role == role], optimizer, rate)
        for role in ROLES
        if any(spec.role == role for spec in specs)
    ]
    factors = optimizer.multipliers_of(specs)
    lines += table.describe_multipliers(specs, factors)
    lines += list(_rest(specs, optimizer))
    found = [
        f"{path} has a low-rank adapter of zeros, as Keras loads it: it never "
        "learns. docs/guides/training.md says what to do."
        for path in zero_adapters(variables)
    ]
    found += optimizer.without_effect(specs)
    found += _suspicions(specs, optimizer, rate, adamw_rate)
    lines.append("Look at:" if found else "Nothing looks suspicious.")
    lines += [f"- {one}" for one in found]
    (print_fn or print)("\n".join(lines))


def _own(optimizer: Any, model: Any) -> LayerwiseOptimizer:
    """The optimizer to explain."""
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


def _check_built_on(optimizer: LayerwiseOptimizer, model: Any) -> None:
    """Refuses an optimizer that is built on another model."""
    known = {id(variable) for variable in model.variables}
    others = [
        variable_path(v) for v in optimizer.built_on if id(v) not in known
    ]
    if others:
        raise ValueError(
            "`optimizer` must be the model's, or not built. "
            f"Received: one built on {others} of another model"
        )


def _rate_of_adamw(adamw: Any) -> float:
    """The learning rate of AdamW; of a schedule the highest."""
    if is_number(adamw, lambda x: x > 0):
        return float(adamw)
    if isinstance(adamw, keras.optimizers.Adam):  # AdamW is one
        return _highest(rate_of(adamw.get_config()))
    raise ValueError(
        "`adamw` must be None, a `keras.optimizers.AdamW` or `Adam`, or its "
        f"learning rate, above 0. Received: adamw={shown(adamw)}"
    )


def _highest(rate: Any) -> float:
    """A rate; of a schedule the highest of 60 steps spread over a million."""
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return float(ops.convert_to_numpy(rate))
    steps = np.unique(np.geomspace(1, 1e6, 60).astype(int)) - 1
    rates = [backend.value_of(rate, int(step)) for step in steps]
    return max(float(ops.convert_to_numpy(one)) for one in rates)


# -- The updates -------------------------------------------------------------


def _heading(
    model: Any,
    optimizer: LayerwiseOptimizer,
    specs: Sequence[VariableSpec],
    rate: float,
) -> str:
    return (
        f"{type(optimizer).__name__} updates the {_size(specs):,} trainable "
        f"weights of {model.name} ({_counted(specs)}) at a learning "
        f"rate of up to {rate:.3g}."
    )


def _counted(specs: Sequence[VariableSpec]) -> str:
    return f"{len(specs)} variable{'s' if len(specs) != 1 else ''}"


def _size(specs: Sequence[VariableSpec]) -> int:
    return sum(math.prod(spec.shape) for spec in specs)


def _role(
    role: str,
    specs: Sequence[VariableSpec],
    optimizer: LayerwiseOptimizer,
    rate: float,
) -> str:
    """The variables of a role, and the size of their updates."""
    matrices = sum(spec.batch for spec in specs)
    blocks = collections.Counter(block_of(spec) for spec in specs)
    kinds = ", ".join(
        f"{count} {IN_WORDS.get(block, block)}"
        for block, count in blocks.items()
    )
    text = f"{role}: {_counted(specs)} ({kinds}), {_size(specs):,} weights"
    if matrices > len(specs):
        text += f" in {matrices} matrices"
    pieces = [piece for spec in specs for piece in spec.pieces]
    steps = sorted({optimizer.describe_step(piece) for piece in pieces})
    if steps == [""]:
        return f"{text}."
    if steps == ["AdamW"]:
        part = getattr(optimizer, "auxiliary_adamw", None)
        ratio = 1.0 if part is None else part.lr_ratio
        return f"{text}; AdamW updates them, at {ratio:g} times the rate."
    sizes = sorted(float(step) for step in steps)
    span = " to ".join(
        f"{x * rate:.3g}" for x in dict.fromkeys((sizes[0], sizes[-1]))
    )
    norm = optimizer.rules_by_role()[role].norm
    how = next(how for kind, how in HOW.items() if isinstance(norm, kind))
    return f"{text}; {how}, updates of RMS {span}."


# Of `block_of`, where its name needs one.
IN_WORDS = {
    "qk": "queries and keys",
    "vo": "values and attention outputs",
    "mlp": "other kernels",
    "norm": "gains and biases",
}
HOW: dict[type, str] = {
    Spectral: "their momentum is orthogonalized",
    Sign: "by the signs of their momentum",
    RMS: "by their normalized momentum",
}
REFERENCES = {
    "previous_gradient": "the gradient minus that of the step before",
    "independent_gradient": "odd minus even micro-batches",
    "momentum": "the gradient minus the momentum",
}


def _slowed(rate: NoiseAdaptiveRate) -> str:
    """Says what the noise of whole matrices does to their rates."""
    if rate.alpha is None:
        return "All matrices have the base rate."
    group = "role"
    noisier = "Within a role the noisier matrices"
    if rate.alpha_unit == "signal":
        group = "model"
        noisier = "Matrices whose noise is large beside their own momentum"
    return (
        f"{noisier} get smaller updates (alpha={rate.alpha:g}, relative to "
        f"the {group}'s {rate.group_reduction})."
    )


def _rest(
    specs: Sequence[VariableSpec], optimizer: LayerwiseOptimizer
) -> Iterator[str]:
    """Noise and weight decay."""
    if isinstance(optimizer, LMOOptimizer) and optimizer.noise is not None:
        rate = optimizer.noise
        roles = " and ".join(optimizer.lmo_roles)
        yield (
            f"Noise of {roles} matrices: {REFERENCES[rate.reference]}, "
            f"each matrix once in {rate.interval} steps. {_slowed(rate)}"
        )
        if rate.within_matrices:
            what = "hidden matrices are updated in units of it"
            if "embedding" in optimizer.lmo_roles:
                what += (
                    ", and entries of embeddings and heads whose momentum is "
                    "mostly noise get smaller updates"
                )
            yield f"The noise of rows and columns is measured too: {what}."
    decay = optimizer.decay
    excluded = optimizer.get_config()["weight_decay_exclude"] or ()
    found = [
        spec
        for spec, some in zip(specs, matching(excluded, specs), strict=True)
        if some
    ]
    without = (
        f", but for {', '.join(excluded)}: {_counted(found)}, "
        f"{_size(found):,} weights."
    )
    yield (
        f"Weight decay {decay:g} times the learning rate"
        + (without if excluded else ".")
        if decay
        else "No weight decay."
    )
    part = getattr(optimizer, "auxiliary_adamw", None)
    if part is not None and part.weight_decay is not None:
        yield (
            f"Weight decay of what AdamW updates: {part.weight_decay:g} times "
            "its rate."
        )


# -- What looks suspicious ---------------------------------------------------


def _suspicions(
    specs: Sequence[VariableSpec],
    optimizer: LayerwiseOptimizer,
    rate: float,
    adamw: float | None,
) -> Iterator[str]:
    for spec in specs:
        if spec.guessed:
            yield (
                f"{spec.path} {spec.shape}: nothing explains it, it is taken "
                f"as {in_words(spec)}. `optimizer.read_roles(model)` may know "
                "its layer, `assign_role` sets it."
            )
    yield from _heads(specs)
    yield from _fused_kernels(specs)
    if isinstance(optimizer, Lanton):
        yield from _rates(optimizer, rate, adamw)
        yield from _fine_tuning(specs, optimizer, rate, adamw)


def _fine_tuning(
    specs: Sequence[VariableSpec],
    optimizer: Lanton,
    rate: float,
    adamw: float | None,
) -> Iterator[str]:
    """Settings for pretraining, on a model that seems to be trained."""
    if any(spec.path.split("/")[-1].startswith("lora_") for spec in specs):
        least = LORA_RATES[optimizer.schedule is not None]
        if rate < least:
            yield (
                f"A learning rate of {rate:g} is low for low-rank adapters: "
                "start with two to four times that of all weights, "
                f"{least:g} to {2 * least:g}."
            )
    elif adamw is not None and "embedding" not in optimizer.adamw_roles:
        if any(spec.role == "embedding" for spec in specs):
            yield (
                "AdamW trained this model. If you go on with other data: "
                "`Lanton.for_fine_tuning` leaves tables and heads to AdamW, "
                "and forgets less."
            )


def _heads(specs: Sequence[VariableSpec]) -> Iterator[str]:
    """Hidden kernels that look like heads."""
    tables = {
        spec.d_out: spec.path
        for spec in specs
        if spec.role == "embedding"
        and block_of(spec) in ("embedding", "position")
    }
    for spec in specs:
        if spec.role != "hidden" or len(spec.shape) != 2:
            continue
        if spec.d_out in tables and spec.d_out > spec.d_in:
            why = f"as many outputs as {tables[spec.d_out]} has rows"
        elif spec.d_out >= MANY_OUTPUTS and spec.d_out > 4 * spec.d_in:
            why = f"{spec.d_out:,} outputs"
        else:
            continue
        yield (
            f"{spec.path} {spec.shape} is treated as hidden, with {why}. If "
            'it is the head: `optimizer.assign_role("embedding", kernel, '
            "input_axes=0, output_axes=1)`."
        )


def _fused_kernels(specs: Sequence[VariableSpec]) -> Iterator[str]:
    """Kernels that hold several projections as one matrix."""
    found: dict[tuple[str, str], list[VariableSpec]] = {}
    for spec in specs:
        held = _held(spec)
        if held is not None:
            pattern = re.sub(r"\d+", r"\\d+", spec.path)
            found.setdefault((held, pattern), []).append(spec)
    for (held, pattern), alike in found.items():
        spec, parts = alike[0], FUSED[held][1]
        like_it = f" and {len(alike) - 1} like it" if len(alike) > 1 else ""
        sizes = parts if spec.d_out % parts == 0 else "(their sizes)"
        yield (
            f"{spec.path} {spec.shape}{like_it} seems to hold {held}: they "
            "are orthogonalized, and slowed down, as one matrix. If they lie "
            f'one after the other: `optimizer.assign_role("hidden", '
            f'r"{pattern}", {_axes(spec)}output_parts={sizes})`.'
        )


def _held(spec: VariableSpec) -> str | None:
    """The projections that a kernel holds as one matrix, by its name."""
    cut = spec.cut_axis is not None or spec.view.output_blocks > 1
    if spec.role != "hidden" or cut or not spec.d_out > spec.d_in:
        return None
    if spec.d_out == 3 * spec.d_in and ATTENTION.search(spec.path):
        return QKV
    names = ((held, name) for held, (name, _) in FUSED.items())
    return next((held for held, name in names if name.search(spec.path)), None)


def _axes(spec: VariableSpec) -> str:
    """The arguments that keep the view of a kernel, where they are needed."""
    if spec.output_axes == (len(spec.shape) - 1,) and not spec.batch_axes:
        return ""
    return f"input_axes={spec.input_axes}, output_axes={spec.output_axes}, "


def _rates(
    optimizer: Lanton, rate: float, adamw: float | None
) -> Iterator[str]:
    """A rate far from those that Lanton trains well with."""
    usual, what = PEAK_RATES, "peaks of schedules are mostly 0.005 to 0.02."
    if optimizer.schedule is None:
        usual, what = CONSTANT_RATES, "without a schedule 0.001 is the default."
    what = f"{what} See docs/guides/learning_rate.md."
    if adamw is not None:
        least, most = (factor * adamw for factor in OVER_ADAMW)
        if not least <= rate <= most:
            yield (
                f"AdamW's learning rate was {adamw:g}, Lanton's is {rate:g}: "
                "in the paper it was 6 to 50 times AdamW's, and "
                f"`Lanton.from_adamw` takes {RATE_OVER_ADAMW:g} times."
            )
    elif rate < usual[0]:
        yield f"A learning rate of {rate:g} is low: {what}"
    if rate > usual[1]:
        yield f"A learning rate of {rate:g} is high: {what}"

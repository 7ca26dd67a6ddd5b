"""Checks of arguments: errors say what was wanted and what was received."""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np


def shown(value: Any) -> str:
    """The text that shows an argument, also where it has no `repr`.

    Python refuses to print integers of more than 4300 digits.
    """
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def check_choice(
    name: str, value: Any, allowed: Sequence[str], *, also: str = ""
) -> None:
    """ValueError unless the argument is one of the allowed strings."""
    if not isinstance(value, str) or value not in allowed:
        other = f"{also} or " if also else ""
        raise ValueError(
            f"`{name}` must be {other}one of {tuple(allowed)}. "
            f"Received: {name}={shown(value)}"
        )


def is_number(
    value: Any, allowed: Callable[[float], bool], *, integer: bool = False
) -> bool:
    """Returns whether a value is a number that is allowed and fits float32."""
    if isinstance(value, (bool, np.bool_)):
        return False
    if integer:
        return isinstance(value, (int, np.integer)) and allowed(value)  # type: ignore[arg-type]
    if not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        with np.errstate(over="ignore"):
            finite = math.isfinite(np.float32(float(value)))
    except OverflowError:
        return False
    return finite and allowed(value)  # type: ignore[arg-type]


def check_number(
    name: str,
    value: Any,
    wanted: str,
    allowed: Callable[[float], bool],
    *,
    integer: bool = False,
) -> None:
    """ValueError unless the argument is a number in its interval."""
    if not is_number(value, allowed, integer=integer):
        in_float32 = "" if integer else ", finite in float32"
        raise ValueError(
            f"`{name}` must be {wanted}{in_float32}. "
            f"Received: {name}={shown(value)}"
        )


# For each argument: words for what is wanted, a test of that, and whether it
# must be an integer; where the words begin with "None", None passes.
Number = tuple[str, Callable[[float], bool], bool]
Numbers = Mapping[str, Number]

DTYPES = ("float32", "float16", "bfloat16")

DECAY: Number = ("a number in [0, 1)", lambda x: 0 <= x < 1, False)
AT_LEAST_0: Number = ("a number of at least 0", lambda x: x >= 0, False)
ABOVE_0: Number = (
    "a number above 0",
    lambda x: float(np.float32(x)) > 0,
    False,
)
COUNT: Number = ("an integer of at least 1", lambda x: x >= 1, True)
SEED: Number = ("an integer of at least 0", lambda x: x >= 0, True)
# Steps are counted in int32.
STEPS: Number = (
    "an integer in [1, 2**31)",
    lambda x: 1 <= x < 2**31,
    True,
)


def check_numbers(numbers: Numbers, **given: Any) -> None:
    """ValueError for the first of the given numbers that is wrong."""
    for name, value in given.items():
        wanted, allows, integer = numbers[name]
        if value is not None or not wanted.startswith("None"):
            check_number(name, value, wanted, allows, integer=integer)


def check_bool(name: str, value: Any, *, optional: bool = False) -> None:
    """ValueError unless the argument is True, False or, optionally, None."""
    if not isinstance(value, (bool, np.bool_)) and not (
        optional and value is None
    ):
        wanted = "None, True or False" if optional else "True or False"
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name}={shown(value)}"
        )


PARTS = ("noise", "newton_schulz", "auxiliary_adamw")
# Where other optimizers' names, and flat names of arguments of a part, are
# found here.
_NOISE = "noise=NoiseAdaptiveRate({}=...)"
_NEWTON_SCHULZ = "newton_schulz=NewtonSchulz({}=...)"
_ADAMW = "auxiliary_adamw=AuxiliaryAdamW({}=...)"
MOVED = {
    "lr": "learning_rate=...",
    "momentum": "beta_1=...",
    "betas": "beta_1=..., auxiliary_adamw=AuxiliaryAdamW(beta_2=...)",
    "params": "optimizer.build(variables)",
    "alpha": _NOISE.format("alpha"),
    "within_matrices": _NOISE.format("within_matrices"),
    "alpha_unit": _NOISE.format("alpha_unit"),
    "group_reduction": _NOISE.format("group_reduction"),
    "beta_2": _NOISE.format("beta_2"),
    "interval": _NOISE.format("interval"),
    "reference": _NOISE.format("reference"),
    "estimator": _NOISE.format("estimator"),
    "previous_gradient_dtype": _NOISE.format("previous_gradient_dtype"),
    "steps": _NEWTON_SCHULZ.format("steps"),
    "coefficients": _NEWTON_SCHULZ.format("coefficients"),
    "ns_steps": _NEWTON_SCHULZ.format("steps"),
    "ns_coefficients": _NEWTON_SCHULZ.format("coefficients"),
    "max_temporary_bytes": _NEWTON_SCHULZ.format("max_temporary_bytes"),
    "lr_ratio": _ADAMW.format("lr_ratio"),
    "adam_lr_ratio": _ADAMW.format("lr_ratio"),
    "adam_beta_1": _ADAMW.format("beta_1"),
    "adam_beta_2": _ADAMW.format("beta_2"),
    "adam_weight_decay": _ADAMW.format("weight_decay"),
    "epsilon": _ADAMW.format("epsilon"),
}

# Keras takes some of these wrong values and ignores them.
BASE_NUMBERS: Numbers = {
    "clipnorm": ("None or a number above 0", lambda x: x > 0, False),
    "clipvalue": ("None or a number above 0", lambda x: x > 0, False),
    "global_clipnorm": ("None or a number above 0", lambda x: x > 0, False),
    "loss_scale_factor": ("None or a number above 0", lambda x: x > 0, False),
    "weight_decay": ("None or a number of at least 0", lambda x: x >= 0, False),
    "gradient_accumulation_steps": (
        "None or an integer in [2, 2**31)",
        lambda x: 2 <= x < 2**31,
        True,
    ),
    "ema_momentum": ("a number in [0, 1]", lambda x: 0 <= x <= 1, False),
    "ema_overwrite_frequency": (
        "None or an integer in [1, 2**31)",
        lambda x: 1 <= x < 2**31,
        True,
    ),
}


def check_names(cls: type, arguments: Mapping[str, Any]) -> None:
    """ValueError for an argument that a class has not, and where it may be.

    Args:
        cls: A class of optimizers.
        arguments: What its constructor hands on to Keras' optimizer.
    """
    own = [
        name
        for base in cls.__mro__
        if base is not object and "__init__" in vars(base)
        for name, one in inspect.signature(
            vars(base)["__init__"]
        ).parameters.items()
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    for name, value in arguments.items():
        if name in own or name == "decay":  # of which Keras warns
            continue
        place = MOVED.get(name, "")
        here = f"is `{place}` here"
        if not place or any(x in place and x not in own for x in PARTS):
            allowed = [x for x in own if x not in ("self", "roles")]
            names = ", ".join(dict.fromkeys(allowed))
            here = f"is no argument of `{cls.__name__}`: {names}"
        raise ValueError(f"`{name}` {here}. Received: {name}={shown(value)}")


def check_base_arguments(
    learning_rate: Any, arguments: Mapping[str, Any]
) -> None:
    """ValueError for a wrong argument of `keras.optimizers.Optimizer`."""
    if not callable(learning_rate):
        check_number(
            "learning_rate",
            learning_rate,
            "a float of at least 0, a schedule or a callable",
            lambda x: isinstance(x, float) and x >= 0,
        )
    check_numbers(
        BASE_NUMBERS,
        **{name: arguments[name] for name in BASE_NUMBERS if name in arguments},
    )
    check_bool("use_ema", arguments.get("use_ema", False))
    given = arguments.get("name")
    if given is not None and not isinstance(given, str):
        raise ValueError(
            f"`name` must be None or a string. Received: name={shown(given)}"
        )


def check_patterns(patterns: Any) -> None:
    """ValueError unless None or a list of regular expressions."""
    try:
        good = patterns is None or (
            isinstance(patterns, (list, tuple))
            and all(isinstance(p, str) and re.compile(p) for p in patterns)
        )
    except (re.error, OverflowError, RecursionError):
        good = False
    if not good:
        raise ValueError(
            "`weight_decay_exclude` must be None or a list of regular "
            "expressions on variable paths. "
            f"Received: weight_decay_exclude={shown(patterns)}"
        )


def check_multipliers(multipliers: Any) -> None:
    """ValueError unless None or finite factors by regular expression."""
    try:
        good = multipliers is None or (
            isinstance(multipliers, Mapping)
            and all(isinstance(p, str) and re.compile(p) for p in multipliers)
            and all(map(_is_factor, multipliers.values()))
        )
    except (re.error, OverflowError, RecursionError):
        good = False
    if not good:
        raise ValueError(
            "`rate_multipliers` must be None or a dict from regular "
            "expressions on variable paths to finite numbers of at least 0. "
            f"Received: rate_multipliers={shown(multipliers)}"
        )


def _is_factor(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < float("inf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an optimizer: a frozen record of settings, saved with it.

    Subclasses are dataclasses, registered with Keras.
    """

    def get_config(self) -> dict[str, Any]:
        """Every argument, as JSON types."""
        fields = dataclasses.fields(self)
        return {f.name: _as_lists(getattr(self, f.name)) for f in fields}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Part":
        """Inverse of `get_config`."""
        return cls(**config)


def _as_lists(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return (
        [*map(_as_lists, value)] if isinstance(value, (list, tuple)) else value
    )


def check_part(
    name: str, value: Any, cls: type[Part], *, optional: bool
) -> None:
    """ValueError unless the argument is a part of a class."""
    if not isinstance(value, cls) and not (optional and value is None):
        wanted = "None or a" if optional else "a"
        raise ValueError(
            f"`{name}` must be {wanted} `{cls.__name__}`. "
            f"Received: {name}={shown(value)}"
        )


def part_from_config(config: Any, custom_objects: Any = None) -> Any:
    """A part of its serialized form; anything else as it is.

    Args:
        config: An entry of an optimizer's config.
        custom_objects: Classes by their registered names.
    """
    if not isinstance(config, Mapping):
        return config
    return keras.saving.deserialize_keras_object(
        config, custom_objects=custom_objects
    )

"""Arguments that are wrong are refused: what was wanted, what was received."""

import math
import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np


def shown(value: Any) -> str:
    """How an argument is shown, also where it has no `repr`.

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
    """Whether a number in its interval, and one that float32 holds."""
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


# What is wanted of each of some arguments, a test of that, and whether it must
# be an integer; where "None" is wanted, None passes.
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
# Steps are counted in int32.
STEPS: Number = (
    "an integer in [1, 2**31)",
    lambda x: 1 <= x < 2**31,
    True,
)


def check_numbers(numbers: Numbers, given: Mapping[str, Any]) -> None:
    """ValueError for the first number that is wrong."""
    for name, (wanted, allows, integer) in numbers.items():
        if given[name] is not None or not wanted.startswith("None"):
            check_number(name, given[name], wanted, allows, integer=integer)


def check_bool(name: str, value: Any, *, optional: bool = False) -> None:
    """ValueError unless the argument is True, False or, optionally, None."""
    if not isinstance(value, (bool, np.bool_)) and not (
        optional and value is None
    ):
        wanted = "None, True or False" if optional else "True or False"
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name}={shown(value)}"
        )


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
    for name, number in BASE_NUMBERS.items():
        if name in arguments:
            check_numbers({name: number}, arguments)
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

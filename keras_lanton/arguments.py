"""Arguments that are wrong are refused: what was wanted, what was received."""

import re
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np


def check_choice(
    name: str, value: Any, allowed: Sequence[str], *, also: str = ""
) -> None:
    """ValueError unless the argument is one of the allowed strings."""
    if not isinstance(value, str) or value not in allowed:
        other = f"{also} or " if also else ""
        raise ValueError(
            f"`{name}` must be {other}one of {tuple(allowed)}. "
            f"Received: {name}={value!r}"
        )


def check_number(
    name: str,
    value: Any,
    wanted: str,
    allowed: Callable[[float], bool],
    *,
    integer: bool = False,
) -> None:
    """ValueError unless the argument is a finite number in its interval."""
    kinds = (int, np.integer) if integer else (int, float, np.number)
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, kinds)
        or not np.isfinite(value)
        or not allowed(value)  # type: ignore[arg-type]
    ):
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name}={value!r}"
        )


# What is wanted of each of some arguments, a test of that, and whether it must
# be an integer; where "None" is wanted, None passes.
Numbers = Mapping[str, tuple[str, Callable[[float], bool], bool]]


def check_numbers(numbers: Numbers, given: Mapping[str, Any]) -> None:
    """ValueError for the first number that is wrong."""
    for name, (wanted, allows, integer) in numbers.items():
        if given[name] is not None or not wanted.startswith("None"):
            check_number(name, given[name], wanted, allows, integer=integer)


def check_bool(name: str, value: Any) -> None:
    """ValueError unless the argument is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(
            f"`{name}` must be True or False. Received: {name}={value!r}"
        )


# Keras takes some of these wrong values and ignores them.
BASE_NUMBERS: Numbers = {
    "clipnorm": ("None or a number above 0", lambda x: x > 0, False),
    "clipvalue": ("None or a number above 0", lambda x: x > 0, False),
    "global_clipnorm": ("None or a number above 0", lambda x: x > 0, False),
    "loss_scale_factor": ("None or a number above 0", lambda x: x > 0, False),
    "weight_decay": ("None or a number of at least 0", lambda x: x >= 0, False),
    "gradient_accumulation_steps": (
        "None or an integer of at least 2",
        lambda x: x >= 2,
        True,
    ),
    "ema_momentum": ("a number in [0, 1]", lambda x: 0 <= x <= 1, False),
    "ema_overwrite_frequency": (
        "None or an integer of at least 1",
        lambda x: x >= 1,
        True,
    ),
}


def check_base_arguments(
    learning_rate: Any, arguments: Mapping[str, Any]
) -> None:
    """ValueError for a wrong argument of `keras.optimizers.Optimizer`."""
    if isinstance(learning_rate, (int, float, np.number)):
        check_number(
            "learning_rate",
            learning_rate,
            "a float of at least 0, a schedule or a callable",
            lambda x: isinstance(x, float) and x >= 0,
        )
    for name, number in BASE_NUMBERS.items():
        if arguments.get(name) is not None:
            check_numbers({name: number}, arguments)


def check_patterns(patterns: Any) -> None:
    """ValueError unless None or a list of regular expressions."""
    try:
        good = patterns is None or (
            isinstance(patterns, (list, tuple))
            and all(isinstance(p, str) and re.compile(p) for p in patterns)
        )
    except re.error:
        good = False
    if not good:
        raise ValueError(
            "`weight_decay_exclude` must be None or a list of regular "
            "expressions on variable paths. "
            f"Received: weight_decay_exclude={patterns!r}"
        )

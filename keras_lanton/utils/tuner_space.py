"""Lanton's arguments as a search space of KerasTuner."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras_lanton.lanton import Lanton
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

DECAYS = [0.0, 0.03, 0.1]
MOMENTA = [0.9, 0.95, 0.97]


def tuner_space(
    hp: Any, *, rates: Sequence[float] = (1e-3, 4e-2), **kwargs: Any
) -> Lanton:
    """Lanton with hyperparameters of a KerasTuner search.

    The search covers the arguments that matter most and depend on the task:
    `learning_rate` in an interval, on a logarithmic scale; `weight_decay` of
    0, 0.03 or 0.1; `beta_1` of 0.9, 0.95 or 0.97.

    Args:
        hp: `keras_tuner.HyperParameters`, as a hypermodel's function gets it.
        rates: The lowest and the highest learning rate, above 0.
        **kwargs: Arguments of `Lanton`; those given here are not searched.

    Returns:
        A `Lanton` for `compile`.

    Raises:
        ValueError: If `hp` has no `Float` and `Choice`, or the rates are not
            two numbers above 0, the lower one first.

    Examples:
        >>> def build(hp):
        ...     model = make_model()
        ...     model.compile(optimizer=tuner_space(hp), loss="mse")
        ...     return model
    """
    if not hasattr(hp, "Float") or not hasattr(hp, "Choice"):
        raise ValueError(
            "`hp` must be a `keras_tuner.HyperParameters`. "
            f"Received: hp={shown(hp)}"
        )
    low, high = _check_rates(rates)
    space: dict[str, Callable[[], Any]] = {
        "learning_rate": lambda: hp.Float(
            "learning_rate", low, high, sampling="log"
        ),
        "weight_decay": lambda: hp.Choice("weight_decay", DECAYS, default=0.1),
        "beta_1": lambda: hp.Choice("beta_1", MOMENTA, default=0.95),
    }
    found = {n: choose() for n, choose in space.items() if n not in kwargs}
    return Lanton(**{**found, **kwargs})


def _check_rates(rates: Any) -> tuple[float, float]:
    """The two rates; ValueError unless they are an interval above 0."""
    given = list(rates) if isinstance(rates, Sequence) else []
    if len(given) == 2:
        check_numbers({"rates": ABOVE_0}, rates=given[0])
        check_numbers({"rates": ABOVE_0}, rates=given[1])
    if len(given) != 2 or given[0] >= given[1]:
        raise ValueError(
            "`rates` must be two numbers above 0, the lower one first. "
            f"Received: rates={shown(rates)}"
        )
    return float(given[0]), float(given[1])

"""A learning-rate range test."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_lanton.optimizers.base import LayerwiseOptimizer
from keras_lanton.utils.plots import label_ends
from keras_lanton.utils.plots import new_figure
from keras_lanton.utils.probing import endless_batches
from keras_lanton.utils.probing import loss_of_step
from keras_lanton.utils.probing import optimizer_in_place
from keras_lanton.utils.probing import optimizer_within
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import COUNT
from keras_lanton.validation import STEPS
from keras_lanton.validation import Numbers
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

# The suggestion is below the rate at which the loss was lowest: a run lives
# with its rate for longer than the test did. On the demo's GPT-2 it is 0.008,
# where the sweep of learning rates has its best at 0.01.
BELOW_LOWEST = 2.0
SMOOTHING = 0.8  # of the moving average over the losses
WORSE = 1.5  # times the lowest loss ends the test


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RangeTest:
    """The result of `find_learning_rate`.

    Args:
        learning_rate: The suggestion.
        rates: The rate of each step, `(steps,)`.
        losses: The loss of each step's batch, before the step, `(steps,)`.
        smoothed: Moving averages of the losses, `(steps,)`.
    """

    learning_rate: float
    rates: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draws loss over rate, and the suggestion.

        Args:
            path: File for the picture; its suffix is the format.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: Without matplotlib.
        """
        figure = new_figure(width=7)
        axes = figure.subplots()
        axes.plot(self.rates, self.losses, color="#999999", label="one batch")
        axes.plot(self.rates, self.smoothed, color="#332288", label="smoothed")
        axes.axvline(self.learning_rate, color="black", linestyle="--")
        axes.annotate(
            f"suggested: {self.learning_rate:.2g}",
            (self.learning_rate, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            horizontalalignment="center",
        )
        axes.set_xscale("log")
        axes.set_xlabel("learning rate of the step")
        axes.set_ylabel("loss before the step")
        axes.grid(alpha=0.3)
        label_ends(axes)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def find_learning_rate(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    batch_size: int = 32,
    lowest: float = 1e-4,
    highest: float = 1.0,
    steps: int = 100,
    seed: int = 0,
    verbose: bool = True,
) -> RangeTest:
    """Suggests a learning rate, by a short training at rising rates.

    From step to step the learning rate grows by the same factor. The test ends
    early if the loss rises far above its lowest value. The suggestion is half
    of the rate with the lowest smoothed loss; use it as the peak rate of a
    schedule. Afterwards the model has its old weights and its old optimizer
    again, but random seeds and the statistics of metrics have changed.

    Args:
        model: A compiled model; its optimizer is one of this package's.
        x: Arrays, with `y`; or batches `(x, y)` or `(x, y, weights)` in a
            dataset, `PyDataset`, list or other iterable. The test repeats it
            as often as needed.
        y: Targets of arrays.
        batch_size: Batch size of arrays, at least 1.
        lowest: First learning rate, above 0.
        highest: Last learning rate, above `lowest`.
        steps: From the first rate to the last, at least 2.
        seed: Seed of the order of arrays.
        verbose: Whether to show a progress bar.

    Returns:
        A `RangeTest`: `learning_rate`, the curve, and `plot`.

    Raises:
        ValueError: For a wrong argument, a model that is not compiled with an
            optimizer of this package, data without a batch, or a loss that is
            not finite from the start.

    Examples:
        >>> found = find_learning_rate(model, x, y, steps=10, verbose=False)
        >>> optimizer = Lanton(found.learning_rate)

    References:
        Smith 2017, Cyclical Learning Rates for Training Neural Networks,
        section 3.3.
    """
    check_numbers(
        NUMBERS,
        batch_size=batch_size,
        lowest=lowest,
        highest=highest,
        steps=steps,
    )
    if highest <= lowest or steps < 2:
        raise ValueError(
            "`highest` must be above `lowest`, and `steps` at least 2. "
            f"Received: lowest={lowest}, highest={highest}, steps={steps}"
        )
    rates = np.geomspace(lowest, highest, steps)
    batches = endless_batches(x, y, batch_size, seed)
    progress = keras.utils.Progbar(steps, verbose=1 if verbose else 0)
    losses: list[float] = []
    smoothed: list[float] = []
    with _trial(model) as optimizer:
        for k, rate in enumerate(rates):
            optimizer.learning_rate = float(rate)
            losses.append(loss_of_step(model, next(batches)))
            smoothed.append(_moving_average(losses, smoothed))
            progress.update(k + 1, [("loss", losses[-1])])
            if k == 0 and not np.isfinite(losses[0]):
                raise ValueError(
                    "The loss must be finite on the first batch. "
                    f"Received: {losses[0]}"
                )
            if not losses[-1] <= WORSE * min(smoothed):
                break
    done = len(losses)
    if done < steps:  # else the bar has ended its line already
        progress.update(done, finalize=True)
    lowest_at = int(np.nanargmin(smoothed))
    return RangeTest(
        learning_rate=float(rates[lowest_at] / BELOW_LOWEST),
        rates=rates[:done],
        losses=np.array(losses),
        smoothed=np.array(smoothed),
    )


NUMBERS: Numbers = {
    "batch_size": COUNT,
    "lowest": ABOVE_0,
    "highest": ABOVE_0,
    "steps": STEPS,
}


def _moving_average(losses: list[float], smoothed: list[float]) -> float:
    if not smoothed:
        return losses[-1]
    return SMOOTHING * smoothed[-1] + (1 - SMOOTHING) * losses[-1]


@contextlib.contextmanager
def _trial(model: Any) -> Iterator[Any]:
    """The model with another optimizer like its own; then as it was."""
    inner = optimizer_within(model)
    if not isinstance(inner, LayerwiseOptimizer):
        raise ValueError(
            "`find_learning_rate` needs a model that is compiled with an "
            "optimizer of keras_lanton. "
            f"Received: optimizer={shown(getattr(model, 'optimizer', None))}"
        )
    trial = type(inner).from_config(
        {**inner.get_config(), "learning_rate": 0.0}
    )
    with optimizer_in_place(model, trial):
        yield trial

"""A search for the learning rate, by short runs."""

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.optimizer.base import LayerwiseOptimizer
from keras_lanton.tools.plots import new_figure
from keras_lanton.tools.probing import endless_batches
from keras_lanton.tools.probing import loss_of_step
from keras_lanton.tools.probing import optimizer_in_place
from keras_lanton.tools.probing import optimizer_within
from keras_lanton.tools.probing import scope_of
from keras_lanton.validation import ABOVE_0
from keras_lanton.validation import COUNT
from keras_lanton.validation import SEED
from keras_lanton.validation import Numbers
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

MOST_RATES = 8  # so that a search ends
WARMUP = 0.1  # of the steps
MEASURED = 0.1  # of the steps: the last ones, whose losses count
COMPARED = 10  # batches, at least, whose losses the start has
WORSE = 2.0  # times the largest loss of the start ends a run
NUMBERS: Numbers = {"batch_size": COUNT, "steps": COUNT, "seed": SEED}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RateSearch:
    """The result of `find_learning_rate`.

    Args:
        learning_rate: The suggestion.
        rates: The peak rates that were tried, rising, `(runs,)`.
        losses: The mean loss over the last tenth of each run, `(runs,)`;
            infinite for a run that diverged.
    """

    learning_rate: float
    rates: np.ndarray
    losses: np.ndarray

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draws loss by rate, and the suggestion.

        Args:
            path: File for the picture; its suffix is the format.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ImportError: Without matplotlib.
        """
        figure = new_figure(width=7)
        axes = figure.subplots()
        ended = np.isfinite(self.losses)
        axes.plot(self.rates[ended], self.losses[ended], "o-", color="#332288")
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
        axes.set_xticks(self.rates, [f"{rate:g}" for rate in self.rates])
        axes.minorticks_off()
        axes.set_xlabel("peak learning rate")
        axes.set_ylabel("loss at the end of the run")
        axes.grid(alpha=0.3)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def find_learning_rate(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    rates: Sequence[float] = (2.5e-3, 5e-3, 1e-2),
    steps: int = 100,
    batch_size: int = 32,
    seed: int = 0,
    verbose: bool = True,
) -> RateSearch:
    """Suggests a peak learning rate, by short runs at several rates.

    Each run starts from the model's weights, warms up over a tenth of its
    steps, and falls along a cosine to 0. All runs have the same batches. While
    the best rate is the lowest or the highest, the search goes on beyond it by
    a factor of 2. The suggestion is the lowest point of a parabola through the
    best three. Afterwards the model has its old weights and its old optimizer
    again, but the statistics of metrics have changed.

    Args:
        model: A compiled model; its optimizer is one of this package's.
        x: An array, or a dict or list of them, with `y`; or batches `(x, y)`
            or `(x, y, weights)` in a dataset, `PyDataset`, list or other
            iterable. The search repeats them if they are fewer than `steps`,
            and keeps `steps` of them in memory.
        y: Targets of arrays.
        rates: The rates to try first, above 0 and rising.
        steps: Steps of each run, at least 10.
        batch_size: Batch size of arrays, at least 1.
        seed: Seed of the order of arrays.
        verbose: Whether to show a progress bar for each run.

    Returns:
        A `RateSearch`: `learning_rate`, the losses by rate, and `plot`.

    Raises:
        ValueError: For a wrong argument, a model that is not compiled with an
            optimizer of this package, or data without a batch. Also for a
            loss that is not finite from the start, gradients that are never
            finite, or runs that all diverge.

    Examples:
        >>> found = find_learning_rate(model, x, y, steps=10, verbose=False)
        >>> cosine = keras.optimizers.schedules.CosineDecay
        >>> optimizer = Lanton(cosine(found.learning_rate, decay_steps=1000))
    """
    check_numbers(NUMBERS, batch_size=batch_size, steps=steps, seed=seed)
    tried = _check_rates(rates)
    if steps < 10:
        raise ValueError(f"`steps` must be at least 10. Received: {steps}")
    endless = endless_batches(x, y, batch_size, seed)
    batches = list(itertools.islice(endless, steps))
    with _trial(model, batches[0]) as optimizer:
        run = _Runs(model, optimizer, batches, verbose)
        losses = _search(tried, run)
    if not np.isfinite(list(losses.values())).any():
        raise ValueError(
            "The loss must fall at one of the rates. Received: rates "
            f"{', '.join(f'{rate:g}' for rate in sorted(losses))}"
        )
    rising = sorted(losses)
    ends = [losses[rate] for rate in rising]
    return RateSearch(
        learning_rate=lowest_point(rising, ends),
        rates=np.array(rising),
        losses=np.array(ends),
    )


def lowest_point(rates: Sequence[float], losses: Sequence[float]) -> float:
    """The lowest point of a parabola through the best three, over log(rate).

    Returns:
        The best rate itself, where it has no two finite neighbors.
    """
    best = int(np.argmin(losses))
    near = losses[best - 1 : best + 2] if best else []
    if len(near) < 3 or not np.isfinite(near).all():
        return float(rates[best])
    x = np.log(rates[best - 1 : best + 2])
    a, b, _ = np.polyfit(x - x[1], near, 2)
    if not a > 0:  # all three are equal
        return float(rates[best])
    return float(np.exp(x[1] - b / (2 * a)))


def _check_rates(rates: Any) -> tuple[float, ...]:
    """The rates as floats; ValueError unless they are above 0 and rising."""
    try:
        found = tuple(float(rate) for rate in rates)
        check_numbers({"rates": ABOVE_0}, rates=min(found))
    except (TypeError, ValueError):
        found = ()
    if not found or any(a >= b for a, b in itertools.pairwise(found)):
        raise ValueError(
            "`rates` must be numbers above 0, each above the one before. "
            f"Received: rates={rates!r}"
        )
    return found


def _search(
    rates: Sequence[float], run: Callable[[float], float]
) -> dict[float, float]:
    """Losses by rate; the grid grows until the best is inside it."""
    losses = {rate: run(rate) for rate in rates}
    while len(losses) < MOST_RATES:
        best = min(losses, key=losses.__getitem__)
        if min(losses) < best < max(losses):
            break
        # With no finite loss, `best` is the first: lower rates may do.
        beyond = best / 2 if best == min(losses) else best * 2
        losses[beyond] = run(beyond)
    return losses


class _Runs:
    """Runs of a model from the same weights, on the same batches.

    Args:
        model: A built model, whose optimizer is built.
        optimizer: That of this package, without Keras' loss scaling.
        batches: One for each step.
        verbose: Whether to show a progress bar for each run.
    """

    def __init__(
        self, model: Any, optimizer: Any, batches: list[Any], verbose: bool
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.batches = batches
        self.verbose = 1 if verbose else 0
        self.variables = [*model.variables, *model.optimizer.variables]
        self.start = [
            ops.convert_to_numpy(variable).copy() for variable in self.variables
        ]
        self.limit = WORSE * self._largest_at_start()

    def _largest_at_start(self) -> float:
        """The largest size of a loss of the weights as they are.

        One batch alone may have a loss that is far below the others'.

        Raises:
            ValueError: If one is not finite.
        """
        self.optimizer.learning_rate = 0.0
        count = max(COMPARED, round(MEASURED * len(self.batches)))
        losses = [loss_of_step(self.model, x) for x in self.batches[:count]]
        for loss in losses:
            if not np.isfinite(loss):
                raise ValueError(
                    "The loss must be finite before the first step. "
                    f"Received: {loss}"
                )
        return float(np.max(np.abs(losses)))

    def __call__(self, rate: float) -> float:
        """The mean loss of the last steps; infinite if the run diverges.

        Raises:
            ValueError: If no gradient is finite.
        """
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)
        steps = len(self.batches)
        progress = keras.utils.Progbar(
            steps,
            verbose=self.verbose,
            stateful_metrics=["peak_rate", "loss"],  # no means
        )
        losses: list[float] = []
        for k, batch in enumerate(self.batches):
            self.optimizer.learning_rate = rate * _factor(k, steps)
            losses.append(loss_of_step(self.model, batch))
            progress.update(k + 1, [("peak_rate", rate), ("loss", losses[-1])])
            if not losses[-1] <= self.limit:
                if k + 1 < steps:  # else the bar has ended its line already
                    progress.update(k + 1, finalize=True)
                return math.inf
        taken = int(ops.convert_to_numpy(self.optimizer.micro_steps))
        if taken == self.optimizer.skipped_steps:
            raise ValueError(
                "A gradient must be finite. "
                f"Received: none in {steps} steps at a rate of {rate:g}"
            )
        return float(np.mean(losses[-max(1, round(MEASURED * steps)) :]))


def _factor(k: int, steps: int) -> float:
    """The rate of step k over the peak rate: linear, then a cosine to 0."""
    warmup = max(1, round(WARMUP * steps))
    if k < warmup:
        return (k + 1) / warmup
    return (1 + math.cos(math.pi * (k - warmup + 1) / (steps - warmup))) / 2


@contextlib.contextmanager
def _trial(model: Any, batch: Any) -> Iterator[Any]:
    """The model with another optimizer like its own; then as it was."""
    inner = optimizer_within(model)
    if not isinstance(inner, LayerwiseOptimizer):
        raise ValueError(
            "`find_learning_rate` needs a model that is compiled with an "
            "optimizer of keras_lanton. "
            f"Received: optimizer={shown(getattr(model, 'optimizer', None))}"
        )
    if not model.built:
        model(batch[0] if isinstance(batch, (tuple, list)) else batch)
    config = {**inner.get_config(), "learning_rate": 0.0}
    with scope_of(model):
        trial = type(inner).from_config(config)
    excluded = [v for v in model.trainable_variables if not inner.may_decay(v)]
    if excluded:
        trial.exclude_from_weight_decay(excluded)
    with optimizer_in_place(model, trial):
        model.optimizer.build(model.trainable_variables)
        yield trial

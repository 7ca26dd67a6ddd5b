"""What a table of the page compares, and the runs that it needs."""

import dataclasses
from collections.abc import Callable

from experiments.evidence import batch_sizes
from experiments.evidence import fine_tuning
from experiments.evidence.search import tune_rate
from experiments.evidence.trials import RateSearchTrial
from experiments.evidence.trials import loss_of

CHOOSING = (1, 2, 3)  # seeds of what is tried
CURVE = (0.7, 1.0, 1.4)  # lengths of the reference, in budgets


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Optimizers beside each other, on the same weights and batches.

    Args:
        caption: A line above it.
        rows: Function of `read`: pairs of a label and a trial, as far as they
            are decided.
        seeds: Of each row.
        reference: Label of the row that the others are compared with.
        curve: Whether the reference is trained to other lengths too, so that
            differences in loss can be told in tokens.
        undecided: Function of `read`: runs that decide the rows.
    """

    caption: str
    rows: Callable
    seeds: tuple = CHOOSING
    reference: str | None = None
    curve: bool = False
    undecided: Callable = lambda read: []

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        rows = self.rows(read)
        needed = [
            dataclasses.replace(trial, seed=seed)
            for seed in self.seeds
            for _, trial in rows
        ]
        if self.curve:
            needed += [t for _, t in self.curve_of(read)]
        return [
            *(trial for trial in needed if read(trial) is None),
            *self.undecided(read),
        ]

    def curve_of(self, read):
        """Pairs of a seed and the reference's trials of other lengths."""
        reference = dict(self.rows(read)).get(self.reference)
        if reference is None:
            return []
        return [
            (seed, scaled(dataclasses.replace(reference, seed=seed), factor))
            for seed in self.seeds
            for factor in CURVE
            if factor != 1.0
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageTable(Table):
    """Optimizers of the CNN beside each other.

    Args:
        targets: Accuracies; the table has the epochs until each.
        **kwargs: As `Table`.
    """

    targets: tuple = (0.92, 0.93)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepTable:
    """Losses by one argument, a column for each of its values.

    Args:
        caption: A line above it.
        rows: Pairs of a label and a trial, whatever its value.
        values: By label: the values of the row.
        seeds: Of all runs; a loss is the mean over them.
        of: What the rows are, at the head of their column.
    """

    caption: str
    rows: tuple
    values: dict
    seeds: tuple = (1,)
    of: str = ""

    def with_value(self, trial, value):
        """The trial with a value of the argument."""
        raise NotImplementedError

    def trials(self, label, trial):
        """The runs of a row with the first seed, by value."""
        trial = dataclasses.replace(trial, seed=self.seeds[0])
        return {x: self.with_value(trial, x) for x in self.values[label]}

    def of_seeds(self, trial):
        """A run with each seed."""
        return [dataclasses.replace(trial, seed=seed) for seed in self.seeds]

    def losses(self, read):
        """By label: losses by value, where all seeds have results.

        Args:
            read: Function of a trial: its result, or None.
        """
        found = {
            label: {
                value: sum(map(loss_of, results)) / len(results)
                for value, one in self.trials(label, trial).items()
                if all(results := [read(x) for x in self.of_seeds(one)])
            }
            for label, trial in self.rows
        }
        return {
            label: by_value for label, by_value in found.items() if by_value
        }

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        needed = [
            one
            for row in self.rows
            for trial in self.trials(*row).values()
            for one in self.of_seeds(trial)
        ]
        return [t for t in dict.fromkeys(needed) if read(t) is None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateTable(SweepTable):
    """Losses by learning rate, the best rate and the window of good ones."""

    def with_value(self, trial, value):
        """The trial with another rate."""
        return dataclasses.replace(trial, learning_rate=value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRateTable(RateTable):
    """What one rate costs where each row has another best rate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecayTable(SweepTable):
    """Losses by weight decay, and the best one for the steps of a run."""

    def with_value(self, trial, value):
        """The trial with another decay."""
        return trial.with_options(weight_decay=value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateSearchTable(RateTable):
    """What `find_learning_rate` suggests, beside the best of a sweep.

    Args:
        search_seeds: Seeds of the searches.
        **kwargs: As `RateTable`; the rows are `ShortTrial`s.
    """

    search_seeds: tuple = CHOOSING

    def searches(self, trial):
        """The searches of a row."""
        fields = {**vars(trial), "steps": RateSearchTrial.steps}
        like = RateSearchTrial(**fields)
        return [
            dataclasses.replace(like, seed=seed) for seed in self.search_seeds
        ]

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        needed = [one for _, trial in self.rows for one in self.searches(trial)]
        missing = [trial for trial in needed if read(trial) is None]
        return [*missing, *super().wanted(read)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningTable:
    """Methods of fine-tuning beside each other, each at its best rate.

    Args:
        caption: A line above it.
        base: A name of `fine_tuning.BASES`.
        seeds: Of each row; the first one decides the rates.
    """

    caption: str
    base: str
    seeds: tuple = CHOOSING

    def searches(self, read):
        """By method: a `Tuned`, or the trials that its rate still needs."""
        return {
            method: tune_rate(fine_tuning.trials_of(method, self.base), read)
            for method in fine_tuning.METHODS
        }

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        wanted = []
        for found in self.searches(read).values():
            wanted += found if isinstance(found, list) else self.of_seeds(found)
        return [trial for trial in wanted if read(trial) is None]

    def of_seeds(self, found):
        """The best trial of a search, once per seed."""
        return [dataclasses.replace(found.best, seed=s) for s in self.seeds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSizeTable:
    """Steps to a loss by batch size, and the knee of that curve.

    Args:
        task: A key of `batch_sizes.TASKS`.
    """

    task: str

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        needed = [
            trial
            for batch_size in batch_sizes.BATCH_SIZES
            for trial in batch_sizes.trials_of(self.task, batch_size)
        ]
        needed.append(batch_sizes.advice_of(self.task))
        return [trial for trial in needed if read(trial) is None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A section of the page.

    Args:
        title: Its heading.
        text: Paragraphs above the tables.
        tables: `Table`s, or others with their `wanted`.
    """

    title: str
    text: str
    tables: tuple

    def train(self, run, read):
        """Train what is missing, until nothing is."""
        for table in self.tables:
            while wanted := table.wanted(read):
                run(wanted)


def scaled(trial, factor):
    """The same run with another budget."""
    budget = round(trial.tokens_per_weight * factor, 6)
    return dataclasses.replace(trial, tokens_per_weight=budget)


def fixed(*rows):
    """Rows that no result decides."""
    return lambda read: list(rows)

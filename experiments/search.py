"""Tuning, and tables whose rows depend on results so far."""

import collections.abc
import dataclasses

from experiments.contestants import CONTESTANTS
from experiments.run import Results
from experiments.run import Run

CHOOSING = (1, 2, 3)  # seeds of what is tried
CURVE = (0.7, 1.0, 1.4)  # lengths of a reference, in budgets
CLOSE = 0.01  # nats: losses of one seed that do not say which rate is better
LARGEST_GRID = 8  # rates, so that a search ends
FULL = 20.0  # tokens per weight
# What decides a table's rows: a function of results that gives them, as pairs
# of a label and a run, and the runs that it needs to decide further.
Rows = list[tuple[str, Run]]
Decide = collections.abc.Callable[[Results], tuple[Rows, list[Run]]]


class MissingRunsError(Exception):
    """Raised with `runs`, without whose results a search cannot go on."""

    def __init__(self, runs: list[Run]):
        super().__init__(f"{len(runs)} runs have no results yet")
        self.runs = runs


def label_of(name):
    """How the tables call a contestant."""
    return CONTESTANTS[name].label


def run_for(name, rate, changes=(), **fields):
    """A contestant's run: of a GPT-2, S, on `wiki`, unless fields differ.

    Contestants of the CNN begin with "cnn_". `changes` are arguments of the
    optimizer on top of the contestant's own. With `steps` there is no budget.
    """
    one = CONTESTANTS[name]
    common = {
        "optimizer": one.optimizer,
        "learning_rate": rate,
        "options": tuple(sorted({**one.options, **dict(changes)}.items())),
    }
    if name.startswith("cnn_"):
        common |= {
            "kind": "images",
            "model": "airbench",
            "images": "fashion_mnist",
            "widths": (12, 48, 48),
            "batch_size": 500,
            "epochs": 8,
            "judged_by": "test",
        }
    else:
        common |= {
            "size": "S",
            "text": "wiki",
            "batch_size": 16,
            "initial": "scaled",
            **({} if "steps" in fields else {"tokens_per_weight": FULL}),
        }
    return Run(**{**common, **fields})


def scaled(run, factor):
    """The same run with another budget."""
    budget = round(run.tokens_per_weight * factor, 6)
    return run.replace(tokens_per_weight=budget)


# -- Searches ----------------------------------------------------------------


def tune(first, space, results):
    """All runs of a search, the best one first.

    From runs at the first rates, as `tune_rate`; then `space` has pairs of a
    further argument and its values, each of which is tried at the best so far.

    Raises:
        MissingRunsError: With the runs that it needs next.
    """
    tried = tune_rate(first, results)
    for argument, values in space:
        best = tried[0]
        own = dict(best.options)[argument]
        more = [best.with_options(**{argument: x}) for x in values if x != own]
        tried = by_loss([*tried, *more], results)
    return tried


def tune_rate(runs, results):
    """Runs at some rates, and at more while the best is at the edge."""
    while True:
        tried = by_loss(runs, results)
        rates = sorted(run.learning_rate for run in runs)
        best = tried[0].learning_rate
        if len(runs) >= LARGEST_GRID or best not in (rates[0], rates[-1]):
            return tried
        beyond = best / 2 if best == rates[0] else best * 2
        runs = [*runs, runs[0].replace(learning_rate=beyond)]


def by_loss(runs, results):
    """Runs by their loss; of equal ones the first stays first."""
    missing = [run for run in runs if results.get(run) is None]
    if missing:
        raise MissingRunsError(missing)
    return sorted(runs, key=results.loss)


def best_of_close(runs, results, seeds=CHOOSING):
    """The best of the runs that one seed does not tell apart.

    Those within `CLOSE` of the lowest loss are compared by their mean over
    the seeds. Until all seeds have run, those with the most seeds are. Runs
    without results are left out.

    Returns:
        The best run, None without results; and the runs that decide further.
    """
    ran = [run for run in runs if results.get(run) is not None]
    if not ran:
        return None, []
    lowest = min(map(results.loss, ran))
    close = [run for run in ran if results.loss(run) <= lowest + CLOSE]
    if len(close) == 1:
        return close[0], []
    again = {run: [run.replace(seed=seed) for seed in seeds] for run in close}
    missing = [x for some in again.values() for x in some if not results.get(x)]
    losses = {
        run: {x.seed: results.loss(x) for x in some if results.get(x)}
        for run, some in again.items()
    }
    most = max(map(len, losses.values()))
    first = [run for run in close if len(losses[run]) == most]
    shared = set.intersection(*(set(losses[run]) for run in first))
    best = min(first, key=lambda run: sum(losses[run][s] for s in shared))
    return best, missing


# -- What decides the rows of a table ----------------------------------------


def fixed(*rows):
    """Rows that no result decides."""
    return lambda results: (list(rows), [])


def at_best(runs, **changes):
    """Rows at the best of some runs so far, by `best_of_close`.

    `runs` are by label; `changes` are fields of the rows, e.g. another text
    than the one that the rates are chosen on.
    """

    def decide(results):
        rows, missing = [], [run for some in runs.values() for run in some]
        for label, some in runs.items():
            best, undecided = best_of_close(some, results)
            missing += undecided
            if best is not None:
                rows.append((label, best.replace(**changes)))
        return rows, missing

    return decide


def searched(searches, **changes):
    """Rows at the best of searches that have ended.

    `searches` has by label functions of results, as `tune`.
    """

    def decide(results):
        rows, missing = [], []
        for label, search in searches.items():
            try:
                best = search(results)[0]
                rows.append((label, best.replace(**changes)))
            except MissingRunsError as error:
                missing += error.runs
        return rows, missing

    return decide


def all_of(*some):
    """The rows of several, one after the other."""

    def decide(results):
        pairs = [one(results) for one in some]
        return [r for rows, _ in pairs for r in rows], [
            run for _, missing in pairs for run in missing
        ]

    return decide


# -- Tables ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Optimizers beside each other, on the same weights and batches."""

    caption: str  # what all rows share
    decide: Decide
    seeds: tuple = CHOOSING  # of each row
    # Label of the row that the others are compared with.
    reference: str = label_of("lanton")
    # Label of the row that is trained to other lengths too, so that
    # differences in loss can be told in tokens.
    curve: str | None = None
    lengths: tuple = CURVE  # of that row, in budgets

    def runs(self, results):
        """All runs that the table shows or needs, as far as decided."""
        rows, missing = self.decide(results)
        found = [r.replace(seed=s) for s in self.seeds for _, r in rows]
        reference = dict(rows).get(self.curve)
        if reference is not None:
            found += [
                scaled(reference, factor).replace(seed=seed)
                for seed in self.seeds
                for factor in self.lengths
            ]
        return [*found, *missing]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Losses by one argument, a column for each of its values."""

    caption: str  # what all rows share
    rows: tuple  # pairs of a label and a run, one for each value
    by: str = "learning_rate"  # a field of `Run`, or the optimizer's argument
    of: str = ""  # what the rows are, at the head of their column
    seeds: tuple = (1,)  # a loss is the mean over them

    def value(self, run):
        """The run's value of the argument."""
        options = dict(run.options)
        return options[self.by] if self.by in options else getattr(run, self.by)

    def runs(self, results):
        """All runs of the grid."""
        return [r.replace(seed=s) for _, r in self.rows for s in self.seeds]


def wanted(table, results):
    """The runs of a table that have no result yet, each once."""
    needed = dict.fromkeys(table.runs(results))
    return [run for run in needed if results.get(run) is None]

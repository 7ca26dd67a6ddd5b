"""A question's table as Markdown, from the results that there are."""

import dataclasses
import functools
import itertools
import math

from experiments.evidence import batch_sizes
from experiments.evidence import statistics
from experiments.evidence import tables
from experiments.evidence import trials
from experiments.paper.robustness import window


def markdown_table(head, rows):
    """A table; every cell is a string."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_interval(values, digits=4):
    """Mean and interval as text; without an interval for one value."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    mean, half = statistics.interval(values)
    if not math.isfinite(half):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


class Results:
    """Losses by trial and seed."""

    def __init__(self, read):
        self.read = read

    def losses(self, trial, seeds):
        """Losses by seed, of the seeds that ran."""
        found = {}
        for seed in seeds:
            result = self.read(dataclasses.replace(trial, seed=seed))
            if result is not None:
                found[seed] = trials.loss_of(result)
        return found

    def curves(self, table):
        """By seed: the reference's loss by length, over 1 and as a factor."""
        reference = dict(table.rows(self.read)).get(table.reference)
        if reference is None or not table.curve:
            return {}
        curves = {}
        for factor in tables.CURVE:
            trial = tables.scaled(reference, factor)
            for seed, loss in self.losses(trial, table.seeds).items():
                curves.setdefault(seed, {})[factor] = loss
        return {s: c for s, c in curves.items() if len(c) > 1}


@functools.singledispatch
def answer(table, read):
    """The table's Markdown, or None without any result."""
    results = Results(read)
    rows = table.rows(read)
    losses = {
        label: results.losses(trial, table.seeds) for label, trial in rows
    }
    rates = {label: trial.learning_rate for label, trial in rows}
    if not any(losses.values()):
        return None
    reference = losses.get(table.reference, {})
    curves = results.curves(table)
    head = ["", "rate", "seeds", "loss"]
    if table.reference:
        head.append("difference")
    if curves:
        head.append("tokens")
    lines = []
    ranked = sorted(
        ((label, found) for label, found in losses.items() if found),
        key=lambda pair: sum(pair[1].values()) / len(pair[1]),
    )
    for label, found in ranked:
        line = [
            label,
            f"{rates[label]:g}",
            str(len(found)),
            with_interval(list(found.values())),
        ]
        if table.reference:
            line.append(difference(found, reference, label == table.reference))
        if curves:
            line.append(tokens(found, curves, label == table.reference))
        lines.append(line)
    caption = f"{table.caption}."
    if table.reference:
        caption += f" Reference: {table.reference}."
    missing = sum(not found for found in losses.values())
    if missing:
        caption += f" {missing} of {len(losses)} rows have not run yet."
    return f"{caption}\n\n{markdown_table(head, lines)}"


@answer.register
def _(table: tables.ImageTable, read):
    """Accuracies, training losses, and epochs until each target."""
    lines, by_row = [], {}
    for label, trial in table.rows(read):
        found = {
            seed: result
            for seed in table.seeds
            if (result := read(dataclasses.replace(trial, seed=seed)))
        }
        if found:
            by_row[label] = (trial, found)
    if not by_row:
        return None
    _, reference = by_row.get(table.reference, (None, {}))
    for label, (trial, found) in by_row.items():
        percent = {s: accuracy_of(result) for s, result in found.items()}
        theirs = {s: accuracy_of(result) for s, result in reference.items()}
        losses = [result["training_loss"][-1] for result in found.values()]
        lines.append(
            [
                label,
                f"{trial.learning_rate:g}",
                str(len(found)),
                with_interval(list(percent.values()), 2),
                difference(percent, theirs, label == table.reference, 2),
                with_interval(losses, 4),
                *(epochs_of(found.values(), 100 * t) for t in table.targets),
            ]
        )
    lines.sort(key=lambda line: line[3], reverse=True)
    head = [
        "",
        "rate",
        "seeds",
        "accuracy, %",
        "difference",
        "training loss",
        *(f"epochs to {100 * target:g} %" for target in table.targets),
    ]
    caption = f"{table.caption}. Reference: {table.reference}."
    return f"{caption}\n\n{markdown_table(head, lines)}"


def accuracy_of(result):
    """The last accuracy, in percent."""
    return 100 * result["accuracies"][-1]


def epochs_of(results, percent):
    """The mean of the epochs until an accuracy, or how many reach it."""
    epochs = [epochs_to(result, percent) for result in results]
    reached = sum(map(math.isfinite, epochs))
    if reached == len(epochs):
        return with_interval(epochs, 1)
    return f"{reached} of {len(epochs)} reach it"


def epochs_to(result, percent):
    """Epochs until an accuracy, by interpolation; infinite where none is."""
    values = [0.0, *(100 * x for x in result["accuracies"])]
    for epoch, (before, after) in enumerate(itertools.pairwise(values)):
        if after >= percent:
            return epoch + (percent - before) / (after - before)
    return math.inf


@answer.register
def _(table: tables.RateTable, read):
    """Losses by rate, the best rate and the window of good ones."""
    by_rate = table.losses(read)
    more = {label: best_and_window(found) for label, found in by_rate.items()}
    return sweep(table, by_rate, ["best rate", "window"], more)


@answer.register
def _(table: tables.OneRateTable, read):
    """The loss above each row's best, of the rates that all rows have."""
    by_label = [row for row in table.losses(read).values() if len(row) > 1]
    if not by_label:
        return None
    shared = sorted(set.intersection(*map(set, by_label)))
    lines = []
    for rate in shared:
        costs = [row[rate] - min(row.values()) for row in by_label]
        lines.append(
            [
                f"{rate:g}",
                str(len(costs)),
                f"{sum(costs) / len(costs):.4f}",
                f"{max(costs):.4f}",
            ]
        )
    head = ["rate", "rows", "loss above the best, mean", "at most"]
    return f"{table.caption}.\n\n{markdown_table(head, lines)}"


@answer.register
def _(table: tables.DecayTable, read):
    """Losses by decay, the best decay and what it is for the steps."""
    by_decay = table.losses(read)
    more = {}
    for label, trial in table.rows:
        losses = by_decay.get(label, {})
        best = statistics.best_rate(losses)
        if best is None:
            more[label] = ["", ""]
            continue
        lowest = table.with_value(trial, min(losses, key=losses.get))
        steps = read(table.of_seeds(lowest)[0])["steps"]
        pull = trial.learning_rate * best * steps
        more[label] = [f"{best:.2g}", f"{pull:.1f}"]
    return sweep(table, by_decay, ["best decay", "rate x decay x steps"], more)


def sweep(table, losses, head, more):
    """A `SweepTable` as Markdown, or None without any result.

    Args:
        table: The table.
        losses: By label and value.
        head: Of further columns.
        more: Cells of these columns by label.
    """
    if not losses:
        return None
    values = sorted({x for row in table.values.values() for x in row})
    lines = [
        [
            label,
            *(f"{found[x]:.4f}" if x in found else "" for x in values),
            *more[label],
        ]
        for label, found in losses.items()
    ]
    head = [table.of, *(f"{x:g}" for x in values), *head]
    return f"{table.caption}.\n\n{markdown_table(head, lines)}"


@answer.register
def _(table: tables.RateSearchTable, read):
    """The suggested rates, the best one, and their quotient."""
    lines, losses = [], table.losses(read)
    for label, trial in table.rows:
        found = [read(one) for one in table.searches(trial)]
        rates = [result["learning_rate"] for result in found if result]
        best = statistics.best_rate(losses.get(label, {}))
        if not rates or best is None:
            continue
        lines.append(
            [
                label,
                ", ".join(f"{rate:.2g}" for rate in rates),
                f"{best:.2g}",
                ", ".join(f"{rate / best:.2f}" for rate in rates),
            ]
        )
    if not lines:
        return None
    head = [table.of, "suggested, by seed", "best rate", "suggested over best"]
    return f"{table.caption}.\n\n{markdown_table(head, lines)}"


def best_and_window(losses):
    """The best rate and the window of good ones, as text.

    Args:
        losses: By rate.
    """
    finite = {r: x for r, x in sorted(losses.items()) if math.isfinite(x)}
    if len(finite) < 3:
        return ["", ""]
    rates, values = list(finite), list(finite.values())
    best = statistics.best_rate(finite)
    limit = min(values) * 1.01
    open_ended = values[0] <= limit or values[-1] <= limit
    return [
        "at the edge" if best is None else f"{best:.2g}",
        f"{'at least ' if open_ended else ''}{window(rates, values):.1f}",
    ]


@answer.register
def _(table: tables.FineTuningTable, read):
    """Each method at its best rate, then what other rates give."""
    lines, others = [], []
    for method, found in table.searches(read).items():
        if isinstance(found, list):
            continue
        results = [read(trial) for trial in table.of_seeds(found)]
        results = [r for r in results if r is not None]
        ends = [
            with_interval([r[name] for r in results])
            for name in ("loss", "old_loss")
        ]
        changes = [
            with_interval(x) for x in zip(*map(learned, results), strict=True)
        ]
        best = f"{found.best.learning_rate:g}"
        lines.append([method, best, str(len(results)), *ends, *changes])
        tried = sorted(found.tried, key=lambda pair: pair[0].learning_rate)
        cells = [
            f"{t.learning_rate:g}: {'{:.3f}, {:.3f}'.format(*learned(read(t)))}"
            for t, loss in tried
            if math.isfinite(loss)
        ]
        others.append([method, "; ".join(cells)])
    if not lines:
        return None
    head = ["", "rate", "seeds", "new loss", "old loss", "learned", "forgotten"]
    return "\n\n".join(
        [
            f"{table.caption}.",
            markdown_table(head, lines),
            "By rate (learned, forgotten), the first seed:",
            markdown_table(["", "rate: learned, forgotten"], others),
        ]
    )


@answer.register
def _(table: tables.BatchSizeTable, read):
    """Each batch size at its best rate, and the knee."""
    lines, steps = [], {}
    for batch_size in batch_sizes.BATCH_SIZES:
        found = [
            (trials.loss_of(result), trial.learning_rate)
            for trial in batch_sizes.trials_of(table.task, batch_size)
            if (result := read(trial)) is not None
        ]
        if not found:
            continue
        fewest, rate = min(found)
        steps[batch_size] = fewest
        others = "; ".join(f"{r:g}: {n:,.0f}" for n, r in found)
        lines.append(
            [
                str(batch_size),
                f"{rate:g}",
                f"{fewest:,.0f}",
                f"{fewest * batch_size:,.0f}",
                others,
            ]
        )
    if not lines:
        return None
    target = batch_sizes.TASKS[table.task]["target"]
    caption = f"{table.task}, S, to a loss of {target:g}."
    if len(steps) == len(batch_sizes.BATCH_SIZES):
        caption += f" Knee: {batch_sizes.knee(steps):.0f} blocks."
    asked = read(batch_sizes.advice_of(table.task))
    if asked:
        caption += f" Advice: {asked['advice']['batch_size']} blocks."
    head = [
        "blocks",
        "rate",
        "steps",
        "blocks in all",
        "steps by rate",
    ]
    return f"{caption}\n\n{markdown_table(head, lines)}"


def learned(result):
    """The fall of the loss on the new text, its rise on the old one."""
    new, old = result["before"]
    return new - result["loss"], result["old_loss"] - old


def difference(found, reference, same, digits=4):
    """Losses less those of the reference, with the interval."""
    shared = [s for s in found if s in reference]
    if same or not shared:
        return ""
    return with_interval([found[s] - reference[s] for s in shared], digits)


def tokens(found, curves, same):
    """Tokens for equal loss, over those of the reference."""
    shared = [s for s in found if s in curves]
    if same or not shared:
        return ""
    return with_interval(
        [statistics.token_ratio(found[s], curves[s]) for s in shared], 2
    )

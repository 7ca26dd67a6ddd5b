"""docs/evidence.md, from the results that there are."""

import dataclasses
import functools
import itertools
import math

from experiments.evidence import batch_sizes
from experiments.evidence import pictures
from experiments.evidence import questions
from experiments.evidence import search
from experiments.evidence import sizes
from experiments.evidence import statistics
from experiments.evidence import trials
from experiments.evidence.contestants import CONTESTANTS
from experiments.paper.robustness import window

PAGE = trials.ROOT / "docs" / "evidence.md"
HEAD = """# Evidence

Full-length comparisons of optimizers on small language models. This page is
made by

```sh
make evidence TEXTS=folder   # wiki.txt and sotu.txt, or .txt.gz, .txt.xz
```

which first trains what is missing: each run has a file in
`benchmarks/results/evidence`. Delete one to run it again.

**Setting.** GPT-2 and Llama of KerasHub's blocks: 4 layers, heads of 32, a
context of 64 tokens, a vocabulary of 1,024 tokens. Widths: {sizes}. The length
of a run is in tokens per weight, all weights counted. The rate warms up over
5 % of the steps, then follows a cosine to 0. Losses are those at the end, in
nats per token, over 2,048 texts of 64 tokens from every tenth document, which
no run trains on. Runs of one seed share initial weights and batches. Texts:
`wiki`, prose of the English Wikipedia; `sotu`, the State of the Union
addresses; `stdlib`, the source text of Python's standard library. Hidden
kernels start with a standard deviation of `0.02 * sqrt(768 / width)`, tables
with 0.02.

Runs of Lanton and D-Muon have the quintic rows of Muon in Newton-Schulz,
`NewtonSchulz(coefficients="jordan")`. They have `step_scale="rms_matched"`,
`embedding_scale=100`, `weight_decay=0.1` and noise by `estimator="lanczos"`.
Lanton has `beta_1=0.9` and `bias_correction=False`. Rows and captions name
what differs. The defaults of `Lanton()` are `"cubic"`, `"fan_in"`, 300, 0.1,
`"frobenius"`, 0.95, True and a rate of 0.005; so is the row "`Lanton()` with
its defaults".

**Intervals** are 95 % intervals of Student's t over the seeds; differences are
taken seed by seed. "Tokens" is a quotient: the tokens of a run, divided by the
tokens that the reference needs for the same loss. Below 1 is better. In some
seeds the reference also has runs of 0.7 and 1.4 times the length, or of one of
them; what lies between is interpolated, what lies beyond follows the line of
the nearest two. A figure without an interval is of one seed, and ranks nothing
by itself.

**Compute.** {compute}
"""


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
        for factor in questions.CURVE:
            trial = questions.scaled(reference, factor)
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
def _(table: questions.ImageTable, read):
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
def _(table: questions.RateTable, read):
    """Losses by rate, the best rate and the window of good ones."""
    rates = sorted({r for row in table.rates.values() for r in row})
    lines = []
    for label, found in table.losses(read).items():
        cells = [f"{found[r]:.4f}" if r in found else "" for r in rates]
        lines.append([label, *cells, *best_and_window(found)])
    if not lines:
        return None
    head = [table.of, *(f"{r:g}" for r in rates), "best rate", "window"]
    return f"{table.caption}.\n\n{markdown_table(head, lines)}"


@answer.register
def _(table: questions.RateSearchTable, read):
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
def _(table: questions.FineTuningTable, read):
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
def _(table: questions.BatchSizeTable, read):
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


def search_spaces(spaces):
    """One line per contestant: what its search tries."""
    rows = []
    for name, (rates, space) in spaces.items():
        tried = "; ".join(
            f"`{argument}` {', '.join(f'{v:g}' for v in values)}"
            for argument, values in space
        )
        rates = ", ".join(f"{rate:g}" for rate in rates)
        rows.append([CONTESTANTS[name][0], rates, tried])
    return markdown_table(["", "rates", "then, one by one"], rows)


def searches(spaces, read, **fields):
    """One line per contestant: what its search found."""
    rows = []
    for name in spaces:
        found = search.tune(name, read, **fields)
        if isinstance(found, list):
            continue
        label, _, own = CONTESTANTS[name]
        changed = [
            f"`{k}` {v:g}"
            for k, v in found.best.options
            if k in own and own[k] != v
        ]
        rows.append(
            [
                label,
                str(len(found.tried)),
                f"{found.best.learning_rate:g}",
                "; ".join(changed) or "as at the start",
                f"{found.loss:.4f}",
            ]
        )
    if not rows:
        return None
    head = ["", "runs", "best rate", "other changes", "loss"]
    return markdown_table(head, rows)


def compute(results):
    """A sentence on what all runs took, and where."""
    hours = sum(result["seconds"] for result in results) / 3600
    speeds = [result["machine"]["sum_of_squares_ms"] for result in results]
    versions = {
        f"{name} {version}"
        for result in results
        for name, version in result["machine"]["versions"].items()
    }
    return (
        f"{len(results)} runs, {hours:.1f} core-hours, one CPU core each, on "
        "machines that take "
        f"{min(speeds)} to {max(speeds)} ms for "
        "`sum(i * i for i in range(10**6))`; "
        f"{', '.join(sorted(versions))}."
    )


def in_short(read):
    """The finals in a table: differences to `Lanton()`; [] without finals."""
    losses = pictures.final_losses(read)
    bases = [base for base in pictures.BASES if base in losses]
    if not bases:
        return []
    head = [""]
    rows = [[label] for label in pictures.by_difference(losses, bases[0])]
    for base in bases:
        head += [f"loss above that of {base}", "seeds in which it is above"]
        for row in rows:
            found = pictures.less(losses[row[0]], losses[base])
            above = sum(difference > 0 for difference in found)
            row += (
                [with_interval(found), f"{above} of {len(found)}"]
                if found and row[0] != base
                else ["", ""]
            )
    return ["## In short", IN_SHORT, markdown_table(head, rows)]


IN_SHORT = (
    "Each optimizer at the best of its search, and `Lanton()` with its "
    "defaults too, on a text that none was tuned on. A GPT-2 of 0.27 million "
    "weights, batches of 1,024 tokens, 20 tokens per weight; all have the "
    "same initial weights and batches. The noise alone is measured in "
    "[another question](#does-the-noise-pay-with-the-defaults)."
)


def page(read, results):
    """The page's text.

    Args:
        read: Function of a trial: its result, or None.
        results: All results that there are.
    """
    widths = ", ".join(f"{n} {w}" for n, w in sizes.WIDTHS.items())
    parts = [HEAD.format(sizes=widths, compute=compute(results))]
    parts += in_short(read)
    for question in questions.QUESTIONS:
        answers = [answer(table, read) for table in question.tables]
        answers = [text for text in answers if text]
        if answers:
            parts += [f"## {question.title}", question.text, *answers]
        if answers and question.title in PICTURES:
            parts.append(PICTURES[question.title])
    parts += ["## How was each tuned?", SEARCH]
    for what, spaces, fields in (
        ("GPT-2, S, batches of 1,024 tokens", search.SPACES, {}),
        ("the CNN", search.IMAGE_SPACES, {"judged_by": "held_out"}),
    ):
        parts += [f"The searches try, {what}:", search_spaces(spaces)]
        found = searches(spaces, read, **fields)
        if found:
            parts += [f"The searches found, {what}:", found]
    return "\n\n".join(part.strip() for part in parts) + "\n"


SEARCH = (
    "One seed, the text `wiki`. Rates first; where the best is at the edge of "
    "the grid, the grid grows by factors of 2 until it is not. Then each "
    "further argument at the best values so far."
)


PICTURES = {
    pictures.FINALS: (
        "![Final losses of the optimizers, less those of Lanton(), with their "
        "intervals](evidence.png)"
    ),
    pictures.WIDTHS: (
        "![Losses by learning rate, one curve for each width, one panel for "
        "each optimizer](rates_by_width.png)"
    ),
}


def write(path, folder=trials.RESULTS):
    """Write the page from the results in a folder.

    Args:
        path: Of the page.
        folder: Of the results.

    Raises:
        SystemExit: Without results.
    """
    results = trials.all_results(folder)
    if not results:
        raise SystemExit(f"There are no results in {folder}.")
    read = functools.partial(trials.read, folder=folder)
    path.write_text(page(read, results))
    pictures.draw_finals(read, path.with_suffix(".png"))
    pictures.draw_widths(read, path.with_name("rates_by_width.png"))
    print(path)

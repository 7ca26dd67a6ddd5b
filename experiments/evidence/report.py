"""docs/evidence.md, from the results that there are."""

import functools

from experiments.evidence import pictures
from experiments.evidence import questions
from experiments.evidence import search
from experiments.evidence import sizes
from experiments.evidence import trials
from experiments.evidence.answers import answer
from experiments.evidence.answers import markdown_table
from experiments.evidence.answers import with_interval
from experiments.evidence.contestants import CONTESTANTS
from experiments.token_files import read_json

PAGE = trials.ROOT / "docs" / "evidence.md"
HEAD = """# Evidence

Full-length comparisons of optimizers on small language models. This page is
made by

```sh
make evidence TEXTS=folder   # wiki.txt and sotu.txt, or .txt.gz, .txt.xz
```

which first trains what is missing: each run has a file in
`benchmarks/results/evidence`. Delete one to run it again. On a GPU,
`python -m experiments.evidence --together` trains runs that differ in rate,
seed, text or length side by side.

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

`Lanton()` has the defaults of this package, which were chosen with these runs.
"Lanton (base)" is what most questions start from; `Lanton()` differs from it
in six settings. Rows and captions name all else that differs.

| setting | Lanton (base) | `Lanton()` |
| --- | --- | --- |
| `coefficients` of Newton-Schulz | `"jordan"` | `"cubic"` |
| `step_scale` | `"rms_matched"` | `"fan_in"` |
| `embedding_scale` | 100 | 300 |
| `beta_1` | 0.9 | 0.95 |
| `bias_correction` | `False` | `True` |
| `estimator` of the noise | `"lanczos"` | `"frobenius"` |
| `weight_decay` | 0.1 | 0.1 |

D-Muon has `weight_decay=0.1` and `beta_1=0.95`, and the coefficients and the
step scale of Lanton (base).

**Intervals** are 95 % intervals of Student's t over the seeds; differences are
taken seed by seed. "Tokens" is a quotient: the tokens of a run, divided by the
tokens that the reference needs for the same loss. Below 1 is better. In some
seeds the reference also has runs of 0.7 and 1.4 times the length, or of one of
them; what lies between is interpolated, what lies beyond follows the line of
the nearest two. A figure without an interval is of one seed, and ranks nothing
by itself.

**Compute.** {compute}
"""
OTHERWISE = {
    "gpu": "on a GPU, in place of a CPU",
    "again": "another time, with another version of the bench",
    "start": "perhaps from the state that the run before left",
}
EXACT = (
    "Runs that were trained twice, with all settings alike. Rounding differs "
    "between machines, and after some thousand steps it is seen in the loss."
)
IN_SHORT = (
    "Each optimizer at the best of its search, and `Lanton()`, which has its "
    "defaults, on a text that none was tuned on. A GPT-2 of 0.27 million "
    "weights, batches of 1,024 tokens, 20 tokens per weight; all have the "
    "same initial weights and batches. The noise alone is measured in "
    "[another question](#does-the-noise-pay-with-the-defaults)."
)
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
    """Sentences on what all runs took, and where."""
    speeds = [result["machine"]["sum_of_squares_ms"] for result in results]
    versions = {
        f"{name} {version}"
        for result in results
        for name, version in result["machine"]["versions"].items()
    }
    on_gpu = [result for result in results if "gpu" in result["machine"]]
    on_cpu = [result for result in results if "gpu" not in result["machine"]]
    text = (
        f"{len(on_cpu)} runs, {hours(on_cpu)} core-hours, one CPU core each, "
        "on machines that take "
        f"{min(speeds)} to {max(speeds)} ms for "
        "`sum(i * i for i in range(10**6))`"
    )
    if on_gpu:
        names = sorted({result["machine"]["gpu"] for result in on_gpu})
        text += (
            f"; {len(on_gpu)} runs, {hours(on_gpu)} hours, on a GPU "
            f"({', '.join(names)}), several side by side"
        )
    return f"{text}; {', '.join(sorted(versions))}."


def hours(results):
    """Of all of them, as text."""
    return f"{sum(result['seconds'] for result in results) / 3600:.1f}"


def starts(results):
    """On runs whose optimizer did not start anew; or ""."""
    measured = [result for result in results if result.get("ratios")]
    left = sum(not starts_fresh(result) for result in measured)
    if not left:
        return ""
    text = (
        f"**Starts.** {left} of the {len(measured)} runs that measure noise "
        "may have started with the momentum and the noise that the run before "
        "them had left. Runs of `noise=None`, of other optimizers and of the "
        "CNN have nothing left to start with. [Some were trained "
        "again](#how-exact-is-a-loss). Runs of `Lanton()` that certainly start "
        "afresh:"
    )
    counts = {}
    options = CONTESTANTS["lanton_defaults"][2]
    for result in measured:
        settings = result["settings"]
        if settings["options"] == options and settings["model"] == "gpt2":
            key = (
                settings["size"],
                f"{64 * settings['batch_size']:,}",
                length_of(settings),
                settings["text"],
            )
            counts.setdefault(key, []).append(starts_fresh(result))
    rows = [
        [*key, f"{sum(fresh)} of {len(fresh)}"]
        for key, fresh in sorted(counts.items())
    ]
    head = ["size", "tokens per batch", "length", "text", "runs"]
    return f"{text}\n\n{markdown_table(head, rows)}" if rows else text


def starts_fresh(result):
    """Whether a run certainly started with no state of another."""
    return result.get("start") == trials.FRESH


def length_of(settings):
    """The length of a run in words."""
    if "steps" in settings:
        return f"{settings['steps']:,} steps"
    return f"{settings['tokens_per_weight']:g} tokens per weight"


def trained_again(again):
    """The question of how far two results of one run lie apart; or [].

    Args:
        again: Pairs of a result and another one of the same run.
    """
    found = {}
    for first, second in again:
        kind = "again" if starts_fresh(second) else "start"
        kind = "gpu" if "gpu" in second["machine"] else kind
        settings = first["settings"]
        rate = f"{settings['learning_rate']:g}"
        key = (
            OTHERWISE[kind],
            settings["size"],
            rate if kind == "start" else "all",
        )
        found.setdefault(key, []).append(second["loss"] - first["loss"])
    if not found:
        return []
    rows = [
        [
            *key,
            str(len(differences)),
            with_interval(differences),
            f"{min(differences):.4f} to {max(differences):.4f}",
        ]
        for key, differences in sorted(found.items())
    ]
    head = [
        "other result",
        "size",
        "rates",
        "runs",
        "loss above the first",
        "from",
    ]
    return ["## How exact is a loss?", EXACT, markdown_table(head, rows)]


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


def page(read, results, again=()):
    """The page's text.

    Args:
        read: Function of a trial: its result, or None.
        results: All results that there are.
        again: Pairs of a result and another one of the same run.
    """
    widths = ", ".join(f"{n} {w}" for n, w in sizes.WIDTHS.items())
    parts = [HEAD.format(sizes=widths, compute=compute(results))]
    parts += [starts(results), *in_short(read)]
    for question in questions.QUESTIONS:
        answers = [answer(table, read) for table in question.tables]
        answers = [text for text in answers if text]
        if answers:
            parts += [f"## {question.title}", question.text, *answers]
        if answers and question.title in PICTURES:
            parts.append(PICTURES[question.title])
    parts += trained_again(again)
    parts += ["## How was each tuned?", SEARCH]
    for what, spaces, fields in (
        ("GPT-2, S, batches of 1,024 tokens", search.SPACES, {}),
        ("the CNN", search.IMAGE_SPACES, {"judged_by": "held_out"}),
    ):
        parts += [f"The searches try, {what}:", search_spaces(spaces)]
        found = searches(spaces, read, **fields)
        if found:
            parts += [f"The searches found, {what}:", found]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def pairs(folder, again):
    """Pairs of a result and another one of the same run, from two folders."""
    others = {path.name: path for path in sorted(again.glob("*/*.json"))}
    firsts = {path.name: path for path in sorted(folder.glob("*/*.json"))}
    return [
        (read_json(firsts[name]), read_json(path))
        for name, path in others.items()
        if name in firsts
    ]


def write(path, folder=trials.RESULTS, again=trials.AGAIN):
    """Write the page from the results in a folder.

    Args:
        path: Of the page.
        folder: Of the results.
        again: Of other results of the same runs.

    Raises:
        SystemExit: Without results.
    """
    results = trials.all_results(folder)
    if not results:
        raise SystemExit(f"There are no results in {folder}.")
    read = functools.partial(trials.read, folder=folder)
    path.write_text(page(read, results, pairs(folder, again)))
    pictures.draw_finals(read, path.with_suffix(".png"))
    pictures.draw_widths(read, path.with_name("rates_by_width.png"))
    print(path)

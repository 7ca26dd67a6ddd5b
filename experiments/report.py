"""docs/evidence.md from the table of results, or any other table of them.

    python -m experiments.report
    python -m experiments.report --group-by optimizer learning_rate
        --where "size == 'M' and text == 'wiki'" --columns batch_size

The first writes the page with its pictures. The second prints, for each group
of runs, their number, the mean loss and its 95 % interval. Columns are the
fields of `run.Run`, arguments of the optimizer as "noise.alpha" (in backticks
within `--where`), and what a line of the results has beside the record.
"""

import argparse
import pathlib

import numpy as np
import pandas as pd

from experiments import figures
from experiments import history
from experiments import run as runs
from experiments import sweeps
from experiments import tasks
from experiments.contestants import CONTESTANTS
from experiments.search import MissingRunsError
from experiments.search import label_of
from experiments.tables import as_frame
from experiments.tables import comparison
from experiments.tables import grid_table
from experiments.tables import grouped
from experiments.tables import markdown
from experiments.tables import one_rate_table
from experiments.tables import with_interval

PAGE = runs.ROOT / "docs" / "evidence.md"
HEAD = """# Evidence

Full-length comparisons of optimizers on small language models and a CNN.
`make evidence TEXTS=folder` trains what is missing and writes this page from
`benchmarks/results/runs.jsonl`, one line a run. The folder has `wiki.txt` and
`sotu.txt`, or `.txt.gz`, `.txt.xz`. Any other table of the same runs is one
command:

```sh
python -m experiments.report --where "size == 'M' and kind == 'language'" \\
  --group-by optimizer learning_rate
```

**Setting.** GPT-2 and Llama of KerasHub's blocks: 4 layers, heads of 32, a
context of 64 tokens, a vocabulary of 1,024 tokens. Widths: XS 32, S 64, M 128,
L 256, XL 512. The length of a run is 20 tokens per weight, all weights
counted, unless a row says otherwise. The rate warms up over 5 % of the steps,
then follows a cosine to 0. Losses are those at the end, in nats per token, over
2,048 blocks of every tenth document, which no run trains on. Runs of one seed
share initial weights and batches. Texts: `wiki`, prose of the English
Wikipedia; `sotu`, the State of the Union addresses; `stdlib`, the source text
of Python's standard library. A text that is not named is `wiki`. Hidden kernels
start with a standard deviation of `0.02 * sqrt(768 / width)`, tables with 0.02.

**Contestants.** `Lanton()`, `Lanton(noise=None)` and `Lanton.paper()` are
called as written. `Lanton()` has the defaults, which were chosen with these
runs. D-Muon has `weight_decay=0.03` and `beta_1=0.95`, AdamW a global norm of
gradients of 1 at most.

**Intervals** are 95 % intervals of Student's t over the seeds; differences are
taken seed by seed. "Tokens" is a quotient: tokens for equal loss, over those of
the reference. The reference ran at 0.7 and 1.4 times the length too, in some
seeds at one of them; beyond, the line of the nearest two goes on. A figure
without an interval is of one seed, and ranks nothing by itself.
"""
CLOSE = (
    "Each contestant is at the best of its rates, which differ by a factor of "
    "2. One seed does not tell apart what ends within 0.01 of the lowest: "
    "there the mean over the seeds 1 to 3 decides. Until all have run, a rate "
    "with more seeds stands before one with fewer."
)
# Title, text and what makes the body, of each section. The anchors of other
# pages are the titles.
SECTIONS = (
    (
        "Which optimizer ends lowest?",
        "On a text that none was tuned on. `Lanton()` has its default rate, "
        "`Lanton(noise=None)` the best of its rates, the others [the best of "
        "their search](#how-was-each-tuned). Tokens are told by the curve of "
        "`Lanton(noise=None)`.\n\n![Final losses of the optimizers, less those "
        "of Lanton(), with their intervals](evidence.png)",
        (sweeps.FINALS,),
    ),
    (
        "Does the noise pay, with the defaults?",
        f"`Lanton()` beside `Lanton(noise=None)`. {CLOSE}",
        sweeps.NOISE,
    ),
    (
        "Does it hold at other sizes and lengths?",
        "`Lanton()` has its defaults, the others the arguments that were best "
        "at S, but for the rate.",
        sweeps.SIZES,
    ),
    (
        "Does the default rate suit other sizes, lengths and batches?",
        "The default rate is 0.005. The best rate is the lowest point of a "
        "parabola through the best three; there is none at the edge of a row. "
        "The window is the highest rate over the lowest whose loss is within "
        "1 % of the best, by interpolation. One seed, but for the last table.",
        (sweeps.DEFAULT_RATE, "one rate", sweeps.WINDOWS, sweeps.HALVES),
    ),
    (
        "Does the best rate change with the width?",
        "400 steps of batches of 1,024 tokens, one seed; in the second table "
        "the mean over two.\n\n![Losses by learning rate, one curve for each "
        "width, one panel for each optimizer](rates_by_width.png)",
        sweeps.WIDTHS,
    ),
    (
        "Does the best rate change with the depth?",
        "As for the width.",
        (sweeps.DEPTHS,),
    ),
    (
        "How much weight decay for how many steps?",
        "At the default rate, one seed.",
        (sweeps.DECAY,),
    ),
    (
        "Which momentum for which length?",
        "Arguments of `Lanton()`, at its default rate.",
        sweeps.MOMENTUM,
    ),
    (
        "Which optimizer trains a CNN best?",
        "A narrow airbench network on Fashion-MNIST, in batches of 500 images. "
        "Each contestant is tuned on 10,000 training images that are held out, "
        "then trained on all training images and tested on the test images. "
        "None has weight decay before its search.",
        ("cnn",),
    ),
    (
        "Which optimizer for fine-tuning?",
        "1,000 steps on `sotu` in batches of 1,024 tokens, without weight "
        "decay, from weights that were trained on `wiki` to 20 tokens per "
        "weight. Learned: the fall of the loss on the new text. Forgotten: the "
        "rise of the loss on the old one. LoRA has rank 8, on queries and "
        "values. The rates are chosen by the new loss of the first seed. "
        f"Lanton has [earlier settings](#{history.ANCHOR}) here.",
        ("fine_tuning",),
    ),
    (
        "What holds AdamW back?",
        "One seed. KerasHub starts every kernel at a standard deviation of "
        "0.02; by width it is 0.07 at width 64. Gradients are clipped to a "
        "global norm of 1, unless a row says otherwise. Tables need a higher "
        "rate than kernels, and clipping helps: AdamW has both in the other "
        "tables.",
        (tasks.ADAMW,),
    ),
    (history.TITLE, history.TEXT, ("history",)),
    (
        "How exact is a loss?",
        "Runs that were trained twice, with all settings alike. Rounding "
        "differs between machines, and after some thousand steps it is seen in "
        "the loss.",
        ("repeats",),
    ),
    (
        "How was each tuned?",
        "One seed, the text `wiki`; the CNN on images that are held out. Rates "
        "first; where the best is at the edge of the grid, the grid grows by "
        "factors of 2 until it is not. Then each further argument at the best "
        "values so far.",
        ("searches",),
    ),
)


# -- Bodies ------------------------------------------------------------------


def cnn(results):
    """Accuracies and training losses of the CNN."""
    rows, table = [], sweeps.CNN
    for label, run in table.decide(results)[0]:
        lines = {
            seed: line
            for seed in table.seeds
            if (line := results.get(run.replace(seed=seed)))
        }
        percent = pd.Series(
            {s: 100 * line["accuracies"][-1] for s, line in lines.items()}
        )
        losses = [line["training_loss"] for line in lines.values()]
        rows.append((label, run, percent, losses))
    reference = {label: percent for label, _, percent, _ in rows}.get(
        table.reference
    )
    cells = [
        [
            label,
            f"{run.learning_rate:g}",
            str(len(percent)),
            with_interval(percent, 2),
            with_interval((percent - reference).dropna(), 2)
            if label != table.reference
            else "",
            with_interval(losses),
        ]
        for label, run, percent, losses in sorted(
            rows, key=lambda row: -row[2].mean()
        )
    ]
    head = ["", "rate", "seeds", "accuracy, %", "difference", "training loss"]
    caption = f"{table.caption}. Reference: {table.reference}."
    return f"{caption}\n\n{markdown(head, cells)}"


def fine_tuning(results):
    """What each method learns and forgets."""
    parts = []
    for table in tasks.FINE_TUNING:
        rows = []
        for label, run in table.decide(results)[0]:
            lines = [results.get(run.replace(seed=s)) for s in table.seeds]
            found = pd.DataFrame(
                {
                    "new": line["loss"],
                    "old": line["old_loss"],
                    "learned": line["before"][0] - line["loss"],
                    "forgotten": line["old_loss"] - line["before"][1],
                }
                for line in lines
                if line is not None
            )
            rows.append(
                [
                    label,
                    f"{run.learning_rate:g}",
                    str(len(found)),
                    *(with_interval(found[name]) for name in found),
                ]
            )
        head = ["", "rate", "seeds", "new loss", "old loss"]
        head += ["learned", "forgotten"]
        parts.append(f"{table.caption}.\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def repeats(results):
    """How far two results of one run lie apart."""
    rows = []
    for line in results.repeats:
        first = results.by_id[line["id"]]
        kind = "from the state that the run before left, perhaps"
        if "gpu" in line["machine"]:
            kind = "on a GPU, in place of a CPU"
        elif not line.get("doubtful_start"):
            kind = "another time, with another version of the code"
        size, above = line["record"]["size"], line["loss"] - first["loss"]
        rows.append({"second": kind, "size": size, "above": above})
    groups = pd.DataFrame(rows).groupby(["second", "size"])["above"]
    cells = [
        [*key, str(len(x)), with_interval(x), f"{x.min():.4f} to {x.max():.4f}"]
        for key, x in groups
    ]
    head = ["second result", "size", "runs", "above the first", "from"]
    return markdown(head, cells)


def searches(results):
    """What the searches tried, and what they found."""
    rows = []
    spaces = {**sweeps.SPACES, **sweeps.IMAGE_SPACES}
    for name, (rates, space) in spaces.items():
        images = name in sweeps.IMAGE_SPACES
        fields = {"judged_by": "held_out"} if images else {}
        try:
            found = sweeps.search_of(name, **fields)(results)
        except MissingRunsError:
            continue
        best, own = found[0], CONTESTANTS[name].options
        changed = [f"`{k}` {v:g}" for k, v in best.options if own[k] != v]
        tried = [
            f"`{argument}` {', '.join(f'{v:g}' for v in values)}"
            for argument, values in space
        ]
        rows.append(
            [
                label_of(name) + (", CNN" if images else ""),
                ", ".join(f"{rate:g}" for rate in rates),
                "; ".join(tried),
                str(len(found)),
                f"{best.learning_rate:g}",
                "; ".join(changed) or "as at the start",
                f"{results.loss(best):.4f}",
            ]
        )
    head = ["", "rates", "then, one by one", "runs", "best rate"]
    return markdown([*head, "other changes", "loss"], rows)


BODIES = {
    "cnn": cnn,
    "fine_tuning": fine_tuning,
    "history": history.lines,
    "repeats": repeats,
    "searches": searches,
    "one rate": lambda results: one_rate_table(sweeps.DEFAULT_RATE, results),
}


def body(parts, results):
    """The tables of a section, as Markdown."""
    if all(hasattr(part, "decide") for part in parts):
        return comparison(parts, results)
    shown = []
    for part in parts:
        if isinstance(part, str):
            shown.append(BODIES[part](results))
        elif isinstance(part, tuple):
            shown.append(comparison(part, results))
        else:
            shown.append(grid_table(part, results))
    return "\n\n".join(shown)


# -- The page ----------------------------------------------------------------


def compute(results):
    """Sentences on what all runs took, and where."""
    lines = [line for line in results.lines if line["seconds"] is not None]
    speeds = [line["machine"]["sum_of_squares_ms"] for line in lines]
    versions = {
        f"{name} {version}"
        for line in lines
        for name, version in line["machine"]["versions"].items()
    }
    hours = {True: 0.0, False: 0.0}
    counts = {True: 0, False: 0}
    for line in lines:
        on_gpu = "gpu" in line["machine"]
        counts[on_gpu] += 1
        hours[on_gpu] += line["seconds"] / 3600
    gpus = {line["machine"].get("gpu") for line in lines} - {None}
    text = (
        f"**Compute.** {counts[False]} runs, {hours[False]:.1f} core-hours, "
        "one CPU core each, on machines that take "
        f"{min(speeds)} to {max(speeds)} "
        "ms for `sum(i * i for i in range(10**6))`"
    )
    if gpus:
        text += (
            f"; {counts[True]} runs, {hours[True]:.1f} hours, on a GPU "
            f"({', '.join(sorted(gpus))}), several side by side"
        )
    return f"{text}; {', '.join(sorted(versions))}."


def starts(results):
    """On runs that may have started with another run's state; or ""."""
    measured = [line for line in results.lines if "doubtful_start" in line]
    doubtful = {line["id"] for line in measured if line["doubtful_start"]}
    if not doubtful:
        return ""
    rows = []
    for title, _, parts in SECTIONS:
        ids = {run.id for part in parts for run in _runs(part, results)}
        behind = ids & {line["id"] for line in measured}
        if behind:
            count = f"{len(behind & doubtful)} of {len(behind)}"
            rows.append([title, count])
    return (
        f"**Starts.** {len(doubtful)} of the {len(measured)} runs that measure "
        "noise may have started with the momentum and the noise that the run "
        "before them had left. Runs of `noise=None`, of other optimizers and "
        "of the CNN have nothing left to start with. Doubtful ones among the "
        "runs that measure noise, by section:\n\n"
        + markdown(["section", "doubtful starts"], rows)
    )


def _runs(part, results):
    if part == "fine_tuning":
        return [r for t in tasks.FINE_TUNING for r in t.runs(results)]
    if isinstance(part, str):
        return []
    if isinstance(part, tuple):
        return [run for table in part for run in table.runs(results)]
    return part.runs(results)


def page(results):
    """The page's text.

    Args:
        results: `run.Results`.
    """
    parts = [HEAD, compute(results), starts(results)]
    for title, text, some in SECTIONS:
        parts += [f"## {title}", text, body(some, results)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def write(path, results):
    """Write the page and its pictures.

    Args:
        path: Of the page.
        results: `run.Results`.
    """
    path.write_text(page(results))
    figures.draw_finals(sweeps.FINALS, results, path.with_suffix(".png"))
    panels = (sweeps.WIDTHS[0], *sweeps.WIDTHS[2:])
    figures.draw_widths(panels, results, path.with_name("rates_by_width.png"))
    print(path)


def main(argv=None):
    """Write the page, or print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--results", type=pathlib.Path, default=runs.RESULTS)
    add("--page", type=pathlib.Path, default=PAGE)
    add("--group-by", nargs="+", metavar="COLUMN", default=[])
    add("--columns", nargs="+", metavar="COLUMN", default=[])
    add("--where", default="", metavar="QUERY", help="as pandas has it")
    args = parser.parse_args(argv)
    results = runs.Results(args.results)
    if not results.lines:
        raise SystemExit(f"There are no results in {args.results}.")
    if not args.group_by:
        write(args.page, results)
        return
    table = grouped(as_frame(results), args.group_by, args.columns, args.where)
    with pd.option_context("display.max_rows", None, "display.width", 200):
        print(table.replace(np.inf, np.nan))


if __name__ == "__main__":
    main()

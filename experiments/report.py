"""docs/results.md and docs/method.md, or any table of the results.

    python -m experiments.report
    python -m experiments.report --table widths decay
    python -m experiments.report --group-by optimizer learning_rate
        --where "size == 'M' and text == 'wiki'" --columns batch_size

The first writes the pages with their pictures. The third prints, for each group
of runs, their number, the mean loss and its 95 % interval. Columns are the
fields of `run.Run`, arguments of the optimizer as "noise.alpha" (in backticks
within `--where`), and what a line of the results has beside the record.
"""

import argparse
import json
import pathlib

import numpy as np
import pandas as pd

from experiments import figures
from experiments import run as runs
from experiments import search
from experiments import sweeps
from experiments import tables
from experiments import tasks
from experiments.contestants import CONTESTANTS
from experiments.tables import markdown
from experiments.tables import with_interval

DOCS = runs.ROOT / "docs"
TEMPLATES = pathlib.Path(__file__).parent / "pages"
PAGES = ("results", "method")
LADDER = runs.ROOT / "benchmarks" / "results" / "gpu_h200" / "ladder.jsonl"
LARGER = {
    "d_muon": "D-Muon",
    "lanton": "`Lanton()`",
    "lanton_scale_600": "`Lanton(embedding_scale=600)`",
    "lanton_scale_1000": "`Lanton(embedding_scale=1000)`",
    "lanton_more_decay": "`Lanton(weight_decay=0.2)`",
    "lanton_by_adamw": "`Lanton()`, embeddings by AdamW",
    "lanton_without_noise": "`Lanton(noise=None)`",
    "lanton_paper": "`Lanton.paper()`",
    "normuon": "NorMuon",
    "cubic_scale_1000": "`Lanton(embedding_scale=1000)`, cubic",
    "lanton_adamw_embeddings": "earlier `Lanton()`, embeddings by AdamW",
    "lanton_defaults": "earlier `Lanton()`",
    "lanton_defaults_control": "earlier `Lanton(noise=None)`",
    "adamw_tables": "AdamW",
}
# Tables by their names; several `Table`s are shown as one.
TABLES = {
    "lowest": (sweeps.FINALS,),
    "noise": sweeps.NOISE,
    "earlier_noise": sweeps.noise_of(sweeps.EARLIER),
    "sizes": sweeps.SIZES,
    "earlier_sizes": sweeps.sizes_of(sweeps.EARLIER),
    "large_batches": sweeps.LARGE_BATCHES,
    "large_vocabulary": (sweeps.LARGE_VOCABULARY,),
    "peak_rates": (sweeps.PEAK_RATES,),
    "widths": sweeps.WIDTHS,
    "decay": (sweeps.DECAY,),
    "momentum": sweeps.MOMENTUM,
    "at_each_rate": sweeps.AT_ONE_RATE,
    "cnn": (sweeps.CNN,),
    "cnn_from_adamw": (sweeps.CNN_FROM_ADAMW,),
    "fine_tuning": tasks.FINE_TUNING,
    "adamw": (tasks.ADAMW, *sweeps.FROM_ADAMW),
    "from_muon": (sweeps.FROM_MUON,),
    "memory": (sweeps.MEMORY,),
    "newton_schulz": (sweeps.NEWTON_SCHULZ, sweeps.LONGER_NEWTON_SCHULZ),
}


# -- Bodies ------------------------------------------------------------------


def lowest(results):
    """The finals, without what all rows share."""
    (table,) = TABLES["lowest"]
    frame, by_label = tables.compared(table, results)
    above = tables.differences(frame, table.reference)
    ratios = tables.tokens(frame, table, results)
    longest = 1.0 / min(table.lengths)  # that the curve can tell

    def tokens(label):
        if ratios is None or label == table.reference:
            return ""
        some = ratios[label].dropna()
        if some.mean() > longest:
            return f"more than {longest:.2g}"
        return with_interval(some, 2)

    rows = [
        [
            label,
            f"{by_label[label].learning_rate:g}",
            with_interval(frame[label].dropna()),
            "" if label == table.reference else with_interval(above[label]),
            tokens(label),
        ]
        for label in frame.mean().sort_values().index
    ]
    head = ["", "rate", "loss", f"above {table.reference}", "tokens"]
    return markdown(head, rows)


def larger(results):
    """The model of 14 million weights, at the best of its rates."""
    lines = [json.loads(x) for x in LADDER.read_text().splitlines() if x]
    frame = pd.DataFrame(line for line in lines if line["complete"])
    frame = frame[(frame["seed"] == 1) & frame["contestant"].isin(LARGER)]
    lengths = sorted(frame["tokens_per_weight"].unique())
    rows = []
    for name, label in LARGER.items():
        row = [label]
        for length in lengths:
            some = frame[
                (frame["contestant"] == name)
                & (frame["tokens_per_weight"] == length)
            ].sort_values("learning_rate")
            rates = listed(some["learning_rate"])
            row.append(f"{some['loss'].min():.3f} ({rates})" if rates else "")
        if any(row[1:]):
            rows.append(row)
    return markdown(["", *(f"{x:g} tokens per weight" for x in lengths)], rows)


def cnn(results):
    """Accuracies of the CNN."""
    table = sweeps.CNN
    found = {
        label: [
            100 * line["accuracies"][-1]
            for line in results.of_seeds(run, table.seeds).values()
        ]
        for label, run in table.decide(results)[0]
    }
    ordered = sorted(found.items(), key=lambda item: -np.mean(item[1]))
    rows = [[label, with_interval(some, 2)] for label, some in ordered]
    return markdown([f"CNN, {table.caption}", "accuracy, %"], rows)


def fine_tuning(results):
    """The loss of each method on the new text, and on the old one."""
    (table,) = tasks.FINE_TUNING
    rows = []
    for label, run in table.decide(results)[0]:
        lines = results.of_seeds(run, table.seeds).values()
        new = with_interval([line["loss"] for line in lines], 3)
        old = with_interval([line["old_loss"] for line in lines], 3)
        rows.append([label, f"{run.learning_rate:g}", new, old])
    head = ["fine-tuning, GPT-2, S", "rate", "new text", "old text"]
    return markdown(head, rows)


def noise(results):
    """`Lanton()` beside `Lanton(noise=None)`."""
    return tables.pairs(sweeps.NOISE, results)


def by_caption(table):
    """A row for each caption, a column for each label of its cells."""
    labels = dict.fromkeys(x for cells in table.values() for x in cells)
    rows = [
        [caption, *(cells.get(label, "") for label in labels)]
        for caption, cells in table.items()
        if cells
    ]
    return markdown(["", *labels], rows)


def default_and_best(grids, default_rate, results):
    """Losses at a rate, then at the best that ran, which brackets name."""
    table = {}
    for grid in grids:
        cells = table[grid.caption] = {}
        for label, losses in tables.by_value(grid, results).iterrows():
            default, best = losses.get(default_rate), losses.idxmin()
            cells[label] = f"{losses.min():.3g} ({best:g})"
            if default is not None and default > losses.min():
                cells[label] = f"{default:.3g}, {cells[label]}"
    return by_caption(table)


def last_epochs(results):
    """Without a schedule, at the default rate: the lowest loss and the last.

    Means over the seeds; in brackets the epochs of the lowest.
    """
    table = {}
    for grid in sweeps.AT_ONE_RATE:
        cells = table[grid.caption] = {}
        for label, run in grid.rows:
            lines = results.of_seeds(run, grid.seeds).values()
            losses = np.array([x["losses"] for x in lines if "losses" in x])
            if run.learning_rate not in sweeps.DEFAULTS or not losses.size:
                continue
            epochs = sorted({1 + int(i) for i in losses.argmin(axis=1)})
            lowest, last = losses.min(axis=1).mean(), losses[:, -1].mean()
            cells[label] = f"{lowest:.3g} ({listed(epochs)}), {last:.3g}"
    return by_caption(table)


def repeats(results):
    """How far two results of one run lie apart."""
    rows = []
    for line in results.repeats:
        first = results.by_id[line["id"]]
        kind = "another time, with another version of the code"
        if "gpu" in line["machine"]:
            kind = "on a GPU, in place of a CPU"
        size, above = line["record"]["size"], line["loss"] - first["loss"]
        rows.append({"second": kind, "size": size, "above": above})
    groups = pd.DataFrame(rows).groupby(["second", "size"])["above"]
    cells = [
        [*key, str(len(x)), with_interval(x), f"{x.min():.4f} to {x.max():.4f}"]
        for key, x in groups
    ]
    head = ["second result", "size", "runs", "above the first", "from"]
    return markdown(head, cells)


def listed(values):
    return ", ".join(f"{value:g}" for value in values)


def searches(results):
    """How many runs the searches had, and what they found."""
    rows = []
    spaces = {**sweeps.SPACES, **sweeps.IMAGE_SPACES}
    for name, (rates, _) in spaces.items():
        images = name in sweeps.IMAGE_SPACES
        fields = {"judged_by": "held_out"} if images else {}
        try:
            found = sweeps.search_of(name, **fields)(results)
        except search.MissingRunsError:
            continue
        best, own = found[0], CONTESTANTS[name].options
        changed = [f"`{k}` {v:g}" for k, v in best.options if own[k] != v]
        rows.append(
            [
                search.label_of(name) + (", CNN" if images else ""),
                listed(rates),
                str(len(found)),
                f"{best.learning_rate:g}",
                "; ".join(changed) or "as at the start",
                f"{results.loss(best):.4f}",
            ]
        )
    head = ["", "first rates", "runs", "best rate"]
    return markdown([*head, "other changes", "loss"], rows)


BODIES = {
    "lowest": lowest,
    "noise": noise,
    "larger": larger,
    "above_in_large_batches": lambda results: tables.above(
        sweeps.LARGE_BATCHES, results
    ),
    "sizes": lambda results: tables.above(sweeps.SIZES, results),
    "cnn": cnn,
    "fine_tuning": fine_tuning,
    "without_schedule": lambda results: default_and_best(
        sweeps.AT_ONE_RATE, sweeps.DEFAULT, results
    ),
    "with_schedule": lambda results: default_and_best(
        sweeps.WITH_SCHEDULE, sweeps.PEAK, results
    ),
    "one_rate": lambda results: tables.one_rate_table(
        sweeps.PEAK_RATES, results
    ),
    "last_epochs": last_epochs,
    "repeats": repeats,
    "searches": searches,
}


def shown(some):
    """A function of results: tables as Markdown."""
    if hasattr(some[0], "decide"):
        return lambda results: tables.comparison(some, results)
    return lambda results: "\n\n".join(
        tables.grid_table(one, results) for one in some
    )


# -- The pages ---------------------------------------------------------------


def bodies():
    """Functions of results by name: all that the templates may hold."""
    return {**{place: shown(some) for place, some in TABLES.items()}, **BODIES}


def page(name, results):
    """The text of a page."""
    return tables.filled(TEMPLATES / f"{name}.txt", bodies(), results)


def write(folder, results):
    """Write the pages and their pictures."""
    for name in PAGES:
        (folder / f"{name}.md").write_text(page(name, results))
    figures.draw_finals(sweeps.FINALS, results, folder / "results.png")
    figures.draw_widths(sweeps.WIDTHS, results, folder / "rates_by_width.png")
    print(folder)


def main(argv=None):
    """Write the pages, or print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--results", type=pathlib.Path, default=runs.RESULTS)
    add("--docs", type=pathlib.Path, default=DOCS, help="of the pages")
    add("--table", nargs="+", metavar="NAME", choices=bodies())
    add("--group-by", nargs="+", metavar="COLUMN", default=[])
    add("--columns", nargs="+", metavar="COLUMN", default=[])
    add("--where", default="", metavar="QUERY", help="as pandas has it")
    args = parser.parse_args(argv)
    results = runs.Results(args.results)
    if not results.lines:
        raise SystemExit(f"There are no results in {args.results}.")
    for name in args.table or ():
        print(f"{bodies()[name](results)}\n")
    if args.table:
        return
    if not args.group_by:
        write(args.docs, results)
        return
    frame = tables.as_frame(results)
    table = tables.grouped(frame, args.group_by, args.columns, args.where)
    print(table.replace(np.inf, np.nan).to_string())


if __name__ == "__main__":
    main()

"""docs/evidence.md from the table of results, or any other table of them.

    python -m experiments.report
    python -m experiments.report --group-by optimizer learning_rate
        --where "size == 'M' and text == 'wiki'" --columns batch_size
    python -m experiments.report --question which-noise-is-worth-measuring

The first writes the page with its pictures. The second prints, for each group
of runs, their number, the mean loss and its 95 % interval. Columns are the
fields of `run.Run`, arguments of the optimizer as "noise.alpha" (in backticks
within `--where`), and what a line of the results has beside the record. The
third groups the runs of a question by all that differs between them.
"""

import argparse
import pathlib
import re

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

PAGE = runs.ROOT / "docs" / "evidence.md"
TEMPLATE = pathlib.Path(__file__).parent / "pages" / "evidence.txt"
# Tables by their place in the template; several `Table`s are shown as one.
TABLES = {
    "lowest": (sweeps.FINALS,),
    "noise": sweeps.NOISE,
    "sizes": sweeps.SIZES,
    "default_rate": (sweeps.DEFAULT_RATE,),
    "windows": (sweeps.WINDOWS,),
    "halves": sweeps.HALVES,
    "widths": sweeps.WIDTHS,
    "depths": (sweeps.DEPTHS,),
    "decay": (sweeps.DECAY,),
    "momentum": sweeps.MOMENTUM,
    "cnn": (sweeps.CNN,),
    "fine_tuning": tasks.FINE_TUNING,
    "adamw": (tasks.ADAMW,),
}


# -- Bodies ------------------------------------------------------------------


def cnn(results):
    """Accuracies and training losses of the CNN."""
    rows, table = [], sweeps.CNN
    for label, run in table.decide(results)[0]:
        lines = results.of_seeds(run, table.seeds)
        frame = pd.DataFrame.from_dict(lines, orient="index")
        frame["percent"] = [100 * x[-1] for x in frame["accuracies"]]
        rows.append((label, run, frame))
    by_label = {label: frame["percent"] for label, _, frame in rows}
    cells = []
    for label, run, frame in sorted(
        rows, key=lambda x: -x[2]["percent"].mean()
    ):
        percent = frame["percent"]
        above = percent - by_label[table.reference]
        above = above.dropna() if label != table.reference else ()
        cells.append(
            [
                label,
                f"{run.learning_rate:g}",
                str(len(frame)),
                with_interval(percent, 2),
                with_interval(above, 2),
                with_interval(frame["training_loss"]),
            ]
        )
    head = ["", "rate", "seeds", "accuracy, %", "difference", "training loss"]
    caption = f"{table.caption}. Reference: {table.reference}."
    return f"{caption}\n\n{markdown(head, cells)}"


def fine_tuning(results):
    """What each method learns and forgets."""
    parts = []
    for table in tasks.FINE_TUNING:
        rows = []
        for label, run in table.decide(results)[0]:
            found = pd.DataFrame(
                {
                    "new": line["loss"],
                    "old": line["old_loss"],
                    "learned": line["before"][0] - line["loss"],
                    "forgotten": line["old_loss"] - line["before"][1],
                }
                for line in results.of_seeds(run, table.seeds).values()
            )
            row = [label, f"{run.learning_rate:g}", str(len(found))]
            rows.append([*row, *(with_interval(found[x]) for x in found)])
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


def listed(values):
    return ", ".join(f"{value:g}" for value in values)


def searches(results):
    """What the searches tried, and what they found."""
    rows = []
    spaces = {**sweeps.SPACES, **sweeps.IMAGE_SPACES}
    for name, (rates, space) in spaces.items():
        images = name in sweeps.IMAGE_SPACES
        fields = {"judged_by": "held_out"} if images else {}
        try:
            found = sweeps.search_of(name, **fields)(results)
        except search.MissingRunsError:
            continue
        best, own = found[0], CONTESTANTS[name].options
        changed = [f"`{k}` {v:g}" for k, v in best.options if own[k] != v]
        tried = [f"`{argument}` {listed(values)}" for argument, values in space]
        rows.append(
            [
                search.label_of(name) + (", CNN" if images else ""),
                listed(rates),
                "; ".join(tried),
                str(len(found)),
                f"{best.learning_rate:g}",
                "; ".join(changed) or "as at the start",
                f"{results.loss(best):.4f}",
            ]
        )
    head = ["", "rates", "then, one by one", "runs", "best rate"]
    return markdown([*head, "other changes", "loss"], rows)


def ended(results):
    """Questions of the results that are no section of the page, as a list."""
    names = {name for line in results.lines for name in line["questions"]}
    titles = re.findall(r"^## (.*)$", TEMPLATE.read_text(), re.MULTILINE)
    asked = {
        re.sub(r"[^\w -]", "", x.lower()).replace(" ", "-") for x in titles
    }
    old = sorted(name for name in names - asked if re.search(r"\w-\w", name))
    return "\n".join(f"- `{name}`" for name in old)


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
    known = {line["id"] for line in measured}
    rows = []
    for section in TEMPLATE.read_text().split("\n## ")[1:]:
        places = set(tables.PLACE.findall(section)) & set(TABLES)
        some = [table for place in places for table in TABLES[place]]
        behind = known & {x.id for t in some for x in t.runs(results)}
        if behind:
            count = f"{len(behind & doubtful)} of {len(behind)}"
            rows.append([section.splitlines()[0], count])
    return (
        f"**Starts.** {len(doubtful)} of the {len(measured)} runs that measure "
        "noise may have started with the momentum and the noise that the run "
        "before them had left. Runs of `noise=None`, of other optimizers and "
        "of the CNN have nothing left to start with. Doubtful ones among the "
        "runs that measure noise, by section:\n\n"
        + markdown(["section", "doubtful starts"], rows)
    )


BODIES = {
    "cnn": cnn,
    "fine_tuning": fine_tuning,
    "one_rate": lambda results: tables.one_rate_table(
        sweeps.DEFAULT_RATE, results
    ),
    "repeats": repeats,
    "searches": searches,
    "ended": ended,
    "compute": compute,
    "starts": starts,
}


def shown(some):
    """A function of results: tables as Markdown."""
    if hasattr(some[0], "decide"):
        return lambda results: tables.comparison(some, results)
    return lambda results: "\n\n".join(
        tables.grid_table(one, results) for one in some
    )


# -- The page ----------------------------------------------------------------


def page(results):
    """The page's text."""
    found = {place: shown(some) for place, some in TABLES.items()}
    return tables.filled(TEMPLATE, {**found, **BODIES}, results)


def write(path, results):
    """Write the page and its pictures."""
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
    add("--question", help="as the lines of the results have it")
    args = parser.parse_args(argv)
    results = runs.Results(args.results)
    if not results.lines:
        raise SystemExit(f"There are no results in {args.results}.")
    if not args.group_by and args.question is None:
        write(args.page, results)
        return
    frame = tables.as_frame(results, args.question)
    by = args.group_by or tables.differing(results, args.question)
    table = tables.grouped(frame, by, args.columns, args.where)
    print(table.replace(np.inf, np.nan).to_string())


if __name__ == "__main__":
    main()

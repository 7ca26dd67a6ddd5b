"""Statistics of results, as frames and as tables in Markdown."""

import math
import re

import numpy as np
import pandas as pd
from scipy import stats

from experiments.search import scaled

# -- Statistics --------------------------------------------------------------


def interval(values):
    """Mean of some values and half the width of its 95 % interval.

    Student's t; the second is infinite for fewer than two values.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), math.inf
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return float(values.mean()), float(half)


def with_interval(values, digits=4):
    """Mean and interval as text; without an interval for one value."""
    values = np.asarray(values, float)
    if not len(values):
        return ""
    if not np.isfinite(values).all():
        return "diverged"
    mean, half = interval(values)
    if not math.isfinite(half):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def best_rate(losses):
    """The lowest point of a parabola through the best three, over log(rate).

    None where the best is the lowest or the highest that ran. `losses` is a
    series by rate, rising.
    """
    at = int(np.argmin(losses))
    if at in (0, len(losses) - 1):
        return None
    x = np.log(losses.index[at - 1 : at + 2].to_numpy(float))
    a, b, _ = np.polyfit(x - x[1], losses.iloc[at - 1 : at + 2], 2)
    return float(np.exp(x[1] - b / (2 * a)))


def window(losses, margin=0.01):
    """The highest good rate over the lowest, and whether that is all there is.

    A rate is good if its loss is within a share of `margin` of the lowest;
    between two rates the loss is linear in the logarithm of the rate. `losses`
    is a series by rate, rising; not all finite.
    """
    x, y = np.log(losses.index.to_numpy(float)), losses.to_numpy(float)
    limit, best = y.min() * (1 + margin), int(y.argmin())
    low = _crossing(x[best::-1], y[best::-1], limit)
    high = _crossing(x[best:], y[best:], limit)
    inside = y[0] > limit and y[-1] > limit
    return float(np.exp(high - low)), bool(inside)


def _crossing(x, y, limit):
    """The first x at which y crosses the limit; the last one without any."""
    for k in range(1, len(x)):
        if y[k] > limit and np.isfinite(y[k]):
            return float(np.interp(limit, y[k - 1 : k + 1], x[k - 1 : k + 1]))
        if y[k] > limit:
            return float(x[k - 1])
    return float(x[-1])


def token_ratio(loss, curve):
    """Tokens of a run over those that the reference needs for its loss.

    Linear in the logarithm of the tokens, and beyond the shortest and the
    longest along the nearest two. `curve` has the reference's losses by
    length, in lengths of the run.
    """
    lengths = sorted(curve)
    x, y = np.log(lengths), np.array([curve[one] for one in lengths])
    i = int(np.clip(np.sum(y > loss) - 1, 0, len(x) - 2))
    slope = (y[i + 1] - y[i]) / (x[i + 1] - x[i])
    return float(np.exp(-(x[i] + (loss - y[i]) / slope)))


# -- Frames ------------------------------------------------------------------


def as_frame(results):
    """A row for each run, a column for each field and argument."""
    rows = []
    for line in results.lines:
        record = dict(line["record"])
        rest = {**record.pop("options"), **line}
        del rest["record"]
        rows.append({**record, **{k: _plain(v) for k, v in rest.items()}})
    return pd.DataFrame(rows)


def _plain(value):
    """A value that pandas can group by."""
    return str(value) if isinstance(value, list | dict) else value


def grouped(frame, by, columns=(), where=""):
    """Number, mean loss and interval by group; see the module."""
    some = frame.query(where) if where else frame
    names = [*by, *columns]
    unknown = [name for name in names if name not in frame]
    if unknown:
        known = sorted(frame.columns)
        raise ValueError(f"columns must be among {known}. Received: {unknown}")
    groups = some.groupby(names, dropna=False)["loss"]
    if columns:
        return groups.mean().unstack([*columns])
    return groups.agg(
        runs="size", loss="mean", interval=lambda x: interval(x)[1]
    )


def by_seed(results, run, seeds):
    """A series of the losses of a run, where it has run."""
    ran = [run.replace(seed=seed) for seed in results.of_seeds(run, seeds)]
    return pd.Series({one.seed: results.loss(one) for one in ran}, dtype=float)


def compared(table, results):
    """A table's losses, and its runs by label.

    The losses have a row for each seed and a column for each label.
    """
    rows = dict(table.decide(results)[0])
    losses = {
        label: by_seed(results, run, table.seeds) for label, run in rows.items()
    }
    frame = pd.DataFrame(losses).dropna(axis="columns", how="all")
    return frame, {label: rows[label] for label in frame}


def differences(frame, reference):
    """Losses less those of a column, seed by seed."""
    return frame.sub(frame[reference], axis="index")


def tokens(frame, table, results):
    """Tokens for equal loss, over those of the table's reference.

    Told by the table's curve, as if others' were parallel to it. A frame like
    `frame`, of the seeds whose curve has two lengths; or None.
    """
    reference = dict(table.decide(results)[0]).get(table.curve)
    if reference is None:
        return None
    curves = pd.DataFrame(
        {
            x: by_seed(results, scaled(reference, x), frame.index)
            for x in table.lengths
        }
    )
    ratios = {}
    for seed, losses in curves.iterrows():
        curve = dict(losses.dropna())
        if len(curve) > 1:
            one = frame.loc[seed].dropna()
            ratios[seed] = one.map(lambda x, c=curve: token_ratio(x, c))
    if not ratios:
        return None
    found = pd.DataFrame(ratios).T
    return found.div(found[table.reference], axis="index")


def by_value(grid, results):
    """A grid's mean losses: a row for each label, a column for each value."""
    rows = []
    for label, run in grid.rows:
        losses = by_seed(results, run, grid.seeds)
        if len(losses) == len(grid.seeds):
            rows.append((label, grid.value(run), np.mean([*losses])))
    frame = pd.DataFrame(rows, columns=["label", "value", "loss"])
    order = list(dict.fromkeys(frame["label"]))
    return frame.pivot(index="label", columns="value", values="loss").loc[order]


# -- Markdown ----------------------------------------------------------------

PLACE = re.compile(r"\{\{ (\w+) \}\}")


def filled(template, bodies, results):
    """The text of a page.

    `template` is the path of its text, with `{{ name }}` in places; `bodies`
    has by name functions of results that give Markdown.
    """
    text = template.read_text()
    text = PLACE.sub(lambda place: bodies[place[1]](results), text)
    return re.sub(r"\n{3,}", "\n\n", text)


def markdown(head, rows):
    """A table; every cell is a string."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def comparison(tables, results, head="setting"):
    """Tables of one kind as one: a row for each optimizer of each table.

    `head` is above the captions.
    """
    rows, with_tokens = [], any(table.curve for table in tables)
    several = len(tables) > 1
    for table in tables:
        frame, by_label = compared(table, results)
        if table.reference not in frame:
            continue
        above = differences(frame, table.reference)
        ratios = tokens(frame, table, results)
        for label in frame.mean().sort_values().index:
            found = above[label].dropna()
            other = label != table.reference
            row = [
                *([table.caption] if several else []),
                label,
                f"{by_label[label].learning_rate:g}",
                str(frame[label].count()),
                with_interval(frame[label].dropna()),
                with_interval(found) if other else "",
                f"{(found > 0).sum()} of {len(found)}" if other else "",
            ]
            if with_tokens:
                told = ratios is not None and other
                many = ratios[label].dropna() if told else []
                row.append(with_interval(many, 2))
            rows.append(row)
    names = dict.fromkeys(table.reference for table in tables)
    columns = [*([head] if several else []), "", "rate", "seeds", "loss"]
    columns += [f"above {', '.join(names)}", "seeds above"]
    shown = markdown([*columns, *(["tokens"] if with_tokens else [])], rows)
    return shown if several else f"{tables[0].caption}.\n\n{shown}"


def above(tables, results):
    """Losses above the tables' references: a column for each table."""
    columns, labels = {}, {}
    for table in tables:
        frame, _ = compared(table, results)
        if table.reference in frame:
            found = differences(frame, table.reference).drop(
                columns=table.reference
            )
            columns[table.caption] = found
            labels |= dict.fromkeys(found.mean().sort_values().index)
    rows = [
        [
            label,
            *(
                with_interval(found[label].dropna(), 3)
                if label in found
                else ""
                for found in columns.values()
            ),
        ]
        for label in labels
    ]
    return markdown(["", *columns], rows)


def pairs(tables, results):
    """A row for each table of two: the other label beside the reference."""
    rows = []
    for table in tables:
        frame, by_label = compared(table, results)
        if table.reference not in frame or len(frame.columns) != 2:
            continue
        (label,) = set(frame) - {table.reference}
        less = differences(frame, table.reference)[label].dropna()
        ratios = tokens(frame, table, results)
        many = [] if ratios is None else ratios[label].dropna()
        rates = [by_label[x].learning_rate for x in (label, table.reference)]
        rows.append(
            [
                table.caption,
                ", ".join(f"{rate:g}" for rate in rates),
                str(len(less)),
                with_interval(less, 3),
                with_interval(many, 2),
            ]
        )
    return markdown(["", "rates", "seeds", "difference", "tokens"], rows)


def grid_table(grid, results):
    """A grid as Markdown; of rates with the best one and the window."""
    frame = by_value(grid, results)
    rates = grid.by == "learning_rate"
    rows, found = [], []
    for label, losses in frame.iterrows():
        cells = ["" if np.isnan(x) else f"{x:.4f}" for x in losses]
        rows.append([label, *cells])
        found.append(_best_and_window(losses.dropna(), rates))
    head = [grid.of, *map(_told, frame.columns)]
    if any(map(any, found)):
        head += ["best rate", "window"] if rates else ["best"]
        rows = [[*row, *more] for row, more in zip(rows, found, strict=True)]
    return f"{grid.caption}.\n\n{markdown(head, rows)}"


def _told(value):
    """A value of an argument, as a head of a column."""
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def _best_and_window(losses, rates):
    """Cells of a row of a grid, from its losses by value."""
    if len(losses) < 3 or isinstance(losses.index[0], str):
        return ["", ""] if rates else [""]
    best = best_rate(losses)
    cells = ["" if best is None else f"{best:.2g}"]
    if rates:
        width, inside = window(losses)
        cells.append(f"{'' if inside else 'at least '}{width:.1f}")
    return cells


def one_rate_table(grid, results):
    """What one rate costs where each row of a grid has another best rate.

    The loss above each row's best, of the rates that all rows have which ran
    at two or more.
    """
    frame = by_value(grid, results)
    frame = frame[frame.count(axis="columns") > 1]
    above = frame.sub(frame.min(axis="columns"), axis="index")
    shared = above.dropna(axis="columns")
    rows = [
        [f"{rate:g}", str(len(x)), f"{x.mean():.4f}", f"{x.max():.4f}"]
        for rate, x in shared.items()
    ]
    head = ["one rate for all rows", "rows", "above the best, mean", "at most"]
    return markdown(head, rows)

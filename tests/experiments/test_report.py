"""Statistics, tables and pictures of results."""

import math
import pathlib

import numpy as np
import pandas as pd
import pytest

from experiments import figures
from experiments import report
from experiments import run as runs
from experiments import search
from experiments import sweeps
from experiments import tables
from helpers.results import MadeUp
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = logic


def test_intervals_are_students():
    mean, half = tables.interval([1.0, 2.0, 3.0])
    assert (mean, half) == pytest.approx((2.0, 4.303 / 3**0.5), rel=1e-3)
    assert tables.interval([1.0])[1] == math.inf
    assert tables.with_interval([1.0, 1.0]) == "1.0000 ± 0.0000"
    assert tables.with_interval([1.0]) == "1.0000"
    assert tables.with_interval([3.0, np.inf]) == "diverged"


@pytest.mark.parametrize("length", [0.5, 0.8, 1.0, 1.2, 2.0])
def test_tokens_to_equal_loss(length):
    curve = {x: 4 - 0.3 * np.log(x) for x in search.CURVE}
    ours = 4 - 0.3 * np.log(length)  # as the reference after that length
    assert tables.token_ratio(ours, curve) == pytest.approx(1 / length)


def series(losses):
    return pd.Series(losses).sort_index()


def test_the_best_rate_is_that_of_a_parabola():
    losses = {rate: np.log(rate / 0.025) ** 2 for rate in (0.01, 0.02, 0.04)}
    assert tables.best_rate(series(losses)) == pytest.approx(0.025)
    assert tables.best_rate(series({0.01: 2.0, 0.02: 1.0, 0.04: 0.5})) is None


@pytest.mark.parametrize(
    ("losses", "width", "inside"),
    [
        ([3.0, 3.0, 3.0], 4.0, False),  # the whole grid
        ([4.0, 3.0, 4.0], 2 ** (2 * 0.03), True),
        ([3.0, 3.03, 3.06], 2.0, False),
        ([3.0, float("inf"), 3.0], 1.0, False),
    ],
)
def test_window(losses, width, inside):
    found = tables.window(pd.Series(losses, index=[1.0, 2.0, 4.0]))
    assert found == (pytest.approx(width), inside)


def make_table(**fields):
    rates = {"ours": ("lanton", 0.01), "theirs": ("d_muon", 0.02)}
    rates["missing"] = ("scion", 0.02)
    rows = ((label, search.run_for(*one)) for label, one in rates.items())
    given = {"seeds": (1, 2, 3), "reference": "ours", **fields}
    return search.Table(caption="Some", decide=search.fixed(*rows), **given)


def length_loss(run):
    """After a quarter more tokens the reference ends as the others."""
    length = run.tokens_per_weight / 20
    base = 3.0 + 0.01 * run.seed - 0.3 * np.log(length)
    return base - 0.3 * np.log(0.8) * (run.optimizer == "d_muon")


def test_a_comparison_is_seed_by_seed():
    results = MadeUp(length_loss)
    table = make_table(curve="ours")
    results.train(
        run
        for run in search.wanted(table, results)
        if run.optimizer != "scion"
        and (run.seed, run.optimizer) != (3, "d_muon")
    )
    text = tables.comparison([table], results)
    assert "| theirs | 0.02 | 2 | 3.0819 ± 0.0635 | 0.0669 ± 0.0000 | " in text
    assert "| 2 of 2 | 1.25 ± 0.00 |" in text
    assert "missing" not in text
    assert "| Some | theirs |" in tables.comparison([table, table], results)
    assert "| theirs | 0.067 ± 0.000 |" in tables.above([table], results)
    row = "| Some | 0.02, 0.01 | 2 | 0.067 ± 0.000 | 1.25 ± 0.00 |"
    assert row in tables.pairs([table], results)


def test_a_grid_has_best_rates_and_windows():
    runs_ = [search.run_for("d_muon", rate) for rate in (0.01, 0.02, 0.04)]
    high = [("high", run) for run in runs_[1:]]
    grid = search.Grid(
        caption="GPT-2", rows=(*(("all", run) for run in runs_), *high)
    )
    results = MadeUp(None)
    for run, loss in zip(runs_, (3.01, 3.0, 3.2), strict=True):
        results.give(run, loss)
    text = tables.grid_table(grid, results)
    assert "| all | 3.0100 | 3.0000 | 3.2000 | 0.015 | at least 2.2 |" in text
    assert "| high |  | 3.0000 | 3.2000 |  |  |" in text
    assert "| 0.02 | 2 | 0.0000 | 0.0000 |" in tables.one_rate_table(
        grid, results
    )
    two = search.Grid(caption="", rows=grid.rows, seeds=(1, 2))
    assert not len(tables.by_value(two, results))  # the others are not done


def test_a_grid_may_be_of_an_argument():
    grid = search.Grid(
        caption="",
        by="weight_decay",
        rows=tuple(
            ("S", search.run_for("lanton", 5e-3, {"weight_decay": decay}))
            for decay in (0.03, 0.1, 0.3)
        ),
    )
    results = MadeUp(lambda run: np.log(dict(run.options)[grid.by] / 0.1) ** 2)
    results.train(search.wanted(grid, results))
    text = tables.grid_table(grid, results)
    assert "|  | 0.03 | 0.1 | 0.3 | best |" in text
    assert "| 1.2069 | 0.1 |" in text


def test_any_table_is_one_command(tmp_path, capsys):
    path = tmp_path / "runs.jsonl"
    results = runs.Results(path)
    for rate in (0.01, 0.02):
        for seed in (1, 2):
            run = search.run_for("lanton", rate, seed=seed)
            results.add(run, {"loss": 3 + rate + seed, "questions": []})
    given = ["--results", str(path), "--group-by", "learning_rate"]
    report.main([*given, "--where", "weight_decay == 0.1"])
    assert "0.01              2  4.51" in capsys.readouterr().out
    report.main([*given, "--columns", "seed"])
    assert "0.02           4.02  5.02" in capsys.readouterr().out
    with pytest.raises(ValueError, match="Received: .'rate'"):
        tables.grouped(tables.as_frame(results), ["rate"])


def test_without_results_there_is_no_page(tmp_path):
    with pytest.raises(SystemExit, match="no results"):
        report.main(["--results", str(tmp_path / "none.jsonl")])


@pytest.mark.parametrize("name", report.PAGES)
def test_the_committed_page_is_of_the_committed_results(name):
    text = (report.DOCS / f"{name}.md").read_text()
    assert text == report.page(name, runs.Results())
    assert "{{" not in text
    for line in text.splitlines():
        if line.startswith("| "):  # no row of what has not run
            assert any(cell.strip() for cell in line.split("|")[2:]), line


def test_last_epochs_are_those_at_the_default_rate():
    fields = sweeps.SMALL["time series, LSTM"]
    results = MadeUp(None)
    for seed, losses in ((1, [0.3, 0.1, 0.2]), (2, [0.3, 0.2, 0.4])):
        run = search.run_for("lanton", sweeps.DEFAULT, seed=seed, **fields)
        results.give(run, min(losses), losses=losses)
    run = search.run_for("lanton", 2e-3, **fields)
    results.give(run, 0.1, losses=[0.1, 0.1, 0.1])
    *_, row = report.last_epochs(results).splitlines()
    assert row == "| time series, LSTM | 0.15 (2), 0.3 |"


def test_tables_by_name(capsys):
    report.main(["--table", "widths", "repeats"])
    printed = capsys.readouterr().out
    assert "| width |" in printed
    assert "| second result |" in printed


def test_pictures_need_results(tmp_path):
    table = make_table(reference="ours")
    none = MadeUp(None)
    figures.draw_finals(table, none, tmp_path / "finals.png")
    figures.draw_widths(sweeps.WIDTHS, none, tmp_path / "widths.png")
    assert not list(tmp_path.iterdir())
    results = MadeUp(lambda run: 3.0 + run.learning_rate + run.seed)
    results.train(search.wanted(table, results)[:5])  # the last one is missing
    figures.draw_finals(table, results, tmp_path / "finals.png")
    results.train(search.wanted(sweeps.WIDTHS[0], results)[:7])
    figures.draw_widths(sweeps.WIDTHS, results, tmp_path / "widths.png")
    for path in tmp_path.iterdir():
        assert path.stat().st_size > 5000

"""The paper's experiments: their runs, and the page from the results."""

import pathlib

import pytest

from experiments import run as runs
from experiments.optimizers import construct
from experiments.paper import __main__ as command
from experiments.paper import report
from experiments.paper import sweeps
from helpers.results import MadeUp
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = logic


def test_every_optimizer_is_made():
    tables = (*sweeps.LOSSES, sweeps.CNN, sweeps.REFERENCES)
    for table in tables:
        for run in table.runs(MadeUp(None)):
            if not dict(run.options).get("bias_correction"):
                assert construct(run.optimizer, 0.1, options=run.options)


def test_short_runs_warm_up_for_a_tenth():
    assert sweeps.run_of("scion", 1e-3).warmup == 0.1
    assert sweeps.run_of("scion", 1e-3, steps=500).warmup == 0.05
    assert sweeps.run_of("scion", 1e-3, steps=62).warmup == 6 / 62


def test_methods_are_tuned_on_as_many_rates():
    grids = [*sweeps.GRIDS["gpt2"].values(), *sweeps.IMAGE_GRIDS.values()]
    assert {len(grid) for grid in grids} == {4}
    assert sweeps.around(0.02) == (0.01, 0.02, 0.04, 0.08)


def test_the_committed_page_is_of_the_committed_results(tmp_path):
    report.main(["--docs", str(tmp_path)])
    page = (ROOT / "docs" / "paper.md").read_text()
    assert (tmp_path / "paper.md").read_text() == page


def test_no_results(tmp_path):
    with pytest.raises(SystemExit, match="There are no results in"):
        report.main(["--results", str(tmp_path / "none.jsonl")])


def test_questions_run_by_name(monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr(
        command, "train", lambda names, *_: asked.append(list(names))
    )
    given = ["--results", str(tmp_path / "runs.jsonl")]
    command.main(["losses", *given])
    command.main(given)
    assert asked == [["losses"], [*sweeps.QUESTIONS]]
    with pytest.raises(SystemExit):
        command.main(["lossses"])
    assert "Received: lossses" in capsys.readouterr().err


def test_results_of_the_paper_are_in_the_table():
    results = runs.Results()
    for table in (*sweeps.LOSSES, sweeps.REFERENCES):
        rows = table.decide(results)[0]
        assert len(rows) > 3
        for _, run in rows:
            assert results.loss(run.replace(seed=3)) is not None

"""The bench of docs/evidence.md: what it runs, and how it counts."""

import dataclasses
import os
import pathlib
import sys

import keras
import numpy as np
import pytest

from helpers.optimizers import config_of
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # as with `python -m experiments.evidence`

pytest.importorskip("keras_hub", exc_type=ImportError)

from experiments.evidence import __main__ as evidence  # noqa: E402
from experiments.evidence import pool  # noqa: E402
from experiments.evidence import questions  # noqa: E402
from experiments.evidence import report  # noqa: E402
from experiments.evidence import search  # noqa: E402
from experiments.evidence import sizes  # noqa: E402
from experiments.evidence import statistics  # noqa: E402
from experiments.evidence import tables  # noqa: E402
from experiments.evidence import texts  # noqa: E402
from experiments.evidence import trials  # noqa: E402
from experiments.evidence.answers import answer  # noqa: E402
from experiments.evidence.answers import with_interval  # noqa: E402
from experiments.evidence.contestants import CONTESTANTS  # noqa: E402
from experiments.evidence.contestants import make_optimizer  # noqa: E402
from experiments.evidence.questions.by_rate import by_rate_and_at_best  # noqa: E402
from experiments.evidence.questions.common import REFERENCE  # noqa: E402
from experiments.evidence.questions.noise import by_noise  # noqa: E402
from experiments.evidence.questions.options import CORRECTED  # noqa: E402
from experiments.evidence.questions.options import by_start  # noqa: E402
from experiments.evidence.questions.others import DEFAULTS  # noqa: E402
from experiments.evidence.questions.rates import of_models  # noqa: E402
from keras_lanton import Lanton  # noqa: E402

BEST = {"learning_rate": 0.16, "weight_decay": 0.03, "beta_1": 0.98}


def loss(trial):
    """A loss that is lowest at `BEST`."""
    options = {**dict(trial.options), "learning_rate": trial.learning_rate}
    return 3 + sum(
        abs(np.log(options[name] / best)) for name, best in BEST.items()
    )


def make_result(trial, value):
    return {
        "settings": trial.settings(),
        "loss": value,
        "seconds": 36.0,
        "machine": {"sum_of_squares_ms": 60, "versions": {"keras": "3.15.1"}},
    }


class Bench:
    """Results in memory.

    Args:
        loss: Function of a trial: how it ends.
    """

    def __init__(self, loss=loss):
        self.loss = loss
        self.results = {}
        self.calls = 0

    def read(self, trial):
        return self.results.get(trial.name)

    def run(self, wanted):
        self.calls += 1
        for trial in wanted:
            assert trial.name not in self.results
            self.results[trial.name] = make_result(trial, self.loss(trial))


@logic
def test_a_search_ends_at_the_best_inside_its_grid():
    bench = Bench()
    while isinstance(found := search.tune("d_muon", bench.read), list):
        bench.run(found)
    best = {**dict(found.best.options), "learning_rate": 0.16}
    assert found.best.learning_rate == pytest.approx(0.16)
    assert best.items() >= BEST.items()
    rates = [trial.learning_rate for trial, _ in found.tried]
    assert max(rates) > 0.16  # the grid has grown past the best


@logic
@pytest.mark.parametrize("name", list(CONTESTANTS))
def test_contestants_have_what_their_search_tries(name):
    trial = search.trial_of(name, 0.01)
    _, space = search.SPACES.get(name, ((), ()))
    for argument, _ in space:
        assert argument in dict(trial.options)
    optimizer = make_optimizer(trial.optimizer, 0.01, trial.options)
    assert isinstance(optimizer, keras.optimizers.Optimizer)


@logic
def test_the_name_of_a_trial_is_that_of_its_settings():
    trial = search.trial_of("lanton", 0.01)
    same = dataclasses.replace(trial, options=trial.options[::-1])
    assert same.name == trial.name
    other = dataclasses.replace(trial, seed=2)
    assert other.name != trial.name


@logic
def test_intervals_are_students():
    mean, half = statistics.interval([1.0, 2.0, 3.0])
    assert (mean, half) == pytest.approx((2.0, 4.303 / 3**0.5), rel=1e-3)
    assert statistics.interval([1.0])[1] == np.inf


@logic
@pytest.mark.parametrize("length", [0.5, 0.8, 1.0, 1.2, 2.0])
def test_tokens_to_equal_loss(length):
    curve = {x: 4 - 0.3 * np.log(x) for x in tables.CURVE}
    ours = 4 - 0.3 * np.log(length)  # as the reference after that length
    assert statistics.token_ratio(ours, curve) == pytest.approx(1 / length)


@logic
def test_an_interrupted_bench_goes_on_where_it_stopped(monkeypatch):
    bench = Bench()
    done = []

    def one_at_a_time(wanted):
        trial = next(t for t in wanted if bench.read(t) is None)
        done.append(trial.name)
        bench.results[trial.name] = make_result(trial, 3.0 + len(done) % 7)

    question = questions.QUESTIONS[0]
    question.train(one_at_a_time, bench.read)
    assert len(set(done)) == len(done)
    question.train(pytest.fail, bench.read)  # nothing is left


@logic
def test_the_page_shows_what_there_is():
    bench = Bench()
    table = questions.QUESTIONS[1].tables[0]
    rows = table.rows(bench.read)
    reference = dict(rows)[REFERENCE]
    other_label, other = rows[1]
    for seed in (1, 2, 3):
        for factor in tables.CURVE:
            trial = dataclasses.replace(reference, seed=seed)
            trial = tables.scaled(trial, factor)
            value = 3.0 + 0.01 * seed - 0.3 * np.log(factor)
            bench.results[trial.name] = make_result(trial, value)
        trial = dataclasses.replace(other, seed=seed)
        value = 3.0 + 0.01 * seed - 0.3 * np.log(1.25)
        bench.results[trial.name] = make_result(trial, value)
    page = report.page(bench.read, list(bench.results.values()))
    assert "12 runs, 0.1 core-hours" in page
    start = f"| {other_label} | {other.learning_rate:g} | 3 |"
    (row,) = [line for line in page.splitlines() if line.startswith(start)]
    assert "-0.0669 ± 0.0000 | 0.80 ± 0.00 |" in row
    assert "rows have not run yet." in page
    assert "Which optimizer ends lowest?" not in page  # nothing ran there


@logic
def test_the_page_tells_how_exact_a_loss_is():
    trial = search.trial_of("lanton", 0.01)
    first, other = make_result(trial, 3.0), make_result(trial, 3.01)
    on_gpu = make_result(trial, 2.99)
    on_gpu["machine"] = {**on_gpu["machine"], "gpu": "H200"}
    first["ratios"], other["ratios"] = {"kernel": [1.0, 0.1]}, {}
    pairs = [(first, other), (first, on_gpu)]
    page = report.page(lambda trial: None, [first, on_gpu], pairs)
    assert "1 runs, 0.0 core-hours" in page
    assert "1 runs, 0.0 hours, on a GPU (H200)" in page
    assert "**Starts.** 1 of the 1 runs" in page
    assert "the run before left | S | 0.01 | 1 | 0.0100 |" in page
    assert "in place of a CPU | S | all | 1 | -0.0100 |" in page
    fresh = {**first, "start": "fresh"}
    page = report.page(lambda trial: None, [fresh])
    assert "Starts." not in page
    assert "How exact" not in page


@logic
def test_runs_that_diverged_are_named():
    assert with_interval([3.0, np.inf]) == "diverged"
    trial = search.trial_of("adamw", 0.01)
    assert trials.loss_of(make_result(trial, None)) == np.inf


@logic
def test_a_missing_text_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="wiki.txt or .*Received: "):
        texts.make("wiki", tmp_path, tmp_path / "cache")


@logic
def test_another_backend_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(SystemExit, match="KERAS_BACKEND=jax"):
        evidence.main(["--results", str(tmp_path)])


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)
def test_runs_leave_results_and_a_page(monkeypatch, tmp_path):
    make_small(monkeypatch)
    monkeypatch.setattr(pool, "set_up", set_up_here)
    write_text(tmp_path / "wiki.txt", "fox")
    trial = search.trial_of(
        "lanton",
        0.01,
        {"noise.measure": "signal"},
        batch_size=1,
        tokens_per_weight=0.002,
    )
    table = tables.Table(
        caption="Few steps",
        rows=tables.fixed(("it", trial)),
        seeds=(1, 2),
    )
    question = tables.Question(title="Any?", text="", tables=(table,))
    monkeypatch.setattr(questions, "QUESTIONS", (question,))
    page = tmp_path / "evidence.md"
    arguments = ["--texts", str(tmp_path), "--output", str(tmp_path / "runs")]
    arguments += ["--results", str(tmp_path / "results"), "--workers", "0"]
    arguments += ["--page", str(page)]
    evidence.main([*arguments, "--limit", "1"])
    assert len(list((tmp_path / "results").rglob("*.json"))) == 1
    evidence.main(arguments)
    assert len(list((tmp_path / "results").rglob("*.json"))) == 2
    assert "| it | 0.01 | 2 |" in page.read_text()


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)
@pytest.mark.parametrize("rank", keep([0, 2], [2], exhaustive))
def test_fine_tuning(monkeypatch, tmp_path, rank):
    from experiments.evidence import fine_tuning

    make_small(monkeypatch)
    write_text(tmp_path / "wiki.txt", "fox")
    write_text(tmp_path / "sotu.txt", "hen")
    base = search.trial_of("lanton", 0.01, batch_size=1, tokens_per_weight=0.05)
    monkeypatch.setitem(fine_tuning.BASES, "lanton", base)
    trial = trials.FineTuning(
        optimizer="lanton",
        learning_rate=0.01,
        options=(("weight_decay", 0.0),),
        rank=rank,
        by_adamw="lora_kernel_a$" if rank else "",
        batch_size=2,
        steps=20,
    )
    result = result_of(trial, monkeypatch, tmp_path)
    new, old = result["before"]
    assert result["loss"] < new
    assert np.isfinite([old, result["old_loss"]]).all()
    weights = list((tmp_path / "cache" / "weights").iterdir())
    assert [path.name for path in weights] == [f"{base.name}.npz"]


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)
def test_a_run_to_a_loss(monkeypatch, tmp_path):
    from experiments.evidence import runner_to_loss

    make_small(monkeypatch)
    monkeypatch.setattr(runner_to_loss, "STEPS", 4)
    monkeypatch.setattr(runner_to_loss, "BLOCKS", 4)
    monkeypatch.setattr(runner_to_loss, "VALIDATION_BLOCKS", 32)
    write_text(tmp_path / "wiki.txt", "fox")
    trial = trials.RunToLoss(
        optimizer="lanton", learning_rate=0.02, batch_size=2, target=4.5
    )
    result = result_of(trial, monkeypatch, tmp_path)
    *before, last = result["losses"]
    assert last <= 4.5 < before[-1]
    assert 4 * (len(before) - 1) < result["loss"] <= 4 * len(before)
    assert sum(map(sum, result["noise"].values())) > 0
    never = dataclasses.replace(trial, target=0.0, most_blocks=8)
    assert result_of(never, monkeypatch, tmp_path)["loss"] is None


@logic
def test_the_table_of_fine_tuning():
    bench = Bench()
    table = tables.FineTuningTable(caption="From AdamW", base="adamw")
    while wanted := table.wanted(bench.read):
        for trial in wanted:
            value = 3.0 + 0.01 * trial.seed
            value += abs(np.log(trial.learning_rate / 4e-3))
            bench.results[trial.name] = {
                **make_result(trial, value),
                "before": [4.0, 3.0],
                "old_loss": value + 0.5,
            }
    text = answer(table, bench.read)
    assert (
        "| AdamW | 0.004 | 3 | 3.0200 ± 0.0248 | 3.5200 ± 0.0248 "
        "| 0.9800 ± 0.0248 | 0.5200 ± 0.0248 |" in text
    )
    assert "0.002: 0.297, 1.203; 0.004: 0.990, 0.510;" in text
    assert answer(table, Bench().read) is None


@logic
def test_the_table_of_rates():
    bench = Bench()
    trial = search.trial_of("d_muon", 0.01)
    rates = {"D-Muon": (0.01, 0.02, 0.04), "high": (0.02, 0.04)}
    table = tables.RateTable(
        caption="GPT-2", rows=(("D-Muon", trial), ("high", trial)), values=rates
    )
    assert answer(table, bench.read) is None
    for one, value in zip(
        table.wanted(bench.read), (3.01, 3.0, 3.2), strict=True
    ):
        bench.results[one.name] = make_result(one, value)
    assert not table.wanted(bench.read)  # the second row has the same runs
    text = answer(table, bench.read)
    assert (
        "| D-Muon | 3.0100 | 3.0000 | 3.2000 | 0.015 | at least 2.2 |" in text
    )
    assert "| high |  | 3.0000 | 3.2000 |  |  |" in text


@logic
def test_a_loss_by_rate_may_be_a_mean_over_seeds():
    bench = Bench(lambda trial: 3.0 + 0.1 * trial.seed)
    trial = search.trial_of("d_muon", 0.01)
    table = tables.RateTable(
        caption="GPT-2",
        rows=(("D-Muon", trial),),
        values={"D-Muon": (0.01, 0.02)},
        seeds=(1, 2),
    )
    assert [t.seed for t in table.wanted(bench.read)] == [1, 2, 1, 2]
    bench.run(table.wanted(bench.read)[:3])
    (losses,) = table.losses(bench.read).values()
    assert losses == {0.01: pytest.approx(3.15)}  # the others are not done


@logic
def test_the_table_of_one_rate():
    def loss(trial):
        best = 0.01 if trial.size == "S" else 0.02
        return 3.0 + abs(np.log2(trial.learning_rate / best))

    bench = Bench(loss)
    rows = {
        size: search.trial_of("d_muon", 0.01, size=size) for size in ("S", "M")
    }
    table = tables.OneRateTable(
        caption="GPT-2",
        rows=tuple(rows.items()),
        values={"S": (0.005, 0.01, 0.04), "M": (0.01, 0.02, 0.04)},
    )
    assert answer(table, bench.read) is None
    bench.run(table.wanted(bench.read))
    text = answer(table, bench.read)
    assert "| 0.01 | 2 | 0.5000 | 1.0000 |" in text
    assert "| 0.04 | 2 | 1.5000 | 2.0000 |" in text
    assert "| 0.02 |" not in text  # a row does not have it


@logic
def test_the_table_of_decays():
    bench = Bench()
    trial = search.trial_of("lanton_defaults", 5e-3)
    table = tables.DecayTable(
        caption="GPT-2",
        rows=(("S", trial), ("M", dataclasses.replace(trial, size="M"))),
        values={"S": (0.01, 0.03, 0.1, 0.3), "M": (0.1,)},
    )
    assert answer(table, bench.read) is None
    for one in table.wanted(bench.read)[1:]:
        value = 3 + np.log(dict(one.options)["weight_decay"] / 0.1) ** 2 / 100
        bench.results[one.name] = {**make_result(one, value), "steps": 5000}
    text = answer(table, bench.read)
    assert "| S |  | 3.0145 | 3.0000 | 3.0121 | 0.1 | 2.5 |" in text
    assert "| M |  |  | 3.0000 |  |  |  |" in text


@logic
def test_the_picture_compares_seed_by_seed(monkeypatch, tmp_path):
    from experiments.evidence import pictures

    base = pictures.BASES[1]
    rows = [
        (label, search.trial_of(name, 0.01))
        for label, name in ((base, "lanton_signal"), ("A", "d_muon"))
    ]
    table = tables.Table(caption="", rows=tables.fixed(*rows), seeds=(1, 2))
    monkeypatch.setattr(pictures, "final_table", lambda: table)
    bench = Bench()
    pictures.draw_finals(bench.read, tmp_path / "none.png")
    assert not list(tmp_path.iterdir())
    assert report.in_short(bench.read) == []
    for one in table.wanted(bench.read)[:3]:  # the last one is missing
        value = 3.0 + 0.1 * one.seed + 0.01 * (one.optimizer == "d_muon")
        bench.results[one.name] = make_result(one, value)
    losses = pictures.final_losses(bench.read)
    assert losses == {base: {1: 3.1, 2: 3.2}, "A": {1: 3.11}}
    assert pictures.by_difference(losses, base) == {
        base: [0, 0],
        "A": [pytest.approx(0.01)],
    }
    pictures.draw_finals(bench.read, tmp_path / "some.png")
    assert (tmp_path / "some.png").stat().st_size > 5000
    *_, text = report.in_short(bench.read)
    assert "| A | 0.0100 | 1 of 1 |" in text


@logic
def test_the_contestant_with_the_defaults_has_them():
    ((name, rate),) = DEFAULTS
    trial = search.trial_of(name, rate)
    found = config_of(make_optimizer(trial.optimizer, rate, trial.options))
    wanted = config_of(Lanton())
    # "auto", which chooses "frobenius" for noise in units of the signal.
    assert wanted["noise"]["config"].pop("estimator") == "auto"
    assert found["noise"]["config"].pop("estimator") == "frobenius"
    assert found == wanted


@logic
def test_the_control_differs_from_the_defaults_by_the_noise_alone():
    _, optimizer, options = CONTESTANTS["lanton_defaults_control"]
    found = make_optimizer(optimizer, 5e-3, tuple(options.items()))
    wanted = Lanton(learning_rate=5e-3, noise=None)
    assert config_of(found) == config_of(wanted)


@logic
def test_the_table_of_the_noise_has_each_row_at_its_best_rate():
    def loss(trial):
        best = 2.5e-3 if "noise" in dict(trial.options) else 5e-3
        return abs(np.log(trial.learning_rate / best))

    bench = Bench(loss)
    table = by_noise(
        "a caption", (2.5e-3, 5e-3, 1e-2), seeds=(11, 12), text="sotu"
    )
    while wanted := table.wanted(bench.read):
        bench.run(wanted)
    assert [
        (label, trial.learning_rate, trial.text)
        for label, trial in table.rows(bench.read)
    ] == [
        ("`Lanton()`", 5e-3, "sotu"),
        ("`Lanton(noise=None)`", 2.5e-3, "sotu"),
    ]
    rates = {
        settings["learning_rate"]
        for settings in (one["settings"] for one in bench.results.values())
        if settings["text"] == "wiki"
    }
    assert min(rates) == 1.25e-3  # the best was at the edge of the grid


@logic
def test_close_rates_are_compared_on_all_seeds():
    of_seeds = {5e-3: (3.000, 3.05, 3.05), 2.5e-3: (3.009, 3.01, 3.01)}

    def loss(trial):
        losses = of_seeds.get(trial.learning_rate, (3.02,) * 3)
        return losses[trial.seed - 1] if trial.seed < 4 else 3.0

    bench = Bench(loss)
    table = by_noise("a caption", (2.5e-3, 5e-3, 1e-2), seeds=(11,))
    bench.run(table.wanted(bench.read))
    assert [t.learning_rate for _, t in table.rows(bench.read)] == [5e-3] * 2
    while wanted := table.wanted(bench.read):
        bench.run(wanted)
    assert [t.learning_rate for _, t in table.rows(bench.read)] == [2.5e-3] * 2
    rates = {
        settings["learning_rate"]
        for settings in (one["settings"] for one in bench.results.values())
        if settings["seed"] == 2
    }
    assert rates == {2.5e-3, 5e-3}  # 1e-2 is not close


@logic
def test_a_rate_with_more_seeds_stands_before_one_with_fewer():
    one, two = (search.trial_of("d_muon", rate) for rate in (5e-3, 1e-2))
    bench = Bench(lambda trial: {5e-3: 3.005, 1e-2: 3.0}[trial.learning_rate])
    bench.run([one, two, dataclasses.replace(one, seed=2)])

    def best():
        return search.best_of_close(
            [(one, 3.005), (two, 3.0)], bench.read, seeds=(1, 2)
        )

    assert best() == (one, [dataclasses.replace(two, seed=2)])
    bench.run(best()[1])
    assert best() == (two, [])


@logic
def test_rows_elsewhere_have_the_best_rate_that_ran():
    def loss(trial):
        return abs(np.log(trial.learning_rate / 4e-3)) + trial.seed

    bench = Bench(loss)
    rates, best = by_rate_and_at_best(
        {"lanton_defaults": (5e-3,), "d_muon": (5e-3, 1e-2, 2e-2)},
        "d_muon",
        size="M",
        tokens_per_weight=5.0,
    )
    assert best.rows(bench.read) == []
    bench.run(rates.wanted(bench.read))
    assert [
        (label, trial.learning_rate, trial.size, trial.tokens_per_weight)
        for label, trial in best.rows(bench.read)
    ] == [
        ("`Lanton()`", 5e-3, "M", 5.0),
        ("D-Muon", 5e-3, "M", 5.0),
    ]
    assert {t.seed for t in best.wanted(bench.read)} == {2, 3}


@logic
def test_the_picture_of_rates_has_a_curve_for_each_width(tmp_path):
    from experiments.evidence import pictures

    (question,) = (q for q in questions.QUESTIONS if q.title == pictures.WIDTHS)
    bench = Bench()
    pictures.draw_widths(bench.read, tmp_path / "none.png")
    assert not list(tmp_path.iterdir())
    table = question.tables[0]
    for trial in table.wanted(bench.read)[:7]:
        bench.results[trial.name] = make_result(trial, 3.0)
    assert [len(found) for found in table.losses(bench.read).values()] == [5, 2]
    pictures.draw_widths(bench.read, tmp_path / "some.png")
    assert (tmp_path / "some.png").stat().st_size > 5000


@logic
def test_the_best_rate_is_that_of_a_parabola():
    losses = {rate: np.log(rate / 0.025) ** 2 for rate in (0.01, 0.02, 0.04)}
    assert statistics.best_rate(losses) == pytest.approx(0.025)
    assert statistics.best_rate({0.01: 2.0, 0.02: 1.0}) is None
    assert statistics.best_rate({}) is None


@logic
def test_the_table_of_images():
    bench = Bench()
    trial = search.trial_of("cnn_sgd", 0.1)
    other = search.trial_of("cnn_adamw", 0.01)
    table = tables.ImageTable(
        caption="Images",
        rows=tables.fixed(("SGD", trial), ("AdamW", other)),
        seeds=(1, 2),
        reference="SGD",
    )
    accuracies = {trial: [0.9, 0.94], other: [0.8, 0.92]}
    for one in table.wanted(bench.read):
        result = make_result(one, 0.06)
        like = dataclasses.replace(one, seed=1)
        result["accuracies"] = accuracies[like]
        result["training_loss"] = [2.0, 1.0]
        bench.results[one.name] = result
    text = answer(table, bench.read)
    losses = "1.0000 ± 0.0000"
    assert (
        f"| SGD | 0.1 | 2 | 94.00 ± 0.00 |  | {losses} | 1.5 ± 0.0 "
        "| 1.8 ± 0.0 |" in text
    )
    assert (
        f"| AdamW | 0.01 | 2 | 92.00 ± 0.00 | -2.00 ± 0.00 | {losses} "
        "| 2.0 ± 0.0 | 0 of 2 reach it |" in text
    )


@logic
def test_questions_are_chosen_by_words():
    (found,) = evidence.chosen("holds adamw")
    assert found.title == "What holds AdamW back?"
    with pytest.raises(SystemExit, match="(?s)ends lowest.*\nReceived: 'sgd'"):
        evidence.chosen("sgd")


@logic
def test_a_report_chooses_no_runs(capsys):
    with pytest.raises(SystemExit):
        evidence.main(["--report", "--question", "adamw", "--limit", "2"])
    assert "Received: --question --limit" in capsys.readouterr().err


@logic
def test_a_decay_may_fall_with_the_steps():
    trial = search.trial_of(
        "lanton_defaults", 0.1, {"horizon": 2, "weight_decay": 0.1}
    )
    optimizer = make_optimizer(trial.optimizer, 0.1, trial.options)
    kernel = keras.Variable(np.eye(2), name="kernel")
    optimizer.build([kernel])
    for t in (1, 2, 3):
        where = {"last_step": [t - 1], "active": [True], "eta": 0.1, "t": t}
        given = {k: keras.ops.convert_to_tensor(v) for k, v in where.items()}
        scalars = optimizer._scalars(**given)
        decay = 1.0 - 0.1 * 0.2 / t
        np.testing.assert_allclose(scalars.decay_factor, decay, rtol=1e-6)


@logic
def test_tables_may_have_a_rate_of_their_own():
    table, kernel = (
        keras.Variable(np.zeros((2, 2)), name=name)
        for name in ("embeddings", "kernel")
    )
    optimizer = make_optimizer(
        "adamw_tables", 0.01, {"table_factor": 4.0, "weight_decay": 0.0}
    )
    optimizer.build([table, kernel])
    gradient = keras.ops.ones((2, 2))
    optimizer.apply([gradient, gradient])
    ratio = np.array(table.numpy() / kernel.numpy())
    np.testing.assert_allclose(ratio, 4.0, rtol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_each_normalization_has_a_barrier(monkeypatch, model):
    import jax

    from experiments.evidence import training

    make_small(monkeypatch)
    trial = search.trial_of("lanton", 0.01, model=model)
    tokens = np.arange(130).reshape(2, 65) % 7
    losses, counts = [], []
    for separate in (training.separate_normalizations, lambda model: None):
        monkeypatch.setattr(training, "separate_normalizations", separate)
        learner = training.Learner(trial)
        state = learner.start(learner.model)[:2]
        traced = jax.make_jaxpr(learner.mean_loss)(*state, tokens)
        counts.append(str(traced).count("optimization_barrier"))
        losses.append(float(learner.mean_loss(*state, tokens)[0]))
    # Two in each block, and the last one.
    assert counts == [2 * learner.preset.layers + 1, 0]
    assert losses[0] == losses[1]


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)
def test_runs_together_end_as_alone(monkeypatch, tmp_path):
    make_small(monkeypatch)
    monkeypatch.setattr(pool, "set_up", set_up_here)
    write_text(tmp_path / "wiki.txt", "fox")
    runs = [
        search.trial_of(
            "lanton_defaults", rate, batch_size=2, tokens_per_weight=length
        )
        for rate, length in ((0.01, 0.03), (0.02, 0.02))
    ]
    runs.append(dataclasses.replace(runs[0], seed=2))
    cache = tmp_path / "cache"
    runs[0].prepare(tmp_path, cache)
    results = tmp_path / "results"
    frozen = trials.FrozenTrial(
        optimizer="lanton", learning_rate=0.01, batch_size=2
    )
    assert not frozen.side_by_side
    pool.run_all(runs, cache=cache, results=results, workers=0, together=True)
    learner = runs[0].learner()
    for run in runs:  # two of them after another run of the learner
        alone, beside = learner.train(run, cache), trials.read(run, results)
        assert beside["together"] == 3
        assert beside["steps"] == alone["steps"]
        assert beside["loss"] == pytest.approx(alone["loss"], abs=1e-3)
        for path, (mean, _) in alone["ratios"].items():
            assert beside["ratios"][path][0] == pytest.approx(mean, rel=0.02)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)
def test_frozen_noise(monkeypatch, tmp_path):
    from experiments.evidence import frozen

    make_small(monkeypatch)
    write_text(tmp_path / "wiki.txt", "fox")
    trial = search.trial_of(
        "lanton_signal",
        0.01,
        kind=trials.FrozenTrial,
        batch_size=1,
        tokens_per_weight=0.05,
        other_seed=True,
    )
    assert trial.source().seed == 2
    result = result_of(trial, monkeypatch, tmp_path)
    assert np.isfinite(result["loss"])
    learner = pool.SHARED["learner"]
    assert isinstance(learner.optimizer.noise, frozen.ConstantNoise)
    # Neither the ratios nor what is measured changes on the way.
    assert {spread for _, spread in result["ratios"].values()} == {0.0}
    assert len({mean for mean, _ in result["ratios"].values()}) > 2


@logic
def test_a_short_trial_has_its_steps():
    trial = search.trial_of("lanton", 0.01, kind=trials.ShortTrial, steps=300)
    assert trial.count_steps(weights=10**9) == 300
    whole = search.trial_of("lanton", 0.01)
    assert whole.count_steps(weights=51_200) == 1000


@logic
def test_a_deep_trial_has_its_blocks():
    from experiments.evidence import training

    deep, shallow = (
        search.trial_of(
            "lanton", 0.01, kind=trials.DeepTrial, size="XS", layers=layers
        )
        for layers in (2, 1)
    )
    assert deep.task == "gpt2-XS-400-steps-2-layers"
    assert deep.alike() != shallow.alike()
    weights = [training.Learner(one).weights for one in (deep, shallow)]
    assert weights[0] > weights[1]
    assert sizes.preset("gpt2", "XS").layers == sizes.LAYERS


@logic
def test_a_cold_trial_has_no_warm_up():
    from experiments.evidence import training

    rates = {
        kind: training.rates_of(search.trial_of("lanton", 0.01, kind=kind), 100)
        for kind in (trials.ShortTrial, trials.ColdTrial)
    }
    warm, cold = rates.values()
    np.testing.assert_allclose(warm[:5] / 0.01, [0.2, 0.4, 0.6, 0.8, 1], 1e-6)
    assert cold[0] == np.float32(0.01) and np.all(np.diff(cold) < 0)
    assert warm[-1] == cold[-1] == 0.0


@logic
def test_both_starts_of_the_momentum_are_runs_of_their_own():
    trial = search.trial_of("lanton_defaults", 5e-3)
    rows = dict(by_start(trial))
    assert rows[CORRECTED] == trial
    found = [
        make_optimizer(one.optimizer, 5e-3, one.options).bias_correction
        for one in rows.values()
    ]
    assert found == [True, False]


@logic
def test_images_are_taken_from_the_folder_that_has_them(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "fashion_mnist.npz").write_text("images")
    trial = trials.ImageTrial(optimizer="sgd", learning_rate=0.1)
    trial.prepare(tmp_path / "given", tmp_path / "cache")
    assert (tmp_path / "cache" / "fashion_mnist.npz").exists()
    trial.prepare(tmp_path, tmp_path / "none")  # Keras downloads them


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)
def test_a_search_for_the_rate(monkeypatch, tmp_path):
    make_small(monkeypatch)
    write_text(tmp_path / "wiki.txt", "fox")
    trial = search.trial_of(
        "lanton_signal",
        5e-3,
        kind=trials.RateSearchTrial,
        batch_size=2,
        steps=10,
    )
    result = result_of(trial, monkeypatch, tmp_path)
    assert len(result["rates"]) == len(result["losses"]) >= 3
    assert result["loss"] == min(x for x in result["losses"] if x)
    assert result["rates"][0] <= result["learning_rate"] <= result["rates"][-1]
    assert result["steps"] == 10 * len(result["rates"])


@logic
def test_the_table_of_searches_has_their_quotients():
    bench = Bench()
    rows = of_models({"A": {}}, (0.01, 0.02, 0.04), ())
    table = tables.RateSearchTable(caption="Some", search_seeds=(1, 2), **rows)
    assert answer(table, bench.read) is None
    for trial in table.wanted(bench.read):
        found = make_result(trial, 3 + abs(np.log2(trial.learning_rate / 0.02)))
        if isinstance(trial, trials.RateSearchTrial):
            found["learning_rate"] = 0.01 * trial.seed
        bench.results[trial.name] = found
    assert "| A | 0.01, 0.02 | 0.02 | 0.50, 1.00 |" in answer(table, bench.read)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow trains it"
)
def test_images(monkeypatch, tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        f"{kind}_{part}": random.integers(0, high, (count, *shape))
        for part, count in (("train", 20), ("test", 10))
        for kind, high, shape in (("x", 255, (28, 28)), ("y", 10, ()))
    }
    arrays["y_train"][:10] = np.arange(10)
    np.savez(tmp_path / "fashion_mnist.npz", **arrays)
    monkeypatch.setitem(pool.SHARED, "cache", tmp_path)
    monkeypatch.setitem(pool.SHARED, "results", tmp_path / "results")
    trial = trials.ImageTrial(
        optimizer="d_muon",
        learning_rate=0.01,
        widths=(2, 2, 2),
        batch_size=10,
        epochs=2,
    )
    _, error, _ = pool.run(trial)
    result = trials.read(trial, tmp_path / "results")
    assert len(result["accuracies"]) == trial.epochs
    assert error == result["loss"] == 1 - result["accuracies"][-1]


def make_small(monkeypatch):
    """Models and texts that train in seconds."""
    from experiments.evidence import training

    monkeypatch.setattr(sizes, "CHUNK", 2)
    monkeypatch.setattr(sizes, "LAYERS", 1)
    monkeypatch.setitem(sizes.WIDTHS, "S", 32)
    monkeypatch.setattr(texts, "VOCABULARY", 300)
    monkeypatch.setattr(training, "VALIDATION_BLOCKS", 32)


def write_text(path, animal):
    lines = (f"the quick brown {animal} {i} jumps" for i in range(20000))
    path.write_text("\n\n".join(lines))


def result_of(trial, monkeypatch, folder):
    """What one run leaves, with the texts in `folder`."""
    monkeypatch.setitem(pool.SHARED, "cache", folder / "cache")
    monkeypatch.setitem(pool.SHARED, "results", folder / "results")
    trial.prepare(folder, folder / "cache")
    pool.run(trial)
    return trials.read(trial, folder / "results")


def set_up_here(cache, results, pin, turn=None):
    """`pool.set_up` without the environment of the process."""
    assert os.environ["KERAS_BACKEND"] == "jax"
    pool.SHARED.update(cache=cache, results=results, turn=turn)

"""Runs as records, the table of results, and what trains in which process."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

from experiments import run as runs
from experiments import search
from experiments.contestants import CONTESTANTS
from experiments.optimizers import construct
from helpers.optimizers import config_of
from helpers.tiers import logic
from keras_lanton import Lanton

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = logic


def test_the_id_of_a_run_is_that_of_its_settings():
    run = search.run_for("lanton", 0.01)
    same = dataclasses.replace(run, options=run.options[::-1])
    assert same.id == run.id
    changes = ({"seed": 2}, {"learning_rate": 0.02}, {"warmup": 0.0})
    others = [run.with_options(beta_1=0.5)]
    others += [run.replace(**one) for one in changes]
    assert len({one.id for one in (run, *others)}) == 5
    image = search.run_for("cnn_d_muon", 0.01)
    record = json.loads(json.dumps(image.record()))
    assert runs.run_of(record) == image
    assert "size" not in record  # fields that do not apply are left out


@pytest.mark.parametrize(
    ("changes", "alike"),
    [
        ({"seed": 2, "learning_rate": 0.1, "text": "sotu"}, True),
        ({"tokens_per_weight": 5.0, "initial": "keras_hub"}, True),
        ({"batch_size": 8}, False),
        ({"size": "M"}, False),
        ({"options": (("beta_1", 0.5),)}, False),
        ({"layers": 2}, False),
    ],
)
def test_runs_are_alike_by_what_is_compiled(changes, alike):
    run = search.run_for("lanton", 0.01)
    assert (run.replace(**changes).alike() == run.alike()) == alike


def test_results_are_lines_that_are_read_again(tmp_path):
    path = tmp_path / "new" / "runs.jsonl"
    results, run = runs.Results(path), search.run_for("lanton", 0.01)
    assert results.loss(run) is None
    results.add(run, {"loss": 3.5})
    results.add(run.replace(seed=2), {"loss": None})
    again = {"id": run.id, "record": run.record(), "loss": 3.4, "repeat": True}
    with path.open("a") as file:
        file.write(json.dumps(again) + "\n")
    for one in (results, runs.Results(path)):
        assert one.loss(run) == 3.5
        assert one.loss(run.replace(seed=2)) == float("inf")  # diverged
        assert len(one.lines) == 2
    assert [line["loss"] for line in runs.Results(path).repeats] == [3.4]


def test_the_committed_results_are_what_their_ids_say():
    results = runs.Results()
    assert len(results.by_id) == len(results.lines) > 1000
    for line in results.lines + results.repeats:
        assert runs.run_of(line["record"]).id == line["id"]
        assert line["seconds"] is None or line["seconds"] >= 0
    assert {line["id"] for line in results.repeats} <= set(results.by_id)


@pytest.mark.parametrize("name", CONTESTANTS)
def test_contestants_are_made(name):
    one = CONTESTANTS[name]
    if one.options.get("bias_correction"):  # which only has results
        with pytest.raises(ValueError, match="An earlier commit"):
            construct(one.optimizer, 0.01, options=one.options)
    else:
        assert construct(one.optimizer, 0.01, options=one.options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("lanton", {}), ("lanton_without_noise", {"noise": None})],
)
def test_contestants_with_the_defaults_have_them(name, options):
    given = CONTESTANTS[name].options
    found = config_of(construct("lanton", 5e-3, options=given))
    wanted = config_of(Lanton(5e-3, **options))
    if wanted["noise"] is not None:
        # "auto" chooses "frobenius" for noise in units of the signal.
        assert wanted["noise"]["config"].pop("estimator") == "auto"
        assert found["noise"]["config"].pop("estimator") == "frobenius"
    assert found == wanted


def test_tables_may_have_a_rate_of_their_own():
    table, kernel = (
        keras.Variable([[0.0, 0.0]], name=name)
        for name in ("embeddings", "kernel")
    )
    options = {"table_factor": 4.0, "weight_decay": 0.0}
    optimizer = construct("adamw_tables", 0.01, options=options)
    optimizer.build([table, kernel])
    gradient = keras.ops.ones((1, 2))
    optimizer.apply([gradient, gradient])
    ratio = keras.ops.convert_to_numpy(table.value / kernel.value)
    assert ratio == pytest.approx(4.0, rel=1e-5)


def test_the_parent_process_loads_no_keras():
    code = (
        "import sys, experiments.__main__, experiments.report\n"
        "assert not {'keras', 'jax', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_kind_has_a_module():
    modules = {module: "run, cache" for _, module in runs.RUNNERS.values()}
    modules |= dict.fromkeys(runs.SIDE_BY_SIDE.values(), "runs, cache, turn")
    for module, arguments in modules.items():
        text = (ROOT / (module.replace(".", "/") + ".py")).read_text()
        assert f"\ndef train({arguments}):" in text


def test_processes_train_what_is_missing(monkeypatch, tmp_path):
    """Groups of runs that are alike side by side, the others alone."""
    groups = []

    def train_here(some, cache, workers, turn):
        for group in some:
            groups.append((len(group), turn, os.environ["KERAS_BACKEND"]))
            yield [(run, {"loss": 3.0, "seconds": 1.0}) for run in group]

    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    monkeypatch.setattr(runs, "_map", train_here)
    monkeypatch.setattr(runs, "_prepare", lambda *given: None)
    results = runs.Results(tmp_path / "runs.jsonl")
    run, image = search.run_for("lanton", 0.01), search.run_for("cnn_sgd", 0.1)
    wanted = [run, run.replace(seed=2), run.replace(size="M"), image, run]
    place = runs.Place(together=True)
    runs.train_missing(wanted, results, place, "lowest")
    beside = [(2, True, "jax"), (1, True, "jax")]
    assert groups == [*beside, (1, None, "tensorflow")]
    assert results.get(run)["questions"] == ["lowest"]
    runs.train_missing(wanted, results, place)
    assert len(groups) == 3


def test_an_interrupted_command_goes_on_where_it_stopped(monkeypatch, tmp_path):
    from experiments import __main__ as command

    trained = []

    def train(missing, results, place, question):
        for run in missing:
            trained.append(run.id)
            results.add(run, {"loss": 3.0, "seconds": 1.0})

    monkeypatch.setattr(command.runs, "train_missing", train)
    arguments = ["memory", "--results", str(tmp_path / "runs.jsonl")]
    command.main([*arguments, "--limit", "5"])
    assert len(trained) == 5
    command.main(arguments)
    assert len(trained) == len(set(trained)) == 21
    with pytest.raises(SystemExit):
        command.main(["lowesst"])

"""The runs on a GPU, tiny and on the CPU: results, skips, equal repetitions."""

import importlib.util
import pathlib
import subprocess
import sys
import types

import keras
import pytest

from helpers.tiers import exhaustive

if keras.backend.backend() != "jax":
    pytest.skip("the runs are on JAX", allow_module_level=True)
pytest.importorskip("keras_hub", exc_type=ImportError)

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_runs" / "ladder.py"


@pytest.fixture(scope="module")
def ladder():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("ladder", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ladder"] = module  # which dataclasses look for
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def contestant(ladder):
    """On the tiny model, and a text without sense."""
    setting = ladder.PRETENDED
    task = ladder.Task(setting, ladder.random_text(setting))
    task.compile_validation()
    return ladder.Contestant("lanton", task).compile()


def arguments(folder):
    options = "--pretend --commit none --only adamw_tables --seconds 10000"
    return [*options.split(), "--output", str(folder)]


@exhaustive
def test_a_call_goes_on_where_the_last_one_stopped(
    ladder, tmp_path, monkeypatch
):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments(tmp_path), "--runs", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (first,) = ladder.read([tmp_path / "ladder.jsonl"])
    assert first["pretended"] and first["complete"]
    assert first["device"] == "no GPU"
    assert first["validation"][-1][0] == first["steps"]
    with (tmp_path / "ladder.jsonl").open("a") as file:
        file.write('{"contestant": "d_mu')  # a kill
    # The other tests' device stays what it is.
    monkeypatch.setattr(ladder.common, "choose_as_on_gpu", lambda: None)
    ladder.main(arguments(tmp_path))
    again, *others = ladder.read([tmp_path / "ladder.jsonl"])
    assert again == first
    rates = [result["learning_rate"] for result in others]
    assert rates[:2] == [0.002, 0.008]
    best = min([first, *others[:2]], key=lambda result: result["loss"])
    assert [result["seed"] for result in others] == [1, 1, 2, 3]
    assert rates[2:] == [best["learning_rate"]] * 2


@pytest.mark.parametrize("flash", [None, False])
def test_failures_are_left_out(ladder, tmp_path, monkeypatch, flash):
    config = types.SimpleNamespace(flash=flash, tried=[])

    def fail(runs):
        config.tried.append(runs[0].contestant)
        raise RuntimeError

    broken = types.SimpleNamespace(has_time=lambda: True, train=fail)
    monkeypatch.setattr(ladder, "Ladder", lambda *_: broken)
    for name, fake in (
        ("is_flash_attention_enabled", lambda: config.flash),
        ("disable_flash_attention", lambda: setattr(config, "flash", False)),
    ):
        monkeypatch.setattr(keras.config, name, fake)
    args = ladder.make_parser().parse_args(["--output", str(tmp_path)])
    wanted = args.only = ["d_muon", "lanton_paper"]
    ladder.climb(ladder.PRETENDED, None, args)
    assert config.tried == (wanted if flash is False else ["d_muon", *wanted])


def test_a_run_after_another_is_the_same_run(ladder, contestant):
    run = ladder.Run("lanton", 0.01, 1)
    first = contestant.train(run)
    other = contestant.train(run._replace(learning_rate=0.02, seed=2))
    again = contestant.train(run)
    for curve in ("training_loss", "validation", "loss"):
        assert again[curve] == first[curve]
        assert other[curve] != first[curve]
    # One ends at the deadline or when it diverges.
    stopped = contestant.train(run, 0.0)
    assert not stopped["complete"]
    assert stopped["loss"] is None
    lost = contestant.train(run._replace(learning_rate=float("nan")))
    assert lost["complete"]
    assert lost["loss"] is None
    assert lost["steps_done"] < ladder.PRETENDED.steps


def test_more_seeds_are_of_the_best_rates(ladder):
    setting = ladder.Setting()
    results = [
        {
            **ladder.settings_of(run, setting),
            "complete": True,
            "loss": abs(run.learning_rate - 0.02),
        }
        for run in ladder.TABLE
    ]
    assert ladder.plan(setting, results[1:], ladder.NAMES) == [ladder.TABLE[0]]
    runs = ladder.plan(setting, results, ladder.NAMES[:2])
    assert runs == [
        (name, 0.02, seed) for seed in (2, 3) for name in ladder.NAMES[:2]
    ]
    best = ladder.Run("d_muon", 0.02, 1)
    results[ladder.TABLE.index(best)]["loss"] = None  # it diverged
    assert ladder.plan(setting, results, ["d_muon"])[0].learning_rate == 0.01

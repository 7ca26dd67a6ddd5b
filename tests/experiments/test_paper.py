"""The paper's experiments, on models that learn nothing in a few steps."""

import dataclasses
import json
import pathlib
import sys

import keras
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # as with `python -m experiments.paper`

pytest.importorskip("keras_hub", exc_type=ImportError)

from experiments import optimizers  # noqa: E402
from experiments.paper import __main__ as paper  # noqa: E402
from experiments.paper import ablations  # noqa: E402
from experiments.paper import bench  # noqa: E402
from experiments.paper import comparisons  # noqa: E402
from experiments.paper import learners  # noqa: E402
from experiments.paper import robustness  # noqa: E402
from experiments.paper import scales  # noqa: E402
from experiments.paper import trials  # noqa: E402
from experiments.paper.report import __main__ as report  # noqa: E402
from experiments.paper.report.page import SECTIONS  # noqa: E402

TINY = {
    "layers": 1,
    "width": 16,
    "head_width": 8,
    "vocabulary": 300,
    "context": 8,
    "batch_size": 4,
    "steps": 4,
    "warmup": 2,
    "validation_blocks": 4,
}


@pytest.fixture
def tiny(monkeypatch):
    """A scale of a few steps, two rates and two seeds, in this process."""
    cpu = scales.CPU
    tasks = {
        "gpt2": dataclasses.replace(cpu.tasks["gpt2"], **TINY),
        "llama": dataclasses.replace(
            cpu.tasks["llama"], **TINY, feed_forward=24
        ),
        "llama_wide": dataclasses.replace(
            cpu.tasks["llama_wide"], **TINY, feed_forward=40
        ),
        "cnn": dataclasses.replace(
            cpu.tasks["cnn"], widths=(8, 8, 8), batch_size=700, epochs=1
        ),
    }
    grids = {
        task: {method: rates[:2] for method, rates in grid.items()}
        for task, grid in cpu.grids.items()
    }
    scale = dataclasses.replace(
        cpu,
        tasks=tasks,
        grids=grids,
        seeds=(1, 2),
        batch_sizes=(2, 4),
        longer={"d_muon": (1.5,)},
        workers=0,
    )
    monkeypatch.setattr(learners, "VALIDATIONS", 2)
    # So short runs leave nothing that is worth the wait.
    monkeypatch.setattr(learners.gc, "collect", lambda: 0)
    monkeypatch.setitem(scales.SCALES, "cpu", scale)
    monkeypatch.setattr(scales, "MAIN", ("lanton", "lanton_paper", "d_muon"))
    monkeypatch.setattr(scales, "CNN", ("lanton", "d_muon"))
    return scale


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return path


# The functions are the same on each backend; compiling 40 steps is slow.
eager = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="compiles 40 train steps"
)


@eager
def test_all_experiments_and_their_page(tiny, text, tmp_path, monkeypatch):
    monkeypatch.setattr(comparisons, "ROUNDS", 1)
    monkeypatch.setattr(comparisons, "STEPS", 2)
    variants = {"defaults": {}, "beta_1=0.95": {"beta_1": 0.95}}
    monkeypatch.setattr(ablations, "VARIANTS", variants)
    monkeypatch.setattr(ablations, "OTHERS", {"D-Muon": ("d_muon", {})})
    names = [n for n in paper.EXPERIMENTS if n != "bounds"]
    names.remove("by_layer")  # the same function as `losses`
    arguments = ["--text", str(text)]
    arguments += ["--output", str(tmp_path / "runs")]
    arguments += ["--results", str(tmp_path / "results")]
    paper.main([*names, *arguments])
    folder = tmp_path / "runs" / "trials"
    runs = len(list(folder.rglob("*.json")))
    paper.main(["losses", *arguments])  # nothing is trained anew
    assert len(list(folder.rglob("*.json"))) == runs
    report.main(
        [
            "--results",
            str(tmp_path / "results"),
            "--docs",
            str(tmp_path / "docs"),
        ]
    )
    page = (tmp_path / "docs" / "paper.md").read_text()
    assert "## 12. Theory\n\nNot run." in page
    for name in ("losses", "base_rate", "effective_rates", "noise"):
        assert f"(paper/{name}.png)" in page
        assert (tmp_path / "docs" / "paper" / f"{name}.png").exists()


def make_trial(**changes):
    settings = {
        "task": "gpt2",
        "method": "d_muon",
        "learning_rate": 0.1,
        "steps": 40,
        "batch_size": 4,
        "seed": 1,
    }
    return trials.Trial(**{**settings, **changes})


@pytest.mark.parametrize("minimum", [0.0, 0.1])
def test_rates_are_the_schedules(minimum):
    task = dataclasses.replace(
        scales.CPU.tasks["gpt2"], minimum_ratio=minimum, warmup=4
    )
    schedule = optimizers.make_schedule(0.1, 40, 4, minimum)
    wanted = [float(keras.ops.convert_to_numpy(schedule(i))) for i in range(40)]
    np.testing.assert_allclose(
        trials.learning_rates(make_trial(), task), wanted, rtol=1e-5, atol=1e-9
    )


def test_trials_are_grouped_by_what_is_compiled():
    first = make_trial()
    others = [
        make_trial(seed=2),
        make_trial(learning_rate=0.2),
        make_trial(batch_size=8),
        make_trial(options=(("beta_1", 0.5),)),
    ]
    groups = trials.group([first, *others])
    assert [len(g) for g in groups] == [3, 1, 1]
    assert len({t.name for t in (first, *others)}) == 5


def test_runs_of_other_text_or_code_are_not_taken(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in paths:
        path.write_text("words")

    def folder(*arguments):
        args = ["--output", str(tmp_path), *arguments]
        return bench.Bench(paper.parse(args)).folder

    first = folder("--text", str(paths[0]))
    assert folder("--text", str(paths[0])) == first
    assert folder("--text", str(paths[1])) != first
    with monkeypatch.context() as patch:
        patch.setattr(keras.backend, "backend", lambda: "another")
        assert folder("--text", str(paths[0])) != first
    paths[0].write_text("more words")
    assert folder("--text", str(paths[0])) != first
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(bench, "EXPERIMENTS", tmp_path / "code")
    second = folder("--text", str(paths[1]))
    (tmp_path / "code" / "one.py").write_text("1")
    assert folder("--text", str(paths[1])) != second


@eager
def test_a_run_does_not_depend_on_those_before(tiny, text, tmp_path):
    args = paper.parse(["--text", str(text), "--output", str(tmp_path)])
    one = bench.Bench(args)
    trial = one.trial("gpt2", "lanton", 0.01)
    learner = learners.learner(trial, tiny.tasks, one.data)
    first = learner.train(trial)["loss"]
    learner.train(dataclasses.replace(trial, learning_rate=0.5, seed=7))
    again = learner.train(trial)["loss"]
    alone = learners.learner(trial, tiny.tasks, one.data).train(trial)["loss"]
    assert first == again == alone


@pytest.mark.parametrize(
    "losses, width",
    [
        ([3.0, 3.0, 3.0], 4.0),  # the whole grid
        ([4.0, 3.0, 4.0], 2 ** (2 * 0.03)),
        ([3.0, 3.03, 3.06], 2.0),
        ([3.0, float("inf"), 3.0], 1.0),
    ],
)
def test_window(losses, width):
    found = robustness.window([1.0, 2.0, 4.0], losses)
    np.testing.assert_allclose(found, width, rtol=1e-6)


@pytest.mark.parametrize(
    "losses, times",
    [([3.0, 2.9], 1.0), ([3.2, 3.0], 1.5), ([3.3, 3.2], None)],
)
def test_needed(losses, times):
    found = robustness.needed([1.0, 1.5], losses, 3.0)
    assert found == (times if times is None else pytest.approx(times))


def test_unknown_experiment(capsys):
    with pytest.raises(SystemExit):
        paper.parse(["lossses"])
    assert "there is no experiment lossses" in capsys.readouterr().err


def test_no_results(tmp_path):
    with pytest.raises(SystemExit, match="There are no results in"):
        report.main(["--results", str(tmp_path)])


def test_the_committed_page_is_of_the_committed_results():
    page = (ROOT / "docs" / "paper.md").read_text()
    for name, (title, _) in SECTIONS.items():
        path = ROOT / "benchmarks" / "results" / "paper_cpu" / f"{name}.json"
        if name in paper.BY_NAME_ALONE and not path.exists():
            continue
        assert json.loads(path.read_text())["experiment"] == name
        assert f". {title}\n" in page

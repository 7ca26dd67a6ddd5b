"""Benchmarks start, run and report; what they measure is not looked at."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import weakref

import keras
import pytest

from helpers.tiers import exhaustive
from helpers.tiers import logic
from keras_lanton import Lanton

pytest.importorskip("keras_hub", exc_type=ImportError)

ROOT = pathlib.Path(__file__).parents[2]
BACKEND = keras.backend.backend()


def run(script, *options):
    """A benchmark's process, when it has ended."""
    search = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, f"benchmarks/{script}", *options],
        cwd=ROOT,
        env={
            **os.environ,
            "KERAS_BACKEND": BACKEND,
            "PYTHONPATH": os.pathsep.join(search),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def result_of(script, folder, *options):
    """The result that a benchmark leaves."""
    done = run(script, *options, "--output", str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = folder.glob("*.json")
    found: dict = json.loads(path.read_text())
    assert str(folder) not in found["command"]
    return found


@exhaustive
@pytest.mark.skipif(BACKEND == "tensorflow", reason="not on a GPU")
@pytest.mark.parametrize(
    "script", ["step_time", "memory", "gpu_runs/steps", "gpu_runs/training"]
)
def test_gpu_benchmarks_run_without_a_gpu(script, tmp_path):
    found = result_of(f"{script}.py", tmp_path, "--pretend")
    assert found["gpu" if "/" not in script else "pretended"]
    assert found["device"] == "no GPU"
    assert found["rows"]
    assert not found.get("failed")
    assert "/" in script or found["quick"]


@exhaustive
@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's kernels")
def test_kernels_run_without_a_gpu(tmp_path):
    found = result_of("gpu_runs/kernels.py", tmp_path, "--pretend")
    assert found["pretended"] and found["rows"] and not found["failed"]


@exhaustive
@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch compiles nothing")
def test_compile_time_has_no_later_compilation(tmp_path):
    ours, adamw = result_of("compile.py", tmp_path, "--quick")["rows"]
    assert ours["compile s"] > adamw["compile s"] > 0
    assert ours["traced or compiled later"] == 0


@exhaustive
@pytest.mark.skipif(BACKEND != "torch", reason="processes of PyTorch")
def test_split_matrices_are_sent_once_there_and_back(tmp_path):
    rows = result_of("collectives.py", tmp_path, "--quick")["rows"]
    with_noise, without = (row["of all, over the matrices"] for row in rows)
    assert 0.9 < without <= 1 < with_noise < 1.5


@exhaustive
def test_narrow_matrices_have_results_of_their_own(tmp_path):
    options = "--narrow --quick --steps 1 --rounds 1 --only lanton".split()
    found = result_of("step_time.py", tmp_path, *options)
    assert found["benchmark"] == "dispatch"
    assert [row["steps"] for row in found["rows"]] == [1]


@logic
def test_narrow_matrices_are_of_gpt2():
    done = run("step_time.py", "--narrow", "--model", "llama")
    assert done.returncode == 2
    assert "Received: --model llama" in done.stderr


@logic
@pytest.mark.skipif(BACKEND != "torch", reason="others make the values")
@pytest.mark.parametrize(
    "names",
    [("gpt2_base_en",), pytest.param(None, marks=exhaustive)],  # None: all
)
def test_the_page_on_cost_has_the_table(names, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    make_table = importlib.import_module("memory").state_table
    table = make_table(names) if names else make_table()
    keras.backend.clear_session()  # forgets the variables without values
    page = (ROOT / "docs/cost.md").read_text()
    if names is None:
        assert table in page
    assert set(table.splitlines()) <= set(page.splitlines())


@logic
@pytest.mark.skipif(BACKEND != "torch", reason="others make the values")
def test_building_without_values_makes_no_model_of_them():
    alive, most = weakref.WeakSet(), 0

    def zeros(shape, dtype=None):
        nonlocal most
        value = keras.ops.zeros(shape, dtype)
        alive.add(value)
        most = max(most, len(alive))
        return value

    optimizer = Lanton()
    with keras.StatelessScope(initialize_variables=False):
        kernels = [keras.Variable(zeros, shape=(4, 8)) for _ in range(12)]
        optimizer.build(kernels)
    keras.backend.clear_session()  # forgets the variables without values
    assert most <= 2  # one, and the one that takes its place


@logic
@pytest.mark.parametrize(
    ("layout", "devices", "moved"),
    # Gathered; reduced, since 48 are few; split, and measured whole.
    [("data", 1, 0), ("data", 32, 64), ("data", 100, 48), ("model", 8, 22)],
)
def test_bytes_of_a_model_on_many_devices(layout, devices, moved, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tool = importlib.import_module("collectives")
    (row,) = tool.calculated([(250, 1000)] * 48, devices, layout)
    assert row["MB of matrices"] == 48
    assert row["MB moved"] == moved


@logic
def test_every_result_is_printed():
    done = run("tables.py")
    assert done.returncode == 0, done.stderr
    results = (ROOT / "benchmarks" / "results").glob("*.json")
    for path in results:
        assert f"## {path.stem}\n" in done.stdout
    assert "There are: " in run("tables.py", "nothing").stderr

"""Benchmarks start, run and report; what they measure is not looked at."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

from helpers.tiers import exhaustive
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).parents[2]
BACKEND = keras.backend.backend()


def run(script: str, folder: pathlib.Path, *options: str) -> dict:
    """The result that a benchmark leaves."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    done = subprocess.run(
        [*command, "--output", str(folder)],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": BACKEND},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = folder.glob("*.json")
    found: dict = json.loads(path.read_text())
    return found


@exhaustive
@pytest.mark.skipif(BACKEND == "tensorflow", reason="bench-gpu leaves it out")
@pytest.mark.parametrize(
    "script", ["step_time.py", "polar.py", "noise.py", "memory.py"]
)
def test_gpu_benchmarks_run_without_a_gpu(
    script: str, tmp_path: pathlib.Path
) -> None:
    found = run(script, tmp_path, "--pretend")
    assert found["gpu"]
    assert found["quick"]
    assert found["device"] == "no GPU"
    assert found["rows"]


@exhaustive
@pytest.mark.parametrize("script", ["steps.py", "training.py", "kernels.py"])
def test_gpu_runs_run_without_a_gpu(
    script: str, tmp_path: pathlib.Path
) -> None:
    if BACKEND == "tensorflow" or (script, BACKEND) == ("kernels.py", "jax"):
        pytest.skip("not measured on this backend")
    found = run(f"gpu_runs/{script}", tmp_path, "--pretend")
    assert found["pretended"]
    assert found["device"] == "no GPU"
    assert found["rows"]
    assert not found["failed"]


@exhaustive
def test_narrow_matrices_have_results_of_their_own(
    tmp_path: pathlib.Path,
) -> None:
    options = "--narrow --quick --steps 1 --rounds 1 --only lanton".split()
    found = run("step_time.py", tmp_path, *options)
    assert found["benchmark"] == "dispatch"
    assert [row["steps"] for row in found["rows"]] == [1]


@logic
def test_narrow_matrices_are_of_gpt2() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "step_time.py")]
    done = subprocess.run(
        [*command, "--narrow", "--model", "llama"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Received: --model llama" in done.stderr


@exhaustive
def test_parts_of_a_step_add_up(tmp_path: pathlib.Path) -> None:
    *parts, whole = run("parts.py", tmp_path, "--quick")["rows"]
    assert whole["part"] == "whole"
    assert sum(row["ms"] for row in parts) == pytest.approx(whole["ms"])


@logic
def test_the_roofline_is_computed(tmp_path: pathlib.Path) -> None:
    rows = run("roofline.py", tmp_path, "--quick")["rows"]
    times = [row["ms"] for row in rows if row["part"] != "whole step"]
    wholes = [row["ms"] for row in rows if row["part"] == "whole step"]
    assert len(wholes) == 2
    assert min(times) >= 0
    assert sum(times) == pytest.approx(sum(wholes))

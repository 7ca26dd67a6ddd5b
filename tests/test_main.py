"""`python -m keras_lanton`: passes here, and names what does not work."""

import functools
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import __main__ as command
from keras_lanton import version
from keras_lanton.core import norms
from keras_lanton.fast import dispatch
from keras_lanton.tools import self_check

BACKEND = keras.backend.backend()
ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(path: pathlib.Path, backend: str) -> subprocess.CompletedProcess[str]:
    paths = [str(path), *sys.path]
    return subprocess.run(
        [sys.executable, "-m", "keras_lanton"],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "PYTHONPATH": os.pathsep.join(paths),
        },
        cwd=path,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    for wanted in (version.__version__, keras.__version__, np.__version__):
        assert wanted in printed
    assert f"backend                 {BACKEND}\n" in printed
    assert "devices" in printed
    assert printed.endswith("self-check: passed\n")


@logic
def test_names_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of each step of a hidden layer.
    right = norms.Spectral.lmo
    monkeypatch.setattr(norms.Spectral, "lmo", lambda *args: 0.5 * right(*args))
    assert command.main([]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "self-check: failed: step"


@logic
def test_names_a_fast_path_that_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = dispatch.gram_newton_schulz
    monkeypatch.setattr(
        dispatch,
        "gram_newton_schulz",
        lambda *args, **options: 0.5 * right(*args, **options),
    )
    assert command.main([]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "self-check: failed: large matrix"


@logic
def test_names_a_step_that_takes_nan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        self_check, "Lanton", functools.partial(Lanton, nonfinite="propagate")
    )
    assert command.main([]) == 1
    assert capsys.readouterr().out.endswith("self-check: failed: step\n")


@logic
def test_an_error_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(self_check, "self_check", broken)
    assert command.main([]) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("self-check: failed: MemoryError: no room\n")
    assert "Traceback" in printed.err


@logic
def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    assert "KERAS_BACKEND" in capsys.readouterr().out

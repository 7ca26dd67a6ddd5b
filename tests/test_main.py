"""`python -m keras_lanton`: passes here, and names what does not work."""

import functools

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


def test_passes_here(capsys):
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    for wanted in (version.__version__, keras.__version__, np.__version__):
        assert wanted in printed
    assert f"backend                 {BACKEND}\n" in printed
    assert "devices" in printed
    assert printed.endswith("self-check: passed\n")


WRONG = [
    (norms.Spectral, "lmo", lambda *args: 0.5 * LMO(*args), "step"),
    (
        dispatch,
        "gram_newton_schulz",
        lambda *args, **options: 0.5 * GRAM(*args, **options),
        "large matrix",
    ),
    (
        self_check,
        "Lanton",
        functools.partial(Lanton, nonfinite="propagate"),
        "step",
    ),
]
LMO, GRAM = norms.Spectral.lmo, dispatch.gram_newton_schulz


@logic
@pytest.mark.parametrize(("owner", "name", "wrong", "check"), WRONG)
def test_names_what_is_wrong(owner, name, wrong, check, capsys, monkeypatch):
    """A half step, a fast path, and a step that takes NaN."""
    monkeypatch.setattr(owner, name, wrong)
    assert command.main([]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"self-check: failed: {check}"


@logic
def test_an_error_is_a_failure(capsys, monkeypatch):
    def broken():
        raise MemoryError("no room")

    monkeypatch.setattr(self_check, "self_check", broken)
    assert command.main([]) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("self-check: failed: MemoryError: no room\n")
    assert "Traceback" in printed.err


@logic
def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    assert "KERAS_BACKEND" in capsys.readouterr().out

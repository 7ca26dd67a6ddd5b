"""Which tests run in `make test`, and which in `make test-slow`."""

import pytest

slow = pytest.mark.slow
compiles_a_lot = pytest.mark.compiles_a_lot


def some_fast(cases, fast, mark=compiles_a_lot):
    """The cases as parameters, with the mark on those that are not `fast`."""
    return [
        pytest.param(case, marks=() if case in fast else mark) for case in cases
    ]

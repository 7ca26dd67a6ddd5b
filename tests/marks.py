"""As `helpers.tiers`, for tests/test_examples.py."""

import pytest

from helpers.tiers import keep

slow = pytest.mark.slow


def some_fast(cases, fast, mark=pytest.mark.compiles_a_lot):
    """The cases as parameters, with the mark on those that are not `fast`."""
    return keep(cases, fast, mark)

"""Which tests run where: the three tiers of CONTRIBUTING.md.

- `logic`: plain logic, on PyTorch alone, which compiles nothing;
- no mark: what a backend may do otherwise, on all three;
- `exhaustive`: in `make test-all` alone, as the first on the other two.
"""

import pytest

logic = pytest.mark.logic
exhaustive = pytest.mark.exhaustive


def keep(cases, kept, mark=logic):
    """The cases as parameters, with the mark on those that are not `kept`."""
    return [
        pytest.param(case, marks=() if case in kept else mark) for case in cases
    ]

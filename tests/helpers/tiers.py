"""Which tests run where: the three tiers of CONTRIBUTING.md.

- `logic`: plain logic, on PyTorch alone, which compiles nothing;
- no mark: what a backend may do otherwise, on all three;
- `exhaustive`: in `make test-all` alone, as the first on the other two.

`private` is no tier: what Keras' public methods cannot do.
"""

import pytest

from keras_lanton.optimizers import hooks

logic = pytest.mark.logic
exhaustive = pytest.mark.exhaustive
private = pytest.mark.skipif(
    hooks.Hooks is not hooks.PrivateHooks,
    reason="needs private methods of Keras: see optimizers/hooks.py",
)


def keep(cases, kept, mark=logic):
    """The cases as parameters, with the mark on those that are not `kept`."""
    return [
        pytest.param(case, marks=() if case in kept else mark) for case in cases
    ]

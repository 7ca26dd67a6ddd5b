"""Weight decay: how much, and of which variables."""

import numpy as np
import pytest

from helpers import runs
from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.runs import PATHS
from keras_lanton import Lanton


def step(optimizer, exclude=None):
    """Weights after a step; `exclude`: arguments of Keras' method."""
    variables = runs.make_variables()
    if exclude:
        paths = exclude.pop("var_list", [])
        mine = [variables[PATHS.index(path)] for path in paths]
        optimizer.exclude_from_weight_decay(var_list=mine, **exclude)
    runs.apply(optimizer, variables, runs.make_gradients(1)[0])
    return to_arrays(variables)


@pytest.mark.parametrize(
    "options, exclude, wanted",
    [
        ({}, {}, PATHS),
        ({"weight_decay_exclude": []}, {}, PATHS),
        (
            {"weight_decay_exclude": ["bias$", "^tokens"]},
            {},
            [PATHS[1], PATHS[3]],
        ),
        ({"weight_decay_exclude": ["^first/"]}, {}, [PATHS[0], PATHS[3]]),
        ({"weight_decay_exclude": ["."]}, {}, []),
        ({}, {"var_list": [PATHS[1]]}, [PATHS[0], *PATHS[2:]]),
        ({}, {"var_names": ["bias", "embed"]}, [PATHS[1], PATHS[3]]),
        # Keras' method compares names, and not paths as Keras does on
        # TensorFlow; only `weight_decay_exclude` takes paths.
        ({}, {"var_names": ["first"]}, PATHS),
        (
            {"weight_decay_exclude": ["bias"]},
            {"var_list": [PATHS[1]]},
            [PATHS[0], PATHS[3]],
        ),
    ],
    ids=str,
)
def test_weight_decay(options, exclude, wanted):
    """Of these variables, and by the right amount."""
    found = step(
        paper(**runs.OPTIONS, weight_decay=0.5, **options), {**exclude}
    )
    plain = step(paper(**runs.OPTIONS, weight_decay=0.0))
    starts = to_arrays(runs.make_variables())
    decayed = []
    for path, start, one, without in zip(
        PATHS, starts, found, plain, strict=True
    ):
        if not np.array_equal(one, without):
            amount = -runs.OPTIONS["learning_rate"] * 0.5 * start
            np.testing.assert_allclose(one - without, amount, atol=1e-6)
            decayed.append(path)
    assert decayed == wanted


def test_no_weight_decay():
    _, found = runs.run(runs.make_gradients(2), weight_decay=None)
    _, wanted = runs.run(runs.make_gradients(2), weight_decay=0.0)
    runs.assert_equal(found, wanted)


def test_pattern_without_a_match():
    optimizer = Lanton(weight_decay_exclude=["bias", "no_such_layer"])
    with pytest.warns(UserWarning, match="no_such_layer") as caught:
        optimizer.build(runs.make_variables())
    assert len(caught) == 1

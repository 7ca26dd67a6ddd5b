"""Weight decay: how much, and of which variables."""

import numpy as np
import pytest

from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.runs import OPTIONS
from helpers.runs import PATHS
from helpers.runs import apply
from helpers.runs import assert_equal
from helpers.runs import fit
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import model_of_runs
from helpers.runs import run
from helpers.tiers import logic
from keras_lanton import Lanton


# -- Weight decay ----------------------------------------------------------
def decayed(**options):
    """Paths of the variables that one step decays, and by the right amount."""
    before = make_variables()
    exclude = options.pop("method", {})

    def step(**more):
        optimizer = paper(**{**OPTIONS, **more})
        variables = make_variables()
        if "var_list" in exclude:
            mine = [variables[PATHS.index(p)] for p in exclude["var_list"]]
            optimizer.exclude_from_weight_decay(var_list=mine)
        elif exclude:
            optimizer.exclude_from_weight_decay(**exclude)
        apply(optimizer, variables, make_gradients(1)[0])
        return to_arrays(variables)

    found = []
    arrays = to_arrays(before), step(**options), step(weight_decay=0.0)
    for path, start, one, without in zip(PATHS, *arrays, strict=True):
        if not np.array_equal(one, without):
            wanted = -OPTIONS["learning_rate"] * options["weight_decay"] * start
            np.testing.assert_allclose(one - without, wanted, atol=1e-6)
            found.append(path)
    return found


@pytest.mark.parametrize(
    "options, wanted",
    [
        ({}, PATHS),
        ({"weight_decay_exclude": []}, PATHS),
        ({"weight_decay_exclude": ["bias$", "^tokens"]}, [PATHS[1], PATHS[3]]),
        ({"weight_decay_exclude": ["^first/"]}, [PATHS[0], PATHS[3]]),
        ({"weight_decay_exclude": ["."]}, []),
        ({"method": {"var_list": [PATHS[1]]}}, [PATHS[0], *PATHS[2:]]),
        ({"method": {"var_names": ["bias", "embed"]}}, [PATHS[1], PATHS[3]]),
        (
            {
                "method": {"var_list": [PATHS[1]]},
                "weight_decay_exclude": ["bias"],
            },
            [PATHS[0], PATHS[3]],
        ),
    ],
    ids=str,
)
def test_weight_decay(options, wanted):
    assert decayed(weight_decay=0.5, **options) == wanted


@pytest.mark.parametrize("make", [Lanton, paper])
def test_cautious_weight_decay(make):
    """Only entries decay that the step does not move away from 0."""

    def step(**options):
        variables = make_variables()
        optimizer = make(learning_rate=0.01, **options)
        apply(optimizer, variables, make_gradients(1)[0])
        return to_arrays(variables)

    decay = {"weight_decay": 0.5}
    plain, usual = step(weight_decay=0.0), step(**decay)
    cautious = step(**decay, cautious_weight_decay=True)
    starts = to_arrays(make_variables())
    for start, without, full, found in zip(
        starts, plain, usual, cautious, strict=True
    ):
        away = np.sign(start) == np.sign(without - start)
        assert away.any() and not away.all()
        wanted = np.where(away, without, full)
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [None, 0.0])
def test_no_weight_decay(weight_decay):
    _, found = run(make_gradients(2), weight_decay=weight_decay)
    _, excluded = run(make_gradients(2), weight_decay_exclude=["."])
    assert_equal(to_arrays(found), to_arrays(excluded))


def test_names_do_not_hold_the_layer():
    """Keras' method compares names; only `weight_decay_exclude` takes paths.

    On TensorFlow Keras would compare paths, had it its way.
    """
    found = decayed(weight_decay=0.5, method={"var_names": ["first"]})
    assert found == PATHS


def test_exclusion_after_build():
    optimizer, variables = run(make_gradients(1))
    with pytest.raises(ValueError, match="exclude_from_weight_decay"):
        optimizer.exclude_from_weight_decay(var_list=variables)


def test_pattern_without_a_match():
    optimizer = Lanton(weight_decay_exclude=["bias", "no_such_layer"])
    with pytest.warns(UserWarning, match="no_such_layer") as caught:
        optimizer.build(make_variables())
    assert len(caught) == 1


@logic
def test_exclusions_in_fit():
    """By pattern and by Keras' method, which sees the model's variables."""
    found = fit(
        model_of_runs(),
        paper(
            **OPTIONS, weight_decay=0.5, weight_decay_exclude=["norm/", "bias"]
        ),
    )
    model = model_of_runs()
    optimizer = paper(**OPTIONS, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(
        var_list=[
            v
            for v in model.trainable_variables
            if "norm/" in v.path or "bias" in v.path
        ]
    )
    assert_equal(found, fit(model, optimizer))

"""Gradients accumulated over several calls."""

import numpy as np
import pytest
from keras import ops

from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import OPTIONS
from helpers.runs import PRESETS
from helpers.runs import apply
from helpers.runs import assert_close
from helpers.runs import assert_equal
from helpers.runs import assert_same_state
from helpers.runs import fit
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import model_of_runs
from helpers.runs import reference_weights
from helpers.runs import run
from helpers.runs import state_of
from helpers.tiers import logic
from keras_lanton.fast import dispatch


# -- Gradient accumulation -------------------------------------------------
@pytest.mark.parametrize(
    ("k", "preset"),
    [
        pytest.param(2, "paper", marks=logic),
        pytest.param(3, "paper", marks=logic),
        (2, "defaults"),
    ],
)
def test_accumulation_is_one_step_of_the_mean(k, preset):
    gradients = make_gradients(4 * k)
    options = PRESETS[preset]
    optimizer, found = run(gradients, **options, gradient_accumulation_steps=k)
    means = [
        [np.mean(g, axis=0) for g in zip(*gradients[t : t + k], strict=True)]
        for t in range(0, 4 * k, k)
    ]
    other, wanted = run(means, **options)
    # Observed 2e-6.
    assert_close(to_arrays(found), to_arrays(wanted), 1e-5)
    for path, report in optimizer.noise_report().items():
        np.testing.assert_allclose(
            report["noise"], other.noise_report()[path]["noise"], rtol=1e-5
        )
    assert int(ops.convert_to_numpy(optimizer.iterations)) == 4


@both_presets
def test_accumulation_in_fit(preset):
    found = fit(
        model_of_runs(),
        paper(**PRESETS[preset], gradient_accumulation_steps=2),
        batch_size=2,
        jit_compile=BACKEND != "torch",
    )
    # Observed 3e-7.
    assert_close(found, reference_weights(preset), 1e-5)


@both_presets
def test_state_stays_on_micro_steps(preset):
    optimizer, variables = run(
        make_gradients(4), **PRESETS[preset], gradient_accumulation_steps=2
    )
    without = ("iteration", "gradient_accumulator")

    def state():
        return {
            key: value
            for key, value in state_of(optimizer).items()
            if not key.endswith(without)
        }

    before = to_arrays(variables), state()
    apply(optimizer, variables, make_gradients(1, seed=5)[0])
    assert_equal(to_arrays(variables), before[0])
    assert_same_state(state(), before[1])


@pytest.mark.parametrize(
    "reference", ["previous_gradient", "independent_gradient", "momentum"]
)
def test_no_newton_schulz_on_micro_steps(monkeypatch, reference):
    calls = []
    for name in ("standard_newton_schulz", "gram_newton_schulz"):
        original = getattr(dispatch, name)

        def counted(*args, original=original, **kwargs):
            calls.append(1)
            return original(*args, **kwargs)

        monkeypatch.setattr(dispatch, name, counted)
    optimizer = paper(
        **OPTIONS, gradient_accumulation_steps=2, noise_reference=reference
    )
    variables = make_variables()
    per_call = []
    for one in make_gradients(4):
        calls.clear()
        apply(optimizer, variables, one)
        per_call.append(len(calls))
    assert per_call[0] == per_call[2] == 0, per_call
    assert per_call[1] and per_call[3], per_call


@pytest.mark.skipif(BACKEND != "jax", reason="looks into the program of JAX")
@pytest.mark.parametrize("accumulates", [True, False])
def test_matrix_products_are_in_branches(accumulates):
    """On JAX Keras runs the update on each micro-step: a branch must not.

    A branch is a `cond`, or a loop of one step or none.
    """
    import jax

    options = {"gradient_accumulation_steps": 4} if accumulates else {}
    optimizer = paper(**OPTIONS, nonfinite="propagate", **options)
    variables = make_variables()
    optimizer.build(variables)
    program = jax.make_jaxpr(optimizer.stateless_apply)(
        [v.value for v in optimizer.variables],
        [v.value for v in variables],
        [v.value for v in variables],
    )
    outside, inside = products(program.jaxpr)
    assert inside
    assert bool(outside) != accumulates


def products(jaxpr, in_branch=False):
    """Numbers of matrix products outside and inside of branches."""
    import jax

    found = [0, 0]
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found[in_branch] += 1
        branch = in_branch or equation.primitive.name in ("cond", "while")
        inner = jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
        )
        for part in inner:
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                more = products(part, branch)
                found = [a + b for a, b in zip(found, more, strict=True)]
    return found

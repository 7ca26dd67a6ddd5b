"""Gradients accumulated over several calls."""

import numpy as np
import pytest

from helpers import runs
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.tiers import logic
from keras_lanton.fast import dispatch


@pytest.mark.parametrize(
    ("k", "preset"), [pytest.param(3, "paper", marks=logic), (2, "defaults")]
)
def test_accumulation_is_one_step_of_the_mean(k, preset):
    gradients = runs.make_gradients(4 * k)
    options = runs.PRESETS[preset]
    found, weights = runs.run(
        gradients, **options, gradient_accumulation_steps=k
    )
    means = [
        [np.mean(g, axis=0) for g in zip(*gradients[t : t + k], strict=True)]
        for t in range(0, 4 * k, k)
    ]
    other, wanted = runs.run(means, **options)
    # Observed 2e-6.
    runs.assert_close(weights, wanted, 1e-5)
    runs.assert_same_noise(found, other, 1e-5)
    assert runs.count(found.iterations) == 4


@both_presets
def test_accumulation_in_fit(preset):
    found = runs.fit(
        runs.model_of_runs(),
        paper(**runs.PRESETS[preset], gradient_accumulation_steps=2),
        batch_size=2,
        jit_compile=runs.BACKEND != "torch",
    )
    wanted = runs.reference_weights(preset)
    runs.assert_close(found, wanted, runs.TOLERANCES[preset])


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
        **runs.OPTIONS, gradient_accumulation_steps=2, noise_reference=reference
    )
    variables = runs.make_variables()
    per_call = []
    for one in runs.make_gradients(4):
        calls.clear()
        runs.apply(optimizer, variables, one)
        per_call.append(len(calls))
    assert per_call[0] == per_call[2] == 0, per_call
    assert per_call[1] and per_call[3], per_call


@pytest.mark.skipif(runs.BACKEND != "jax", reason="the program of JAX")
@pytest.mark.parametrize("accumulates", [True, False])
def test_matrix_products_are_in_branches(accumulates):
    """On JAX Keras runs the update on each micro-step: a branch must not.

    A branch is a `cond`, or a loop of one step or none.
    """
    import jax

    options = {"gradient_accumulation_steps": 4} if accumulates else {}
    optimizer = paper(**runs.OPTIONS, nonfinite="propagate", **options)
    variables = runs.make_variables()
    optimizer.build(variables)
    values = [v.value for v in variables]
    program = jax.make_jaxpr(optimizer.stateless_apply)(
        [v.value for v in optimizer.variables], values, values
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

"""Dtype policies, and Keras' own loss scaling."""

import keras
import numpy as np
import pytest

from helpers import runs
from helpers.models import dtype_policy
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.tiers import keep
from keras_lanton import Lanton


@pytest.fixture
def policy(request):
    for preset in runs.PRESETS:
        runs.reference_weights(preset)  # cached, so not under the policy
    with dtype_policy(request.param):
        yield request.param


# How far the weights end from those in float32, over how far they moved.
# Observed 2e-3, 0.1 and, where the weights themselves are rounded, 0.45.
HALF_PRECISION = {"mixed_float16": 0.02, "mixed_bfloat16": 0.3, "bfloat16": 0.7}


@pytest.mark.parametrize(
    "policy", keep(HALF_PRECISION, ["mixed_float16", "bfloat16"]), indirect=True
)
@both_presets
def test_half_precision(policy, preset):
    # After two the embedding's second update differs, and all after it.
    options = {**runs.PRESETS[preset], "ns_steps": 3}
    with dtype_policy("float32"):
        wanted = runs.fit(runs.model_of_runs(), paper(**options))
    model = runs.model_of_runs()
    found = runs.fit(model, paper(**options))
    inner = model.optimizer
    if policy == "mixed_float16":
        assert isinstance(inner, keras.optimizers.LossScaleOptimizer)
        inner = inner.inner_optimizer
    assert isinstance(inner, Lanton)
    steps = runs.count(inner.iterations)
    assert 0 < steps <= 4 if policy == "mixed_float16" else steps == 4
    assert inner.skipped_steps == 0
    start = to_arrays(runs.model_of_runs().trainable_variables)
    for one, two, zero in zip(found, wanted, start, strict=True):
        assert np.isfinite(one).all()
        off = np.linalg.norm(one - two) / np.linalg.norm(two - zero)
        assert off < HALF_PRECISION[policy]


def scaled_steps(optimizer, variables, gradients):
    """`apply` of LossScaleOptimizer, which JAX has in stateless form only."""
    if runs.BACKEND == "jax":
        if not optimizer.built:
            optimizer.build(variables)
        step = optimizer.stateless_apply
        runs.apply_stateless(step, optimizer, variables, gradients)
        return
    for one in gradients:
        runs.apply(optimizer, variables, one)


@both_presets
def test_loss_scale_optimizer_skips(preset):
    """The inner optimizer never sees the step; its count stays too."""
    gradients = runs.make_gradients(4)
    scaled = [[1024.0 * g for g in one] for one in gradients]
    scaled[1][2][1] = np.inf
    inner = paper(**runs.PRESETS[preset])
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
    variables = runs.make_variables()
    scaled_steps(optimizer, variables, scaled[:2])
    assert runs.count(optimizer.dynamic_scale.value) == 512
    assert runs.count(inner.iterations) == 1
    scaled_steps(
        optimizer, variables, [[g / 2 for g in one] for one in scaled[2:]]
    )
    kept = [gradients[0], *gradients[2:]]
    other, wanted = runs.run(kept, **runs.PRESETS[preset])
    # Observed 4e-7: compiled on JAX.
    runs.assert_close(variables, wanted, 1e-5)
    assert runs.count(inner.iterations) == 3
    assert inner.skipped_steps == other.skipped_steps == 0

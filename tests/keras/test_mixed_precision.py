"""Dtype policies, and Keras' own loss scaling."""

import keras
import numpy as np
import pytest
from keras import ops

from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import PRESETS
from helpers.runs import apply
from helpers.runs import apply_stateless
from helpers.runs import assert_close
from helpers.runs import fit
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import model_of_runs
from helpers.runs import reference_weights
from helpers.runs import run
from helpers.tiers import keep
from keras_lanton import Lanton


# -- Mixed precision -------------------------------------------------------
@pytest.fixture
def policy(request):
    for preset in PRESETS:
        reference_weights(preset)  # cached, so not under the policy
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


# How far the weights end from those in float32, over how far they moved.
# Observed 2e-3, 0.1 and, where the weights themselves are rounded, 0.45.
HALF_PRECISION = {"mixed_float16": 0.02, "mixed_bfloat16": 0.3, "bfloat16": 0.7}


@pytest.mark.parametrize(
    "policy",
    keep(HALF_PRECISION, ["mixed_float16", "bfloat16"]),
    indirect=True,
)
@both_presets
def test_half_precision(policy, preset):
    model = model_of_runs()
    found = fit(model, paper(**PRESETS[preset]))
    wrapped = model.optimizer
    inner = wrapped
    if policy == "mixed_float16":
        assert isinstance(wrapped, keras.optimizers.LossScaleOptimizer)
        inner = wrapped.inner_optimizer
    assert isinstance(inner, Lanton)
    steps = int(ops.convert_to_numpy(inner.iterations))
    if policy != "mixed_float16":
        assert steps == 4
    assert 0 < steps <= 4
    assert inner.skipped_steps == 0
    start = to_arrays(model_of_runs().trainable_variables)
    wanted = reference_weights(preset)
    for one, two, zero in zip(found, wanted, start, strict=True):
        assert np.isfinite(one).all()
        off = np.linalg.norm(one - two) / np.linalg.norm(two - zero)
        assert off < HALF_PRECISION[policy]


def scaled_steps(optimizer, variables, gradients):
    """`apply` of LossScaleOptimizer, which JAX has in stateless form only."""
    if BACKEND == "jax":
        if not optimizer.built:
            optimizer.build(variables)
        step = optimizer.stateless_apply
        apply_stateless(step, optimizer, variables, gradients)
        return
    for one in gradients:
        apply(optimizer, variables, one)


@both_presets
def test_loss_scale_optimizer_skips(preset):
    """The inner optimizer never sees the step; its count stays too."""
    gradients = make_gradients(4)
    scaled = [[1024.0 * g for g in one] for one in gradients]
    scaled[1][2][1] = np.inf
    inner = paper(**PRESETS[preset])
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
    variables = make_variables()
    scaled_steps(optimizer, variables, scaled[:2])
    assert float(ops.convert_to_numpy(optimizer.dynamic_scale.value)) == 512.0
    assert int(ops.convert_to_numpy(inner.iterations)) == 1
    scaled_steps(
        optimizer, variables, [[g / 2 for g in one] for one in scaled[2:]]
    )
    other, wanted = run([gradients[0], *gradients[2:]], **PRESETS[preset])
    # Observed 4e-7: compiled on JAX.
    assert_close(to_arrays(variables), to_arrays(wanted), 1e-5)
    assert int(ops.convert_to_numpy(inner.iterations)) == 3
    assert inner.skipped_steps == other.skipped_steps == 0

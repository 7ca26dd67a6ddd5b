"""A matrix of a stack whose gradient is zero everywhere rests.

An expert that gets no tokens keeps weights, momentum and noise, as a variable
of its own does that has no gradient.
"""

import keras
import numpy as np
import pytest

from helpers.baselines import BASELINES
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.variables import Steps
from helpers.variables import make_variable
from helpers.variables import to_arrays
from helpers.variables import to_tensors
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton import baselines

EXPERTS, RESTING = 4, 3
SHAPE = (8, 12)
MAKERS = {
    "lanton": lambda: Lanton(5e-3, noise=NoiseAdaptiveRate(interval=2)),
    "paper": lambda: Lanton.paper(5e-3),
    "without_noise": lambda: Lanton(5e-3, noise=None, momentum_warmup=False),
    "of_momentum": lambda: Lanton(
        5e-3,
        noise=NoiseAdaptiveRate(reference="momentum"),
    ),
    "tables_by_adamw": lambda: Lanton.for_fine_tuning(5e-3, weight_decay=0.1),
    **BASELINES,
}


def start():
    rng = np.random.default_rng(0)
    return 0.1 * rng.normal(size=(EXPERTS, *SHAPE)).astype("float32")


def gradients(steps, rests_from):
    rng = np.random.default_rng(1)
    for t in range(steps):
        G = rng.normal(size=(EXPERTS, *SHAPE)).astype("float32")
        if t >= rests_from:
            G[RESTING] = 0.0
        yield G, rng.normal(size=SHAPE[1]).astype("float32")


def run(optimizer, matrices, role, gradients, step_of=Steps):
    """The weights of the matrices and of a bias."""
    variables = [*matrices, make_variable("b", np.zeros(12))]
    inputs, outputs = (-2, -1) if role == "hidden" else (-1, -2)
    for one in matrices:
        optimizer.assign_role(role, one, input_axes=inputs, output_axes=outputs)
    optimizer.build(variables)
    step = step_of(optimizer, variables)
    for one in gradients:
        step(one)
    return to_arrays(variables)


def run_stacked(optimizer, role, steps, rests_from):
    stack = make_variable("experts", start())
    return run(optimizer, [stack], role, gradients(steps, rests_from))


def run_apart(optimizer, role, steps, rests_from):
    """With a variable for each expert, whose gradient is missing."""
    single = [make_variable(f"expert{i}", x) for i, x in enumerate(start())]
    given = (
        [*(x if np.any(x) else None for x in G), g]
        for G, g in gradients(steps, rests_from)
    )

    def eager(optimizer, variables):
        return Steps(optimizer, variables, jit=False)

    return run(optimizer, single, role, given, eager)


@pytest.mark.parametrize("name", keep(MAKERS, ["lanton"]))
@pytest.mark.parametrize("rests_from", keep([0, 3], [3]))
def test_as_a_variable_of_its_own(name, rests_from):
    role = "embedding" if name == "tables_by_adamw" else "hidden"
    one, two = MAKERS[name](), MAKERS[name]()
    stack, bias = run_stacked(one, role, 9, rests_from)
    *apart, wanted = run_apart(two, role, 9, rests_from)
    np.testing.assert_allclose(stack, np.stack(apart), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bias, wanted, rtol=1e-5, atol=1e-6)
    if rests_from == 0:
        np.testing.assert_array_equal(stack[RESTING], start()[RESTING])
    if getattr(one, "noise", None) is not None and role == "hidden":
        (found, *_), wanted = (
            list(each.noise_report().values()) for each in (one, two)
        )
        for key in ("noise", "ratio", "learning_rate"):
            apart = np.concatenate([row[key] for row in wanted[:EXPERTS]])
            np.testing.assert_allclose(found[key], apart, rtol=1e-4)


@logic
def test_an_idle_expert_keeps_its_rate():
    """Its noise would else decay to 0, and its rate be the highest."""
    noise = []
    for steps in (50, 150):
        optimizer = Lanton(5e-3)
        run_stacked(optimizer, "hidden", steps, 50)
        report = optimizer.noise_report()["experts/kernel"]
        noise.append(report["noise"][RESTING])
    assert noise[0] == noise[1]
    assert np.all(np.abs(report["ratio"] - 1.0) < 0.2), report


@pytest.mark.parametrize("noise", keep([NoiseAdaptiveRate(), None], [None]))
def test_momentum_in_int8_rests(noise):
    """Its entries would else be rounded again."""
    rng = np.random.default_rng(0)
    stack = make_variable("experts", np.zeros((3, 64, 64)))
    optimizer = Lanton(5e-3, momentum_dtype="int8", noise=noise)
    optimizer.build([stack])
    kept = [v for v in optimizer.variables if "momentum" in v.name]
    assert [v.dtype for v in kept] == ["int8", "float32"]
    before = None
    for t in range(5):
        G = rng.normal(size=(3, 64, 64)).astype("float32")
        G[1] *= t < 3
        optimizer.apply(to_tensors([G]), [stack])
        after = [x[1] for x in to_arrays([*kept, stack])]
        if t >= 3:
            for one, two in zip(before, after, strict=True):
                np.testing.assert_array_equal(one, two)
        before = after


@logic
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "make", [Lanton, Lanton.paper, baselines.AdaMuon, baselines.NorMuon]
)
def test_other_views(make, dtype):
    """Gates, and matrices that a middle axis numbers."""
    lstm = keras.layers.LSTM(
        8, dtype=dtype, recurrent_initializer="glorot_uniform"
    )
    lstm.build((None, 3, 6))
    middle = make_variable("mix", np.zeros((6, 4, 8)), dtype)
    optimizer = make()
    optimizer.assign_role("hidden", middle, input_axes=0, output_axes=2)
    variables = [lstm.cell.kernel, lstm.cell.recurrent_kernel, middle]
    optimizer.build(variables)
    assert [spec.batch for spec in optimizer.layers] == [4, 4, 4]
    rng = np.random.default_rng(0)
    for t in range(5):
        G = [rng.normal(size=v.shape).astype("float32") for v in variables]
        if t >= 2:
            G[0][:, 16:24] = 0.0
            G[2][:, 1] = 0.0
        before = to_arrays([keras.ops.cast(v, "float32") for v in variables])
        optimizer.apply(
            [keras.ops.convert_to_tensor(g, dtype) for g in G], variables
        )
        after = to_arrays([keras.ops.cast(v, "float32") for v in variables])
        moved = [one != two for one, two in zip(before, after, strict=True)]
        if t >= 2:
            assert not moved[0][:, 16:24].any()
            assert not moved[2][:, 1].any()
        assert moved[0][:, :16].any() and moved[2][:, 2].any()

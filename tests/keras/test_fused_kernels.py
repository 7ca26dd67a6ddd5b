"""Kernels that hold several projections, cut into their parts.

Each part is updated as a variable of its own.
"""

import json

import keras
import numpy as np
import pytest

from helpers.baselines import BASELINES
from helpers.saves import resumed
from helpers.tiers import keep
from helpers.tiers import logic
from helpers.variables import Steps
from helpers.variables import make_variable
from helpers.variables import to_arrays
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton import explain

WIDTH = 12
MAKERS = {
    "lanton": lambda: Lanton(5e-3, noise=NoiseAdaptiveRate(interval=2)),
    "paper": lambda: Lanton.paper(5e-3),
    "without_noise": lambda: Lanton(5e-3, noise=None),
    **BASELINES,
}
# Sizes of the parts, the axis, and the argument.
CUTS = {
    "unequal_outputs": ((12, 6, 6), 1, {"output_parts": (12, 6, 6)}),
    "equal_outputs": ((8, 8, 8), 1, {"output_parts": 3}),
    "unequal_inputs": ((16, 8), 0, {"input_parts": (16, 8)}),
    "equal_inputs": ((6, 6), 0, {"input_parts": 2}),
}


def numbers(shape, seed):
    return 0.1 * np.random.default_rng(seed).normal(size=shape)


def run(optimizer, variables, gradients):
    optimizer.build(variables)
    step = Steps(optimizer, variables)
    for one in gradients:
        step([g.astype("float32") for g in one])
    return to_arrays(variables)


@pytest.mark.parametrize("cut", keep(CUTS, ["unequal_outputs"]))
@pytest.mark.parametrize("name", keep(MAKERS, ["lanton"]))
def test_as_variables_of_their_own(name, cut):
    sizes, axis, parts = CUTS[cut]
    shape = (WIDTH, sum(sizes)) if axis == 1 else (sum(sizes), WIDTH)

    def pieces(array):
        return np.split(array, np.cumsum(sizes)[:-1], axis=axis)

    start, bias = numbers(shape, 0), np.ones(5)
    gradients = [(numbers(shape, 10 + t), numbers(5, 90 + t)) for t in range(7)]
    one, two = MAKERS[name](), MAKERS[name]()
    one.assign_role("hidden", "qkv", **parts)
    fused = [make_variable("qkv", start), make_variable("b", bias)]
    found = run(one, fused, gradients)
    apart = [make_variable(f"qkv_{i}", x) for i, x in enumerate(pieces(start))]
    wanted = run(
        two,
        [*apart, make_variable("b", bias)],
        [[*pieces(G), g] for G, g in gradients],
    )
    assert np.abs(found[0] - start).max() > 1e-4
    np.testing.assert_allclose(
        found[0], np.concatenate(wanted[:-1], axis=axis), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(found[1], wanted[-1], rtol=1e-6)
    assert one.layers[0].batch == len(sizes)
    if getattr(one, "noise", None) is None:
        return
    found, wanted = (list(x.noise_report().values()) for x in (one, two))
    for key in ("noise", "ratio", "learning_rate"):
        parts = [row[key] for row in wanted[: len(sizes)]]
        np.testing.assert_allclose(
            found[0][key], np.concatenate(parts), rtol=1e-5
        )


def make_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, name="qkv"),
            keras.layers.Dense(3),
        ]
    )
    optimizer = Lanton(5e-3)
    optimizer.assign_role("hidden", "qkv/kernel", output_parts=(8, 4, 4))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    return model


def train(model, epochs):
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    model.fit(
        x, x[:, :3], batch_size=8, epochs=epochs, shuffle=False, verbose=0
    )


@logic
def test_a_resumed_run_is_the_same(tmp_path):
    model = make_model()
    train(model, 2)
    loaded = resumed(model, tmp_path, lambda one: train(one, 1))
    assert loaded.optimizer.layers == model.optimizer.layers


@logic
@pytest.mark.parametrize(
    "options",
    [
        {"momentum_dtype": "int8"},
        {"momentum_dtype": "bfloat16"},
        {"rounding": "stochastic"},
        {"use_ema": True},
        {
            "gradient_accumulation_steps": 2,
            "noise": NoiseAdaptiveRate(reference="independent_gradient"),
        },
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_other_options(options):
    """Each entry moves, and of an idle part none."""
    dtype = "bfloat16" if "rounding" in options else "float32"
    fused = make_variable("qkv", np.zeros((64, 256)), dtype)
    optimizer = Lanton(5e-3, **options)
    optimizer.assign_role("hidden", fused, output_parts=(128, 64, 64))
    optimizer.build([fused])
    for seed in range(4):
        G = numbers((64, 256), seed)
        G[:, 128:192] = 0.0
        optimizer.apply([keras.ops.convert_to_tensor(G, dtype)], [fused])
    (moved,) = to_arrays([keras.ops.cast(fused, "float32")])
    assert np.all(moved[:, 128:192] == 0.0)
    assert np.mean(moved == 0.0) < 0.3
    names = [v.name for v in optimizer.variables]
    assert sum("momentum_scale" in name for name in names) == (
        3 if options.get("momentum_dtype") == "int8" else 0
    )


@logic
def test_experts_with_gate_and_up_in_one():
    stack = make_variable("experts", numbers((3, 8, 20), 0))
    optimizer = Lanton(5e-3)
    optimizer.assign_role(
        "hidden", stack, input_axes=1, output_axes=2, output_parts=(12, 8)
    )
    optimizer.build([stack])
    (spec,) = optimizer.layers
    shapes = [(p.batch, p.d_in, p.d_out) for p in spec.pieces]
    assert shapes == [(3, 8, 12), (3, 8, 8)]
    optimizer.apply([keras.ops.ones((3, 8, 20))], [stack])
    assert np.isfinite(to_arrays([stack])[0]).all()


@logic
def test_what_is_told():
    model = make_model()
    lines = []
    explain(model, Lanton(), print_fn=lines.append)
    text = "\n".join(lines)
    assert "qkv/kernel (8, 16) seems to hold queries, keys and values" in text
    assert 'assign_role("hidden", r"sequential' in text
    lines.clear()
    explain(model, print_fn=lines.append)
    assert "seems to hold" not in "\n".join(lines)
    train(model, 1)
    lines.clear()
    model.optimizer.summary(print_fn=lines.append)
    assert "(8 x 8), (8 x 4), (8 x 4)" in "\n".join(lines)


@logic
def test_an_expression_survives_before_the_first_step():
    model = make_model()
    config = json.loads(json.dumps(model.optimizer.get_config()))
    loaded = Lanton.from_config(config)
    loaded.build(model.trainable_variables)
    assert loaded.layers[0].cut_sizes == (8, 4, 4)


@logic
@pytest.mark.parametrize(
    ("role", "variable", "parts", "said"),
    [
        ("hidden", "nothing", {}, "matches no variable"),
        ("hidden", "(", {}, "regular expression"),
        ("other", "qkv", {}, "must be one of"),
        (
            "hidden",
            None,
            {"output_parts": (1, 2)},
            "sum to 6.*Received: output_parts=",
        ),
        ("hidden", None, {"output_parts": 4}, "at least 2"),
        ("hidden", None, {"output_parts": 1}, "at least 2"),
        ("hidden", None, {"output_parts": "3"}, "sizes"),
        ("hidden", None, {"output_parts": (6, 0)}, "sizes that sum"),
        ("hidden", None, {"output_parts": 2, "input_parts": 2}, "One of"),
        ("vector", None, {"output_parts": 2}, "'hidden'"),
    ],
)
def test_wrong_arguments(role, variable, parts, said):
    kernel, optimizer = make_variable("qkv", np.zeros((4, 6))), Lanton()
    with pytest.raises(ValueError, match=said):
        optimizer.assign_role(role, variable or kernel, **parts)
        optimizer.build([kernel])


@logic
def test_an_expression_and_a_variable_that_it_matches():
    kernel, optimizer = make_variable("qkv", np.zeros((4, 6))), Lanton()
    with pytest.raises(ValueError, match="each variable once"):
        optimizer.assign_role("hidden", "k")
        optimizer.assign_role("hidden", kernel)
        optimizer.build([kernel])

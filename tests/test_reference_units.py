"""What must hold for `Lanton` without any reference implementation.

Reductions, identities and step sizes, read off the weights before and after
plain `apply` calls.
"""

import math

import keras
import numpy as np
import pytest

from keras_lanton import Lanton

LEARNING_RATE = 0.01
CUBIC = [(1.875, -1.25, 0.375)]  # fixed point 1: an exact polar factor
EXACT = {"ns_coefficients": CUBIC, "ns_steps": 30}
HALVES = ("bfloat16", "float16")

# role, shape, input axes, output axes, (batch, d_in, d_out)
TENSORS = {
    "square": ("hidden", (6, 6), (0,), (1,), (1, 6, 6)),
    "tall": ("hidden", (16, 5), (0,), (1,), (1, 16, 5)),
    "wide": ("hidden", (5, 16), (0,), (1,), (1, 5, 16)),
    "heads": ("hidden", (8, 2, 3), (0,), (1, 2), (1, 8, 6)),
    "output": ("hidden", (2, 3, 8), (0, 1), (2,), (1, 6, 8)),
    "gemma": ("hidden", (2, 8, 3), (1,), (0, 2), (1, 8, 6)),
    "conv": ("hidden", (2, 2, 3, 5), (0, 1, 2), (3,), (1, 12, 5)),
    "experts": ("hidden", (3, 4, 7), (1,), (2,), (3, 4, 7)),
    "table": ("embedding", (11, 4), (1,), (0,), (1, 4, 11)),
    "head": ("embedding", (4, 11), (0,), (1,), (1, 4, 11)),
    "gain": ("vector", (9,), None, None, (1, 1, 9)),
    "bias": ("vector", (3, 4), None, None, (1, 1, 12)),
}
HIDDEN = [name for name, one in TENSORS.items() if one[0] == "hidden"]


class Trial:
    """Variables of given kinds under one optimizer."""

    def __init__(self, kinds, dtype="float32", start=0.0, **options):
        self.variables = []
        options = {
            "learning_rate": LEARNING_RATE,
            "weight_decay": 0.0,
            "noise_interval": 1,
            **options,
        }
        self.optimizer = Lanton.paper(**options)
        for number, (role, shape, inputs, outputs) in enumerate(kinds):
            with keras.name_scope(f"layer_{number}"):
                variable = keras.Variable(
                    np.full(shape, start, "float32"),
                    dtype=dtype,
                    name="weight",
                )
            self.variables.append(variable)
            self.optimizer.assign_role(
                role, [variable], input_axes=inputs, output_axes=outputs
            )
        self.optimizer.build(self.variables)
        self.dtype = dtype

    def weights(self):
        return [
            np.array(
                keras.ops.convert_to_numpy(
                    keras.ops.cast(variable.value, "float32")
                ),
                "float64",
            )
            for variable in self.variables
        ]

    def step(self, gradients):
        """Applies the gradients; returns how far each variable moved."""
        before = self.weights()
        self.optimizer.apply(
            [keras.ops.convert_to_tensor(g, self.dtype) for g in gradients],
            self.variables,
        )
        return [
            new - old for new, old in zip(self.weights(), before, strict=True)
        ]

    def report(self):
        return list(self.optimizer.noise_report().values())

    def ratios(self):
        return np.concatenate([one["ratio"] for one in self.report()])


def kinds(*names):
    return [TENSORS[name][:4] for name in names]


def hidden(*shape):
    return ("hidden", shape, (0,), (1,))


def normals(*shapes, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return [
        (scale * rng.standard_normal(shape)).astype("float32")
        for shape in shapes
    ]


def shapes_of(some):
    return [one[1] for one in some]


def rms(x):
    return math.sqrt(np.mean(np.square(x)))


# -- Sizes -----------------------------------------------------------------


def check_size(name, move, rates, tolerance):
    """The printed step, at the given rate for each matrix."""
    role, shape, inputs, outputs, (batch, d_in, _) = TENSORS[name]
    if role == "hidden":
        if batch > 1:  # the batch axis is the first of "experts"
            found = [rms(one) for one in move]
        else:
            found = [rms(move)]
        wanted = 0.2 * rates
    elif role == "embedding":
        size = np.abs(move)
        found = [size.min(), size.max()]
        wanted = rates[0] * 300.0 / d_in
    else:
        found = [rms(move)]
        wanted = rates
    # Observed 2e-7 in float32 and 2e-3 in half precision.
    np.testing.assert_allclose(found, wanted, rtol=tolerance)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_sizes(scale):
    """At ratio 1 and after noise was measured, in float32."""
    names = list(TENSORS)
    trial = Trial(kinds(*names), **EXACT)
    for seed in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=seed, scale=scale)
        moves = trial.step(gradients)
        report = trial.report()
        for name, move, one in zip(names, moves, report, strict=True):
            assert np.isfinite(one["noise"]).all()
            assert (one["ratio"] > 0.0).all()
            np.testing.assert_allclose(
                one["learning_rate"], LEARNING_RATE * one["ratio"], rtol=1e-6
            )
            if seed == 0:
                np.testing.assert_array_equal(one["ratio"], 1.0)
            check_size(name, move, one["learning_rate"], 1e-4)
    assert int(trial.optimizer.skipped_steps) == 0


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("dtype", HALVES)
def test_sizes_in_half_precision(dtype, scale):
    names = list(TENSORS)
    trial = Trial(kinds(*names), dtype=dtype, **EXACT)
    for seed in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=seed, scale=scale)
        moves = trial.step(gradients)
        for name, move, one in zip(names, moves, trial.report(), strict=True):
            assert np.isfinite(move).all()
            assert (one["ratio"] > 0.0).all()
            if seed == 0:  # from 0, so that the move is not rounded away
                check_size(name, move, one["learning_rate"], 0.02)
    assert int(trial.optimizer.skipped_steps) == 0


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_sizes_in_bfloat16_at_the_ends(scale):
    names = list(TENSORS)
    trial = Trial(kinds(*names), dtype="bfloat16", **EXACT)
    gradients = normals(*shapes_of(kinds(*names)), scale=scale)
    moves = trial.step(gradients)
    for name, move in zip(names, moves, strict=True):
        rates = np.full(TENSORS[name][4][0], LEARNING_RATE)
        check_size(name, move, rates, 0.02)


@pytest.mark.parametrize("shape", [(1, 12), (12, 1), (1, 1)])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_rows_and_columns(shape, scale):
    """A row's polar factor is the row at unit length."""
    trial = Trial([hidden(*shape)], ns_coefficients=CUBIC)
    (gradient,) = normals(shape, scale=scale)
    (move,) = trial.step([gradient])
    unit = gradient / np.linalg.norm(gradient.astype("float64"))
    wanted = -LEARNING_RATE * 0.2 * math.sqrt(max(shape)) * unit
    # Observed 5e-7.
    np.testing.assert_allclose(move, wanted, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_rank_one_size(scale):
    trial = Trial([hidden(10, 14)], ns_coefficients=CUBIC)
    left, right = normals((10, 1), (1, 14))
    (move,) = trial.step([scale * (left @ right)])
    unit = left @ right / np.linalg.norm(left) / np.linalg.norm(right)
    wanted = -LEARNING_RATE * 0.2 * math.sqrt(14) * unit
    # Observed 7e-9.
    np.testing.assert_allclose(move, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "coefficients", ["jordan", "you", "polar_express", CUBIC]
)
@pytest.mark.parametrize("steps", [1, 4, 5, 9])
def test_rank_one_points_downhill(coefficients, steps):
    trial = Trial(
        [hidden(12, 20)], ns_coefficients=coefficients, ns_steps=steps
    )
    left, right = normals((12, 1), (1, 20))
    gradient = left @ right
    (move,) = trial.step([gradient])
    cosine = np.sum(gradient * move) / (
        np.linalg.norm(gradient) * np.linalg.norm(move)
    )
    assert cosine < -0.99  # observed -1 + 2e-5


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_zero_gradients(dtype):
    """Nothing moves, nothing decays, nothing becomes NaN."""
    names = list(TENSORS)
    trial = Trial(kinds(*names), dtype=dtype, start=0.5, weight_decay=0.1)
    zeros = [np.zeros(one, "float32") for one in shapes_of(kinds(*names))]
    for _ in range(3):
        for move in trial.step(zeros):
            np.testing.assert_array_equal(move, 0.0)
    np.testing.assert_array_equal(trial.ratios(), 1.0)
    for move in trial.step([zero + 1.0 for zero in zeros]):
        assert np.isfinite(move).all()
        assert np.any(move != 0.0)


def test_zero_matrix_in_a_stack():
    """An expert that saw no token is decayed with the others, no more."""
    trial = Trial(kinds("experts"), start=0.5, weight_decay=0.1)
    for seed in range(3):
        (gradient,) = normals((3, 4, 7), seed=seed)
        gradient[1] = 0.0
        before = trial.weights()[0]
        (move,) = trial.step([gradient])
        np.testing.assert_allclose(
            move[1], -LEARNING_RATE * 0.1 * before[1], rtol=1e-3
        )
    (report,) = trial.report()
    assert report["noise"][1] == 0.0
    assert report["ratio"][1] == 1.0
    assert max(report["ratio"][[0, 2]]) == 1.0


# -- Reductions ------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_huge_alpha_is_the_skeleton(reduction):
    """No noise ratio left: momentum and LMO, at the exact polar factor."""
    names = list(TENSORS)
    trial = Trial(
        kinds(*names),
        alpha=1e12,
        alpha_unit="absolute",
        group_reduction=reduction,
        weight_decay=0.1,
        start=0.1,
        **EXACT,
    )
    momentum = [0.0 for _ in names]
    for t in range(4):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        before = trial.weights()
        moves = trial.step(gradients)
        np.testing.assert_allclose(trial.ratios(), 1.0, rtol=1e-6)
        for i, name in enumerate(names):
            beta = 0.95 if t else 0.0
            momentum[i] = beta * momentum[i] + (1.0 - beta) * gradients[i]
            wanted = -LEARNING_RATE * (
                0.1 * before[i] + skeleton(name, momentum[i])
            )
            # Observed 2e-6.
            off = np.linalg.norm(moves[i] - wanted) / np.linalg.norm(wanted)
            assert off < 1e-4, name


def skeleton(name, m):
    role, shape, inputs, outputs, (batch, d_in, d_out) = TENSORS[name]
    if role == "embedding":
        return 300.0 / d_in * np.sign(m)
    if role == "vector":
        return m / rms(m)
    batches = tuple(set(range(len(shape))) - set(inputs) - set(outputs))
    order = batches + inputs + outputs
    stack = np.transpose(m, order).reshape(batch, d_in, d_out)
    u, _, vt = np.linalg.svd(stack.astype("float64"), full_matrices=False)
    polar = (u @ vt).reshape([shape[axis] for axis in order])
    polar = np.transpose(polar, np.argsort(order))
    return 0.2 * math.sqrt(max(d_in, d_out)) * polar


@pytest.mark.parametrize("reference", ["previous_gradient", "momentum"])
@pytest.mark.parametrize("scale", [10.0, 1e-12, 1e12])
def test_scale_invariance(reference, scale):
    """Relative alpha: the unit of the gradient does not matter."""
    names = list(TENSORS)
    trials = [Trial(kinds(*names), noise_reference=reference) for _ in range(2)]
    for t in range(4):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        # Unequal noise, so that the ratios matter.
        gradients = [g * 2.0**-i for i, g in enumerate(gradients)]
        one = trials[0].step(gradients)
        two = trials[1].step([np.float32(scale) * g for g in gradients])
        for a, b in zip(one, two, strict=True):
            # Observed 2e-6.
            assert np.linalg.norm(a - b) < 1e-4 * np.linalg.norm(a)
    assert trials[0].ratios().min() < 0.9
    np.testing.assert_allclose(
        trials[0].ratios(), trials[1].ratios(), rtol=1e-4
    )


def test_absolute_alpha_has_the_gradients_unit():
    names = list(TENSORS)
    trials = [
        Trial(kinds(*names), alpha=alpha, alpha_unit="absolute")
        for alpha in (1.0, 8.0)
    ]
    for t in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        one = trials[0].step(gradients)
        two = trials[1].step([8.0 * g for g in gradients])
        for a, b in zip(one, two, strict=True):
            # Observed 0: 8 is a power of two.
            assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(a)
    assert trials[0].ratios().min() < 0.9


def test_small_alpha_limit():
    """alpha -> 0: the ratio is (H_min / H)^(1/4)."""
    trial = Trial([hidden(4, 6)] * 3, alpha=1e-6, alpha_unit="absolute")
    for t in range(3):
        gradients = normals((4, 6), (4, 6), (4, 6), seed=t)
        trial.step([g * 4.0**i for i, g in enumerate(gradients)])
    noise = np.concatenate([one["noise"] for one in trial.report()])
    np.testing.assert_allclose(
        trial.ratios(), np.sqrt(noise.min() / noise), rtol=1e-5
    )


def test_transposed_storage():
    """(vocab, width) and (width, vocab), (in, out) and (out, in)."""
    trial = Trial(
        [
            *kinds("table", "head"),
            ("hidden", (5, 16), (0,), (1,)),
            ("hidden", (16, 5), (1,), (0,)),
        ],
    )
    for t in range(3):
        table, kernel = normals((11, 4), (5, 16), seed=t)
        moves = trial.step([table, table.T, kernel, kernel.T])
        # Observed 0.
        np.testing.assert_allclose(moves[0], moves[1].T, atol=1e-6)
        np.testing.assert_allclose(moves[2], moves[3].T, atol=1e-6)
    table, head, kernel, mirrored = trial.report()
    np.testing.assert_allclose(table["noise"], head["noise"], rtol=1e-5)
    for key in ("noise", "ratio"):  # d_in and d_out follow the axes
        np.testing.assert_allclose(kernel[key], mirrored[key], rtol=1e-5)


def test_weight_decay_uses_the_base_rate():
    names = ["tall", "wide", "table", "gain"]
    trials = [
        Trial(kinds(*names), start=2.0, weight_decay=decay)
        for decay in (0.0, 0.5)
    ]
    for t in range(3):
        gradients = normals(*shapes_of(kinds(*names)), seed=t)
        before = trials[1].weights()
        plain, decayed = (trial.step(gradients) for trial in trials)
        for x, a, b in zip(before, plain, decayed, strict=True):
            # Observed 2e-7, the rounding of weights of size 2.
            np.testing.assert_allclose(
                b - a, -LEARNING_RATE * 0.5 * x, atol=2e-6
            )
    assert trials[1].ratios().min() < 0.99


# -- Noise -----------------------------------------------------------------


@pytest.mark.parametrize("norm", ["rms", "sign"])
@pytest.mark.parametrize("name", [*HIDDEN, "gain", "bias"])
def test_lmo_attains_the_dual_norm(name, norm):
    """<G, lmo(G)> = -dual(G), with the LMO read off the first step."""
    role, shape, _, _, (batch, d_in, d_out) = TENSORS[name]
    trial = Trial(
        kinds(name),
        step_scale="operator",
        vector_norm=norm,
        noise_estimator="svd",
        noise_reference="momentum",
        noise_schedule="interval",
        **EXACT,
    )
    zero, gradient = normals(shape, shape)
    (move,) = trial.step([gradient])
    attained = -np.sum(gradient * move) / LEARNING_RATE
    # With the opposite gradient next, D_2 = -2 G: the dual norm is 2-fold.
    trial.step([-gradient])
    (report,) = trial.report()
    dual = np.sum(report["noise"]) / math.sqrt(1.0 - 0.9) / 2.0
    # Observed 7e-7.
    np.testing.assert_allclose(attained, dual, rtol=1e-4)


@pytest.mark.parametrize("name", ["table", "head"])
def test_embedding_noise(name):
    """The largest sum over the vocabulary, over the features."""
    _, shape, _, _, _ = TENSORS[name]
    trial = Trial(kinds(name), noise_schedule="interval")
    one, two = normals(shape, shape)
    trial.step([one])
    trial.step([two])
    (report,) = trial.report()
    vocabulary = 0 if name == "table" else 1
    wanted = np.max(np.sum(np.abs(two - one), axis=vocabulary))
    np.testing.assert_allclose(
        report["noise"], math.sqrt(0.1) * wanted, rtol=1e-6
    )


@pytest.mark.parametrize("reduction", ["max", "mean"])
def test_identical_layers_have_ratio_one(reduction):
    trial = Trial(
        [hidden(6, 9)] * 3 + kinds("gain", "gain", "table", "table"),
        group_reduction=reduction,
    )
    for t in range(4):
        kernel, gain, table = normals((6, 9), (9,), (11, 4), seed=t)
        moves = trial.step([kernel] * 3 + [gain] * 2 + [table] * 2)
        np.testing.assert_allclose(trial.ratios(), 1.0, rtol=1e-6)
        for a, b in [(0, 1), (0, 2), (3, 4), (5, 6)]:
            np.testing.assert_allclose(moves[a], moves[b], rtol=1e-6)


def test_reductions():
    """Maximum: the quietest has ratio 1. Mean: the mean ratio is 1."""
    names = list(TENSORS)
    group = [TENSORS[n][0] for n in names for _ in range(TENSORS[n][4][0])]
    for reduction in ("max", "mean"):
        trial = Trial(kinds(*names), group_reduction=reduction)
        for t in range(3):
            gradients = normals(*shapes_of(kinds(*names)), seed=t)
            trial.step([g * 2.0**-i for i, g in enumerate(gradients)])
        ratios = trial.ratios()
        assert (ratios > 0.0).all()
        for role in ("hidden", "embedding", "vector"):
            some = ratios[[one == role for one in group]]
            assert some.min() < 0.95
            if reduction == "max":
                assert some.max() == 1.0
            else:
                np.testing.assert_allclose(np.mean(some), 1.0, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["max", "mean"])
@pytest.mark.parametrize("quiet", ["constant", "zero", "late"])
def test_layer_without_noise_does_not_throttle(quiet, reduction):
    """Its ratio is 1, and its group is as it would be without it."""
    two = [hidden(5, 8), hidden(6, 4)]
    with_quiet = Trial([*two, hidden(5, 8)], group_reduction=reduction)
    without = Trial(two, group_reduction=reduction)
    (constant,) = normals((5, 8), seed=99)
    for t in range(4):
        gradients = normals((5, 8), (6, 4), seed=t)
        gradients[1] *= 0.05
        present = quiet == "constant" or (quiet == "late" and t == 3)
        one = with_quiet.step(
            [*gradients, constant if present else 0.0 * constant]
        )
        two_moves = without.step(gradients)
        for a, b in zip(one[:2], two_moves, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-8)
    ratios = with_quiet.ratios()
    assert ratios[2] == 1.0
    np.testing.assert_allclose(ratios[:2], without.ratios(), rtol=1e-6)
    assert abs(ratios[0] - ratios[1]) > 0.1

"""What the backends do each in their own way, against plain NumPy.

The oracles have the rest on every backend: they compare whole steps.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_lanton.backends import Backend
from keras_lanton.backends import backend


def traced(function):
    """The function as part of a compiled program, where there is one."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("wrap", [traced, lambda function: function])
def test_many_entries_and_pieces(wrap):
    vectors, stack, sizes = numbers(2, 40), numbers(40, 2, 3), [1] * 40
    found = wrap(backend.unpack)(*map(ops.convert_to_tensor, vectors))
    found = [[float(entry) for entry in entries] for entries in found]
    np.testing.assert_array_equal(np.array(found, "float32"), vectors)
    cut = wrap(lambda stack: backend.pieces(stack, sizes))
    found = list(map(ops.convert_to_numpy, cut(ops.convert_to_tensor(stack))))
    assert [len(piece) for piece in found] == sizes
    np.testing.assert_array_equal(np.concatenate(found), stack)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_frobenius_norm(scale):
    X = numbers(2, 3, 5)
    found = backend.frobenius_norm(ops.convert_to_tensor(np.float32(scale) * X))
    wanted = np.linalg.norm(X, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(
        ops.convert_to_numpy(found) / np.float32(scale), wanted, rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_line_rms(scale, dtype):
    """Against float64; the gradient stays as it was."""
    x = scale * np.random.default_rng(0).normal(size=(2, 40, 7))
    x[:, 3], x[..., 2] = 0.0, 0.0
    X = ops.cast(ops.convert_to_tensor(x.astype("float32")), dtype)
    x = ops.convert_to_numpy(ops.cast(X, "float32")).astype("float64")
    for found, axis in zip(backend.line_rms(X), (-1, -2), strict=True):
        wanted = np.sqrt(np.mean(x**2, axis=axis))
        np.testing.assert_allclose(ops.convert_to_numpy(found), wanted, 2e-6)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(ops.cast(X, "float32")), x
    )


def test_shrunk_signs():
    """Of matrices that lie transposed in memory, in blocks."""
    shape = (3, 700, 300)
    X = numbers(*shape)
    rows = np.abs(numbers(3, shape[1], 1)) + 0.1
    columns = np.abs(numbers(3, 1, shape[2])) + 0.1
    m = np.array([0.5, 0.0, 1e-30], "float32")[:, None, None]
    given = ops.convert_to_tensor(np.swapaxes(X, 1, 2).copy())
    given = ops.swapaxes(given, 1, 2)
    found = backend.shrunk_signs(
        given, *map(ops.convert_to_tensor, (m, rows, columns))
    )
    noise = m.astype("float64") * rows * columns
    wanted = X / np.sqrt(X.astype("float64") ** 2 + noise**2)
    np.testing.assert_allclose(ops.convert_to_numpy(found), wanted, atol=1e-5)
    np.testing.assert_array_equal(ops.convert_to_numpy(given), X)


@pytest.mark.parametrize("wrap", [float, ops.convert_to_tensor])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_hypot(scale, wrap):
    """Against float64, of a number and of a tensor."""
    x = np.float32(scale) * numbers(5)
    y = np.float32(3 * scale)
    found = backend.hypot(ops.convert_to_tensor(x), wrap(y))
    wanted = np.hypot(x.astype("float64"), float(y))
    np.testing.assert_allclose(ops.convert_to_numpy(found), wanted, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("entries", [8, 2**20 + 8])
def test_update_of_half_precision(entries, dtype):
    """Of small and large weights in bfloat16, by steps of both dtypes.

    Sums in float32 are rounded once. PyTorch rounds sums of two bfloat16
    tensors twice on a CPU, and once on a GPU: see tests/gpu.
    """
    random = np.random.default_rng(0)
    X, steps = (
        [
            ops.cast(ops.convert_to_tensor(x), to)
            for x in random.normal(size=(2, entries))
        ]
        for to in ("bfloat16", dtype)
    )
    factors = [0.75, 0.5]
    wanted = [
        ops.cast(
            factor * ops.cast(x, "float32") + ops.cast(step, "float32"),
            "bfloat16",
        )
        for x, step, factor in zip(X, steps, factors, strict=True)
    ]
    found = backend.update_(X, steps, factors)
    # Two roundings: of the product, at most 4, and of the sum.
    rtol, atol = (0.0, 0.0) if dtype == "float32" else (2.0**-7, 2.0**-6)
    for pair in zip(found, wanted, strict=True):
        one, other = (
            ops.convert_to_numpy(ops.cast(x, "float32")) for x in pair
        )
        np.testing.assert_allclose(one, other, rtol, atol)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("wrap", [float, ops.convert_to_tensor])
def test_adam_directions(wrap, before):
    """Of numbers and of tensors; the moments stay as they are."""
    m, roots = np.abs(numbers(2, 3, 4))
    given = [list(map(ops.convert_to_tensor, part)) for part in (m, roots)]
    found = backend.adam_directions(
        *given,
        (wrap(np.float32(0.19)), wrap(np.float32(0.3))),
        epsilon=0.01,
        epsilon_before_debiasing=before,
    )
    below = roots + 0.01 if before else roots / 0.3 + 0.01
    wanted = m / below * (0.3 / 0.19) if before else m / 0.19 / below
    kept = [ops.convert_to_numpy(x) for x in given[1]]
    np.testing.assert_array_equal(kept, roots)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(x), y, rtol=1e-5)
    assert backend.adam_directions([], [], (1.0, 1.0), epsilon=1e-8) == []


@pytest.mark.parametrize("count", [1, 2])
def test_the_backend_adds_products_as_the_reference(count):
    shapes = [(3, 5, 7), *[(3, 5, 4), (3, 4, 7)] * count]
    C, *factors = (ops.convert_to_tensor(numbers(*shape)) for shape in shapes)
    pairs = list(zip(factors[::2], factors[1::2], strict=True))
    found, wanted = (
        ops.convert_to_numpy(add(C, pairs, beta=-2.5, alpha=1.5))
        for add in (
            backend.add_products,
            functools.partial(Backend.add_products, backend),
        )
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-35, 1e-10, 1.0, 1e18, 1e30, 3.4e38])
def test_mean_roots(scale):
    """Against float64, for tensors of any finite size, small and large."""
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (7,), (300, 300), (2, 3)]
    roots, X = (
        [(scale * rng.uniform(0.1, 1.0, s)).astype("float32") for s in shapes]
        for _ in range(2)
    )
    X[1] *= -1
    X[3][0], roots[3][:, 0] = 0.0, 0.0
    entries = np.array([[0.05], [0.5]], "float32")
    weights = [np.float32(0.05), np.float32(0.0), np.float32(1.0), entries]
    wanted = [
        np.sqrt(
            (1 - np.float64(w)) * r.astype("float64") ** 2
            + np.float64(w) * x.astype("float64") ** 2
        )
        for r, x, w in zip(roots, X, weights, strict=True)
    ]
    is_torch = keras.backend.backend() == "torch"
    found = backend.mean_roots_(
        *([ops.convert_to_tensor(x) for x in part] for part in (roots, X)),
        [
            float(w) if is_torch and w.ndim == 0 else ops.convert_to_tensor(w)
            for w in weights
        ],
    )
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(x), y, rtol=1e-6)
    np.testing.assert_array_equal(ops.convert_to_numpy(found[1]), wanted[1])
    assert backend.mean_roots_([], [], []) == []


def test_mean_roots_do_not_look_where_the_weight_is_0():
    root = ops.ones((2, 2))
    nan = ops.full((2, 2), np.nan)
    zero = 0.0 if keras.backend.backend() == "torch" else ops.zeros(())
    (found,) = backend.mean_roots_([root], [nan], [zero])
    np.testing.assert_array_equal(ops.convert_to_numpy(found), 1.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_largest_entries(compiled):
    """Compiled too: TensorFlow's XLA has a maximum that loses NaN."""
    tensors = [numbers(3), numbers(2, 3), numbers(3), 0 * numbers(300, 300)]
    tensors += [numbers(300, 300), np.full(3, 3e38, "float32")]
    tensors += [numbers(3), numbers(300, 300)]
    tensors[-2][1], tensors[-1][9, 9] = np.nan, np.inf
    stack = np.stack([numbers(3, 4), np.full((3, 4), np.nan, "float32")])
    functions = backend.largest_entries, backend.largest_of_each
    if compiled and keras.backend.backend() == "jax":
        import jax

        functions = tuple(map(jax.jit, functions))
    elif compiled and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        functions = tuple(
            tf.function(f, jit_compile=True, autograph=False) for f in functions
        )
    given = list(map(ops.convert_to_tensor, tensors))
    found = ops.convert_to_numpy(functions[0](given))
    wanted = [np.max(np.abs(x)) for x in tensors]
    np.testing.assert_array_equal(found[:-2], wanted[:-2])
    assert not np.isfinite(found[-2:]).any()
    found = ops.convert_to_numpy(functions[1](ops.convert_to_tensor(stack)))
    assert found[0] == np.max(np.abs(stack[0])) and not np.isfinite(found[1])


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="The others leave the step out."
)
def test_a_weight_of_zero_does_not_look_at_the_end():
    start = ops.ones((2, 2))
    (found,) = backend.lerp([start], [np.nan * start], [0.0])
    np.testing.assert_array_equal(ops.convert_to_numpy(found), 1.0)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Of compiled programs."
)
def test_equal_kernels_are_compiled_once():
    """That XLA does not see which entry or piece each kernel reads."""
    import re

    import jax

    count = 40

    def step(vector, stack):
        (entries,) = backend.unpack(vector)
        pieces = backend.pieces(stack, [1] * count)
        return [a * b for a, b in zip(entries, pieces, strict=True)]

    compiled = jax.jit(step).lower(np.ones(count), np.ones((count, 64, 64)))
    text = compiled.compile().as_text()
    # No slice at a place of its own.
    places = set(re.findall(r"slice=\{\[(\d+):", text))
    assert places <= {"0"}, places


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Of compiled programs."
)
def test_no_momentum_is_copied_to_be_measured():
    """That line 5 writes over B_{t-1}, which XLA knows has been read."""
    import re

    import jax

    from keras_lanton import Lanton

    shapes = [(72, 40)] * 12 + [(300, 24)]
    names = [f"dense_{i}/kernel" for i in range(12)] + ["embedding/embeddings"]
    weights = [
        keras.Variable(np.ones(shape, "float32"), name=name.replace("/", "_"))
        for shape, name in zip(shapes, names, strict=True)
    ]
    optimizer = Lanton()
    optimizer.build(weights)
    step = jax.jit(
        lambda values, state, gradients: optimizer.stateless_apply(
            state, gradients, values
        ),
        donate_argnums=(0, 1),
    )
    values = [w.value for w in weights]
    state = [v.value for v in optimizer.variables]
    text = step.lower(values, state, values).compile().as_text()
    copied = re.findall(r"f32\[(?:72,40|300,24)\]\S* copy\(%state", text)
    assert not copied, copied


def test_a_value_after_any_measure_is_the_value():
    value = ops.convert_to_tensor([True, False])
    for earlier in ([0.0, 1.0], [-0.5, 2.0], [np.nan, 1.0], [np.inf, 0.0]):
        earlier = ops.convert_to_tensor(np.array(earlier, "float32"))
        found = ops.convert_to_numpy(backend.after(earlier, value))
        np.testing.assert_array_equal(found, [True, False])


@pytest.mark.parametrize("size", [1.0, 1e-35, 1e-18, 1e25, 3e38])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_unit_norm(size, batch):
    X = numbers(*batch, 5, 7)
    X = (X / np.abs(X).max()).astype("float64")
    norms = np.linalg.norm(X, axis=(-2, -1), keepdims=True)
    given = ops.convert_to_tensor((size * X).astype("float32"))
    found = [ops.convert_to_numpy(x) for x in backend.unit_norm(given)]
    np.testing.assert_allclose(found[0], X / norms, rtol=1e-5, atol=1e-7)
    wanted = np.minimum(size * norms, np.finfo("float32").max)
    np.testing.assert_allclose(found[1], wanted, rtol=1e-5)
    kept = ops.convert_to_numpy(given)
    np.testing.assert_array_equal(kept, (size * X).astype("float32"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_unit_norm_of_half_precision_zeros_and_nan(dtype):
    X = numbers(3, 5, 7)
    X[1], X[2, 0, 0] = 0, np.nan
    found = backend.unit_norm(ops.cast(ops.convert_to_tensor(X), dtype))
    unit, norms = (ops.convert_to_numpy(x) for x in found)
    assert unit.dtype == norms.dtype == np.float32
    assert np.linalg.norm(unit[0]) == pytest.approx(1, rel=1e-5)
    assert norms[0, 0, 0] == pytest.approx(np.linalg.norm(X[0]), rel=1e-2)
    assert not unit[1].any() and not norms[1].any()
    assert np.isnan(norms[2]).all()


def test_casts():
    X = [ops.convert_to_tensor(numbers(3, 2)) for _ in range(3)]
    dtypes = ["bfloat16", "float32", "float16"]
    found = backend.cast_each(X, dtypes)
    assert [keras.backend.standardize_dtype(x.dtype) for x in found] == dtypes
    assert found[1] is X[1]
    for x, dtype in zip(found, dtypes, strict=True):
        wanted = ops.cast(X[0], dtype)
        assert bool(ops.all(x == wanted))
    stored = backend.store_([ops.zeros((3, 2), d) for d in dtypes], X)
    for x, y in zip(stored, found, strict=True):
        assert x.dtype == y.dtype
        assert bool(ops.all(x == y))


def test_as_tensors():
    array = numbers(2)
    tensor, variable = ops.convert_to_tensor(array), keras.Variable(array)
    found = backend.as_tensors([array, tensor, variable])
    assert found[1] is tensor
    for x in found:
        assert ops.is_tensor(x)
        np.testing.assert_array_equal(ops.convert_to_numpy(x), array)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("where", ("mask", "x", 1.0)),
        ("where", ("mask", 1.0, "x")),
        ("where", ("mask", "x", "y")),
        ("where", (True, "x", "y")),
        ("where", (False, "x", 1.0)),
        ("where", ("scalar", "x", 1.0)),
        ("where", ("mask", "scalar number", "x")),
        ("maximum", ("x", 0.5)),
        ("maximum", ("x", "y")),
        ("minimum", ("x", 0.5)),
        ("minimum", ("x", "y")),
        ("clip", ("x", -0.5, 0.5)),
        ("power", (0.9, "counts")),
        ("take", ("x", "counts")),
    ],
)
def test_with_numbers(name, arguments):
    """As Keras' own, NaN among the entries."""
    x, y = numbers(2, 5)
    x[1] = np.nan
    given = {
        "x": x,
        "y": y,
        "mask": np.array([True, False, True, False, False]),
        "scalar": np.array([True]),
        "scalar number": np.float32([2.0]),
        "counts": np.array([0, 4, 2, 2], "int32"),
    }
    tensors = [
        ops.convert_to_tensor(given[a]) if isinstance(a, str) else a
        for a in arguments
    ]
    found = getattr(backend, name)(*tensors)
    wanted = getattr(ops, name)(*tensors)
    np.testing.assert_allclose(
        ops.convert_to_numpy(found), ops.convert_to_numpy(wanted), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_update(dtype):
    """Small updates are added before they are rounded."""
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 as it comes")
    weights, updates = numbers(2, 3, 4)
    factors = [0.9, 1.0, 0.5]
    found = backend.update_(
        [ops.convert_to_tensor(x, dtype) for x in weights],
        [ops.convert_to_tensor(x) for x in updates],
        factors,
    )
    for x, new, u, factor in zip(weights, found, updates, factors, strict=True):
        assert keras.backend.standardize_dtype(new.dtype) == dtype
        rounded = ops.cast(ops.convert_to_tensor(x, dtype), "float32")
        wanted = factor * ops.convert_to_numpy(rounded) + u
        np.testing.assert_allclose(
            ops.convert_to_numpy(ops.cast(new, "float32")),
            wanted,
            rtol=1e-6 if dtype == "float32" else 2**-8,
            atol=1e-6,
        )


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's")
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_update_of_large_tensors(dtype, monkeypatch):
    """They take another way, which rounds once too."""
    from keras_lanton.backends import torch_arithmetic

    monkeypatch.setattr(torch_arithmetic, "LARGE", 0)
    weights, updates = numbers(2, 3, 400)
    rows = np.float32([[0.9]])
    factors = [0.9, ops.convert_to_tensor(rows), ops.convert_to_tensor(0.9)]
    X = [ops.convert_to_tensor(x[None], dtype) for x in weights]
    wanted = [
        ops.cast(0.9 * ops.cast(x, "float64") + u, dtype)
        for x, u in zip(X, updates.astype("float64"), strict=True)
    ]
    steps = [ops.convert_to_tensor(u[None]) for u in updates]
    found = backend.update_(X, steps, factors)
    # One entry in a hundred may lie between two roundings.
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype == two.dtype
        off = ops.convert_to_numpy(ops.abs(ops.cast(one - two, "float32")))
        assert np.mean(off > 1e-6) < 0.01


# -- Functions of a count -----------------------------------------------------


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """Counts how often it is called, or traced."""

    calls = 0

    def __call__(self, step):
        self.calls += 1
        return 0.5 * keras.ops.cast(step, "float32")

    def get_config(self):
        return {}


def test_value_of_a_schedule():
    schedule = Halved()
    assert [float(backend.value_of(schedule, i)) for i in (0, 3, 8)] == [
        0.0,
        1.5,
        4.0,
    ]
    # On JAX it is compiled, once.
    assert schedule.calls == (1 if keras.backend.backend() == "jax" else 3)


def test_value_of_what_looks_at_the_number():
    assert backend.value_of(lambda i: 1.0 if i < 5 else 0.1, 3) == 1.0

"""What is worked on together, and what is measured when."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from keras import ops

from keras_lanton.roles import Layer
from keras_lanton.roles import make_layer
from keras_lanton.rounds import Round
from keras_lanton.rounds import find_places
from keras_lanton.rounds import make_rounds
from keras_lanton.stacks import equal_stacks
from keras_lanton.stacks import largest_size
from keras_lanton.stacks import positions

KINDS = {
    "dense": ((4, 6), "hidden", 0, 1),
    "tall": ((6, 4), "hidden", 0, 1),
    "query": ((4, 2, 3), "hidden", 0, (1, 2)),
    "output": ((2, 3, 4), "hidden", (0, 1), 2),
    "experts": ((5, 4, 6), "hidden", 1, 2),
    "square": ((4, 4), "hidden", 0, 1),
    "table": ((7, 4), "embedding", None, None),
    "bias": ((6,), "vector", None, None),
}


def layer(kind: str, number: int = 0) -> Layer:
    return make_layer(f"{kind}_{number}", *KINDS[kind])


kinds = st.lists(st.sampled_from(tuple(KINDS)), min_size=1, max_size=8)


def tensors(layers: list[Layer]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(x.shape).astype("float32") for x in layers]


def test_one_stack_for_one_view_whatever_it_comes_from() -> None:
    kinds = [kind for kind in KINDS if kind not in ("table", "bias")]
    layers = [layer(kind, i) for i, kind in enumerate(kinds)]
    sizes = {(s.rows, s.columns): len(s) for s in equal_stacks(layers)}
    # Kernels 4 x 6 and 6 x 4, attention 4 x 6 and 6 x 4, five experts 4 x 6.
    assert sizes == {(4, 6): 9, (4, 4): 1}


@settings(max_examples=10)  # On JAX each shape is compiled.
@given(kinds=kinds)
def test_scatter_inverts_gather(kinds: list[str]) -> None:
    layers = [layer(kind, i) for i, kind in enumerate(kinds)]
    weights = tensors(layers)
    seen = []
    for stack in equal_stacks(layers):
        whole = stack.gather([ops.convert_to_tensor(x) for x in weights])
        assert tuple(whole.shape) == (len(stack), stack.rows, stack.columns)
        parts = zip(stack.indices, stack.scatter(whole), strict=True)
        for index, tensor in parts:
            found = ops.convert_to_numpy(tensor)
            np.testing.assert_array_equal(found, weights[index])
            seen.append(index)
    assert sorted(seen) == list(range(len(layers)))


@given(kinds=kinds, size=st.integers(1, 12), whole_layers=st.booleans())
def test_a_cut_loses_nothing(
    kinds: list[str], size: int, whole_layers: bool
) -> None:
    layers = [layer(kind, i) for i, kind in enumerate(kinds)]
    for stack in equal_stacks(layers):
        pieces = stack.cut(size, whole_layers=whole_layers)
        joined = np.concatenate([positions(p, layers) for p in pieces])
        np.testing.assert_array_equal(joined, positions(stack, layers))
        for piece in pieces:
            longest = max(part.layer.batch for part in piece.parts)
            assert 1 <= len(piece) <= max(size, longest * whole_layers)


@given(
    kinds=kinds,
    interval=st.integers(1, 12),
    staggered=st.booleans(),
    room=st.sampled_from((1, 3000, 2**29)),
)
def test_every_matrix_once_in_an_interval(
    kinds: list[str], interval: int, staggered: bool, room: int
) -> None:
    layers = [layer(kind, i) for i, kind in enumerate(kinds)]
    rounds = make_rounds(
        equal_stacks(layers),
        interval=interval,
        staggered=staggered,
        max_bytes=room,
    )
    measured = np.concatenate([positions(r.stack, layers) for r in rounds])
    count = sum(x.batch for x in layers)
    assert sorted(measured) == list(range(count))
    for r in rounds:
        assert len(r.shares) <= (interval if staggered else 1)
        assert r.pauses == (len(r.shares) < interval)
        assert 0 <= r.offset < interval
        # Within the cap, but for a single matrix, which cannot be cut.
        assert r.size <= largest_size(r.shares[0], room)


@given(kinds=kinds, interval=st.integers(1, 12))
def test_places_are_where_the_shares_have_them(
    kinds: list[str], interval: int
) -> None:
    layers = [layer(kind, i) for i, kind in enumerate(kinds)]
    rounds = make_rounds(
        equal_stacks(layers), interval=interval, staggered=True, max_bytes=2**29
    )
    places = find_places(rounds, layers)
    starts = np.cumsum([0, *(r.size for r in rounds)])
    for k, r in enumerate(rounds):
        for i, share in enumerate(r.shares):
            for slot, matrix in enumerate(positions(share, layers), starts[k]):
                assert places.rounds[matrix] == k
                assert places.shares[matrix] == i
                assert places.slots[matrix] == slot


def loads(rounds: list[Round], interval: int) -> np.ndarray:
    """Matrices measured on each step of an interval."""
    load = np.zeros(interval)
    for r in rounds:
        for i, share in enumerate(r.shares):
            load[(i + r.offset) % interval] += len(share)
    return load


@pytest.mark.parametrize("count", [10, 12, 24, 48])
def test_steps_measure_evenly(count: int) -> None:
    layers = [layer("square", i) for i in range(count)]
    rounds = make_rounds(
        equal_stacks(layers), interval=10, staggered=True, max_bytes=2**29
    )
    load = loads(rounds, 10)
    assert load.sum() == count
    assert load.max() == math.ceil(count / 10)


def test_shares_of_different_stacks_fall_on_different_steps() -> None:
    kinds = ("square", "dense")
    layers = [layer(kind, i) for kind in kinds for i in range(3)]
    rounds = make_rounds(
        equal_stacks(layers), interval=10, staggered=True, max_bytes=2**29
    )
    assert loads(rounds, 10).max() == 1


def test_a_share_is_filled_up_with_zeros() -> None:
    layers = [layer("square", i) for i in range(3)]
    (r,) = make_rounds(
        equal_stacks(layers), interval=2, staggered=True, max_bytes=2**29
    )
    assert (r.size, [len(s) for s in r.shares]) == (2, [2, 1])
    weights = [ops.convert_to_tensor(x) for x in tensors(layers)]
    np.testing.assert_array_equal(
        ops.convert_to_numpy(r.gather_all(weights))[1],
        ops.convert_to_numpy(r.gather(1, weights)),
    )
    last = ops.convert_to_numpy(r.gather(1, weights))
    np.testing.assert_array_equal(last[0], ops.convert_to_numpy(weights[2]))
    np.testing.assert_array_equal(last[1], 0.0)

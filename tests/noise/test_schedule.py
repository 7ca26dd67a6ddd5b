"""What is measured when."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from helpers.specs import kinds
from helpers.specs import layer
from helpers.specs import tensors
from keras_lanton.noise.schedule import Round
from keras_lanton.noise.schedule import find_places
from keras_lanton.noise.schedule import make_rounds
from keras_lanton.variables.stacks import equal_stacks
from keras_lanton.variables.stacks import largest_size
from keras_lanton.variables.stacks import positions


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

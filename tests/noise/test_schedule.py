"""What is measured when."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from helpers.specs import kinds
from helpers.specs import spec_of
from helpers.specs import tensors
from helpers.tiers import logic
from keras_lanton.noise.schedule import MeasurementGroup
from keras_lanton.noise.schedule import find_placement
from keras_lanton.noise.schedule import lines_of
from keras_lanton.noise.schedule import make_groups
from keras_lanton.norms.norms import RMS
from keras_lanton.norms.norms import Sign
from keras_lanton.norms.norms import Spectral
from keras_lanton.orthogonalization.batching import largest_size
from keras_lanton.variables.stacks import equal_stacks
from keras_lanton.variables.stacks import positions

NORMS = {"hidden": Spectral(rows=()), "embedding": Sign(), "vector": RMS()}


@logic
@given(
    kinds=kinds,
    interval=st.integers(1, 12),
    staggered=st.booleans(),
    room=st.sampled_from((1, 3000, 2**29)),
)
def test_every_matrix_once_in_an_interval(
    kinds: list[str], interval: int, staggered: bool, room: int
) -> None:
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    groups = make_groups(
        equal_stacks(specs),
        NORMS,
        interval=interval,
        staggered=staggered,
        max_bytes=room,
    )
    measured = np.concatenate(
        [positions(group.stack, specs) for group in groups]
    )
    count = sum(x.batch for x in specs)
    assert sorted(measured) == list(range(count))
    for group in groups:
        assert len(group.chunks) <= (interval if staggered else 1)
        assert group.pauses == (len(group.chunks) < interval)
        assert 0 <= group.offset < interval
        # Within the cap, but for a single matrix, which cannot be cut.
        each = group.norm.temporary_bytes(*group.shape[1:])
        assert group.size <= largest_size(room, each)


@logic
@given(kinds=kinds, interval=st.integers(1, 12))
def test_placement_is_where_the_chunks_have_them(
    kinds: list[str], interval: int
) -> None:
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    groups = make_groups(
        equal_stacks(specs),
        NORMS,
        interval=interval,
        staggered=True,
        max_bytes=2**29,
    )
    placement = find_placement(groups, specs)
    starts = np.cumsum([0, *(group.size for group in groups)])
    for k, group in enumerate(groups):
        for i, chunk in enumerate(group.chunks):
            for column, matrix in enumerate(positions(chunk, specs), starts[k]):
                assert placement.groups[matrix] == k
                assert placement.chunks[matrix] == i
                assert placement.columns[matrix] == column


@logic
@given(
    kinds=kinds,
    interval=st.integers(1, 12),
    room=st.sampled_from((1, 3000, 2**29)),
)
def test_lines_are_where_the_outputs_have_them(
    kinds: list[str], interval: int, room: int
) -> None:
    """Every line once in the state, from its own matrix' measurement."""
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    stacks = equal_stacks(specs)
    groups = make_groups(
        stacks,
        NORMS,
        interval=interval,
        staggered=True,
        max_bytes=room,
        line_roles=("hidden", "embedding"),
    )
    placement = find_placement(groups, specs)
    # Outputs that say what they are: matrix, "row" or "column", number.
    outputs: dict[int, list[tuple[int, str, int]]] = {}
    start = 0
    for group in groups:
        for chunk in group.chunks:
            matrices = positions(chunk, specs)
            names = [(int(m), "dual", 0) for m in matrices]
            names += [(-1, "", 0)] * (group.size - len(names))
            if group.has_lines:
                for kind, length in (
                    ("row", chunk.rows),
                    ("column", chunk.columns),
                ):
                    names += [
                        (names[i][0], kind, k)
                        for i in range(group.size)
                        for k in range(length)
                    ]
            assert len(names) == group.outputs
            for place, name in enumerate(names, start):
                outputs.setdefault(place, []).append(name)
        start += group.outputs
    for stack in stacks:
        matrices = positions(stack, specs)
        lines = lines_of(stack, matrices, placement)
        if stack.role == "vector":
            assert lines is None
            continue
        for kind, numbers in (("row", lines.rows), ("column", lines.columns)):
            for matrix, row in zip(matrices, numbers, strict=True):
                for k, line in enumerate(row):
                    assert placement.line_matrices[line] == matrix
                    place = placement.line_columns[line]
                    assert (matrix, kind, k) in outputs[int(place)]
    count = sum(
        (s.rows + s.columns) * len(s) for s in stacks if s.role != "vector"
    )
    assert len(placement.line_matrices) == count


def loads(groups: list[MeasurementGroup], interval: int) -> np.ndarray:
    """Matrices measured on each step of an interval."""
    load = np.zeros(interval)
    for group in groups:
        for i, chunk in enumerate(group.chunks):
            load[(i + group.offset) % interval] += len(chunk)
    return load


@logic
@pytest.mark.parametrize("count", [10, 12, 24, 48])
def test_steps_measure_evenly(count: int) -> None:
    specs = [spec_of("square", i) for i in range(count)]
    groups = make_groups(
        equal_stacks(specs), NORMS, interval=10, staggered=True, max_bytes=2**29
    )
    load = loads(groups, 10)
    assert load.sum() == count
    assert load.max() == math.ceil(count / 10)


@logic
def test_chunks_of_different_stacks_fall_on_different_steps() -> None:
    kinds = ("square", "dense")
    specs = [spec_of(kind, i) for kind in kinds for i in range(3)]
    groups = make_groups(
        equal_stacks(specs), NORMS, interval=10, staggered=True, max_bytes=2**29
    )
    assert loads(groups, 10).max() == 1


def test_a_chunk_is_padded_with_zeros() -> None:
    specs = [spec_of("square", i) for i in range(3)]
    (group,) = make_groups(
        equal_stacks(specs), NORMS, interval=2, staggered=True, max_bytes=2**29
    )
    assert (group.size, [len(c) for c in group.chunks]) == (2, [2, 1])
    weights = [ops.convert_to_tensor(x) for x in tensors(specs)]
    np.testing.assert_array_equal(
        ops.convert_to_numpy(group.gather_all(weights))[1],
        ops.convert_to_numpy(group.gather(1, weights)),
    )
    last = ops.convert_to_numpy(group.gather(1, weights))
    np.testing.assert_array_equal(last[0], ops.convert_to_numpy(weights[2]))
    np.testing.assert_array_equal(last[1], 0.0)

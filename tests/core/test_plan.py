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
from keras_lanton import Lanton
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.core.layout import VariableLayout
from keras_lanton.core.matrices import equal_stacks
from keras_lanton.core.matrices import positions
from keras_lanton.core.norms import RMS
from keras_lanton.core.norms import Rule
from keras_lanton.core.norms import Sign
from keras_lanton.core.norms import Spectral
from keras_lanton.core.plan import Sizes
from keras_lanton.core.plan import make_groups
from keras_lanton.core.plan import make_plan
from keras_lanton.fast.batching import make_sizes
from keras_lanton.roles.spec import assigned_spec

NORMS = {"hidden": Spectral(rows=()), "embedding": Sign(), "vector": RMS()}
RULES = {role: Rule(norm) for role, norm in NORMS.items()}


def layout_of(specs):
    count = len(specs)
    return VariableLayout(
        all_specs=tuple(specs),
        updated=tuple(range(count)),
        decayed=(True,) * count,
        rate_multipliers=(1.0,) * count,
    )


@logic
@given(
    kinds=kinds,
    interval=st.integers(1, 12),
    staggered=st.booleans(),
    room=st.sampled_from((1, 3000, 2**29)),
)
def test_every_matrix_once_in_an_interval(kinds, interval, staggered, room):
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    groups = make_groups(
        equal_stacks(specs),
        NORMS,
        NoiseAdaptiveRate(
            interval=interval, schedule="staggered" if staggered else "interval"
        ),
        Sizes(max_bytes=room),
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
        assert group.size <= max(1, room // each)


@logic
@given(
    kinds=kinds,
    interval=st.integers(1, 12),
    room=st.sampled_from((1, 3000, 2**29)),
)
def test_places_of_samples_rows_and_columns(kinds, interval, room):
    """Measured and read at the same place, of each matrix once."""
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    plan = make_plan(
        layout_of(specs),
        RULES,
        noise=NoiseAdaptiveRate(interval=interval),
        sizes=make_sizes(room, None),
    )
    starts = np.cumsum([0, *(group.size for group in plan.groups)])
    for k, group in enumerate(plan.groups):
        for i, chunk in enumerate(group.chunks):
            matrices = positions(chunk, specs)
            assert (plan.group_of[matrices] == k).all()
            assert (plan.chunk_of[matrices] == i).all()
            places = starts[k] + np.arange(len(matrices))
            np.testing.assert_array_equal(plan.sample_of[matrices], places)
    for group in plan.groups:
        assert (group.whitened is None) == (group.stack.role == "vector")
    for one in plan.stacks:
        if one.stack.role == "vector":
            assert one.noise is None
            continue
        held = plan.whitened[one.noise.index]
        np.testing.assert_array_equal(
            held[one.noise.start : one.noise.stop], positions(one.stack, specs)
        )
        shape = plan.whitened_shapes()[one.noise.index]
        assert shape == (len(held), one.stack.rows, one.stack.columns)
    wanted = sum(spec.batch for spec in specs if spec.role != "vector")
    found = np.concatenate([*plan.whitened, []])
    assert len(set(found)) == len(found) == wanted


def loads(groups, interval):
    """Matrices measured on each step of an interval."""
    load = np.zeros(interval)
    for group in groups:
        for i, chunk in enumerate(group.chunks):
            load[(i + group.offset) % interval] += len(chunk)
    return load


@logic
@pytest.mark.parametrize("count", [10, 12, 24, 48])
def test_steps_measure_evenly(count):
    specs = [spec_of("square", i) for i in range(count)]
    groups = make_groups(
        equal_stacks(specs), NORMS, NoiseAdaptiveRate(interval=10)
    )
    load = loads(groups, 10)
    assert load.sum() == count
    assert load.max() == math.ceil(count / 10)


@logic
def test_chunks_of_different_stacks_fall_on_different_steps():
    kinds = ("square", "dense")
    specs = [spec_of(kind, i) for kind in kinds for i in range(3)]
    groups = make_groups(
        equal_stacks(specs), NORMS, NoiseAdaptiveRate(interval=10)
    )
    assert loads(groups, 10).max() == 1


def test_a_chunk_is_padded_with_zeros():
    specs = [spec_of("square", i) for i in range(3)]
    (group,) = make_groups(
        equal_stacks(specs), NORMS, NoiseAdaptiveRate(interval=2)
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


# The shapes of a Llama with grouped queries.
WIDTH, INNER, VOCABULARY = 2048, 5632, 32000
LLAMA = {
    **dict.fromkeys(("query", "output"), (WIDTH, WIDTH)),
    **dict.fromkeys(("key", "value"), (WIDTH, WIDTH // 8)),
    **dict.fromkeys(("gate", "up"), (WIDTH, INNER)),
    "down": (INNER, WIDTH),
}


@logic
def test_what_is_worked_on_at_once():
    """Three copies of a matrix and five squares of its short side."""
    each = NORMS["hidden"].temporary_bytes(64, 64)
    assert each == 4 * 8 * 64**2
    specs = [assigned_spec(f"{i}/k", (64, 64), "hidden") for i in range(6)]
    for sizes, updated, whole in (
        (Sizes(), [6], False),
        (Sizes(max_bytes=2 * each), [2, 2, 2], False),
        (Sizes(max_bytes=1), [1] * 6, False),  # a matrix cannot be cut
        (Sizes(cached_bytes=3 * each), [3, 3], False),
        (Sizes(cached_bytes=each, cached_from=65), [6], False),
        (Sizes(gathered_bytes=4 * 6 * 64**2), [6], True),
    ):
        plan = make_plan(
            layout_of(specs), RULES, noise=NoiseAdaptiveRate(), sizes=sizes
        )
        assert [len(one.stack) for one in plan.stacks] == updated
        assert {group.gathers_whole for group in plan.groups} == {whole}


@logic
@pytest.mark.parametrize("staggered", [True, False])
def test_a_billion_parameters_stay_within_the_cap(staggered):
    specs = [assigned_spec("tokens", (VOCABULARY, WIDTH), "embedding")]
    specs.append(assigned_spec("head", (WIDTH, VOCABULARY), "embedding", 0))
    for i in range(22):
        specs.append(assigned_spec(f"{i}/norm", (WIDTH,), "vector"))
        for name, shape in LLAMA.items():
            specs.append(assigned_spec(f"{i}/{name}", shape, "hidden"))
    assert sum(math.prod(spec.shape) for spec in specs) > 1.09e9
    schedule = "staggered" if staggered else "interval"
    optimizer = Lanton(noise=NoiseAdaptiveRate(schedule=schedule))
    sizes = make_sizes(None, None)
    plan = make_plan(
        layout_of(specs),
        Lanton.paper().rules_by_role(),
        noise=optimizer.noise,
        sizes=sizes,
    )
    work = [(len(one.stack), one) for one in plan.stacks]
    for count, one in [*work, *((group.size, group) for group in plan.groups)]:
        each = one.norm.temporary_bytes(one.stack.rows, one.stack.columns)
        assert count * each <= sizes.max_bytes
    assert sum(len(one.stack) for one in plan.stacks) == len(specs)

"""What is measured when."""

import math
from collections.abc import Sequence

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
from keras_lanton.core.plan import MeasurementGroup
from keras_lanton.core.plan import Sizes
from keras_lanton.core.plan import make_groups
from keras_lanton.core.plan import make_plan
from keras_lanton.fast.batching import default_temporary_bytes
from keras_lanton.fast.batching import stack_size
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import assigned_spec

NORMS = {"hidden": Spectral(rows=()), "embedding": Sign(), "vector": RMS()}
RULES = {role: Rule(norm) for role, norm in NORMS.items()}


def layout_of(specs: Sequence[VariableSpec]) -> VariableLayout:
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
def test_every_matrix_once_in_an_interval(
    kinds: list[str], interval: int, staggered: bool, room: int
) -> None:
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    groups = make_groups(
        equal_stacks(specs),
        NORMS,
        NoiseAdaptiveRate(
            interval=interval,
            schedule="staggered" if staggered else "interval",
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
def test_samples_are_where_the_chunks_have_them(
    kinds: list[str], interval: int, room: int
) -> None:
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    plan = make_plan(
        layout_of(specs),
        RULES,
        noise=NoiseAdaptiveRate(interval=interval),
        sizes=Sizes(max_bytes=room),
    )
    starts = np.cumsum([0, *(group.size for group in plan.groups)])
    for k, group in enumerate(plan.groups):
        for i, chunk in enumerate(group.chunks):
            matrices = positions(chunk, specs)
            assert (plan.group_of[matrices] == k).all()
            assert (plan.chunk_of[matrices] == i).all()
            places = starts[k] + np.arange(len(matrices))
            np.testing.assert_array_equal(plan.sample_of[matrices], places)


@logic
@given(
    kinds=kinds,
    interval=st.integers(1, 12),
    room=st.sampled_from((1, 3000, 2**29)),
)
def test_rows_and_columns_are_where_both_plans_have_them(
    kinds: list[str], interval: int, room: int
) -> None:
    """Measured and read at the same place, of each matrix once."""
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    plan = make_plan(
        layout_of(specs),
        RULES,
        noise=NoiseAdaptiveRate(interval=interval),
        sizes=Sizes(max_bytes=room, update=stack_size),
    )
    for one in (*plan.stacks, *plan.groups):
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
        equal_stacks(specs), NORMS, NoiseAdaptiveRate(interval=10)
    )
    load = loads(groups, 10)
    assert load.sum() == count
    assert load.max() == math.ceil(count / 10)


@logic
def test_chunks_of_different_stacks_fall_on_different_steps() -> None:
    kinds = ("square", "dense")
    specs = [spec_of(kind, i) for kind in kinds for i in range(3)]
    groups = make_groups(
        equal_stacks(specs), NORMS, NoiseAdaptiveRate(interval=10)
    )
    assert loads(groups, 10).max() == 1


def test_a_chunk_is_padded_with_zeros() -> None:
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


def llama(
    layers: int, width: int, inner: int, vocabulary: int
) -> list[VariableSpec]:
    """The kernels of a Llama with grouped queries, as KerasHub lays them."""
    made = [assigned_spec("embedding", (vocabulary, width), "embedding")]
    for i in range(layers):
        made += [
            assigned_spec(f"{i}/query", (width, 32, width // 32), "hidden", 0),
            assigned_spec(f"{i}/key", (width, 4, width // 32), "hidden", 0),
            assigned_spec(f"{i}/value", (width, 4, width // 32), "hidden", 0),
            assigned_spec(
                f"{i}/output", (32, width // 32, width), "hidden", (0, 1)
            ),
            assigned_spec(f"{i}/gate", (width, inner), "hidden"),
            assigned_spec(f"{i}/up", (width, inner), "hidden"),
            assigned_spec(f"{i}/down", (inner, width), "hidden"),
            assigned_spec(f"{i}/norm", (width,), "vector"),
        ]
    return [*made, assigned_spec("head", (width, vocabulary), "embedding", 0)]


@logic
@pytest.mark.parametrize("staggered", [True, False])
def test_a_billion_parameters_stay_within_the_cap(staggered: bool) -> None:
    specs = tuple(llama(22, 2048, 5632, 32000))
    count = len(specs)
    assert sum(math.prod(spec.shape) for spec in specs) > 1.09e9
    schedule = "staggered" if staggered else "interval"
    optimizer = Lanton(noise=NoiseAdaptiveRate(schedule=schedule))
    cap = default_temporary_bytes()
    plan = make_plan(
        layout_of(specs),
        Lanton.paper().rules_by_role(),
        noise=optimizer.noise,
        sizes=Sizes(max_bytes=cap, update=stack_size),
    )
    assert plan.temporary_bytes() <= cap
    assert sum(len(work.stack) for work in plan.stacks) == count

"""What is worked on together."""

import numpy as np
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from keras import ops

from helpers.specs import KINDS
from helpers.specs import kinds
from helpers.specs import spec_of
from helpers.specs import tensors
from helpers.tiers import logic
from keras_lanton.core.matrices import AS_GIVEN
from keras_lanton.core.matrices import AS_STORED
from keras_lanton.core.matrices import SHORT_FIRST
from keras_lanton.core.matrices import equal_stacks
from keras_lanton.core.matrices import positions
from keras_lanton.types import ROLES

LAID = (SHORT_FIRST, AS_STORED, AS_GIVEN)


@logic
def test_matrices_lie_as_their_norm_allows():
    specs = [spec_of(kind) for kind in ("tall", "table")]
    sizes = {
        orientation: [
            (stack.rows, stack.columns, stack.transposed)
            for stack in equal_stacks(specs, dict.fromkeys(ROLES, orientation))
        ]
        for orientation in LAID
    }
    # (d_in, d_out) are (6, 4), and (4, 7) of a table stored as (7, 4).
    assert sizes == {
        SHORT_FIRST: [(4, 6, False), (4, 7, False)],
        AS_STORED: [(6, 4, False), (7, 4, True)],
        AS_GIVEN: [(6, 4, False), (4, 7, False)],
    }


@logic
def test_one_stack_for_one_view_whatever_it_comes_from():
    kinds = [kind for kind in KINDS if kind not in ("table", "bias")]
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    sizes = {(s.rows, s.columns): len(s) for s in equal_stacks(specs)}
    # Kernels 4 x 6 and 6 x 4, attention 4 x 6 and 6 x 4, five experts 4 x 6.
    assert sizes == {(4, 6): 9, (4, 4): 1}


@settings(max_examples=10)  # On JAX each shape is compiled.
@given(kinds=kinds, orientation=st.sampled_from(LAID))
def test_scatter_inverts_gather(kinds, orientation):
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    weights = tensors(specs)
    seen = []
    for stack in equal_stacks(specs, dict.fromkeys(ROLES, orientation)):
        whole = stack.gather([ops.convert_to_tensor(x) for x in weights])
        assert tuple(whole.shape) == (len(stack), stack.rows, stack.columns)
        parts = zip(stack.indices, stack.scatter(whole), strict=True)
        for index, tensor in parts:
            found = ops.convert_to_numpy(tensor)
            np.testing.assert_array_equal(found, weights[index])
            seen.append(index)
    assert sorted(seen) == list(range(len(specs)))


@logic
@given(kinds=kinds, size=st.integers(1, 12), whole_variables=st.booleans())
def test_a_cut_loses_nothing(kinds, size, whole_variables):
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    for stack in equal_stacks(specs):
        pieces = stack.cut(size, whole_variables=whole_variables)
        joined = np.concatenate([positions(p, specs) for p in pieces])
        np.testing.assert_array_equal(joined, positions(stack, specs))
        for piece in pieces:
            longest = max(part.spec.batch for part in piece.parts)
            assert 1 <= len(piece) <= max(size, longest * whole_variables)


@logic
@given(kinds=kinds, count=st.integers(1, 8))
def test_every_variable_is_one_process_own(kinds, count):
    specs = [spec_of(kind, i) for i, kind in enumerate(kinds)]
    for stack in equal_stacks(specs):
        dealt = [stack.dealt_out(count, process) for process in range(count)]
        owners = dealt[0].owners
        assert list(owners) == sorted(owners)
        numbers = np.arange(len(stack))
        seen = []
        for process, one in enumerate(dealt):
            here = one.of_mine(numbers)
            np.testing.assert_array_equal(
                positions(one.mine, specs), positions(stack, specs)[here]
            )
            if process in owners:
                seen += here.tolist()
            else:  # works on zeros in the place of the first one
                assert one.mine.parts == stack.parts[:1]
        assert seen == numbers.tolist()

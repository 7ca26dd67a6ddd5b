import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from keras import ops

from helpers.tiers import logic
from keras_lanton.core.matrices import from_matrices
from keras_lanton.core.matrices import to_matrices
from keras_lanton.roles.matrix_view import MatrixView


@st.composite
def views(draw):
    """Any axes of any shape up to rank 5, with blocks where they fit."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=0, max_size=5)))
    axes = draw(st.permutations(range(len(shape))))
    cuts = sorted(
        draw(st.lists(st.integers(0, len(shape)), min_size=2, max_size=2))
    )
    outputs = tuple(axes[cuts[1] :])
    blocks = 1
    if outputs and shape[outputs[-1]] > 1:
        size = shape[outputs[-1]]
        blocks = draw(
            st.sampled_from([b for b in range(1, size + 1) if size % b == 0])
        )
    return MatrixView(
        shape=shape,
        batch_axes=tuple(axes[: cuts[0]]),
        input_axes=tuple(axes[cuts[0] : cuts[1]]),
        output_axes=outputs,
        output_blocks=blocks,
    )


@logic
@hypothesis.given(views())
def test_to_matrices_against_index_loops(view):
    """And `from_matrices` is the inverse."""
    tensor = np.arange(np.prod(view.shape), dtype="float32").reshape(view.shape)
    made = to_matrices(ops.convert_to_tensor(tensor), view)
    back = ops.convert_to_numpy(from_matrices(made, view))
    np.testing.assert_array_equal(back, tensor)
    matrices = ops.convert_to_numpy(made)
    assert matrices.shape == (view.batch, view.d_in, view.d_out)
    sizes = {
        axes: [view.shape[a] for a in axes]
        for axes in (view.batch_axes, view.input_axes, view.output_axes)
    }
    for index in np.ndindex(view.shape):
        batch, row, column = (
            int(np.ravel_multi_index([index[a] for a in axes], sizes[axes]))
            if axes
            else 0
            for axes in (view.batch_axes, view.input_axes, view.output_axes)
        )
        if view.output_blocks > 1:
            last = view.shape[view.output_axes[-1]]
            outer, inner = divmod(column, last)
            block, inner = divmod(inner, last // view.output_blocks)
            batch = batch * view.output_blocks + block
            rows = view.d_in
            # With outer output axes the rows hold them beside the inputs.
            flat = row * (view.d_out // (last // view.output_blocks)) + outer
            column = flat * (last // view.output_blocks) + inner
            row, column = divmod(column, view.d_out)
            assert row < rows
        assert matrices[batch, row, column] == tensor[index]


def test_gates_are_contiguous_blocks_of_the_last_axis():
    kernel = np.arange(3 * 8, dtype="float32").reshape(3, 8)
    view = MatrixView(
        shape=(3, 8), input_axes=(0,), output_axes=(1,), output_blocks=4
    )
    gates = to_matrices(ops.convert_to_tensor(kernel), view)
    wanted = np.stack(np.split(kernel, 4, axis=1))
    np.testing.assert_array_equal(ops.convert_to_numpy(gates), wanted)


@logic
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"input_axes": (0,), "output_axes": (0, 1)}, "batch_axes="),
        ({"input_axes": (0,)}, "batch_axes="),
        ({"input_axes": (0,), "output_axes": (2,)}, "batch_axes="),
        (
            {"input_axes": (0,), "output_axes": (1,), "output_blocks": 2},
            "output_blocks=2",
        ),
    ],
)
def test_axes_name_every_axis_once_and_blocks_divide(options, named):
    with pytest.raises(ValueError, match=f"Received: {named}"):
        MatrixView(shape=(2, 3), **options)

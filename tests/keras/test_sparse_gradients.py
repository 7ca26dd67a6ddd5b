"""Gradients of rows, as TensorFlow has them."""

import keras
import numpy as np
import pytest

from helpers.models import to_arrays
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import CLIPS
from helpers.runs import OPTIONS
from helpers.runs import assert_close
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import only_tensorflow
from helpers.runs import run
from helpers.tiers import exhaustive
from helpers.tiers import keep
from keras_lanton import Lanton


# -- Sparse gradients ------------------------------------------------------
@only_tensorflow
@pytest.mark.parametrize(
    "options",
    [
        {},
        *keep(CLIPS, CLIPS[-1:], exhaustive),
        pytest.param({"loss_scale_factor": 8.0}, marks=exhaustive),
        pytest.param({"gradient_accumulation_steps": 2}, marks=exhaustive),
        {
            "gradient_accumulation_steps": 2,
            "noise_reference": "independent_gradient",
        },
    ],
    ids=str,
)
def test_sparse_gradients(options):
    import tensorflow as tf

    sparse, dense = make_gradients(4), make_gradients(4)
    rng = np.random.default_rng(4)
    for one, two in zip(sparse, dense, strict=True):
        # Row 2 comes twice, and in different sizes.
        rows = np.array([2, 5, 2], "int32")
        values = rng.standard_normal((3, 4)).astype("float32")
        one[0] = tf.IndexedSlices(values, rows, (7, 4))
        two[0] = np.zeros((7, 4), "float32")
        np.add.at(two[0], rows, values)

    def steps(gradients):
        optimizer = paper(**{**OPTIONS, "noise_interval": 1, **options})
        variables = make_variables()
        for one in gradients:
            optimizer.apply(
                [g if hasattr(g, "indices") else tf.constant(g) for g in one],
                variables,
            )
        return to_arrays(variables)

    # Observed 0.
    assert_close(steps(sparse), steps(dense), 1e-6)


@only_tensorflow
def test_sparse_gradients_under_loss_scaling():
    import tensorflow as tf

    gradients = [[8.0 * g for g in one] for one in make_gradients(3)]
    found = make_variables()
    optimizer = keras.optimizers.LossScaleOptimizer(
        paper(**OPTIONS), initial_scale=8.0
    )
    for one in gradients:
        rows = tf.range(7)
        slices = tf.IndexedSlices(tf.constant(one[0]), rows, (7, 4))
        dense = [tf.constant(g) for g in one[1:]]
        try:
            optimizer.apply([slices, *dense], found)
        except (TypeError, ValueError) as error:
            pytest.skip(f"LossScaleOptimizer takes no IndexedSlices: {error}")
    _, wanted = run(make_gradients(3))
    # Observed 0.
    assert_close(to_arrays(found), to_arrays(wanted), 1e-6)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's sparse tensors")
def test_sparse_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    found = []
    for sparse in (True, False):
        table = keras.Variable(np.ones((4, 3), "float32"), name="embeddings")
        gradient = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))
        gradient = gradient if sparse else gradient.to_dense()
        Lanton(0.1).apply([gradient], [table])
        found.append(keras.ops.convert_to_numpy(table))
    np.testing.assert_array_equal(*found)

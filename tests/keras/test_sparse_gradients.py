"""Gradients of rows."""

import keras
import numpy as np
import pytest

from helpers import runs
from helpers.optimizers import paper
from helpers.tiers import exhaustive
from helpers.tiers import keep
from keras_lanton import Lanton

only_tensorflow = pytest.mark.skipif(
    runs.BACKEND != "tensorflow", reason="`IndexedSlices` are of TensorFlow"
)


@only_tensorflow
@pytest.mark.parametrize(
    "options",
    [
        {},
        *keep(runs.CLIPS, runs.CLIPS[-1:], exhaustive),
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

    sparse, dense = runs.make_gradients(4), runs.make_gradients(4)
    rng = np.random.default_rng(4)
    for one, two in zip(sparse, dense, strict=True):
        # Row 2 comes twice, and in different sizes.
        rows = np.array([2, 5, 2], "int32")
        values = rng.standard_normal((3, 4)).astype("float32")
        one[0] = tf.IndexedSlices(values, rows, (7, 4))
        two[0] = np.zeros((7, 4), "float32")
        np.add.at(two[0], rows, values)

    def steps(gradients):
        optimizer = paper(**{**runs.OPTIONS, "noise_interval": 1, **options})
        variables = runs.make_variables()
        for one in gradients:
            optimizer.apply(
                [g if hasattr(g, "indices") else tf.constant(g) for g in one],
                variables,
            )
        return variables

    # Observed 0.
    runs.assert_close(steps(sparse), steps(dense), 1e-6)


@only_tensorflow
def test_sparse_gradients_under_loss_scaling():
    import tensorflow as tf

    gradients = [[8.0 * g for g in one] for one in runs.make_gradients(3)]
    found = runs.make_variables()
    optimizer = keras.optimizers.LossScaleOptimizer(
        paper(**runs.OPTIONS), initial_scale=8.0
    )
    for one in gradients:
        slices = tf.IndexedSlices(tf.constant(one[0]), tf.range(7), (7, 4))
        dense = [tf.constant(g) for g in one[1:]]
        try:
            optimizer.apply([slices, *dense], found)
        except (TypeError, ValueError) as error:
            pytest.skip(f"LossScaleOptimizer takes no IndexedSlices: {error}")
    _, wanted = runs.run(runs.make_gradients(3))
    # Observed 0.
    runs.assert_close(found, wanted, 1e-6)


@pytest.mark.skipif(runs.BACKEND != "torch", reason="PyTorch's sparse tensors")
def test_sparse_tensors_of_pytorch():
    torch = pytest.importorskip("torch")
    found = []
    for sparse in (True, False):
        table = keras.Variable(np.ones((4, 3), "float32"), name="embeddings")
        gradient = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))
        gradient = gradient if sparse else gradient.to_dense()
        Lanton(0.1).apply([gradient], [table])
        found.append(table)
    runs.assert_equal(found[:1], found[1:])

"""Weights of JAX's and TensorFlow's models, by the names that these have."""

import keras
import numpy as np
import pytest
from keras import layers

from helpers import roles
from helpers.roles import described
from helpers.roles import hand
from keras_lanton import Lanton
from keras_lanton import explain
from keras_lanton.roles.from_layers import read_model

if keras.backend.backend() == "torch":
    pytest.skip("Keras has these wrappers elsewhere.", allow_module_level=True)

# Names and shapes of Flax, and what they are.
PARAMETERS = {
    "tokens/embedding": ((9, 8), roles.TABLE),
    "attention/query/kernel": ((8, 2, 4), roles.TO_HEADS),
    "attention/query/bias": ((2, 4), roles.VECTOR),
    "attention/key/kernel": ((8, 2, 4), roles.TO_HEADS),
    "attention/out/kernel": ((2, 4, 8), roles.FROM_HEADS),
    "attention/out/bias": ((8,), roles.VECTOR),
    "LayerNorm_0/scale": ((8,), roles.VECTOR),
    "Conv_0/kernel": ((3, 8, 5), roles.CONV_1D),
    "Conv_0/bias": ((5,), roles.VECTOR),
    "ConvTranspose_0/kernel": ((3, 5, 6), roles.CONV_1D),
    "ConvTranspose_0/bias": ((6,), roles.VECTOR),
    "Dense_0/kernel": ((8, 5), roles.DENSE),
    "lm_head/kernel": ((8, 9), roles.HEAD),
}
# Haiku and others; the first two have the outputs of a transposed kernel last
# and second last, and nothing tells of the third.
OTHERS = {
    "linear/w": ((8, 5), roles.DENSE),
    "conv2_d_transpose/w": ((3, 3, 4, 8), "hidden - | 013 | 2"),
    "conv2_d_transpose/b": ((4,), roles.VECTOR),
    "0": ((8, 5), roles.DENSE),
    "ConvTranspose_0/kernel": ((3, 5, 5), roles.CONV_1D),
    "ConvTranspose_0/bias": ((5,), roles.VECTOR),
    "bank/kernel": ((3, 8, 5), roles.EXPERTS),
    "bank/bias": ((3, 5), roles.VECTOR),
}
GUESSES = ["0", "ConvTranspose_0/kernel", "bank/kernel"]


def tree_of(parameters):
    tree = {}
    for path, (shape, _) in parameters.items():
        *parents, name = path.split("/")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = np.zeros(shape, "float32")
    return tree


def call(params, inputs):
    return inputs


def jax_layer(params):
    try:
        return layers.JaxLayer(call, params=params, name="wrapped")
    except ValueError:
        pytest.skip("This Keras has no JaxLayer on this backend.")


def read_parameters(layer):
    """The record of each variable, by its path in the tree of parameters."""
    specs = {id(variable): spec for variable, spec in read_model(layer)}
    return {
        path: specs[id(variable)]
        for path, variable in leaves(layer.params).items()
    }


def leaves(tree, prefix=""):
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    found = {}
    for name, branch in tree.items():
        found.update(leaves(branch, f"{prefix}{name}/"))
    return found


def views(found):
    return {path: described(spec) for path, spec in found.items()}


def by_hand(parameters):
    return {path: hand(line) for path, (_, line) in parameters.items()}


def test_tree_of_parameters():
    layer = jax_layer(tree_of(PARAMETERS))
    found = read_parameters(layer)
    assert views(found) == by_hand(PARAMETERS)
    assert {spec.path for spec in found.values()} == {
        variable.path for variable in layer.trainable_variables
    }


def test_names_that_say_nothing_are_guesses():
    layer = jax_layer(tree_of(OTHERS))
    with pytest.warns(UserWarning, match="guesses") as caught:
        found = read_parameters(layer)
    assert len(caught) == 1
    assert views(found) == by_hand(OTHERS)
    assert [path for path in OTHERS if found[path].guessed] == GUESSES


def test_leaves_of_sequences():
    layer = jax_layer([{"w": np.zeros((3, 4), "float32")}, (None, 2.0)])
    (matrix, scalar) = (spec for _, spec in read_model(layer))
    assert (matrix.role, scalar.role) == ("hidden", "vector")
    assert not matrix.guessed


def test_without_read_roles_parameters_are_guesses():
    layer = jax_layer(tree_of(PARAMETERS))
    optimizer = Lanton()
    with pytest.warns(UserWarning, match="read_roles") as caught:
        optimizer.build(layer.trainable_variables)
    assert len(caught) == 1
    matrices = [spec for spec in optimizer.layers if len(spec.shape) > 1]
    assert all(spec.guessed for spec in matrices)
    said = []
    explain(layer, optimizer, print_fn=said.append)
    assert said[0].count("nothing explains it") == len(matrices)


def test_flax_module():
    jax = pytest.importorskip("jax")
    linen = pytest.importorskip("flax.linen")

    class Model(linen.Module):
        @linen.compact
        def __call__(self, inputs):
            x = linen.Embed(9, 8, name="tokens")(inputs)
            x = linen.MultiHeadDotProductAttention(2, name="attention")(x)
            x = linen.ConvTranspose(8, (3,), use_bias=False)(x)
            return linen.Dense(9, name="lm_head")(linen.LayerNorm()(x))

    tokens = np.zeros((2, 5), "int32")
    shapes = jax.eval_shape(Model().init, jax.random.key(0), tokens)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    try:
        layer = layers.FlaxLayer(Model(), variables=zeros)
    except ValueError:
        pytest.skip("This Keras has no FlaxLayer on this backend.")
    with pytest.warns(UserWarning, match=r"guesses: \S+ \(3, 8, 8\) as"):
        found = read_parameters(layer)
    wanted = {
        "tokens/embedding": roles.TABLE,
        "attention/query/kernel": roles.TO_HEADS,
        "attention/key/kernel": roles.TO_HEADS,
        "attention/value/kernel": roles.TO_HEADS,
        "attention/out/kernel": roles.FROM_HEADS,
        "ConvTranspose_0/kernel": roles.CONV_1D,
        "lm_head/kernel": roles.HEAD,
    }
    for path, line in wanted.items():
        assert described(found[f"params/{path}"]) == hand(line), path


# -- SavedModels of TensorFlow -----------------------------------------------


SAVED = {
    "tokens_embeddings": roles.TABLE,
    "query_kernel": roles.TO_HEADS,
    "conv_kernel": roles.CONV_1D,
    "conv_bias": roles.VECTOR,
    "dense_kernel": roles.DENSE,
    "dense_bias": roles.VECTOR,
}


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="it alone has TFSMLayer"
)
def test_saved_model(tmp_path):
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(9, 4, name="tokens")(tokens)
    x = layers.EinsumDense("abc,cde->abde", (None, 2, 3), name="query")(x)
    x = layers.Reshape((6, 6))(x)
    x = layers.Conv1D(5, 3, name="conv")(x)
    outputs = layers.Dense(9, name="dense")(x)
    path = str(tmp_path / "saved")
    keras.Model(tokens, outputs).export(path, verbose=False)
    saved = layers.TFSMLayer(path)
    found = {spec.path: described(spec) for _, spec in read_model(saved)}
    assert found == {name: hand(line) for name, line in SAVED.items()}
    # Without `read_roles` one kernel is a guess.
    optimizer = Lanton()
    with pytest.warns(UserWarning, match="conv_kernel") as caught:
        optimizer.build(saved.trainable_variables)
    assert len(caught) == 1
    guesses = [spec.path for spec in optimizer.layers if spec.guessed]
    assert guesses == ["conv_kernel"]

"""Roles and views read from the layers of Keras and KerasHub."""

import keras
import numpy as np
import pytest
from keras import layers

from helpers import roles
from helpers.roles import built
from helpers.roles import described
from helpers.roles import hand
from helpers.roles import read
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton.core.matrices import to_matrices
from keras_lanton.roles.from_layers import read_model
from keras_lanton.roles.from_paths import infer_roles

pytestmark = logic


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def random_matrices(layer):
    """A layer's only variable, given random values, as its matrices."""
    ((variable, record),) = read_model(layer)
    variable.assign(normal(*variable.shape))
    matrices = to_matrices(variable.value, record.view)
    return record, keras.ops.convert_to_numpy(matrices)


def assert_equal_maps(result, layer, x):
    expected = keras.ops.convert_to_numpy(layer(x))
    # Sums of at most 35 products in float32: errors seen up to 2e-6.
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", roles.LAYERS)
def test_layer_of_keras(case):
    lines = roles.lines_of(case, case)
    grouped = roles.under(case, roles.biased(roles.CONV_2D))
    by_paths = grouped if case in roles.GROUPED else None
    roles.check(roles.make(case, case), lines, by_paths)


@pytest.mark.parametrize("case", roles.LORA)
def test_lora(case):
    maker = "einsum_dense_heads" if case == "query" else case
    layer = roles.make(maker, case)
    layer.enable_lora(2)
    base = [v.path for v in layer.trainable_variables if "bias" in v.path]
    lines = [(path, roles.VECTOR) for path in base]
    roles.check(layer, roles.under(case, roles.LORA[case]) + lines)


def test_lora_of_a_kernel_whose_last_letter_is_summed():
    # Kernel (model, heads, head) = a (model, heads, r) times b (r, head).
    layer = layers.EinsumDense("ibnd,hnd->ibh", output_shape=(None, 7))
    layer.build((None, 6, 2, 3))
    layer.enable_lora(4)
    records = [described(r) for r in read(layer)]
    assert records == [hand("hidden - | 12 | 0"), hand("hidden - | 1 | 0")]


# Matrices that do what the layer does.
@pytest.mark.parametrize(
    ("equation", "shape", "output_shape"),
    [
        ("ab,bc->ac", (2, 4), (5,)),
        ("abc,cde->abde", (2, 3, 4), (None, 5, 6)),
        ("abcd,cde->abe", (2, 3, 4, 5), (None, 6)),
        ("btd,ndh->btnh", (2, 3, 4), (None, 5, 6)),
        ("bsd,dkh->bskh", (2, 3, 4), (None, 5, 6)),
        ("ibnd,hnd->ibh", (2, 3, 4, 5), (None, 6)),
        ("abc,cdef->abdef", (2, 3, 4), (None, 5, 6, 7)),
        ("ebd,edf->ebf", (2, 3, 4), (3, 5)),
        ("abc,acde->abde", (2, 3, 4), (3, 5, 6)),
        ("...x,xy->...y", (2, 3, 4), (5,)),
        ("...hd,hde->...e", (2, 3, 4, 5), (6,)),
        ("ab...,bc->ac...", (2, 4, 3), (5, None)),
    ],
)
def test_matrix_of_einsum_dense_is_its_map(equation, shape, output_shape):
    layer = layers.EinsumDense(equation, output_shape=output_shape)
    layer.build(shape)
    record, matrices = random_matrices(layer)
    x = normal(*shape)

    # Letters for the axes that "..." stands for.
    named = equation.split(",")[0].replace("...", "")
    letters = equation.replace("...", "uvw"[: len(shape) - len(named)])
    inputs, kernel, outputs = letters.replace("->", ",").split(",")
    sizes = dict(zip(kernel, record.shape, strict=True))
    sizes.update(zip(inputs, shape, strict=True))

    batch = [kernel[axis] for axis in record.batch_axes]
    summed = [kernel[axis] for axis in record.input_axes]
    made = [kernel[axis] for axis in record.output_axes]
    rows = [c for c in inputs if c in outputs and c not in kernel]
    order = [inputs.index(letter) for letter in batch + rows + summed]
    stack = x.transpose(order).reshape(record.batch, -1, record.d_in)
    result = batch + rows + made
    product = (stack @ matrices).reshape([sizes[letter] for letter in result])
    order = [result.index(letter) for letter in outputs]
    assert_equal_maps(product.transpose(order), layer, x)


def test_blocks_of_a_grouped_convolution_are_its_groups():
    layer = built(layers.Conv1D(6, 1, groups=2, use_bias=False), (None, 5, 4))
    record, matrices = random_matrices(layer)
    assert matrices.shape == (2, 2, 3)
    x = normal(3, 5, 4)
    groups = np.split(x, 2, axis=-1)
    by_group = [x @ m for x, m in zip(groups, matrices, strict=True)]
    assert_equal_maps(np.concatenate(by_group, axis=-1), layer, x)


def test_matrix_of_a_transposed_convolution_is_its_map():
    layer = built(layers.Conv1DTranspose(6, 1, use_bias=False), (None, 5, 4))
    _, (matrix,) = random_matrices(layer)
    x = normal(3, 5, 4)
    assert_equal_maps(x @ matrix, layer, x)


@pytest.mark.parametrize("case", roles.HUB)
def test_model_of_keras_hub(case):
    roles.check(roles.make_hub(case), roles.HUB[case][2])


@pytest.mark.filterwarnings("ignore:.*destroy the mask")
def test_tables_that_share_one_path():
    model = roles.hub().T5Backbone(**roles.ENCODER)
    inferred = infer_roles(model.trainable_variables)
    path = "self_attention/embeddings"
    for records in (read(model), inferred):
        shared = [described(r) for r in records if r.path == path]
        assert shared == [hand(roles.TABLE)] * 2
        assert len(records) == len(model.trainable_variables)


def test_reversed_attention_output_of_xlnet():
    model = roles.hub().XLNetBackbone(**roles.ENCODER)
    with pytest.warns(UserWarning, match="segment_encoding"):
        records = read(model)
    with pytest.warns(UserWarning, match="segment_encoding"):
        inferred = infer_roles(model.trainable_variables)
    assert roles.by_path(records) == roles.by_path(inferred)
    (output,) = [r for r in records if "attention_output" in r.path]
    assert described(output) == hand("hidden - | 12 | 0")


class LanguageModel(keras.Model):
    """Its feedforward layer is as wide as its vocabulary."""

    def __init__(self, head="out", activation="linear", tied=False):
        super().__init__(name="language_model")
        self.head = layers.Dense(32, name=head) if not tied else None
        self.table = layers.Embedding(32, 8, name="table")
        self.down = layers.Dense(8, name="down")
        self.up = layers.Dense(32, name="up", activation=activation)
        self.block = keras.Sequential([self.up, self.down], name="block")

    def call(self, tokens):
        x = self.block(self.table(tokens))
        return x if self.head is None else self.head(x)


@pytest.mark.parametrize("head", ["lm_head", "logits", "unembedding", None])
@pytest.mark.parametrize("activation", ["linear", "gelu"])
def test_head_though_the_feedforward_is_as_wide(head, activation):
    """By its name; there is none where the weights are tied."""
    model = LanguageModel(head, activation, tied=head is None)
    model(np.zeros((1, 2), "int32"))
    wanted = {"up": hand(roles.DENSE), "down": hand(roles.DENSE)}
    if head:
        wanted[head] = hand(roles.HEAD)
    for records in (read(model), infer_roles(model.trainable_variables)):
        found = {r.path: described(r) for r in records if "kernel" in r.path}
        assert {p.split("/")[-2]: r for p, r in found.items()} == wanted


def test_a_gated_dense_of_the_vocabulary_is_no_head_for_read_model():
    inputs = keras.Input((3,), dtype="int32")
    x = layers.Embedding(32, 8, name="tokens")(inputs)
    outputs = layers.Dense(32, activation="relu", name="hashed")(x)
    kernel = read(keras.Model(inputs, outputs))[1]
    assert described(kernel) == hand(roles.DENSE)


# A stack of matrices, whose bias is (n, out).
@pytest.mark.parametrize("width", [5, 3])  # 3: as wide as the stack is high
def test_bank_of_matrices(width):
    bank = layers.EinsumDense(
        "bni,nio->bno", output_shape=(3, 7), bias_axes="no", name="bank"
    )
    model = keras.Sequential([keras.Input((3, width)), bank])
    optimizer = Lanton()
    wanted = rf"bank/kernel \(3, {width}, 7\) as 3 hidden matrices"
    with pytest.warns(UserWarning, match=wanted):
        optimizer.build(model.trainable_variables)
    assert described(optimizer.layers[0]) == hand(roles.EXPERTS)
    assert [spec.guessed for spec in optimizer.layers] == [True, False]
    exact = Lanton().read_roles(model)
    exact.build(model.trainable_variables)
    assert exact.layers == optimizer.layers
    assert not any(spec.guessed for spec in exact.layers)


def test_heads_as_many_as_inputs_are_no_bank():
    equation = "abc,cde->abde"
    heads = layers.EinsumDense(equation, (None, 3, 7), bias_axes="de")
    heads.build((None, 5, 3))
    assert described(read(heads)[0]) == hand(roles.TO_HEADS)


# Layers and variables of users.
class Custom(keras.Model):
    """Bare variables, a list of layers, a shared table, a frozen layer."""

    def __init__(self):
        super().__init__(name="custom")
        self.w = self.add_weight(shape=(4, 5), name="w")
        self.tensor = self.add_weight(shape=(2, 4, 5), name="tensor")
        self.gain = keras.Variable(np.ones((1, 5)), name="gain")
        self.table = layers.Embedding(9, 4, name="table")
        self.again = self.table
        self.parts = [layers.Dense(5, name="a"), {"b": layers.Dense(5)}]
        self.parts[0].trainable = False

    def call(self, tokens):
        x = self.table(tokens)
        return self.parts[0](x) + self.parts[1]["b"](x) @ self.w.value


def test_model_of_a_user():
    model = Custom()
    for layer in (model.table, model.parts[0], model.parts[1]["b"]):
        layer.build((None, 4))
    with pytest.warns(UserWarning, match="tensor.*assign_role") as caught:
        pairs = read_model(model)
    assert len(caught) == 1
    assert all(v.shape == layer.shape for v, layer in pairs)
    known = {id(variable) for variable, _ in pairs}
    assert len(known) == len(pairs) == 8
    assert {id(v) for v in model.trainable_variables} < known
    found = {
        layer.path.removeprefix("custom/"): described(layer)
        for _, layer in pairs
    }
    assert found["w"] == hand(roles.DENSE)
    assert found["gain"] == hand(roles.VECTOR)
    assert found["tensor"] == hand(roles.CONV_1D)
    assert hand(roles.TABLE) in found.values()


def test_model_that_is_not_built():
    with pytest.raises(ValueError, match="must be built.*Received: model="):
        read_model(keras.Sequential([layers.Dense(3)]))

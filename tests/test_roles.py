"""Roles and views: by path, from the layers, by hand, and printed."""

import functools
import json
import math
import warnings

import keras
import numpy as np
import pytest
import role_tables as tables
from keras import layers

from keras_lanton import roles
from keras_lanton import summaries
from keras_lanton.views import to_matrices

# Tables of names and views.


def described(layer):
    """A record as a line of the tables has it."""
    if layer.role == "vector":
        assert layer.batch_axes == layer.input_axes == ()
        assert layer.output_axes == tuple(range(len(layer.shape)))
        return "vector", None, None, None, layer.output_blocks
    return (
        layer.role,
        layer.batch_axes,
        layer.input_axes,
        layer.output_axes,
        layer.output_blocks,
    )


def by_path(records):
    pairs = [(layer.path, described(layer)) for layer in records]
    return sorted(pairs, key=repr)


def by_hand(lines):
    pairs = [(path, tables.parse(line)) for path, line in lines]
    return sorted(pairs, key=repr)


def read(model):
    """The records of `read_model`, for the trainable variables in order."""
    records = {id(v): layer for v, layer in roles.read_model(model)}
    return [records[id(variable)] for variable in model.trainable_variables]


@pytest.fixture(autouse=True)
def no_warnings():
    """Every warning that a test does not expect is a failure."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*guesses.*")
        yield


@pytest.fixture(autouse=True, scope="module")
def cheap_initializers():
    """Roles do not depend on values: no random numbers to compile for."""
    with pytest.MonkeyPatch.context() as patch:
        for initializer in (
            keras.initializers.VarianceScaling,
            keras.initializers.RandomUniform,
            keras.initializers.RandomNormal,
            keras.initializers.TruncatedNormal,
            keras.initializers.Orthogonal,
        ):
            patch.setattr(initializer, "__call__", ones)
        yield


def ones(initializer, shape, dtype=None, **kwargs):
    return keras.ops.convert_to_tensor(np.ones(shape), dtype or "float32")


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def random_matrices(layer):
    """A layer's only variable, given random values, as its matrices."""
    ((variable, record),) = roles.read_model(layer)
    variable.assign(normal(*variable.shape))
    matrices = to_matrices(variable.value, record)
    return record, keras.ops.convert_to_numpy(matrices)


def assert_equal_maps(result, layer, x):
    expected = keras.ops.convert_to_numpy(layer(x))
    # Sums of at most 35 products in float32: errors seen up to 2e-6.
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


class Variable:
    """A variable as `infer_roles` sees it."""

    def __init__(self, path, shape):
        self.path = path
        self.shape = shape


def infer(*pairs):
    """Description of each (path, shape), from paths alone."""
    found = roles.infer_roles([Variable(*pair) for pair in pairs])
    assert [(r.path, r.shape) for r in found] == list(pairs)
    return [described(layer) for layer in found]


def hand(line):
    return tables.parse(line)


# Layers of Keras.


def built(layer, *shapes):
    layer.build(*shapes)
    return layer


def attention(name, query=(2, 5, 12), value=(2, 5, 12), **kwargs):
    layer = layers.MultiHeadAttention(3, 4, name=name, **kwargs)
    return built(layer, query, value)


def grouped_attention(name):
    layer = layers.GroupQueryAttention(4, 6, 2, name=name)
    return built(layer, (2, 5, 12), (2, 5, 12))


def einsum(equation, output_shape, bias_axes=None, **kwargs):
    return functools.partial(
        layers.EinsumDense,
        equation,
        output_shape=output_shape,
        bias_axes=bias_axes,
        **kwargs,
    )


def recurrent(layer):
    return lambda name: layer(5, name=name)


IMAGE = (None, 8, 8, 4)
VOLUME = (None, 4, 4, 4, 3)
TEXT = (None, 6, 4)

# Per layer of the table: how to make it, given its name, and its input shape
# (None where it is built already).
MAKERS = {
    "dense": (functools.partial(layers.Dense, 5), (None, 4)),
    "einsum_dense_heads": (
        einsum("abc,cde->abde", (None, 2, 3), "de"),
        (None, 6, 12),
    ),
    "einsum_dense_output": (
        einsum("...cd,cde->...e", (7,), "e"),
        (None, 6, 2, 3),
    ),
    "einsum_dense_experts": (
        einsum("ebd,edf->ebf", (None, 7)),
        (3, None, 5),
    ),
    "conv1d": (functools.partial(layers.Conv1D, 7, 3), TEXT),
    "conv2d": (functools.partial(layers.Conv2D, 7, 3), IMAGE),
    "conv3d": (functools.partial(layers.Conv3D, 7, 2), VOLUME),
    "conv2d_groups": (
        functools.partial(layers.Conv2D, 6, 3, groups=2),
        IMAGE,
    ),
    "conv2d_group_per_channel": (
        functools.partial(layers.Conv2D, 8, 3, groups=4),
        IMAGE,
    ),
    "conv1d_transpose": (
        functools.partial(layers.Conv1DTranspose, 7, 3),
        TEXT,
    ),
    "conv2d_transpose": (
        functools.partial(layers.Conv2DTranspose, 7, 3),
        IMAGE,
    ),
    "conv3d_transpose": (
        functools.partial(layers.Conv3DTranspose, 7, 2),
        VOLUME,
    ),
    "depthwise_conv1d": (functools.partial(layers.DepthwiseConv1D, 3), TEXT),
    "depthwise_conv2d": (
        functools.partial(layers.DepthwiseConv2D, 3, depth_multiplier=2),
        IMAGE,
    ),
    "separable_conv1d": (
        functools.partial(layers.SeparableConv1D, 7, 3),
        TEXT,
    ),
    "separable_conv2d": (
        functools.partial(layers.SeparableConv2D, 7, 3),
        IMAGE,
    ),
    "simple_rnn": (recurrent(layers.SimpleRNN), TEXT),
    "gru": (recurrent(layers.GRU), TEXT),
    "lstm": (recurrent(layers.LSTM), TEXT),
    "conv_lstm1d": (
        functools.partial(layers.ConvLSTM1D, 5, 3),
        (None, 2, 6, 4),
    ),
    "bidirectional": (
        lambda name: layers.Bidirectional(
            layers.LSTM(5, name="lstm"), name=name
        ),
        TEXT,
    ),
    "time_distributed": (
        lambda name: layers.TimeDistributed(
            layers.Dense(5, name="inner"), name=name
        ),
        TEXT,
    ),
    "spectral_normalization": (
        lambda name: layers.SpectralNormalization(
            layers.Dense(5, name="inner"), name=name
        ),
        (None, 4),
    ),
    "multi_head_attention": (attention, None),
    "cross_attention": (
        functools.partial(attention, value=(2, 6, 10), value_dim=5),
        None,
    ),
    "grouped_query_attention": (grouped_attention, None),
    "attention_without_bias": (
        functools.partial(attention, use_bias=False),
        None,
    ),
    "attention_scale": (
        functools.partial(layers.Attention, use_scale=True),
        [TEXT, TEXT],
    ),
    "additive_attention": (layers.AdditiveAttention, [TEXT, TEXT]),
    "embedding": (functools.partial(layers.Embedding, 9, 4), (None, 6)),
    "layer_normalization": (layers.LayerNormalization, TEXT),
    "layer_normalization_2d": (
        functools.partial(layers.LayerNormalization, axis=(1, 2)),
        TEXT,
    ),
    "batch_normalization": (layers.BatchNormalization, TEXT),
    "group_normalization": (
        functools.partial(layers.GroupNormalization, 2),
        TEXT,
    ),
    "p_re_lu": (layers.PReLU, (None, 6, 8, 4)),
}
if hasattr(layers, "RMSNormalization"):
    MAKERS["rms_normalization"] = (layers.RMSNormalization, TEXT)
if hasattr(layers, "ReversibleEmbedding"):
    MAKERS["reversible_embedding"] = (
        functools.partial(layers.ReversibleEmbedding, 9, 4, tie_weights=False),
        (None, 6),
    )

# What paths cannot know: the number of groups, and so whether a convolution
# with one channel per group is depthwise.
UNKNOWN_BY_PATH = {
    "conv2d_groups": [("kernel", tables.CONV_2D), ("bias", tables.VECTOR)],
    "conv2d_group_per_channel": [
        ("kernel", tables.CONV_2D),
        ("bias", tables.VECTOR),
    ],
}


def make(case, name):
    maker, shape = MAKERS[case]
    layer = maker(name=name)
    return layer if shape is None else built(layer, shape)


@pytest.mark.parametrize("case", MAKERS)
def test_layer_of_keras(case):
    layer = make(case, name=case)
    expected = tables.under(case, tables.LAYERS[case])
    assert by_path(read(layer)) == by_hand(expected)
    expected = tables.under(
        case, UNKNOWN_BY_PATH.get(case, tables.LAYERS[case])
    )
    inferred = roles.infer_roles(layer.trainable_variables)
    assert by_path(inferred) == by_hand(expected)


# Names that users give, which say nothing: the bias tells. These three need
# the layer.
UNTOLD = {*UNKNOWN_BY_PATH, "einsum_dense_experts"}


@pytest.mark.parametrize(
    "case",
    [case for case in MAKERS if case not in UNTOLD],
)
def test_layer_with_a_name_that_says_nothing(case):
    layer = make(case, name="block")
    expected = tables.under("block", tables.LAYERS[case])
    assert by_path(read(layer)) == by_hand(expected)
    inferred = roles.infer_roles(layer.trainable_variables)
    assert by_path(inferred) == by_hand(expected)


def test_every_layer_of_the_table_is_made():
    new = {"rms_normalization", "reversible_embedding"}
    assert set(tables.LAYERS) - set(MAKERS) <= new


@pytest.mark.parametrize("case", tables.LORA)
def test_lora(case):
    maker, shape = MAKERS["einsum_dense_heads" if case == "query" else case]
    layer = built(maker(name=case), shape)
    layer.enable_lora(2)
    base = [v.path for v in layer.trainable_variables if "bias" in v.path]
    expected = tables.under(case, tables.LORA[case])
    expected += [(path, tables.VECTOR) for path in base]
    assert by_path(read(layer)) == by_hand(expected)
    inferred = roles.infer_roles(layer.trainable_variables)
    assert by_path(inferred) == by_hand(expected)


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


# Models of KerasHub.


@functools.cache
def hub():
    try:
        import keras_hub
    except ImportError as error:
        pytest.skip(f"KerasHub is not here: {error}")
    except Exception as error:
        pytest.skip(f"KerasHub does not work with this Keras: {error!r}")
    return keras_hub.models


ENCODER = {
    "vocabulary_size": 50,
    "num_layers": 1,
    "num_heads": 4,
    "hidden_dim": 24,
    "intermediate_dim": 40,
}
DECODER = {
    "vocabulary_size": 50,
    "num_layers": 1,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 24,
    "intermediate_dim": 40,
}


def vit():
    return hub().ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=8,
        num_layers=1,
        num_heads=4,
        hidden_dim=24,
        mlp_dim=40,
    )


def bert():
    return hub().BertBackbone(max_sequence_length=10, **ENCODER)


def qwen_moe():
    return hub().QwenMoeBackbone(
        moe_intermediate_dim=10,
        shared_expert_intermediate_dim=16,
        num_experts=3,
        top_k=2,
        **DECODER,
    )


HUB = {
    "gpt2": (
        lambda: hub().GPT2Backbone(max_sequence_length=10, **ENCODER),
        tables.GPT2,
    ),
    "gpt2_language_model": (
        lambda: hub().GPT2CausalLM(
            backbone=hub().GPT2Backbone(max_sequence_length=10, **ENCODER)
        ),
        tables.GPT2,
    ),
    "llama": (lambda: hub().LlamaBackbone(**DECODER), tables.LLAMA),
    "mistral": (lambda: hub().MistralBackbone(**DECODER), tables.LLAMA),
    "gemma": (
        lambda: hub().GemmaBackbone(head_dim=8, **DECODER),
        tables.GEMMA,
    ),
    "gemma_square_head": (
        lambda: hub().GemmaBackbone(head_dim=24, **DECODER),
        tables.GEMMA,
    ),
    "bert": (bert, tables.BERT),
    "bert_classifier": (
        # As many classes as segments: the head maps back to no vocabulary.
        lambda: hub().BertTextClassifier(backbone=bert(), num_classes=2),
        tables.BERT + tables.dense("logits"),
    ),
    "vit": (vit, tables.VIT),
    "vit_classifier": (
        # As many classes as positions.
        lambda: hub().ViTImageClassifier(backbone=vit(), num_classes=5),
        tables.VIT + tables.dense("predictions"),
    ),
    "mixtral": (
        lambda: hub().MixtralBackbone(num_experts=3, **DECODER),
        tables.MIXTRAL,
    ),
    "qwen_moe": (qwen_moe, tables.QWEN_MOE),
    "qwen3": (
        lambda: hub().Qwen3Backbone(head_dim=6, **DECODER),
        tables.QWEN_3,
    ),
    "gpt_oss": (
        lambda: hub().GptOssBackbone(num_experts=3, **DECODER),
        tables.GPT_OSS,
    ),
    "gpt_neo_x": (
        lambda: hub().GPTNeoXBackbone(**ENCODER),
        tables.GPT_NEO_X,
    ),
}


@pytest.mark.parametrize("case", HUB)
def test_model_of_keras_hub(case):
    make_model, expected = HUB[case]
    model = make_model()
    assert by_path(read(model)) == by_hand(expected)
    inferred = roles.infer_roles(model.trainable_variables)
    assert by_path(inferred) == by_hand(expected)


@pytest.mark.filterwarnings("ignore:.*destroy the mask")
def test_tables_that_share_one_path():
    model = hub().T5Backbone(**ENCODER)
    inferred = roles.infer_roles(model.trainable_variables)
    path = "self_attention/embeddings"
    for records in (read(model), inferred):
        shared = [described(r) for r in records if r.path == path]
        assert shared == [hand(tables.TABLE)] * 2
        assert len(records) == len(model.trainable_variables)


def test_reversed_attention_output_of_xlnet():
    model = hub().XLNetBackbone(**ENCODER)
    with pytest.warns(UserWarning, match="segment_encoding"):
        records = read(model)
    with pytest.warns(UserWarning, match="segment_encoding"):
        inferred = roles.infer_roles(model.trainable_variables)
    assert by_path(records) == by_path(inferred)
    (output,) = [r for r in records if "attention_output" in r.path]
    assert described(output) == hand("hidden - | 12 | 0")


# Heads.


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


def roles_by_layer(records):
    return {
        r.path.split("/")[-2]: r.role for r in records if "kernel" in r.path
    }


@pytest.mark.parametrize("head", ["lm_head", "logits", "unembedding"])
@pytest.mark.parametrize("activation", ["linear", "gelu"])
def test_head_by_name_though_the_feedforward_is_as_wide(head, activation):
    model = LanguageModel(head, activation)
    model(np.zeros((1, 2), "int32"))
    expected = {head: "embedding", "up": "hidden", "down": "hidden"}
    assert roles_by_layer(read(model)) == expected
    inferred = roles.infer_roles(model.trainable_variables)
    assert roles_by_layer(inferred) == expected
    (record,) = [r for r in inferred if r.path.endswith(f"{head}/kernel")]
    assert described(record) == hand(tables.HEAD)


def test_no_head_when_the_weights_are_tied():
    model = LanguageModel(tied=True)
    model(np.zeros((1, 2), "int32"))
    for records in (read(model), roles.infer_roles(model.trainable_variables)):
        assert roles_by_layer(records) == {"up": "hidden", "down": "hidden"}


def test_head_without_a_telling_name():
    pairs = [
        ("tokens/embeddings", (32, 8)),
        ("positions/embeddings", (32, 8)),
        ("block_0/up/kernel", (8, 32)),
        ("block_0/down/kernel", (32, 8)),
        ("block_1/up/kernel", (8, 32)),
        ("block_1/down/kernel", (32, 8)),
        ("out/kernel", (8, 32)),
    ]
    *_, head = infer(*pairs)
    assert head == hand(tables.HEAD)
    assert infer(*pairs[:-1])[2:] == [hand(tables.DENSE)] * 4
    # Creation order is not call order: the block, not the order, decides.
    pairs[2], pairs[3] = pairs[3], pairs[2]
    pairs[4], pairs[5] = pairs[5], pairs[4]
    assert infer(*pairs[:-1])[2:] == [hand(tables.DENSE)] * 4
    assert infer(*pairs)[-1] == hand(tables.HEAD)


@pytest.mark.parametrize(
    "pairs",
    [
        # As many classes as positions, segments or relative distances.
        [("position_embedding/embeddings", (32, 8)), ("d/kernel", (8, 32))],
        [("wpe/embeddings", (32, 8)), ("d/kernel", (8, 32))],
        [("token_type/embeddings", (2, 8)), ("d/kernel", (8, 2))],
        [("rel_bias/embeddings", (32, 8)), ("d/kernel", (8, 32))],
        # A hidden layer that happens to be as wide as the vocabulary.
        [
            ("tokens/embeddings", (32, 8)),
            ("dense/kernel", (8, 32)),
            ("dense_1/kernel", (32, 1)),
        ],
        # A square kernel, and the kernel of a recurrent layer.
        [("tokens/embeddings", (8, 8)), ("query/kernel", (8, 8))],
    ],
)
def test_not_a_head(pairs):
    _, *rest = infer(*pairs)
    assert rest == [hand(tables.DENSE)] * len(rest)


def test_recurrent_kernel_as_wide_as_the_vocabulary_is_no_head():
    found = infer(
        ("tokens/embeddings", (32, 8)),
        ("lstm/lstm_cell/kernel", (8, 32)),
        ("lstm/lstm_cell/recurrent_kernel", (8, 32)),
    )
    assert found[1:] == [hand(tables.LSTM)] * 2


def test_a_gated_dense_of_the_vocabulary_is_no_head_for_read_model():
    inputs = keras.Input((3,), dtype="int32")
    x = layers.Embedding(32, 8, name="tokens")(inputs)
    outputs = layers.Dense(32, activation="relu", name="hashed")(x)
    assert roles_by_layer(read(keras.Model(inputs, outputs))) == {
        "hashed": "hidden"
    }


# What names and siblings say.


@pytest.mark.parametrize(
    ("path", "shape", "line"),
    [
        ("dense/kernel", (4, 5), tables.DENSE),
        ("dense/kernel", (4, 1), tables.DENSE),
        ("w", (4, 5), tables.DENSE),
        ("kernel:0", (4, 5), tables.DENSE),
        ("w", (4,), tables.VECTOR),
        ("temperature", (), tables.VECTOR),
        ("a/query_dense_layernorm/scale", (3, 4), tables.VECTOR),
        ("p_re_lu/alpha", (3, 4, 5), tables.VECTOR),
        ("encoder/content_attention_bias", (4, 6), tables.VECTOR),
        ("experts/down_proj_bias", (3, 6), tables.VECTOR),
        ("vit/class_token", (1, 1, 6), tables.VECTOR),
        ("head/variable", (1, 1, 6), tables.VECTOR),
        ("dino/register_tokens", (1, 4, 6), tables.VECTOR),
        ("mixer/conv1d_kernel", (8, 4), tables.VECTOR),
        ("deit/position_embedding", (1, 5, 6), "embedding - | 2 | 01"),
        ("swin/relative_position_bias_table", (9, 2), tables.TABLE),
        ("sam/rel_pos_h", (9, 2), tables.TABLE),
        ("patch_embedding/kernel", (8, 8, 3, 6), tables.CONV_2D),
        ("patch_embedding/kernel", (4, 5), tables.DENSE),
        ("stem/kernel", (3, 3, 3, 8), tables.CONV_2D),
        ("stem/kernel", (3, 3, 3, 3, 8), tables.CONV_3D),
        ("conv1d_3/kernel", (3, 4, 8), tables.CONV_1D),
        ("conv2d_transpose_1/kernel", (3, 3, 8, 8), "hidden - | 013 | 2"),
        ("block1_dwconv/kernel", (3, 3, 8, 1), tables.VECTOR),
        ("attn/qkv/kernel", (6, 3, 2, 4), "hidden - | 0 | 123"),
        ("attn/q_proj/kernel", (6, 2, 4), tables.TO_HEADS),
        ("attn/wo/kernel", (2, 4, 6), tables.FROM_HEADS),
        ("attn/wq", (6, 2, 4), tables.TO_HEADS),
        ("attn/query/kernel", (2, 6, 4), tables.GEMMA_TO_HEADS),
        ("moe/w1", (3, 4, 5), tables.EXPERTS),
        ("moe/experts/up/kernel", (3, 4, 5), tables.EXPERTS),
        ("moe/expert_w", (3, 4, 5), tables.EXPERTS),
        ("moe/router/kernel", (4, 3), tables.DENSE),
        ("moe_block/attention/key/kernel", (6, 2, 4), tables.TO_HEADS),
    ],
)
def test_name_alone(path, shape, line):
    variable = Variable(path, shape)
    (found,) = roles.infer_roles([variable])
    assert described(found) == hand(line)


@pytest.mark.parametrize(
    ("pairs", "line"),
    [
        # The bias of an untold layer has the size of its output axes.
        ([("up/kernel", (3, 3, 8, 4)), ("up/bias", (8,))], "- | 013 | 2"),
        ([("up/kernel", (3, 3, 8, 4)), ("up/bias", (4,))], "- | 012 | 3"),
        ([("a/kernel", (3, 8, 4)), ("a/bias", (8,))], "- | 02 | 1"),
        ([("a/kernel", (6, 2, 4)), ("a/bias", (2, 4))], "- | 0 | 12"),
        ([("a/kernel", (2, 6, 4)), ("a/bias", (2, 4))], "- | 1 | 02"),
        ([("mask/kernel", (3, 3, 8, 1)), ("mask/bias", (1,))], "- | 012 | 3"),
        # Without a bias the normalization that follows has it.
        ([("up/kernel", (3, 3, 8, 4)), ("n/gamma", (8,))], "- | 013 | 2"),
        ([("up/kernel", (3, 3, 8, 4)), ("n/gamma", (4,))], "- | 012 | 3"),
        # The output projection tells Gemma's axes from those of others.
        (
            [
                ("attention/query/kernel", (6, 6, 4)),
                ("attention/attention_output/kernel", (6, 4, 6)),
            ],
            "- | 0 | 12",
        ),
        (
            [
                ("attention/value/kernel", (1, 16, 4)),
                ("attention/query/kernel", (32, 16, 4)),
                ("attention/attention_output/kernel", (32, 4, 16)),
            ],
            "- | 1 | 02",
        ),
        (
            [
                ("attention/key/kernel", (8, 16, 4)),
                ("attention/query/kernel", (8, 16, 4)),
                ("attention/attention_output/kernel", (16, 4, 7)),
            ],
            "- | 0 | 12",
        ),
        # Halves of one kernel, or two kernels of experts.
        (
            [
                ("experts/gate_dense", (3, 4, 10)),
                ("experts/output_dense", (3, 5, 4)),
            ],
            "0 | 1 | 2 / 2",
        ),
        (
            [
                ("experts/gate_dense", (3, 4, 10)),
                ("experts/output_dense", (3, 10, 4)),
            ],
            "0 | 1 | 2",
        ),
        ([("experts/w", (3, 4, 8)), ("experts/b", (3, 8))], "0 | 1 | 2"),
    ],
)
def test_siblings(pairs, line):
    assert infer(*pairs)[0] == hand(f"hidden {line}")


@pytest.mark.parametrize(
    "pairs",
    [
        [("dw/kernel", (3, 3, 8, 1)), ("dw/bias", (8,))],
        [("a/kernel", (3, 3, 8, 1)), ("a/bias", (8,))],
        [("a/kernel", (3, 3, 8, 1)), ("norm/gamma", (8,))],
        [("a/kernel", (3, 3, 8, 2)), ("a/bias", (16,))],
        [("a/kernel", (3, 8, 2)), ("a/bias", (16,))],
    ],
)
def test_siblings_of_a_depthwise_kernel(pairs):
    assert infer(*pairs)[0] == hand(tables.VECTOR)


def test_odd_ranks_of_known_names():
    found = infer(
        ("tables/embeddings", (3, 9, 4)),
        ("cell/kernel", (4, 5)),
        ("cell/recurrent_kernel", (5,)),
    )
    expected = ["embedding - | 2 | 01", tables.DENSE, tables.VECTOR]
    assert found == [hand(line) for line in expected]


def test_of_equal_paths_the_nearest_is_the_sibling():
    found = infer(
        ("kernel", (6, 2, 4)),
        ("bias", (2, 4)),
        ("kernel", (3, 6, 2)),
        ("bias", (2,)),
    )
    expected = [tables.TO_HEADS, tables.VECTOR, tables.CONV_1D, tables.VECTOR]
    assert found == [hand(line) for line in expected]


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
    with pytest.warns(UserWarning, match="tensor") as caught:
        pairs = roles.read_model(model)
    assert len(caught) == 1
    assert "assign_role" in str(caught[0].message)
    assert len({id(variable) for variable, _ in pairs}) == len(pairs) == 8
    assert all(v.shape == layer.shape for v, layer in pairs)
    assert {id(v) for v in model.trainable_variables} < {
        id(variable) for variable, _ in pairs
    }
    described_by_name = {
        layer.path.removeprefix("custom/"): described(layer)
        for _, layer in pairs
    }
    assert described_by_name["w"] == hand(tables.DENSE)
    assert described_by_name["gain"] == hand(tables.VECTOR)
    assert described_by_name["tensor"] == hand(tables.CONV_1D)
    assert hand(tables.TABLE) in described_by_name.values()


def test_bare_variables_of_tensorflow():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Only TensorFlow hands bare variables.")
    import tensorflow as tf

    variables = [
        tf.Variable(np.zeros((4, 5)), name="w"),
        tf.Variable(np.zeros((4, 5)), name="w"),
        tf.Variable(np.zeros((4,)), name="dense/bias"),
    ]
    found = roles.infer_roles(variables)
    assert [layer.path for layer in found] == ["w", "w", "dense/bias"]
    lines = [tables.DENSE, tables.DENSE, tables.VECTOR]
    assert [described(layer) for layer in found] == [hand(x) for x in lines]


def test_model_that_is_not_built():
    with pytest.raises(ValueError, match="must be built.*Received: model="):
        roles.read_model(keras.Sequential([layers.Dense(3)]))


# Guesses.


def test_one_warning_names_all_guesses_and_both_methods():
    variables = [
        Variable("a/tensor", (2, 3, 4)),
        Variable("dense/kernel", (3, 4)),
        Variable("b/kernel", (2, 3, 4)),
    ]
    with pytest.warns(UserWarning) as caught:
        found = roles.infer_roles(variables)
    (message,) = (str(warning.message) for warning in caught)
    for part in ("a/tensor (2, 3, 4)", "b/kernel", "optimizer.read_roles("):
        assert part in message
    assert "optimizer.assign_role(" in message
    assert "dense/kernel" not in message
    assert caught[0].filename == __file__
    assert described(found[0]) == hand(tables.CONV_1D)


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("einsum_dense/kernel", (6, 2, 4)),
        ("decoder_1/kernel", (3, 3, 4, 8)),
        ("up/kernel", (3, 3, 4, 8)),
        ("mask/kernel", (3, 3, 8, 1)),
        ("xlnet/segment_encoding", (2, 4, 6)),
        ("tensor", (2, 3, 4, 5, 6, 7)),
    ],
)
def test_doubtful(path, shape):
    with pytest.warns(UserWarning, match=path):
        roles.infer_roles([Variable(path, shape)])


def test_what_is_given_is_kept_without_a_warning():
    variables = [Variable("tensor", (2, 3, 4)), Variable("b", (4,))]
    given = roles.make_layer("tensor", (2, 3, 4), "hidden", 1, 2)
    found = roles.infer_roles(variables, [given, None])
    assert found[0] is given
    assert found[1].role == "vector"


# By hand.


@pytest.mark.parametrize(
    ("shape", "arguments", "line"),
    [
        ((4, 5), ("hidden",), tables.DENSE),
        ((3, 4, 5), ("hidden",), tables.CONV_1D),
        ((3, 4, 5), ("hidden", 1, 2), tables.EXPERTS),
        ((3, 4, 5), ("hidden", (0,), (1, 2)), tables.TO_HEADS),
        ((3, 4, 5), ("hidden", np.int64(1)), tables.GEMMA_TO_HEADS),
        ((3, 4, 5), ("hidden", None, [-1]), tables.FROM_HEADS),
        ((3, 4, 5), ("hidden", (2, 0), 1), "hidden - | 20 | 1"),
        ((9, 4), ("embedding",), tables.TABLE),
        ((4, 9), ("embedding", 0), tables.HEAD),
        ((1, 9, 4), ("embedding",), "embedding - | 2 | 01"),
        ((3, 4, 5), ("vector",), tables.VECTOR),
        ((), ("vector",), tables.VECTOR),
    ],
)
def test_make_layer(shape, arguments, line):
    layer = roles.make_layer("a/b", shape, *arguments)
    assert described(layer) == hand(line)
    assert (layer.path, layer.shape) == ("a/b", shape)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((4, 5), ("matrix",), "one of.*Received: role='matrix'"),
        ((4, 5), ("hidden", 2), "`input_axes`.*Received: input_axes=2"),
        ((4, 5), ("hidden", 0, -3), r"\[-2, 1\].*Received: output_axes=-3"),
        ((4, 5), ("hidden", (0, -2)), "different axes.*Received"),
        ((4, 5), ("hidden", 0, (0, 1)), "must not overlap.*Received"),
        ((4, 5), ("vector", 0), "no axes.*Received: input_axes=0"),
        ((4,), ("hidden",), "always a vector.*Received: role='hidden'"),
        ((), ("embedding",), "always a vector.*Received"),
    ],
)
def test_make_layer_refuses(shape, arguments, message):
    with pytest.raises(ValueError, match=message):
        roles.make_layer("a/b", shape, *arguments)


def test_config_round_trip():
    layers_ = [
        roles.make_layer("a/b", (3, 4, 5), "hidden", 1, 2),
        roles.make_layer("a/c", (), "vector"),
        *read(make("lstm", "lstm")),
    ]
    for layer in layers_:
        config = json.loads(json.dumps(roles.layer_to_config(layer)))
        assert roles.layer_from_config(config) == layer


def test_config_with_an_unknown_role():
    config = roles.layer_to_config(roles.make_layer("a", (3,), "vector"))
    with pytest.raises(ValueError, match="Received: role='bias'"):
        roles.layer_from_config(config | {"role": "bias"})


# The table.


def test_summary(capsys):
    layer = make("lstm", name="a_name_that_is_rather_long_" * 4)
    records = read(layer)
    printed = []
    summaries.print_summary(records, print_fn=printed.append)
    assert capsys.readouterr().out == ""
    (text,) = printed
    for part in ("(4, 20)", "4 x (4 x 5)", "1 x 20", "hidden", "vector"):
        assert part in text
    assert "hidden: 180 params, 2 variables, 8 matrices" in text
    assert "embedding: 0 params, 0 variables, 0 matrices" in text
    assert "vector: 20 params, 1 variables, 1 vectors" in text
    summaries.print_summary(records)
    assert "4 x (4 x 5)" in capsys.readouterr().out


def test_summary_prints_paths_as_they_are():
    record = roles.make_layer("[bold]a[/bold]/kernel", (4, 5), "hidden")
    printed = []
    summaries.print_summary([record], print_fn=printed.append)
    assert "[bold]a[/bold]/kernel" in printed[0]
    assert f"{math.prod(record.shape)}" in printed[0]


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
def test_gates_are_known_beside_a_frozen_recurrent_kernel(cell, gates):
    kernel = keras.Variable(np.zeros((5, 2 * gates), "float32"), name="kernel")
    kernel._path = f"encoder/{cell}_cell_1/kernel"
    (layer,) = roles.infer_roles([kernel])
    assert (layer.output_blocks, layer.d_in, layer.d_out) == (gates, 5, 2)

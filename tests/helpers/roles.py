"""Roles and views as the tables have them, and layers to read them from."""

import functools

import keras
import pytest
from keras import layers

from helpers import role_tables as tables
from keras_lanton.roles.from_layers import read_model
from keras_lanton.roles.from_paths import infer_roles


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
    records = {id(v): layer for v, layer in read_model(model)}
    return [records[id(variable)] for variable in model.trainable_variables]


class Variable:
    """A variable as `infer_roles` sees it."""

    def __init__(self, path, shape):
        self.path = path
        self.shape = shape


def infer(*pairs):
    """Description of each (path, shape), from paths alone."""
    found = infer_roles([Variable(*pair) for pair in pairs])
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

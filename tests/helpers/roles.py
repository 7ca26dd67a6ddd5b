"""Roles and views by hand: of Keras' layers, and of KerasHub's models.

A line is `role batch | input | output / blocks`: the axes of each kind as
digits, `-` for none, the blocks where there is more than one. A vector has
nothing after its role.
"""

import functools

import pytest
from keras import layers

from keras_lanton.roles.from_layers import read_model
from keras_lanton.roles.from_paths import infer_roles

VECTOR = "vector"
DENSE = "hidden - | 0 | 1"
LSTM = "hidden - | 0 | 1 / 4"
GRU = "hidden - | 0 | 1 / 3"
TO_HEADS = "hidden - | 0 | 12"
GEMMA_TO_HEADS = "hidden - | 1 | 02"
FROM_HEADS = "hidden - | 01 | 2"
EXPERTS = "hidden 0 | 1 | 2"
CONV_1D = "hidden - | 01 | 2"
CONV_2D = "hidden - | 012 | 3"
CONV_3D = "hidden - | 0123 | 4"
CONV_LSTM = f"{CONV_1D} / 4"
HALVES = f"{CONV_2D} / 2"
BACK_1D = "hidden - | 02 | 1"
BACK_2D = "hidden - | 013 | 2"
BACK_3D = "hidden - | 0124 | 3"
TABLE = "embedding - | 1 | 0"
HEAD = "embedding - | 0 | 1"


def hand(line):
    """(role, batch, input and output axes, blocks) of one line."""
    role, _, view = line.partition(" ")
    if not view:
        return role, None, None, None, 1
    axes, _, blocks = view.partition(" / ")
    batch, inputs, outputs = (
        tuple(int(axis) for axis in part.strip(" -"))
        for part in axes.split("|")
    )
    return role, batch, inputs, outputs, int(blocks or 1)


def described(layer):
    """A record as `hand` has it."""
    view = layer.batch_axes, layer.input_axes, layer.output_axes
    if layer.role == "vector":
        assert view == ((), (), tuple(range(len(layer.shape))))
        view = None, None, None
    return (layer.role, *view, layer.output_blocks)


def by_path(records):
    pairs = [(layer.path, described(layer)) for layer in records]
    return sorted(pairs, key=repr)


def by_hand(lines):
    return sorted([(path, hand(line)) for path, line in lines], key=repr)


def read(model):
    """The records of `read_model`, for the trainable variables in order."""
    records = {id(v): layer for v, layer in read_model(model)}
    return [records[id(variable)] for variable in model.trainable_variables]


def check(model, expected, by_paths=None):
    """The lines, read from the layers and inferred from the paths.

    Args:
        model: Or a layer.
        expected: Pairs of a path and a line.
        by_paths: Where paths tell less than the layers.
    """
    assert by_path(read(model)) == by_hand(expected)
    inferred = infer_roles(model.trainable_variables)
    assert by_path(inferred) == by_hand(by_paths or expected)


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


# -- Layers of Keras ---------------------------------------------------------


def under(prefix, lines):
    return [(f"{prefix}/{path}", line) for path, line in lines]


def several(names, lines):
    return [(path.format(n), line) for n in names for path, line in lines]


def each(path, names, line):
    return [(path.format(name), line) for name in names.split()]


def biased(line):
    return [("kernel", line), ("bias", VECTOR)]


def norm(name):
    return [(f"{name}/gamma", VECTOR), (f"{name}/beta", VECTOR)]


def dense(name):
    return under(name, biased(DENSE))


def cell(name, line):
    lines = [("kernel", line), ("recurrent_kernel", line), ("bias", VECTOR)]
    return under(name, lines)


def separable(line):
    return [
        ("depthwise_kernel", VECTOR),
        ("pointwise_kernel", line),
        ("bias", VECTOR),
    ]


def built(layer, *shapes):
    layer.build(*shapes)
    return layer


def around(wrapper, inner="Dense"):
    """A maker of a wrapped layer."""
    cls = getattr(layers, inner)
    return lambda name: wrapper(cls(5, name="inner"), name=name)


ATTENTION = [
    *several(["query", "key", "value"], under("{}", biased(TO_HEADS))),
    *under("attention_output", biased(FROM_HEADS)),
]
KERNELS = [line for line in ATTENTION if line[0].endswith("kernel")]
NORM = [("gamma", VECTOR), ("beta", VECTOR)]
SCALE = [("scale", VECTOR)]
TIED = [("embeddings", TABLE)]
UNTIED = [*TIED, ("reverse_embeddings", HEAD)]
LSTMS = several(["forward", "backward"], cell("{}_inner/lstm_cell", LSTM))
EINSUM = "EinsumDense"
TIMES_2 = {"depth_multiplier": 2}
NO_BIAS = {"use_bias": False}
HEADS = ("abc,cde->abde", (None, 2, 3), {"bias_axes": "de"})
BACK = ("...cd,cde->...e", (7,), {"bias_axes": "e"})
BANK = ("ebd,edf->ebf", (None, 7))
IMAGE = ((None, 8, 8, 4),)
VOLUME = ((None, 4, 4, 4, 3),)
TEXT = ((None, 6, 4),)
VIDEO = ((None, 2, 6, 4),)
TWICE = ((2, 5, 12), (2, 5, 12))
OTHER = ((2, 5, 12), (2, 6, 10))
WIDE = ((None, 4),)
IDS = ((None, 6),)
PAIR = ([*TEXT, *TEXT],)
# By name: a class or a maker, its arguments, those by name in a dict, the input
# shapes, and the lines of the variables without the layer's name.
LAYERS = {
    "dense": ("Dense", (5,), WIDE, biased(DENSE)),
    "einsum_dense_heads": (EINSUM, HEADS, ((None, 6, 12),), biased(TO_HEADS)),
    "einsum_dense_output": (
        EINSUM,
        BACK,
        ((None, 6, 2, 3),),
        biased(FROM_HEADS),
    ),
    "einsum_dense_experts": (
        EINSUM,
        BANK,
        ((3, None, 5),),
        [("kernel", EXPERTS)],
    ),
    "conv1d": ("Conv1D", (7, 3), TEXT, biased(CONV_1D)),
    "conv2d": ("Conv2D", (7, 3), IMAGE, biased(CONV_2D)),
    "conv3d": ("Conv3D", (7, 2), VOLUME, biased(CONV_3D)),
    "conv2d_groups": ("Conv2D", (6, 3, {"groups": 2}), IMAGE, biased(HALVES)),
    "conv2d_each": ("Conv2D", (8, 3, {"groups": 4}), IMAGE, biased(VECTOR)),
    "conv1d_transpose": ("Conv1DTranspose", (7, 3), TEXT, biased(BACK_1D)),
    "conv2d_transpose": ("Conv2DTranspose", (7, 3), IMAGE, biased(BACK_2D)),
    "conv3d_transpose": ("Conv3DTranspose", (7, 2), VOLUME, biased(BACK_3D)),
    "depthwise_conv1d": ("DepthwiseConv1D", (3,), TEXT, biased(VECTOR)),
    "depthwise_conv2d": (
        "DepthwiseConv2D",
        (3, TIMES_2),
        IMAGE,
        biased(VECTOR),
    ),
    "separable_conv1d": ("SeparableConv1D", (7, 3), TEXT, separable(CONV_1D)),
    "separable_conv2d": ("SeparableConv2D", (7, 3), IMAGE, separable(CONV_2D)),
    "simple_rnn": ("SimpleRNN", (5,), TEXT, cell("simple_rnn_cell", DENSE)),
    "gru": ("GRU", (5,), TEXT, cell("gru_cell", GRU)),
    "lstm": ("LSTM", (5,), TEXT, cell("lstm_cell", LSTM)),
    "conv_lstm1d": (
        "ConvLSTM1D",
        (5, 3),
        VIDEO,
        cell("conv_lstm_cell", CONV_LSTM),
    ),
    "bidirectional": (around(layers.Bidirectional, "LSTM"), (), TEXT, LSTMS),
    "time_distributed": (
        around(layers.TimeDistributed),
        (),
        TEXT,
        dense("inner"),
    ),
    "spectral_normalization": (
        around(layers.SpectralNormalization),
        (),
        WIDE,
        dense("inner"),
    ),
    "multi_head_attention": ("MultiHeadAttention", (3, 4), TWICE, ATTENTION),
    "cross_attention": ("MultiHeadAttention", (3, 4, 5), OTHER, ATTENTION),
    "grouped_query_attention": (
        "GroupQueryAttention",
        (4, 6, 2),
        TWICE,
        ATTENTION,
    ),
    "attention_kernels": (
        "MultiHeadAttention",
        (3, 4, NO_BIAS),
        TWICE,
        KERNELS,
    ),
    "attention_scale": ("Attention", ({"use_scale": True},), PAIR, SCALE),
    "additive_attention": ("AdditiveAttention", (), PAIR, SCALE),
    "embedding": ("Embedding", (9, 4), IDS, TIED),
    "reversible_embedding": ("ReversibleEmbedding", (9, 4, False), IDS, UNTIED),
    "layer_normalization": ("LayerNormalization", (), TEXT, NORM),
    "layer_normalization_2d": ("LayerNormalization", ((1, 2),), TEXT, NORM),
    "batch_normalization": ("BatchNormalization", (), TEXT, NORM),
    "group_normalization": ("GroupNormalization", (2,), TEXT, NORM),
    "rms_normalization": ("RMSNormalization", (), TEXT, SCALE),
    "p_re_lu": ("PReLU", (), ((None, 6, 8, 4),), [("alpha", VECTOR)]),
}
for case in ("rms_normalization", "reversible_embedding"):
    if not hasattr(layers, LAYERS[case][0]):  # an older Keras
        del LAYERS[case]
# Paths know no number of groups, and so no depthwise convolution.
GROUPED = ("conv2d_groups", "conv2d_each")
# LoRA: the pair, after the layer's own (now frozen) weights.
LORA = {
    "dense": [("lora_kernel_a", DENSE), ("lora_kernel_b", DENSE)],
    "query": [("lora_kernel_a", TO_HEADS), ("lora_kernel_b", DENSE)],
    "conv2d": [("lora_kernel_a", CONV_2D), ("lora_kernel_b", DENSE)],
    "embedding": [("lora_embeddings_a", TABLE), ("lora_embeddings_b", DENSE)],
}


def make(case, name):
    cls, arguments, shapes, _ = LAYERS[case]
    maker = getattr(layers, cls) if isinstance(cls, str) else cls
    named = {"name": name}
    for one in arguments:
        named |= one if isinstance(one, dict) else {}
    plain = [one for one in arguments if not isinstance(one, dict)]
    layer = maker(*plain, **named)
    return built(layer, *shapes)


def lines_of(case, name):
    return under(name, LAYERS[case][3])


# -- Models of KerasHub ------------------------------------------------------


@functools.cache
def hub():
    try:
        import keras_hub
    except ImportError as error:
        pytest.skip(f"KerasHub is not here: {error}")
    except Exception as error:
        pytest.skip(f"KerasHub does not work with this Keras: {error!r}")
    return keras_hub.models


TRANSFORMER_BLOCK = [
    *dense("feedforward_intermediate_dense"),
    *dense("feedforward_output_dense"),
    *norm("feedforward_layer_norm"),
    *norm("self_attention_layer_norm"),
]
TABLES_OF = "{}_embedding/embeddings"
GPT2 = [
    *each(TABLES_OF, "token position", TABLE),
    *norm("layer_norm"),
    *under("transformer_layer_0", TRANSFORMER_BLOCK),
    *under("transformer_layer_0/self_attention", ATTENTION),
]
LLAMA_ATTENTION = [line for line in ATTENTION if "bias" not in line[0]]
QWEN_ATTENTION = [
    *LLAMA_ATTENTION,
    *each("{}/bias", "query key value", VECTOR),
]
LLAMA_ENDS = [
    ("token_embedding/embeddings", TABLE),
    ("token_embedding/reverse_embeddings", HEAD),
    ("sequence_output_layernorm/scale", VECTOR),
]
LLAMA_NORMS = each("{}_layernorm/scale", "feedforward self_attention", VECTOR)
GATED_FEEDFORWARD = each(
    "feedforward_{}_dense/kernel", "gate intermediate output", DENSE
)


def llama(attention, *more, norms=LLAMA_NORMS, ends=LLAMA_ENDS):
    """A decoder of one block, of attention and more."""
    block = [*norms, *under("self_attention", attention), *more]
    return [*ends, *under("transformer_layer_0", block)]


LLAMA = llama(LLAMA_ATTENTION, *GATED_FEEDFORWARD)
GEMMA_BLOCK = [
    *each("pre_{}_norm/scale", "attention ffw", VECTOR),
    *each("attention/{}/kernel", "query key value", GEMMA_TO_HEADS),
    ("attention/attention_output/kernel", FROM_HEADS),
    *each("ffw_{}/kernel", "gating gating_2 linear", DENSE),
]
GEMMA = [
    ("token_embedding/embeddings", TABLE),
    *under("decoder_block_0", GEMMA_BLOCK),
    ("final_normalization/scale", VECTOR),
]
BERT = [
    *each(TABLES_OF, "token position segment", TABLE),
    *norm("embeddings_layer_norm"),
    *under("transformer_layer_0", TRANSFORMER_BLOCK),
    *under("transformer_layer_0/self_attention_layer", ATTENTION),
    *dense("pooled_dense"),
]
VIT_PATCHES = [
    ("class_token", VECTOR),
    ("position_embedding/embeddings", TABLE),
    *under("patch_embedding", biased(CONV_2D)),
]
VIT_BLOCK = [
    *norm("ln_1"),
    *norm("ln_2"),
    *dense("mlp/dense_1"),
    *dense("mlp/dense_2"),
    *under("mha", ATTENTION),
]
VIT = [
    *under("vit_patching_and_embedding", VIT_PATCHES),
    *under("vit_encoder/transformer_block_1", VIT_BLOCK),
    *norm("vit_encoder/ln"),
]
EXPERT = "experts/expert_feedforward_{}_dense"
MIXTRAL_EXPERTS = [
    ("sparse_feedforward_gate_dense/kernel", DENSE),
    *each(EXPERT, "gate intermediate output", EXPERTS),
]
MIXTRAL = llama(
    LLAMA_ATTENTION, *under("mixtral_sparse_moe_block", MIXTRAL_EXPERTS)
)
QWEN_EXPERTS = [
    ("sparse_feedforward_gate_dense/kernel", DENSE),
    (EXPERT.format("gate"), f"{EXPERTS} / 2"),
    (EXPERT.format("output"), EXPERTS),
    *under("shared_expert_dense", GATED_FEEDFORWARD),
    ("shared_expert_gate_dense/kernel", DENSE),
]
QWEN_MOE = llama(QWEN_ATTENTION, *under("qwen_sparse_moe_block", QWEN_EXPERTS))
QWEN_3_ATTENTION = [
    *LLAMA_ATTENTION,
    *each("{}_dense_layernorm/scale", "query key", VECTOR),
]
QWEN_3 = llama(
    QWEN_3_ATTENTION,
    *GATED_FEEDFORWARD,
    ends=[line for line in LLAMA_ENDS if "reverse" not in line[0]],
)
GPT_OSS_ATTENTION = [
    *QWEN_ATTENTION,
    ("attention_output/bias", VECTOR),
    ("sinks", VECTOR),
]
GPT_OSS_EXPERTS = [
    *dense("router/router_dense"),
    *each("experts/{}_proj", "gate_up down", EXPERTS),
    *each("experts/{}_proj_bias", "gate_up down", VECTOR),
]
GPT_OSS = llama(
    GPT_OSS_ATTENTION,
    *under("sparse_moe_block", GPT_OSS_EXPERTS),
    norms=each("{}_layernorm/scale", "input post_attention", VECTOR),
)
GPT_NEO_X_ATTENTION = [
    *under("query_key_value", biased(TO_HEADS)),
    *dense("attention_output"),
]
GPT_NEO_X = [
    ("token_embedding/embeddings", TABLE),
    *norm("layer_norm"),
    *under("transformer_layer_0", TRANSFORMER_BLOCK),
    *under("transformer_layer_0/self_attention", GPT_NEO_X_ATTENTION),
]
SIZES = {"vocabulary_size": 50, "num_layers": 1, "hidden_dim": 24}
SIZES |= {"intermediate_dim": 40}
ENCODER = {**SIZES, "num_heads": 4}
DECODER = {**SIZES, "num_query_heads": 4, "num_key_value_heads": 2}
# By name: the class, its arguments, and the lines. A classifier has as many
# classes as segments or positions: its head maps back to no vocabulary.
HUB = {
    "gpt2": ("GPT2Backbone", {"max_sequence_length": 10, **ENCODER}, GPT2),
    "gpt2_language_model": ("GPT2CausalLM", {"backbone": "gpt2"}, GPT2),
    "llama": ("LlamaBackbone", DECODER, LLAMA),
    "mistral": ("MistralBackbone", DECODER, LLAMA),
    "gemma": ("GemmaBackbone", {"head_dim": 8, **DECODER}, GEMMA),
    "gemma_square_head": ("GemmaBackbone", {"head_dim": 24, **DECODER}, GEMMA),
    "bert": ("BertBackbone", {"max_sequence_length": 10, **ENCODER}, BERT),
    "bert_classifier": (
        "BertTextClassifier",
        {"backbone": "bert", "num_classes": 2},
        BERT + dense("logits"),
    ),
    "vit": (
        "ViTBackbone",
        {
            "image_shape": (16, 16, 3),
            "patch_size": 8,
            "num_layers": 1,
            "num_heads": 4,
            "hidden_dim": 24,
            "mlp_dim": 40,
        },
        VIT,
    ),
    "vit_classifier": (
        "ViTImageClassifier",
        {"backbone": "vit", "num_classes": 5},
        VIT + dense("predictions"),
    ),
    "mixtral": ("MixtralBackbone", {"num_experts": 3, **DECODER}, MIXTRAL),
    "qwen_moe": (
        "QwenMoeBackbone",
        {
            "moe_intermediate_dim": 10,
            "shared_expert_intermediate_dim": 16,
            "num_experts": 3,
            "top_k": 2,
            **DECODER,
        },
        QWEN_MOE,
    ),
    "qwen3": ("Qwen3Backbone", {"head_dim": 6, **DECODER}, QWEN_3),
    "gpt_oss": ("GptOssBackbone", {"num_experts": 3, **DECODER}, GPT_OSS),
    "gpt_neo_x": ("GPTNeoXBackbone", ENCODER, GPT_NEO_X),
}


def make_hub(case):
    """A model of the table."""
    name, options, _ = HUB[case]
    if "backbone" in options:
        options = {**options, "backbone": make_hub(options["backbone"])}
    return getattr(hub(), name)(**options)

"""What every variable of the models in `test_roles.py` is, by hand.

A line is `path: role batch | input | output / blocks`: the axes of each kind
as digits, `-` for none, the blocks where there is more than one. A vector has
nothing after its role. One `{}` stands for the names of several lines.
"""

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
TABLE = "embedding - | 1 | 0"
HEAD = "embedding - | 0 | 1"


def parse(line):
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


def under(prefix, lines):
    return [(f"{prefix}/{path}", line) for path, line in lines]


def several(names, lines):
    return [(path.format(n), line) for n in names for path, line in lines]


# Layers of Keras: variables of one layer, its own name left out.

ATTENTION = [
    *several(
        ["query", "key", "value"],
        [("{}/kernel", TO_HEADS), ("{}/bias", VECTOR)],
    ),
    ("attention_output/kernel", FROM_HEADS),
    ("attention_output/bias", VECTOR),
]
LAYERS = {
    "dense": [("kernel", DENSE), ("bias", VECTOR)],
    "einsum_dense_heads": [("kernel", TO_HEADS), ("bias", VECTOR)],
    "einsum_dense_output": [("kernel", FROM_HEADS), ("bias", VECTOR)],
    "einsum_dense_experts": [("kernel", EXPERTS)],
    "conv1d": [("kernel", CONV_1D), ("bias", VECTOR)],
    "conv2d": [("kernel", CONV_2D), ("bias", VECTOR)],
    "conv3d": [("kernel", CONV_3D), ("bias", VECTOR)],
    "conv2d_groups": [
        ("kernel", "hidden - | 012 | 3 / 2"),
        ("bias", VECTOR),
    ],
    "conv2d_group_per_channel": [("kernel", VECTOR), ("bias", VECTOR)],
    "conv1d_transpose": [("kernel", "hidden - | 02 | 1"), ("bias", VECTOR)],
    "conv2d_transpose": [("kernel", "hidden - | 013 | 2"), ("bias", VECTOR)],
    "conv3d_transpose": [("kernel", "hidden - | 0124 | 3"), ("bias", VECTOR)],
    "depthwise_conv1d": [("kernel", VECTOR), ("bias", VECTOR)],
    "depthwise_conv2d": [("kernel", VECTOR), ("bias", VECTOR)],
    "separable_conv1d": [
        ("depthwise_kernel", VECTOR),
        ("pointwise_kernel", CONV_1D),
        ("bias", VECTOR),
    ],
    "separable_conv2d": [
        ("depthwise_kernel", VECTOR),
        ("pointwise_kernel", CONV_2D),
        ("bias", VECTOR),
    ],
    "simple_rnn": under(
        "simple_rnn_cell",
        [("kernel", DENSE), ("recurrent_kernel", DENSE), ("bias", VECTOR)],
    ),
    "gru": under(
        "gru_cell",
        [("kernel", GRU), ("recurrent_kernel", GRU), ("bias", VECTOR)],
    ),
    "lstm": under(
        "lstm_cell",
        [("kernel", LSTM), ("recurrent_kernel", LSTM), ("bias", VECTOR)],
    ),
    "conv_lstm1d": under(
        "conv_lstm_cell",
        [
            ("kernel", "hidden - | 01 | 2 / 4"),
            ("recurrent_kernel", "hidden - | 01 | 2 / 4"),
            ("bias", VECTOR),
        ],
    ),
    "bidirectional": several(
        ["forward_lstm", "backward_lstm"],
        [
            ("{}/lstm_cell/kernel", LSTM),
            ("{}/lstm_cell/recurrent_kernel", LSTM),
            ("{}/lstm_cell/bias", VECTOR),
        ],
    ),
    "time_distributed": [("inner/kernel", DENSE), ("inner/bias", VECTOR)],
    "spectral_normalization": [
        ("inner/kernel", DENSE),
        ("inner/bias", VECTOR),
    ],
    "multi_head_attention": ATTENTION,
    "cross_attention": ATTENTION,
    "grouped_query_attention": ATTENTION,
    "attention_without_bias": [
        line for line in ATTENTION if line[0].endswith("kernel")
    ],
    "attention_scale": [("scale", VECTOR)],
    "additive_attention": [("scale", VECTOR)],
    "embedding": [("embeddings", TABLE)],
    "reversible_embedding": [
        ("embeddings", TABLE),
        ("reverse_embeddings", HEAD),
    ],
    "layer_normalization": [("gamma", VECTOR), ("beta", VECTOR)],
    "layer_normalization_2d": [("gamma", VECTOR), ("beta", VECTOR)],
    "batch_normalization": [("gamma", VECTOR), ("beta", VECTOR)],
    "group_normalization": [("gamma", VECTOR), ("beta", VECTOR)],
    "rms_normalization": [("scale", VECTOR)],
    "p_re_lu": [("alpha", VECTOR)],
}

# LoRA: the pair, after the layer's own (now frozen) weights.

LORA = {
    "dense": [("lora_kernel_a", DENSE), ("lora_kernel_b", DENSE)],
    "query": [("lora_kernel_a", TO_HEADS), ("lora_kernel_b", DENSE)],
    "conv2d": [("lora_kernel_a", CONV_2D), ("lora_kernel_b", DENSE)],
    "embedding": [("lora_embeddings_a", TABLE), ("lora_embeddings_b", DENSE)],
}


# Models of KerasHub.


def norm(name):
    return [(f"{name}/gamma", VECTOR), (f"{name}/beta", VECTOR)]


def dense(name):
    return [(f"{name}/kernel", DENSE), (f"{name}/bias", VECTOR)]


TRANSFORMER_BLOCK = [
    *dense("feedforward_intermediate_dense"),
    *dense("feedforward_output_dense"),
    *norm("feedforward_layer_norm"),
    *norm("self_attention_layer_norm"),
]
GPT2 = [
    ("token_embedding/embeddings", TABLE),
    ("position_embedding/embeddings", TABLE),
    *norm("layer_norm"),
    *under("transformer_layer_0", TRANSFORMER_BLOCK),
    *under("transformer_layer_0/self_attention", ATTENTION),
]
LLAMA_ATTENTION = [
    ("query/kernel", TO_HEADS),
    ("key/kernel", TO_HEADS),
    ("value/kernel", TO_HEADS),
    ("attention_output/kernel", FROM_HEADS),
]
QWEN_ATTENTION = [
    *LLAMA_ATTENTION,
    ("query/bias", VECTOR),
    ("key/bias", VECTOR),
    ("value/bias", VECTOR),
]
LLAMA_FRAME = [
    ("token_embedding/embeddings", TABLE),
    ("token_embedding/reverse_embeddings", HEAD),
    ("transformer_layer_0/feedforward_layernorm/scale", VECTOR),
    ("transformer_layer_0/self_attention_layernorm/scale", VECTOR),
    ("sequence_output_layernorm/scale", VECTOR),
]
GATED_FEEDFORWARD = [
    ("feedforward_gate_dense/kernel", DENSE),
    ("feedforward_intermediate_dense/kernel", DENSE),
    ("feedforward_output_dense/kernel", DENSE),
]
LLAMA = [
    *LLAMA_FRAME,
    *under("transformer_layer_0", GATED_FEEDFORWARD),
    *under("transformer_layer_0/self_attention", LLAMA_ATTENTION),
]
GEMMA = [
    ("token_embedding/embeddings", TABLE),
    ("decoder_block_0/pre_attention_norm/scale", VECTOR),
    ("decoder_block_0/attention/query/kernel", GEMMA_TO_HEADS),
    ("decoder_block_0/attention/key/kernel", GEMMA_TO_HEADS),
    ("decoder_block_0/attention/value/kernel", GEMMA_TO_HEADS),
    ("decoder_block_0/attention/attention_output/kernel", FROM_HEADS),
    ("decoder_block_0/pre_ffw_norm/scale", VECTOR),
    ("decoder_block_0/ffw_gating/kernel", DENSE),
    ("decoder_block_0/ffw_gating_2/kernel", DENSE),
    ("decoder_block_0/ffw_linear/kernel", DENSE),
    ("final_normalization/scale", VECTOR),
]
BERT = [
    ("token_embedding/embeddings", TABLE),
    ("position_embedding/embeddings", TABLE),
    ("segment_embedding/embeddings", TABLE),
    *norm("embeddings_layer_norm"),
    *under("transformer_layer_0", TRANSFORMER_BLOCK),
    *under("transformer_layer_0/self_attention_layer", ATTENTION),
    *dense("pooled_dense"),
]
VIT = [
    *under(
        "vit_patching_and_embedding",
        [
            ("class_token", VECTOR),
            ("position_embedding/embeddings", TABLE),
            ("patch_embedding/kernel", CONV_2D),
            ("patch_embedding/bias", VECTOR),
        ],
    ),
    *under(
        "vit_encoder/transformer_block_1",
        [
            *norm("ln_1"),
            *norm("ln_2"),
            *dense("mlp/dense_1"),
            *dense("mlp/dense_2"),
        ],
    ),
    *under("vit_encoder/transformer_block_1/mha", ATTENTION),
    *norm("vit_encoder/ln"),
]
MIXTRAL = [
    *LLAMA_FRAME,
    *under("transformer_layer_0/self_attention", LLAMA_ATTENTION),
    *under(
        "transformer_layer_0/mixtral_sparse_moe_block",
        [
            ("sparse_feedforward_gate_dense/kernel", DENSE),
            ("experts/expert_feedforward_gate_dense", EXPERTS),
            ("experts/expert_feedforward_intermediate_dense", EXPERTS),
            ("experts/expert_feedforward_output_dense", EXPERTS),
        ],
    ),
]
QWEN_MOE = [
    *LLAMA_FRAME,
    *under("transformer_layer_0/self_attention", QWEN_ATTENTION),
    *under(
        "transformer_layer_0/qwen_sparse_moe_block",
        [
            ("sparse_feedforward_gate_dense/kernel", DENSE),
            ("experts/expert_feedforward_gate_dense", EXPERTS + " / 2"),
            ("experts/expert_feedforward_output_dense", EXPERTS),
            *under("shared_expert_dense", GATED_FEEDFORWARD),
            ("shared_expert_gate_dense/kernel", DENSE),
        ],
    ),
]
QWEN_3 = [
    line for line in LLAMA if line[0] != "token_embedding/reverse_embeddings"
] + [
    ("transformer_layer_0/self_attention/query_dense_layernorm/scale", VECTOR),
    ("transformer_layer_0/self_attention/key_dense_layernorm/scale", VECTOR),
]
GPT_OSS = [
    ("token_embedding/embeddings", TABLE),
    ("token_embedding/reverse_embeddings", HEAD),
    ("transformer_layer_0/input_layernorm/scale", VECTOR),
    ("transformer_layer_0/post_attention_layernorm/scale", VECTOR),
    ("sequence_output_layernorm/scale", VECTOR),
    *under("transformer_layer_0/self_attention", QWEN_ATTENTION),
    ("transformer_layer_0/self_attention/attention_output/bias", VECTOR),
    ("transformer_layer_0/self_attention/sinks", VECTOR),
    *under(
        "transformer_layer_0/sparse_moe_block",
        [
            *dense("router/router_dense"),
            ("experts/gate_up_proj", EXPERTS),
            ("experts/gate_up_proj_bias", VECTOR),
            ("experts/down_proj", EXPERTS),
            ("experts/down_proj_bias", VECTOR),
        ],
    ),
]
GPT_NEO_X = [
    ("token_embedding/embeddings", TABLE),
    *norm("layer_norm"),
    *under("transformer_layer_0", TRANSFORMER_BLOCK),
    *under(
        "transformer_layer_0/self_attention",
        [
            ("query_key_value/kernel", TO_HEADS),
            ("query_key_value/bias", VECTOR),
            *dense("attention_output"),
        ],
    ),
]

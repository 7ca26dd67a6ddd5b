"""Kinds of blocks by path, as Keras and KerasHub name them."""

import pytest

from helpers.tiers import logic
from keras_lanton.roles.block_kinds import block_of
from keras_lanton.roles.block_kinds import embeds_features
from keras_lanton.roles.spec import assigned_spec

pytestmark = logic

ATTENTION = "transformer_layer_0/self_attention"
HIDDEN = ("hidden", 0, 1)
TABLE = ("embedding", 1, 0)
HEAD = ("embedding", 0, 1)
WORDS = ("hidden", 1, 0)  # with 8 outputs


@pytest.mark.parametrize(
    ("block", "path", "role"),
    [
        ("qk", f"{ATTENTION}/query/kernel", HIDDEN),
        ("qk", "decoder_block_0/attention/key/kernel", HIDDEN),
        ("qk", "block_1/attn/q_proj/kernel", HIDDEN),
        ("vo", f"{ATTENTION}/value/kernel", HIDDEN),
        ("vo", f"{ATTENTION}/attention_output/kernel", HIDDEN),
        ("vo", f"{ATTENTION}/qkv/kernel", HIDDEN),
        ("vo", "block_1/attn/o_proj/kernel", HIDDEN),
        ("mlp", "layer_0/feedforward_intermediate_dense/kernel", HIDDEN),
        ("mlp", "layer_0/feedforward_output_dense/kernel", HIDDEN),
        ("mlp", "decoder_block_0/ffw_gating_2/kernel", HIDDEN),
        ("mlp", "attention_model/dense/kernel", HIDDEN),
        ("mlp", "kernel", HIDDEN),
        ("embedding", "token_embedding/embeddings", TABLE),
        ("head", "token_embedding/reverse_embeddings", HEAD),
        ("head", "logits/kernel", HEAD),
        ("position", "position_embedding/embeddings", TABLE),
        ("norm", f"{ATTENTION}/query/bias", ("vector",)),
    ],
)
def test_block_of(block, path, role):
    assert block_of(assigned_spec(path, (8, 6), *role)) == block


@pytest.mark.parametrize(
    ("others", "features"),
    [
        ([], True),
        ([("dense/kernel", *HIDDEN), ("dense/bias", "vector")], True),
        ([("lstm/lstm_cell/recurrent_kernel", *HIDDEN)], True),
        ([(f"{ATTENTION}/query/kernel", *HIDDEN)], False),
        ([(f"{ATTENTION}/qkv/kernel", *HIDDEN)], False),
        ([("logits/kernel", *HEAD)], False),
        ([("dense/kernel", *WORDS)], False),
        ([("dense/kernel", *WORDS), ("dense_1/kernel", *HIDDEN)], True),
    ],
)
def test_embeddings_of_features(others, features):
    """The table has 8 rows."""
    records = [("users/embeddings", *TABLE), *others]
    specs = [assigned_spec(path, (8, 6), *role) for path, *role in records]
    assert embeds_features(specs) == features

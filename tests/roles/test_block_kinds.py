"""Kinds of blocks by path, as Keras and KerasHub name them."""

import pytest

from helpers.tiers import logic
from keras_lanton.roles.block_kinds import block_of
from keras_lanton.roles.spec import assigned_spec

pytestmark = logic

ATTENTION = "transformer_layer_0/self_attention"


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ("qk", f"{ATTENTION}/query/kernel"),
        ("qk", "decoder_block_0/attention/key/kernel"),
        ("qk", "block_1/attn/q_proj/kernel"),
        ("vo", f"{ATTENTION}/value/kernel"),
        ("vo", f"{ATTENTION}/attention_output/kernel"),
        ("vo", f"{ATTENTION}/qkv/kernel"),
        ("vo", "block_1/attn/o_proj/kernel"),
        ("mlp", "transformer_layer_0/feedforward_intermediate_dense/kernel"),
        ("mlp", "transformer_layer_0/feedforward_output_dense/kernel"),
        ("mlp", "decoder_block_0/ffw_gating_2/kernel"),
        ("mlp", "attention_model/dense/kernel"),
        ("mlp", "kernel"),
    ],
)
def test_hidden_blocks(block: str, path: str) -> None:
    assert block_of(assigned_spec(path, (8, 6), "hidden", 0, 1)) == block


@pytest.mark.parametrize(
    ("block", "path", "axes"),
    [
        ("embedding", "token_embedding/embeddings", (1, 0)),
        ("head", "token_embedding/reverse_embeddings", (0, 1)),
        ("head", "logits/kernel", (0, 1)),
        ("position", "position_embedding/embeddings", (1, 0)),
    ],
)
def test_embeddings(block: str, path: str, axes: tuple[int, int]) -> None:
    assert block_of(assigned_spec(path, (8, 6), "embedding", *axes)) == block


def test_everything_else_is_a_norm() -> None:
    layer = assigned_spec(f"{ATTENTION}/query/bias", (8,), "vector")
    assert block_of(layer) == "norm"

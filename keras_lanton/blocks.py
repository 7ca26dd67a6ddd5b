"""Kinds of blocks in a transformer, finer than roles: by path."""

import re

from keras_lanton.roles import Layer

BLOCKS = ("qk", "vo", "mlp", "embedding", "position", "head", "norm")

_QK = re.compile(r"(^|[/_])(query|key|q_proj|k_proj|q|k)([/_]|$)")
_VO = re.compile(
    r"(^|[/_])(value|v_proj|o_proj|v|o|attention_output|output_dense|qkv|c_attn)"
    r"([/_]|$)"
)
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


def block_of(layer: Layer) -> str:
    """The kind of block that a layer belongs to.

    Args:
        layer: A record of `optimizer.layers`.

    Returns:
        `"norm"`: everything of role `"vector"`; `"position"`, `"head"`
        (width, vocabulary) or `"embedding"` (vocabulary, width); `"qk"`:
        queries and keys; `"vo"`: values, attention outputs, and attention
        kernels that hold all in one; `"mlp"`: every other hidden kernel.

    References:
        Wang et al. 2025, The Sharpness Disparity Principle in Transformers:
        github.com/Wongboo/BlockwiseLearningRate, train_gpt_bw.py.
    """
    if layer.role == "vector":
        return "norm"
    if layer.role == "embedding":
        if "position" in layer.path:
            return "position"
        return "head" if 0 in layer.input_axes else "embedding"
    # The kernel's own name says nothing; the names of its owners do.
    owners = layer.path.rpartition("/")[0]
    if _QK.search(owners):
        return "qk"
    if _VO.search(owners) or _ATTENTION.search(owners.rpartition("/")[2]):
        return "vo"
    return "mlp"

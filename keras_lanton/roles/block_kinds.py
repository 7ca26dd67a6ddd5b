"""Kinds of transformer blocks, finer than roles, by variable path."""

import re
from collections.abc import Sequence

from keras_lanton.roles.spec import VariableSpec

BLOCKS = ("qk", "vo", "mlp", "embedding", "position", "head", "norm")

_QK = re.compile(r"(query|key|[qk]_proj)(_\d+)?")
_VO = re.compile(r"(value|[vo]_proj|qkv|c_attn|.*attention.*)(_\d+)?")


def block_of(spec: VariableSpec) -> str:
    """The kind of block that a variable belongs to.

    Args:
        spec: A record of `optimizer.layers`.

    Returns:
        `"norm"`: everything of role `"vector"`; `"position"`, `"head"`
        (width, vocabulary) or `"embedding"` (vocabulary, width); `"qk"`:
        queries and keys; `"vo"`: values, attention outputs, and attention
        kernels that hold all in one; `"mlp"`: every other hidden kernel.

    References:
        Wang et al. 2025, The Sharpness Disparity Principle in Transformers:
        github.com/Wongboo/BlockwiseLearningRate, train_gpt_bw.py.
    """
    if spec.role == "vector":
        return "norm"
    if spec.role == "embedding":
        if "position" in spec.path:
            return "position"
        return "head" if 0 in spec.input_axes else "embedding"
    # The kernel's own name says nothing; its layer's does.
    owner = spec.path.split("/")[-2] if "/" in spec.path else ""
    if _QK.fullmatch(owner):
        return "qk"
    return "vo" if _VO.fullmatch(owner) else "mlp"


def embeds_features(specs: Sequence[VariableSpec]) -> bool:
    """Returns whether embeddings are of features, such as users and items.

    That is in a model without attention and without a head of words. The last
    hidden kernel is such a head too, if its outputs are as many as the rows of
    an embedding.

    Args:
        specs: Records of all variables, in the order of the model.
    """
    kinds = {block_of(spec) for spec in specs}
    rows = {spec.d_out for spec in specs if block_of(spec) == "embedding"}
    last = [spec.d_out for spec in specs if spec.role == "hidden"][-1:]
    return kinds.isdisjoint(("qk", "vo", "head")) and rows.isdisjoint(last)

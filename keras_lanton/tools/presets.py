"""Shapes and roles of the weights of known models, without making them."""

from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import assigned_spec


def gpt2(
    layers: int, width: int, vocabulary: int = 50257
) -> list[VariableSpec]:
    """GPT-2's weights, tied head, as KerasHub lays them out.

    Args:
        layers: Number of blocks.
        width: Width of the model; heads have 64.
        vocabulary: Number of tokens.
    """
    return [
        assigned_spec("tokens", (vocabulary, width), "embedding"),
        assigned_spec("positions", (1024, width), "embedding"),
        *_vectors(2, width),
        *_blocks_with_biases(layers, width),
    ]


def bert(
    layers: int, width: int, vocabulary: int = 30522
) -> list[VariableSpec]:
    """BERT's weights, as KerasHub lays them out.

    Args:
        layers: Number of blocks.
        width: Width of the model; heads have 64.
        vocabulary: Number of tokens.
    """
    return [
        assigned_spec("tokens", (vocabulary, width), "embedding"),
        assigned_spec("positions", (512, width), "embedding"),
        assigned_spec("segments", (2, width), "embedding"),
        *_vectors(2, width),
        *_blocks_with_biases(layers, width),
        assigned_spec("pooled", (width, width), "hidden"),
        *_vectors(1, width),
    ]


def llama(
    layers: int,
    width: int,
    feed_forward: int,
    key_value_heads: int,
    *,
    head: int = 64,
    heads: int | None = None,
    vocabulary: int = 32000,
    tied: bool = False,
    normed_heads: bool = False,
) -> list[VariableSpec]:
    """Llama's weights, and those of models like it, as KerasHub has them.

    Args:
        layers: Number of blocks.
        width: Width of the model.
        feed_forward: Inner width of the MLPs.
        key_value_heads: Number of heads of keys and values.
        head: Width of a head.
        heads: Number of heads of queries. Defaults to `width / head`.
        vocabulary: Number of tokens.
        tied: Whether the table of tokens is the head too.
        normed_heads: Whether queries and keys are normalized, as in Qwen3.
    """
    queries = (heads or width // head, head)
    found = [
        assigned_spec("tokens", (vocabulary, width), "embedding"),
        *_vectors(1, width),
    ]
    if not tied:
        shape = (width, vocabulary)
        found.append(assigned_spec("head", shape, "embedding", input_axes=0))
    for _ in range(layers):
        found += _attention(width, queries, (key_value_heads, head))
        found += [
            assigned_spec("gate", (width, feed_forward), "hidden"),
            assigned_spec("up", (width, feed_forward), "hidden"),
            assigned_spec("down", (feed_forward, width), "hidden"),
            *_vectors(2, width),
            *_vectors(2 * normed_heads, head),
        ]
    return found


def _blocks_with_biases(layers: int, width: int) -> list[VariableSpec]:
    """Blocks of GPT-2 and BERT: heads of 64, an MLP four times as wide."""
    heads = (width // 64, 64)
    found = []
    for _ in range(layers):
        found += _attention(width, heads, heads)
        found += [
            assigned_spec("up", (width, 4 * width), "hidden"),
            assigned_spec("down", (4 * width, width), "hidden"),
            *_vectors(9, width),
            *_vectors(1, 4 * width),
        ]
    return found


def _attention(
    width: int, queries: tuple[int, int], others: tuple[int, int]
) -> list[VariableSpec]:
    into = [
        assigned_spec(name, (width, *heads), "hidden", 0, (1, 2))
        for name, heads in (
            ("query", queries),
            ("key", others),
            ("value", others),
        )
    ]
    return [*into, assigned_spec("out", (*queries, width), "hidden", (0, 1), 2)]


def _vectors(count: int, width: int) -> list[VariableSpec]:
    return [assigned_spec("vector", (width,), "vector")] * count


# By the names of KerasHub's presets.
PRESETS = {
    "bert_base_en_uncased": lambda: bert(12, 768),
    "bert_large_en_uncased": lambda: bert(24, 1024),
    "gpt2_base_en": lambda: gpt2(12, 768),
    "gpt2_medium_en": lambda: gpt2(24, 1024),
    "gpt2_large_en": lambda: gpt2(36, 1280),
    "gpt2_extra_large_en": lambda: gpt2(48, 1600),
    "qwen3_0.6b_en": lambda: llama(
        28,
        1024,
        3072,
        8,
        head=128,
        heads=16,
        vocabulary=151936,
        tied=True,
        normed_heads=True,
    ),
    "llama3.2_1b": lambda: llama(16, 2048, 8192, 8, vocabulary=128256),
    "llama2_7b_en": lambda: llama(32, 4096, 11008, 32, head=128),
    "mistral_7b_en": lambda: llama(32, 4096, 14336, 8, head=128),
    "llama3_8b_en": lambda: llama(
        32, 4096, 14336, 8, head=128, vocabulary=128256
    ),
}

"""The variables of known models, without their values."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Sizes = tuple[str, dict[str, Any]]  # of KerasHub: a backbone, its arguments


def gpt2(layers: int, width: int, **others: int) -> Sizes:
    """GPT-2 with heads of 64, as all of its presets have."""
    sizes = {
        "vocabulary_size": 50257,
        "num_layers": layers,
        "num_heads": width // 64,
        "hidden_dim": width,
        "intermediate_dim": 4 * width,
        "max_sequence_length": 1024,
    }
    return "GPT2Backbone", {**sizes, **others}


def llama(
    layers: int,
    width: int,
    inner: int,
    heads: tuple[int, int],
    *,
    kind: str = "Llama",
    **others: Any,
) -> Sizes:
    """Llama, or a model of its shape; heads of queries and of keys."""
    sizes = {
        "vocabulary_size": 32000,
        "num_layers": layers,
        "num_query_heads": heads[0],
        "num_key_value_heads": heads[1],
        "hidden_dim": width,
        "intermediate_dim": inner,
    }
    return f"{kind}Backbone", {**sizes, **others}


# By the names of KerasHub's presets.
PRESETS = {
    "bert_base_en_uncased": (
        "BertBackbone",
        {
            "vocabulary_size": 30522,
            "num_layers": 12,
            "num_heads": 12,
            "hidden_dim": 768,
            "intermediate_dim": 3072,
        },
    ),
    "gpt2_base_en": gpt2(12, 768),
    "gpt2_extra_large_en": gpt2(48, 1600),
    "qwen3_0.6b_en": llama(
        28,
        1024,
        3072,
        (16, 8),
        kind="Qwen3",
        head_dim=128,
        vocabulary_size=151936,
        tie_word_embeddings=True,
    ),
    "llama3.2_1b": llama(16, 2048, 8192, (32, 8), vocabulary_size=128256),
    "mistral_7b_en": llama(32, 4096, 14336, (32, 8), kind="Mistral"),
    "llama3_8b_en": llama(32, 4096, 14336, (32, 8), vocabulary_size=128256),
}
MODELS = {
    **PRESETS,
    "llama_100m": llama(12, 768, 2048, (12, 4), tie_word_embeddings=True),
    "llama_1.1b": llama(22, 2048, 5632, (32, 4)),  # of TinyLlama
    # GPT-2 small's variables, whose arithmetic takes no time.
    "narrow": gpt2(
        12, 24, num_heads=12, vocabulary_size=512, max_sequence_length=64
    ),
}
# What is smaller with `--quick`.
QUICK = {
    "vocabulary_size": 512,
    "num_layers": 2,
    "num_heads": 4,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_dim": 64,
    "intermediate_dim": 192,
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """One trainable variable: KerasHub's path and shape."""

    path: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def matrix(self) -> tuple[int, int] | None:
        """Inputs and outputs of a hidden kernel; None of others."""
        if not self.path.endswith("/kernel"):
            return None
        one_output = len(self.shape) == 2 or "attention_output" in self.path
        inputs = math.prod(self.shape[:-1] if one_output else self.shape[:1])
        return inputs, self.size // inputs

    def equal_work(self) -> "Spec":
        """The same as a plain matrix, or as a plain vector.

        Keras' Muon leaves 3-D kernels to AdamW and orthogonalizes 2-D
        biases; torch.optim.Muon takes nothing but matrices.
        """
        if "embedding" in self.path:
            return self
        return dataclasses.replace(self, shape=self.matrix or (self.size,))


def sizes_of(name: str, *, quick: bool = False, **changes: int) -> Sizes:
    """The backbone of one of `MODELS`, and its arguments."""
    backbone, sizes = MODELS[name]
    smaller = {**(QUICK if quick else {}), **changes}
    changed = {key: smaller.get(key, value) for key, value in sizes.items()}
    return backbone, changed


def make_backbone(name: str, **options: Any) -> Any:
    """KerasHub's model; `options` are those of `sizes_of`."""
    import keras_hub

    backbone, sizes = sizes_of(name, **options)
    return getattr(keras_hub.models, backbone)(**sizes, dropout=0.0)


def model_specs(name: str, **options: Any) -> list[Spec]:
    """The variables of a model; `options` are those of `sizes_of`."""
    import keras

    with unallocated():
        variables = make_backbone(name, **options).trainable_variables
    # Keras would give them values with those of the next model.
    keras.backend.clear_session()
    return [Spec(v.path, tuple(v.shape)) for v in variables]


def unallocated() -> Any:
    """Scope in which Keras defers the values of new variables."""
    import keras

    return keras.StatelessScope(initialize_variables=False)


def make_variables(
    specs: Sequence[Spec], dtype: str = "float32", *, allocate: bool = True
) -> list[Any]:
    """Keras variables of these paths and shapes.

    Args:
        specs: Paths and shapes.
        dtype: Of the weights.
        allocate: False gives variables without values, which optimizers can
            be built on inside `unallocated()`.
    """
    with contextlib.nullcontext() if allocate else unallocated():
        return [make_variable(spec, dtype) for spec in specs]


def make_variable(spec: Spec, dtype: str) -> Any:
    """A Keras variable of zeros, at the path of a spec."""
    import keras

    *parents, name = spec.path.split("/")
    with contextlib.ExitStack() as stack:
        for parent in parents:
            stack.enter_context(keras.name_scope(parent))
        made = keras.Variable("zeros", shape=spec.shape, dtype=dtype, name=name)
    if made.path != spec.path:
        raise RuntimeError(f"{made.path} instead of {spec.path}")
    return made


def make_gradients(specs: Sequence[Spec], dtype: str = "float32") -> list[Any]:
    """Backend tensors of Gaussian noise, the same in every run."""
    from keras import ops

    random = np.random.default_rng(0)
    return [
        ops.convert_to_tensor(
            random.standard_normal(spec.shape, "float32"), dtype=dtype
        )
        for spec in specs
    ]


def rotated(gradients: Sequence[Any]) -> list[Any]:
    """The gradients handed on among the variables of equal shape.

    So that one step's gradients differ from the last step's without a second
    copy of them: a noise sample must not be zero. A variable alone of its
    shape has its rows the other way round.
    """
    from keras import ops

    groups: dict[tuple[int, ...], list[int]] = {}
    for i, gradient in enumerate(gradients):
        groups.setdefault(tuple(gradient.shape), []).append(i)
    found = list(gradients)
    for group in groups.values():
        if len(group) == 1:
            found[group[0]] = ops.flip(gradients[group[0]], axis=0)
            continue
        for here, there in zip(group, [*group[1:], group[0]], strict=True):
            found[here] = gradients[there]
    return found

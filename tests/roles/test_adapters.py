"""Low-rank adapters that cannot learn."""

import keras
import numpy as np

from helpers.tiers import logic
from keras_lanton.roles.adapters import zero_adapters


class Variable(keras.Variable):
    """With a path of its own."""

    def __init__(self, path, value):
        super().__init__(np.full((2, 2), value, "float32"))
        self._path = path


@logic
def test_both_factors_must_be_zero():
    made = [
        Variable("a/lora_kernel_a", 1.0),
        Variable("a/lora_kernel_b", 0.0),
        Variable("b/c/lora_embeddings_a", 0.0),
        Variable("b/c/lora_embeddings_b", 0.0),
        Variable("d/lora_kernel_a", 0.0),
        Variable("d/lora_kernel_b", 1.0),
        Variable("e/kernel", 0.0),
        Variable("f/lora_kernel_b", 0.0),  # the other one is frozen
    ]
    assert zero_adapters(made) == ["b/c"]
    assert zero_adapters(()) == []

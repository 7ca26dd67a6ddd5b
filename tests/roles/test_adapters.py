"""Low-rank adapters that cannot learn."""

import keras
import numpy as np

from helpers.tiers import logic
from keras_lanton.roles.adapters import zero_adapters


@logic
def test_both_factors_must_be_zero():
    values = {
        "a/lora_kernel_a": 1.0,
        "a/lora_kernel_b": 0.0,
        "b/c/lora_embeddings_a": 0.0,
        "b/c/lora_embeddings_b": 0.0,
        "d/lora_kernel_a": 0.0,
        "d/lora_kernel_b": 1.0,
        "e/kernel": 0.0,
        "f/lora_kernel_b": 0.0,  # the other one is frozen
    }
    made = []
    for path, value in values.items():
        made.append(keras.Variable(np.full((2, 2), value, "float32")))
        made[-1]._path = path
    assert zero_adapters(made) == ["b/c"]
    assert zero_adapters(()) == []

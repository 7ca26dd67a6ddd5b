"""A block of a transformer, for what is printed of models."""

import keras
from keras import layers


def make_model(*, fused=False, head="head"):
    """One block of a transformer on a vocabulary of 50."""
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(50, 8, name="tokens")(inputs)
    x = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    if fused:
        x = layers.Dense(24, name="qkv")(x)
        x = layers.Dense(8, name="down")(x)
    return keras.Model(inputs, layers.Dense(50, name=head)(x), name="small")

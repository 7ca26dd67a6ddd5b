"""The language models, with random weights."""


def make_model(preset, vocabulary):
    """KerasHub's model of a preset."""
    make = {"gpt2": make_gpt2, "llama": make_llama}[preset.model]
    model = make(preset, vocabulary)
    if preset.scaled_kernels:
        scale_kernels(model, preset.width)
    return model


def scale_kernels(model, width):
    """Multiply initial hidden kernels by sqrt(768 / width).

    KerasHub draws them at 0.02, which suits GPT-2 small's width of 768.
    """
    for variable in model.trainable_variables:
        if "embedding" not in variable.path and variable.name == "kernel":
            variable.assign(variable * (768 / width) ** 0.5)


def make_gpt2(preset, vocabulary):
    """A GPT-2; its head is the embedding, transposed."""
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=vocabulary,
        num_layers=preset.layers,
        num_heads=preset.heads,
        hidden_dim=preset.width,
        intermediate_dim=preset.feed_forward or 4 * preset.width,
        dropout=preset.dropout,
        max_sequence_length=preset.context,
        dtype=preset.dtype_policy,
    )
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)


def make_llama(preset, vocabulary):
    """A Llama; its head is not the embedding."""
    import keras_hub

    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=vocabulary,
        num_layers=preset.layers,
        num_query_heads=preset.heads,
        num_key_value_heads=preset.key_value_heads or preset.heads,
        hidden_dim=preset.width,
        intermediate_dim=preset.feed_forward or 4 * preset.width,
        dropout=preset.dropout,
        tie_word_embeddings=False,
        dtype=preset.dtype_policy,
    )
    return keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)

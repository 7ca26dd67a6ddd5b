"""The language models, with random weights."""


def make_model(preset, vocabulary):
    """KerasHub's model of a preset."""
    import keras_hub

    shared = {
        "vocabulary_size": vocabulary,
        "num_layers": preset.layers,
        "hidden_dim": preset.width,
        "intermediate_dim": preset.feed_forward or 4 * preset.width,
        "dropout": preset.dropout,
        "dtype": preset.dtype_policy,
    }
    models = keras_hub.models
    if preset.model == "gpt2":
        backbone = models.GPT2Backbone(
            num_heads=preset.heads,
            max_sequence_length=preset.context,
            **shared,
        )
        # Its head is the embedding, transposed.
        model = models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    else:
        backbone = models.LlamaBackbone(
            num_query_heads=preset.heads,
            num_key_value_heads=preset.key_value_heads or preset.heads,
            tie_word_embeddings=False,
            **shared,
        )
        model = models.LlamaCausalLM(backbone=backbone, preprocessor=None)
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

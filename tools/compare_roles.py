"""Roles from paths against roles from layers, for ready-made models.

    KERAS_BACKEND=torch python tools/compare_roles.py > docs/models.csv

`Lanton()` alone decides by paths and shapes; `Lanton().read_roles(model)`
reads the layers, which is exact. Every model of `keras.applications` and
every backbone of KerasHub that can be made small is built with random
weights, and the roles and views of all of its variables are compared.
"""

import gc
import inspect
import sys
import warnings

import keras
import keras_hub

from keras_lanton import Lanton

# What a backbone's constructor asks for, by name.
SMALL = {
    "vocabulary_size": 40,
    "vocab_size": 40,
    "num_layers": 2,
    "num_layers_enc": 2,
    "num_layers_dec": 2,
    "num_heads": 2,
    "num_attention_heads": 4,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "head_size": 8,
    "hidden_dim": 16,
    "hidden_size": 16,
    "embedding_dim": 8,
    "intermediate_dim": 32,
    "moe_intermediate_dim": 24,
    "shared_expert_intermediate_dim": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 3,
    "top_k": 2,
    "image_shape": (32, 32, 3),
    "image_size": 32,
    "patch_size": 8,
    "mlp_dim": 32,
    "filter_dim": 16,
    "encoder_num_layers": 1,
    "decoder_num_layers": 1,
    "encoder_num_heads": 2,
    "decoder_num_heads": 2,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 16,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "vit_patch_size": 8,
    "vit_num_heads": 2,
    "vit_hidden_dim": 16,
    "vit_num_layers": 1,
    "num_frames": 2,
    "num_spatial_layers": 1,
    "num_temporal_layers": 1,
    "num_auxiliary_layers": 1,
    "global_attention_layer_indices": (1,),
}
T5_GEMMA = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {
        "hidden_dim": 16,
        "intermediate_dim": 32,
        "num_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "layer_types": ["full_attention"],
    }.items()
}
SMOL = {"rope_layer_enabled_list": [True] * 2, "layer_types": [None] * 2}
# What single backbones ask for besides.
OWN = {
    "CSPNetBackbone": {
        "stem_filters": 8,
        "stem_kernel_size": 3,
        "stem_strides": 2,
        "stackwise_depth": [1, 1],
        "stackwise_strides": [1, 2],
        "stackwise_num_filters": [8, 16],
        "block_type": "dark",
    },
    "DenseNetBackbone": {"stackwise_num_repeats": [2, 2, 2]},
    "MiTBackbone": {
        "layerwise_depths": [1, 1],
        "num_layers": 2,
        "layerwise_num_heads": [1, 2],
        "layerwise_sr_ratios": [2, 1],
        "max_drop_path_rate": 0.1,
        "layerwise_patch_sizes": [7, 3],
        "layerwise_strides": [4, 2],
        "image_shape": (32, 32, 3),
        "hidden_dims": [8, 16],
    },
    "ResNetBackbone": {
        "input_conv_filters": [64],
        "input_conv_kernel_sizes": [7],
        "stackwise_num_filters": [64, 128],
        "stackwise_num_blocks": [1, 1],
        "stackwise_num_strides": [1, 2],
        "block_type": "bottleneck_block",
    },
    "SmolLM3Backbone": SMOL,
    "SmolLMBackbone": SMOL,
    "SwinTransformerBackbone": {
        "embed_dim": 8,
        "depths": (1, 1),
        "num_heads": (1, 2),
        "window_size": 4,
    },
    "T5Gemma2Backbone": T5_GEMMA,
    "T5GemmaBackbone": T5_GEMMA,
    "ViTDetBackbone": {"image_shape": (32, 32, 3)},
    "VGGBackbone": {
        "stackwise_num_repeats": [1, 1],
        "stackwise_num_filters": [8, 16],
    },
    "XceptionBackbone": {
        "stackwise_conv_filters": [[8, 8], [16, 16, 16]],
        "stackwise_pooling": [False, True],
    },
}


def applications():
    """Names of the models of `keras.applications`, and what makes each."""
    for name, make in sorted(vars(keras.applications).items()):
        if inspect.isfunction(make):
            yield name, lambda make=make: make(weights=None)


def backbones():
    """Names of the backbones of KerasHub, and what makes each."""
    for name in dir(keras_hub.models):
        cls = getattr(keras_hub.models, name)
        if name.endswith("Backbone") and name != "Backbone":
            yield name, lambda cls=cls: small(cls)


def small(cls):
    """A small backbone.

    Raises:
        LookupError: Without sizes for it.
    """
    given = dict(OWN.get(cls.__name__, {}))
    for parameter in inspect.signature(cls.__init__).parameters.values():
        needed = parameter.default is parameter.empty
        name = parameter.name
        if name == "self" or name in given or not needed:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if name not in SMALL:
            raise LookupError(name)
        given[name] = SMALL[name]
    return cls(**given)


def specs(optimizer, model):
    """What an optimizer decides, one record per variable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # guesses are counted here
        optimizer.build(model.trainable_variables)
    return optimizer.layers


def seen(spec):
    """What decides the update of a variable."""
    return (spec.role, spec.batch_axes, spec.input_axes, spec.output_axes)


def compare(model):
    """Counts by role, and the variables that paths see in another way."""
    exact = specs(Lanton(noise=None).read_roles(model), model)
    guessed = specs(Lanton(noise=None), model)
    counts = [
        sum(spec.role == role for spec in exact)
        for role in ("hidden", "embedding", "vector")
    ]
    differ = [
        (a, b)
        for a, b in zip(exact, guessed, strict=True)
        if seen(a) != seen(b) or a.batch != b.batch
    ]
    return counts, differ


def print_rows(models):
    """Print a row for each model; to stderr what cannot be built."""
    for name, make in models:
        keras.backend.clear_session()
        gc.collect()
        try:
            counts, differ = compare(make())
        except Exception as error:  # another release asks for other sizes
            message = f"{name}: {type(error).__name__} {error}"
            print(message[:200], file=sys.stderr)
            continue
        print(name, sum(counts), *counts, len(differ), sep=",", flush=True)


if __name__ == "__main__":
    versions = f"Keras {keras.__version__}, KerasHub {keras_hub.__version__}"
    print(versions, file=sys.stderr)
    print("model,variables,hidden,embedding,vector,differ")
    print_rows(applications())
    print_rows(backbones())

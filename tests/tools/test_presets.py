"""The shapes of known models, against what KerasHub says of them."""

import math

import keras_hub
import pytest

from helpers.tiers import logic
from keras_lanton.tools.presets import PRESETS

BACKBONES = ("Bert", "GPT2", "Llama", "Mistral", "Qwen3")


def published(name):
    """The number of weights in the metadata of a preset."""
    for kind in BACKBONES:
        presets = getattr(keras_hub.models, f"{kind}Backbone").presets
        if name in presets:
            return presets[name]["metadata"]["params"]
    raise KeyError(name)


@logic
@pytest.mark.parametrize("name", PRESETS)
def test_the_number_of_weights_is_kerashubs(name):
    found = sum(math.prod(spec.shape) for spec in PRESETS[name]())
    assert found == published(name)

"""What is decided for a variable by hand, and its config."""

import json

import numpy as np
import pytest

from helpers import roles
from helpers.tiers import logic
from keras_lanton.roles.spec import assigned_spec
from keras_lanton.roles.spec import in_words
from keras_lanton.roles.spec import spec_from_config
from keras_lanton.roles.spec import spec_to_config

pytestmark = logic


def test_in_words():
    heads = assigned_spec("a/b", (4, 2, 3), "hidden", 0)
    assert in_words(heads) == "1 hidden matrix (4 x 6), output axes 1, 2"
    stack = assigned_spec("a/b", (4, 2, 3), "hidden", 1, 2)
    assert in_words(stack) == "4 hidden matrices (2 x 3), output axis 2"


@pytest.mark.parametrize(
    ("shape", "arguments", "line"),
    [
        ((4, 5), ("hidden",), roles.DENSE),
        ((3, 4, 5), ("hidden",), roles.CONV_1D),
        ((3, 4, 5), ("hidden", 1, 2), roles.EXPERTS),
        ((3, 4, 5), ("hidden", (0,), (1, 2)), roles.TO_HEADS),
        ((3, 4, 5), ("hidden", np.int64(1)), roles.GEMMA_TO_HEADS),
        ((3, 4, 5), ("hidden", None, [-1]), roles.FROM_HEADS),
        ((3, 4, 5), ("hidden", (2, 0), 1), "hidden - | 20 | 1"),
        ((9, 4), ("embedding",), roles.TABLE),
        ((4, 9), ("embedding", 0), roles.HEAD),
        ((1, 9, 4), ("embedding",), "embedding - | 2 | 01"),
        ((3, 4, 5), ("vector",), roles.VECTOR),
        ((), ("vector",), roles.VECTOR),
    ],
)
def test_make_layer(shape, arguments, line):
    layer = assigned_spec("a/b", shape, *arguments)
    assert roles.described(layer) == roles.hand(line)
    assert (layer.path, layer.shape) == ("a/b", shape)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((4, 5), ("matrix",), "one of.*Received: role='matrix'"),
        ((4, 5), ("hidden", 2), "`input_axes`.*Received: input_axes=2"),
        ((4, 5), ("hidden", 0, -3), r"\[-2, 1\].*Received: output_axes=-3"),
        ((4, 5), ("hidden", (0, -2)), "different axes.*Received"),
        ((4, 5), ("hidden", 0, (0, 1)), "must not overlap.*Received"),
        ((4, 5), ("vector", 0), "no axes.*Received: input_axes=0"),
        ((4,), ("hidden",), "always a vector.*Received: role='hidden'"),
        ((), ("embedding",), "always a vector.*Received"),
    ],
)
def test_make_layer_refuses(shape, arguments, message):
    with pytest.raises(ValueError, match=message):
        assigned_spec("a/b", shape, *arguments)


def test_config_round_trip():
    layers_ = [
        assigned_spec("a/b", (3, 4, 5), "hidden", 1, 2),
        assigned_spec("a/c", (), "vector"),
        *roles.read(roles.make("lstm", "lstm")),
    ]
    for layer in layers_:
        config = json.loads(json.dumps(spec_to_config(layer)))
        assert spec_from_config(config) == layer


def test_config_with_an_unknown_role():
    config = spec_to_config(assigned_spec("a", (3,), "vector"))
    with pytest.raises(ValueError, match="Received: role='bias'"):
        spec_from_config(config | {"role": "bias"})

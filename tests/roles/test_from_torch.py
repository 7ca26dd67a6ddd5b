"""Roles and views of PyTorch's modules inside Keras' wrapper."""

import json

import keras
import numpy as np
import pytest
from keras import layers

from helpers import roles
from helpers.roles import described
from helpers.roles import hand
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import explain
from keras_lanton.core.matrices import to_matrices
from keras_lanton.roles.from_layers import read_model

if keras.backend.backend() != "torch":
    pytest.skip("Only PyTorch wraps its modules.", allow_module_level=True)

import torch
from torch import nn

pytestmark = logic

# Linear maps (out, in), and kernels (out, in, ...).
LINEAR = "hidden - | 1 | 0"


class OwnLinear(nn.Linear):
    """A module of a user."""


def each(names, line):
    return dict.fromkeys(names.split(), line)


IN_OUT = "weight_ih_l0 weight_hh_l0"
# By name: a module, and the lines of its parameters, or of `weight` alone.
MODULES = {
    "linear": (nn.Linear(3, 5), LINEAR),
    "own_linear": (OwnLinear(3, 5), LINEAR),
    "bilinear": (nn.Bilinear(3, 4, 5), "hidden - | 12 | 0"),
    "conv1d": (nn.Conv1d(4, 6, 3), "hidden - | 12 | 0"),
    "conv2d": (nn.Conv2d(4, 6, 3), "hidden - | 123 | 0"),
    "conv3d": (nn.Conv3d(4, 6, 3), "hidden - | 1234 | 0"),
    "groups": (nn.Conv1d(4, 6, 3, groups=2), "hidden - | 12 | 0 / 2"),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), roles.VECTOR),
    "transposed": (nn.ConvTranspose2d(4, 6, 3), "hidden - | 023 | 1"),
    "depthwise_transposed": (
        nn.ConvTranspose1d(4, 8, 3, groups=4),
        roles.VECTOR,
    ),
    "embedding": (nn.Embedding(9, 4), roles.TABLE),
    "bag": (nn.EmbeddingBag(9, 4), roles.TABLE),
    "layer_norm": (nn.LayerNorm((3, 4)), each("weight bias", roles.VECTOR)),
    "rms_norm": (nn.RMSNorm((3, 4)), roles.VECTOR),
    "batch_norm": (nn.BatchNorm2d(4), roles.VECTOR),
    "group_norm": (nn.GroupNorm(2, 4), roles.VECTOR),
    "attention": (
        nn.MultiheadAttention(6, 2, add_bias_kv=True),
        {
            "in_proj_weight": f"{LINEAR} / 3",
            "out_proj.weight": LINEAR,
            "bias_k": roles.VECTOR,
        },
    ),
    "cross_attention": (
        nn.MultiheadAttention(6, 2, kdim=4, vdim=5),
        each(
            "q_proj_weight k_proj_weight v_proj_weight out_proj.weight", LINEAR
        ),
    ),
    "rnn": (nn.RNN(3, 4), each(IN_OUT, LINEAR)),
    "gru": (nn.GRU(3, 4), each(IN_OUT, f"{LINEAR} / 3")),
    "lstm": (
        nn.LSTM(3, 4, bidirectional=True),
        each(
            f"{IN_OUT} weight_ih_l0_reverse weight_hh_l0_reverse",
            f"{LINEAR} / 4",
        ),
    ),
    "lstm_projection": (
        nn.LSTM(3, 4, proj_size=2),
        {**each(IN_OUT, f"{LINEAR} / 4"), "weight_hr_l0": LINEAR},
    ),
    "lstm_cell": (
        nn.LSTMCell(3, 4),
        each("weight_ih weight_hh", f"{LINEAR} / 4"),
    ),
    "transformer": (
        nn.TransformerEncoderLayer(6, 2, 10),
        {
            "self_attn.in_proj_weight": f"{LINEAR} / 3",
            "norm1.weight": roles.VECTOR,
            **each(
                "self_attn.out_proj.weight linear1.weight linear2.weight",
                LINEAR,
            ),
        },
    ),
}


def read_parameters(module):
    """The record of each parameter, by the module's name for it."""
    names = {id(value): name for name, value in module.named_parameters()}
    pairs = read_model(layers.TorchModuleWrapper(module))
    return {names[id(variable.value)]: spec for variable, spec in pairs}


@pytest.mark.parametrize("case", MODULES)
def test_module(case):
    module, expected = MODULES[case]
    if isinstance(expected, str):
        expected = {"weight": expected}
    found = read_parameters(module)
    for name, line in expected.items():
        assert described(found[name]) == hand(line), name
    rest = {spec.role for name, spec in found.items() if name not in expected}
    assert rest <= {"vector"}


def test_matrices_are_the_modules_maps():
    def mapped(module, x, name="weight"):
        parameters = dict(module.named_parameters())
        view = read_parameters(module)[name].view
        with torch.no_grad():
            made = x @ to_matrices(parameters[name], view).cpu()
        return torch.cat([*made], -1)

    def check(found, wanted):
        torch.testing.assert_close(found, wanted.detach())

    x = torch.randn(2, 4)
    linear = nn.Linear(4, 6, bias=False)
    check(mapped(linear, x), linear(x))
    for cls in (nn.Conv1d, nn.ConvTranspose1d):
        convolution = cls(4, 6, 1, bias=False)
        check(mapped(convolution, x), convolution(x[:, :, None])[:, :, 0])
    grouped = nn.Conv1d(4, 6, 1, groups=2, bias=False)
    halves = torch.stack([x[:, :2], x[:, 2:]])
    check(mapped(grouped, halves), grouped(x[:, :, None])[:, :, 0])
    attention = nn.MultiheadAttention(4, 2)
    wanted = x @ attention.in_proj_weight.T
    check(mapped(attention, x, "in_proj_weight"), wanted)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (nn.ConvTranspose1d(4, 6, 3, groups=2), "hidden - | 02 | 1"),
        (nn.utils.parametrizations.orthogonal(nn.Linear(3, 5)), roles.DENSE),
    ],
)
def test_what_no_reader_knows_is_a_guess(module, line):
    with pytest.warns(UserWarning, match=r"guesses: .* as 1 hidden matrix"):
        found = read_parameters(module)
    (spec,) = (spec for spec in found.values() if spec.guessed)
    assert described(spec) == hand(line)


class Own(nn.Module):
    """Parameters of a user's own, some with telling names."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 5))
        self.pos_embed = nn.Parameter(torch.ones(1, 7, 5))
        self.cls_token = nn.Parameter(torch.ones(1, 1, 5))
        self.biases = nn.Parameter(torch.ones(2, 5))


def test_parameters_of_a_users_module():
    with pytest.warns(UserWarning, match=r"guesses: variable\w* \(3, 5\) as"):
        found = read_parameters(Own())
    wanted = {"weight": "hidden", "pos_embed": "embedding"}
    wanted |= each("cls_token biases", "vector")
    assert {name: spec.role for name, spec in found.items()} == wanted
    assert [name for name, s in found.items() if s.guessed] == ["weight"]


class Tokens(nn.Module):
    """A language model in PyTorch."""

    def __init__(self, tied):
        super().__init__()
        self.lm_head = nn.Linear(4, 9, bias=False)
        self.tokens = nn.Embedding(9, 4)
        self.up = nn.Linear(4, 9, bias=False)
        self.down = nn.Linear(9, 4, bias=False)
        if tied:
            self.lm_head.weight = self.tokens.weight


@pytest.mark.parametrize("tied", [False, True])
def test_head(tied):
    found = {n: described(s) for n, s in read_parameters(Tokens(tied)).items()}
    table = "lm_head.weight" if tied else "tokens.weight"
    assert found.pop(table) == hand(roles.TABLE)
    assert found.pop("up.weight") == hand(LINEAR)
    assert found.pop("down.weight") == hand(LINEAR)
    rest = {} if tied else {"lm_head.weight": hand("embedding - | 1 | 0")}
    assert found == rest


class Mixed(keras.Model):
    """Keras wraps the modules; two of them share their weight."""

    def __init__(self):
        super().__init__(name="mixed")
        head, tokens = nn.Linear(4, 9), nn.Embedding(9, 4)
        head.weight = tokens.weight
        self.head = head
        self.tokens = tokens
        self.inner = layers.Dense(4, name="inner")
        self.projection = nn.Linear(4, 4)

    def call(self, tokens):
        return self.projection(self.inner(self.tokens(tokens)))


def test_modules_beside_layers():
    model = Mixed()
    model(np.zeros((2, 3), "int32"))
    optimizer = Lanton().read_roles(model)
    variables = model.trainable_variables
    optimizer.build(variables)
    found_roles = [spec.role for spec in optimizer.layers]
    assert found_roles.count("embedding") == 2  # a variable for each module
    found = {
        id(variable.value): described(spec)
        for variable, spec in zip(variables, optimizer.layers, strict=True)
    }
    assert found[id(model.projection.module.weight)] == hand(LINEAR)
    assert found[id(model.inner.kernel.value)] == hand(roles.DENSE)
    assert found[id(model.tokens.module.weight)] == hand(roles.TABLE)
    # Paths are the variables' own, by which a config finds its records.
    assert [s.path for s in optimizer.layers] == [v.path for v in variables]


def wrapped_linear():
    linear = nn.Linear(3, 5)
    model = keras.Sequential(
        [layers.TorchModuleWrapper(linear, output_shape=(None, 5))]
    )
    model(np.zeros((2, 3), "float32"))
    return model


def test_without_read_roles_modules_are_guesses():
    model = wrapped_linear()
    optimizer = Lanton()
    with pytest.warns(UserWarning, match="read_roles") as caught:
        optimizer.build(model.trainable_variables)
    assert len(caught) == 1
    weight, bias = optimizer.layers
    assert f"{weight.path} (5, 3) as 1 hidden" in str(caught[0].message)
    assert weight.guessed and not bias.guessed
    said = []
    explain(model, optimizer, print_fn=said.append)
    assert f"- {weight.path} (5, 3): nothing explains it" in said[0]
    # A config keeps the mark, and what is made of it does not warn again.
    config = json.loads(json.dumps(optimizer.get_config()))
    loaded = Lanton.from_config(config)
    loaded.build(model.trainable_variables)
    assert loaded.layers[0].guessed


def test_wrapped_modules_train():
    model = wrapped_linear()
    model.compile(optimizer=Lanton().read_roles(model), loss="mse")
    before = model.layers[0].module.weight.detach().clone()
    model.fit(np.ones((4, 3)), np.ones((4, 5)), epochs=1, verbose=0)
    assert not torch.equal(before, model.layers[0].module.weight)
    assert model.optimizer.layers[0].d_out == 5

"""Roles and views of PyTorch's modules inside Keras' wrapper."""

import json

import keras
import numpy as np
import pytest
from keras import layers

from helpers import role_tables as tables
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


RECURRENT = ["weight_ih_l0", "weight_hh_l0"]


def gates(count, names):
    blocks = f" / {count}" if count > 1 else ""
    return {name: LINEAR + blocks for name in names}


MODULES = {
    "linear": (lambda: nn.Linear(3, 5), {"weight": LINEAR}),
    "own_linear": (lambda: OwnLinear(3, 5), {"weight": LINEAR}),
    "bilinear": (lambda: nn.Bilinear(3, 4, 5), {"weight": "hidden - | 12 | 0"}),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), {"weight": "hidden - | 12 | 0"}),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3), {"weight": "hidden - | 123 | 0"}),
    "conv3d": (lambda: nn.Conv3d(4, 6, 3), {"weight": "hidden - | 1234 | 0"}),
    "groups": (
        lambda: nn.Conv1d(4, 6, 3, groups=2),
        {"weight": "hidden - | 12 | 0 / 2"},
    ),
    "depthwise": (
        lambda: nn.Conv2d(4, 8, 3, groups=4),
        {"weight": tables.VECTOR},
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3),
        {"weight": "hidden - | 023 | 1"},
    ),
    "depthwise_transposed": (
        lambda: nn.ConvTranspose1d(4, 8, 3, groups=4),
        {"weight": tables.VECTOR},
    ),
    "embedding": (lambda: nn.Embedding(9, 4), {"weight": tables.TABLE}),
    "bag": (lambda: nn.EmbeddingBag(9, 4), {"weight": tables.TABLE}),
    "layer_norm": (
        lambda: nn.LayerNorm((3, 4)),
        {"weight": tables.VECTOR, "bias": tables.VECTOR},
    ),
    "rms_norm": (lambda: nn.RMSNorm((3, 4)), {"weight": tables.VECTOR}),
    "batch_norm": (lambda: nn.BatchNorm2d(4), {"weight": tables.VECTOR}),
    "group_norm": (lambda: nn.GroupNorm(2, 4), {"weight": tables.VECTOR}),
    "attention": (
        lambda: nn.MultiheadAttention(6, 2, add_bias_kv=True),
        {
            "in_proj_weight": f"{LINEAR} / 3",
            "out_proj.weight": LINEAR,
            "bias_k": tables.VECTOR,
        },
    ),
    "cross_attention": (
        lambda: nn.MultiheadAttention(6, 2, kdim=4, vdim=5),
        {
            "q_proj_weight": LINEAR,
            "k_proj_weight": LINEAR,
            "v_proj_weight": LINEAR,
            "out_proj.weight": LINEAR,
        },
    ),
    "rnn": (lambda: nn.RNN(3, 4), gates(1, RECURRENT)),
    "gru": (lambda: nn.GRU(3, 4), gates(3, RECURRENT)),
    "lstm": (
        lambda: nn.LSTM(3, 4, bidirectional=True),
        gates(4, RECURRENT + [f"{name}_reverse" for name in RECURRENT]),
    ),
    "lstm_projection": (
        lambda: nn.LSTM(3, 4, proj_size=2),
        {**gates(4, RECURRENT), "weight_hr_l0": LINEAR},
    ),
    "lstm_cell": (
        lambda: nn.LSTMCell(3, 4),
        gates(4, ["weight_ih", "weight_hh"]),
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(6, 2, 10),
        {
            "self_attn.in_proj_weight": f"{LINEAR} / 3",
            "self_attn.out_proj.weight": LINEAR,
            "linear1.weight": LINEAR,
            "linear2.weight": LINEAR,
            "norm1.weight": tables.VECTOR,
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
    make, expected = MODULES[case]
    found = read_parameters(make())
    for name, line in expected.items():
        assert described(found[name]) == hand(line), name
    rest = {spec.role for name, spec in found.items() if name not in expected}
    assert rest <= {"vector"}


def matrices(module, name):
    parameters = dict(module.named_parameters())
    view = read_parameters(module)[name].view
    with torch.no_grad():
        return to_matrices(parameters[name], view).cpu()


def test_matrices_are_the_modules_maps():
    x = torch.randn(2, 4)
    linear = nn.Linear(4, 6, bias=False)
    torch.testing.assert_close(
        x @ matrices(linear, "weight")[0], linear(x).detach()
    )
    for cls in (nn.Conv1d, nn.ConvTranspose1d):
        convolution = cls(4, 6, 1, bias=False)
        torch.testing.assert_close(
            x @ matrices(convolution, "weight")[0],
            convolution(x[:, :, None])[:, :, 0].detach(),
        )
    grouped = nn.Conv1d(4, 6, 1, groups=2, bias=False)
    halves = torch.stack([x[:, :2], x[:, 2:]]) @ matrices(grouped, "weight")
    torch.testing.assert_close(
        torch.cat([*halves], -1), grouped(x[:, :, None])[:, :, 0].detach()
    )


def test_matrices_of_attention_are_queries_keys_and_values():
    attention = nn.MultiheadAttention(6, 2)
    x = torch.randn(5, 6)
    made = x @ matrices(attention, "in_proj_weight")
    wanted = x @ attention.in_proj_weight.detach().T
    torch.testing.assert_close(torch.cat([*made], -1), wanted)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), "hidden - | 02 | 1"),
        (
            lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 5)),
            tables.DENSE,
        ),
    ],
)
def test_what_no_reader_knows_is_a_guess(module, line):
    with pytest.warns(UserWarning, match=r"guesses: .* as 1 hidden matrix"):
        found = read_parameters(module())
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
    roles = {name: spec.role for name, spec in found.items()}
    assert roles == {
        "weight": "hidden",
        "pos_embed": "embedding",
        "cls_token": "vector",
        "biases": "vector",
    }
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
    assert found.pop(table) == hand(tables.TABLE)
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
    tables_found = [s for s in optimizer.layers if s.role == "embedding"]
    assert len(tables_found) == 2  # Keras has a variable for each module
    linear = model.projection.module.weight
    found = {
        id(variable.value): described(spec)
        for variable, spec in zip(variables, optimizer.layers, strict=True)
    }
    assert found[id(linear)] == hand(LINEAR)
    assert found[id(model.inner.kernel.value)] == hand(tables.DENSE)
    assert found[id(model.tokens.module.weight)] == hand(tables.TABLE)
    # Paths are the variables' own, by which a config finds its records.
    assert [s.path for s in optimizer.layers] == [v.path for v in variables]


def test_without_read_roles_modules_are_guesses():
    model = keras.Sequential(
        [layers.TorchModuleWrapper(nn.Linear(3, 5), output_shape=(None, 5))]
    )
    model(np.zeros((2, 3), "float32"))
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
    model = keras.Sequential(
        [layers.TorchModuleWrapper(nn.Linear(3, 5), output_shape=(None, 5))]
    )
    model(np.zeros((2, 3), "float32"))
    model.compile(optimizer=Lanton().read_roles(model), loss="mse")
    before = model.layers[0].module.weight.detach().clone()
    model.fit(np.ones((4, 3)), np.ones((4, 5)), epochs=1, verbose=0)
    assert not torch.equal(before, model.layers[0].module.weight)
    assert model.optimizer.layers[0].d_out == 5

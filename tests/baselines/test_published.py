"""The compared optimizers against implementations that others keep.

PyTorch's own optimizers and those of `pytorch_optimizer` run beside ours on
PyTorch, Optax' on JAX: same weights, same gradients, several steps. What the
published code does differently is named where the comparison works around it.
"""

import inspect
import math

import keras
import numpy as np
import pytest

from helpers.baselines import BASELINES
from helpers.baselines import ETA
from helpers.baselines import PLAIN
from helpers.baselines import RATIOS
from helpers.baselines import run
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import deviations
from helpers.variables import make_gradients
from helpers.variables import make_variables
from helpers.variables import to_arrays
from helpers.variables import to_tensors

OPTIMIZERS = {**BASELINES, **PLAIN}
BACKEND = keras.backend.backend()
on_torch = pytest.mark.skipif(
    BACKEND != "torch", reason="PyTorch's run beside ours on PyTorch"
)
on_jax = pytest.mark.skipif(
    BACKEND != "jax", reason="Optax' run beside ours on JAX"
)
# Of the distance moved; observed at most 4e-5.
TOLERANCE = 1e-4
GAMMA = 0.1
TINY = 1e-12
BETAS = {"betas": (0.9, 0.95)}
MATRICES = ("hidden", "embedding")
STEPS = 5


def ours(name, paths=FEW, **options):
    gradients = make_gradients(STEPS, paths)
    found, start = run(OPTIMIZERS[name], gradients, paths, **options)
    return found, start, gradients


def worst(found, wanted, start):
    return max(deviations(found, wanted, start))


class Parts:
    """The weights as PyTorch's parameters, for optimizers of matrices.

    Each matrix is one parameter (out, in), and each vector one of a single
    axis. With `whole`, each variable is one parameter, vectors flattened.
    """

    def __init__(self, weights, whole=False):
        import torch

        self.torch = torch
        self.weights = weights
        self.positions = [
            list(self.places(EXPECTED[path], whole)) for path in FEW
        ]
        self.parameters = [
            [torch.nn.Parameter(part) for part in self.split(i, x)]
            for i, x in enumerate(weights)
        ]

    def places(self, layer, whole):
        every = np.arange(math.prod(layer.shape))
        if layer.role == "vector":
            return [every]
        if whole:
            return [every.reshape(layer.shape)]
        return [matrix.T for matrix in layer.matrices()]

    def split(self, i, x):
        flat = x.astype("float32").ravel()
        return [self.torch.tensor(flat[at]) for at in self.positions[i]]

    def of(self, *roles):
        return [
            parameter
            for path, parameters in zip(FEW, self.parameters, strict=True)
            for parameter in parameters
            if EXPECTED[path].role in roles
        ]

    def follow(self, optimizers, gradients):
        """Where they take the weights."""
        for one in gradients:
            for i, g in enumerate(one):
                pairs = zip(self.parameters[i], self.split(i, g), strict=True)
                for parameter, part in pairs:
                    parameter.grad = part
            for optimizer in optimizers:
                optimizer.step()
        return [self.joined(i) for i in range(len(FEW))]

    def joined(self, i):
        x = np.zeros(self.weights[i].size)
        pairs = zip(self.positions[i], self.parameters[i], strict=True)
        for at, parameter in pairs:
            x[at] = parameter.detach().numpy()
        return x.reshape(self.weights[i].shape)


# Their optimizers of the roles: what each case calls.


def torch_muon(parts, ratio=0.015, epsilon=1e-10, **options):
    import torch

    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    return [
        torch.optim.Muon(
            parts.of("hidden"), lr=ETA, weight_decay=GAMMA, **options
        ),
        torch.optim.AdamW(
            parts.of("embedding", "vector"),
            lr=ETA * ratio,
            weight_decay=GAMMA,
            eps=epsilon,
            **BETAS,
        ),
    ]


def torch_adamw(parts):
    """A group per block, as in the code of Wang et al."""
    import torch

    groups = [
        {"params": parameters, "lr": ETA * RATIOS[i]}
        for i, parameters in enumerate(parts.parameters)
    ]
    return [torch.optim.AdamW(groups, weight_decay=GAMMA, **BETAS)]


def kept(name):
    """A class of `pytorch_optimizer`."""
    module = pytest.importorskip(
        "pytorch_optimizer", reason="pytorch_optimizer is not installed"
    )
    return getattr(module, name)


def kept_adamuon(parts):
    hidden = {"params": parts.of("hidden"), "use_muon": True, "lr": ETA}
    groups = [{**hidden, "weight_decay": GAMMA, "betas": (0.95, 0.95)}]
    adam = {"use_muon": False, "lr": ETA, "eps": 1e-10, **BETAS}
    for role, decay in {"embedding": GAMMA, "vector": 0.0}.items():
        groups.append({"params": parts.of(role), "weight_decay": decay, **adam})
    return [kept("AdaMuon")(groups)]


def kept_scion(parts, constraint=True):
    scion = kept("SCION")
    from pytorch_optimizer.optimizer.scion import LMONorm

    norms = {
        "hidden": ("SPECTRAL", 50.0),
        "embedding": ("SIGN", 3000.0),
        "vector": ("BIAS", 10.0),
    }
    return [
        scion(
            parts.of(role),
            lr=ETA,
            momentum=0.1,  # 1 - b1
            constraint=constraint,
            norm_type=LMONorm[norm],
            scale=scale,
        )
        for role, (norm, scale) in norms.items()
    ]


def kept_mars(parts, **options):
    options = {"weight_decay": GAMMA, "eps": TINY, **options}
    mars = kept("MARS")
    return [mars(parts.of(*MATRICES, "vector"), lr=ETA, lr_1d=ETA, **options)]


MUON = {"ns_dtype": "float32", "weight_decay": GAMMA}
SCION = {"ns_dtype": "float32"}
# Our class and options, theirs and its options.
CASES = {
    "torch_muon": ("Muon", MUON, torch_muon, {}),
    "torch_muon_plain": (
        "Muon",
        {**MUON, "nesterov": False},
        torch_muon,
        {"nesterov": False},
    ),
    # Moonlight adds AdamW's epsilon elsewhere than PyTorch: none of it here.
    "torch_d_muon": (
        "DMuon",
        {**MUON, "epsilon": TINY},
        torch_muon,
        {"adjust_lr_fn": "match_rms_adamw", "ratio": 1.0, "epsilon": TINY},
    ),
    "torch_adamw_blocks": ("BlockwiseAdamW", {}, torch_adamw, {}),
    # It neither looks ahead nor orthogonalizes signs, as version 2 does: the
    # fixture `signs` does. Debiasing V cancels in the norm.
    "kept_adamuon": (
        "AdaMuon",
        {
            **MUON,
            "nesterov": False,
            "epsilon": 1e-10,
            "second_moment_epsilon": 1e-10,
        },
        kept_adamuon,
        {},
    ),
    "kept_scion": ("Scion", SCION, kept_scion, {}),
    "kept_scion_free": (
        "Scion",
        {**SCION, "constrained": False},
        kept_scion,
        {"constraint": False},
    ),
    # It adds epsilon before debiasing: none of it here.
    "kept_mars": (
        "Mars",
        {"weight_decay": GAMMA, "epsilon": TINY},
        kept_mars,
        {},
    ),
    "kept_mars_all": (
        "Mars",
        {"weight_decay": GAMMA, "epsilon": TINY, "optimize_1d": True},
        kept_mars,
        {"optimize_1d": True},
    ),
}
# Whose norms are of whole variables.
WHOLE = ("Mars",)


@pytest.fixture
def float32(monkeypatch):
    """Their Newton-Schulz in float32; it has no option for that."""
    import torch

    # A copy, as of a float32 matrix: PyTorch's divides it in place.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    try:
        from pytorch_optimizer.optimizer.utils import matrix
    except ImportError:
        return
    function = matrix.zero_power_via_newton_schulz_5
    defaults = function.__defaults__
    assert defaults[-1] in (torch.bfloat16, torch.float32), defaults
    monkeypatch.setattr(
        function, "__defaults__", (*defaults[:-1], torch.float32)
    )


@pytest.fixture
def signs(monkeypatch):
    """`pytorch_optimizer`'s AdaMuon on signs, as published."""
    kept("AdaMuon")
    from pytorch_optimizer.optimizer.muon import adamuon

    inner = adamuon.zero_power_via_newton_schulz_5
    monkeypatch.setattr(
        adamuon,
        "zero_power_via_newton_schulz_5",
        lambda m, **options: inner(m.sign(), **options),
    )


@on_torch
@pytest.mark.parametrize("case", CASES)
def test_on_torch(case, float32, request):
    if case == "kept_adamuon":
        request.getfixturevalue("signs")
    name, options, theirs, their_options = CASES[case]
    found, start, gradients = ours(name, **options)
    parts = Parts(start, whole=name in WHOLE)
    wanted = parts.follow(theirs(parts, **their_options), gradients)
    assert worst(found, wanted, start) < TOLERANCE


@on_torch
def test_d_muon_is_about_keras_muon_in_two_dimensions():
    """Whose epsilon is added to the norm, and whose biases are 1-D."""
    arguments = inspect.signature(keras.optimizers.Muon).parameters
    if "adam_weight_decay" not in arguments:
        pytest.skip("this Keras' Muon has other scales")
    paths = ["dense/kernel", "dense/bias"]
    found, start, gradients = ours("DMuon", paths, weight_decay=None)
    options = {"adam_beta_2": 0.95, "epsilon": 1e-8, "weight_decay": None}
    variables = make_variables(paths)
    theirs = keras.optimizers.Muon(ETA, adam_beta_1=0.9, **options)
    for one in gradients:
        theirs.apply(to_tensors(one), variables)
    assert worst(found, to_arrays(variables), start) < 1e-3


# Optax.

# Which splits no axis into blocks.
PATHS = [path for path in FEW if EXPECTED[path].blocks == 1]
HIDDEN = [path for path in PATHS if EXPECTED[path].role == "hidden"]


def optax_follow(transformation, paths, start, gradients, count=0):
    """Where Optax takes the weights; Muon as if after so many steps."""
    import jax
    import optax

    def age(node):
        is_muon = isinstance(node, optax.contrib.MuonState)
        return node._replace(count=node.count + count) if is_muon else node

    def tree(arrays):
        return {
            path: np.asarray(x, "float32")
            for path, x in zip(paths, arrays, strict=True)
        }

    def step(updates, state, weights):
        updates, state = transformation.update(updates, state, weights)
        return optax.apply_updates(weights, updates), state

    weights, state = tree(start), transformation.init(tree(start))
    state = jax.tree.map(age, state, is_leaf=lambda x: age(x) is not x)
    step = jax.jit(step)
    for one in gradients:
        weights, state = step(tree(one), state, weights)
    return [np.asarray(weights[path]) for path in paths]


def optax_muon(paths, ratio=0.015, epsilon=1e-10, **options):
    contrib = pytest.importorskip("optax.contrib", reason="no Optax")
    axes = {
        path: contrib.MuonDimensionNumbers(
            EXPECTED[path].input_axes, EXPECTED[path].output_axes
        )
        if path in HIDDEN
        else None
        for path in paths
    }
    return contrib.muon(
        ETA,
        weight_decay=GAMMA,
        adam_b2=0.95,
        adam_weight_decay=GAMMA,
        adam_learning_rate=ETA * ratio,
        eps=epsilon,
        muon_weight_dimension_numbers=axes,
        **options,
    )


# Without the epsilon that AdamW adds elsewhere in Moonlight. Optax debiases
# both terms of the look-ahead, as NAdam; after many steps that is 1.
ON_OPTAX = {
    "Muon": ({"nesterov": False}, {"nesterov": False}, PATHS, 0),
    "DMuon": (
        {"nesterov": False, "epsilon": TINY},
        {
            "nesterov": False,
            "epsilon": TINY,
            "ratio": 1.0,
            "consistent_rms": 0.2,
        },
        PATHS,
        0,
    ),
    "nesterov": ({}, {}, HIDDEN, 10**6),
}


@on_jax
@pytest.mark.parametrize("case", ON_OPTAX)
def test_on_optax(case):
    options, their_options, paths, count = ON_OPTAX[case]
    name = "DMuon" if case == "DMuon" else "Muon"
    found, start, gradients = ours(name, paths, **MUON, **options)
    theirs = optax_muon(paths, **their_options)
    wanted = optax_follow(theirs, paths, start, gradients, count)
    assert worst(found, wanted, start) < TOLERANCE


@on_jax
def test_lamb_on_optax():
    optax = pytest.importorskip("optax", reason="no Optax")
    found, start, gradients = ours("Lamb", PATHS, weight_decay=GAMMA)
    theirs = optax.lamb(ETA, weight_decay=GAMMA)
    wanted = optax_follow(theirs, PATHS, start, gradients)
    assert worst(found, wanted, start) < TOLERANCE

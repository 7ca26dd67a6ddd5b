"""The step of GPT-2 small as JAX hands it to the compilers of a GPU and a TPU.

JAX lowers for devices that are not here; what their compilers make of it is
not seen.
"""

import collections
import math
import re

import keras
import pytest

from helpers.tiers import exhaustive
from keras_lanton import Lanton
from keras_lanton.backends import backend

if keras.backend.backend() != "jax":
    pytest.skip(
        "others do not lower for absent devices", allow_module_level=True
    )

import jax

keras_hub = pytest.importorskip("keras_hub", exc_type=ImportError)

DEVICES = {"cuda": ("gpu", "f16"), "tpu": ("tpu", "bf16")}
CONTEXT = 64


def make_model(layers):
    """GPT-2 small's blocks and widths; a small vocabulary."""
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=1000,
        num_layers=layers,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        max_sequence_length=CONTEXT,
    )
    logits = backbone.token_embedding(backbone.output, reverse=True)
    return keras.Model(backbone.input, logits)


def shapes(variables):
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]


def lowered_step(layers, platform):
    """A whole training step for a platform, as StableHLO."""
    model = make_model(layers)
    optimizer = Lanton()
    optimizer.build(model.trainable_variables)
    mean_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(weights, other, state, x, y):
        def loss(weights):
            logits, new = model.stateless_call(weights, other, x, training=True)
            return mean_loss(y, logits), new

        (_, new), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        weights, state = optimizer.stateless_apply(state, gradients, weights)
        return weights, new, state

    ids = jax.ShapeDtypeStruct((2, CONTEXT), "int32")
    traced = jax.jit(step).trace(
        shapes(model.trainable_variables),
        shapes(model.non_trainable_variables),
        shapes(optimizer.variables),
        {"token_ids": ids, "padding_mask": ids},
        ids,
    )
    return str(traced.lower(lowering_platforms=(platform,)).as_text())


def products(text):
    """How many products there are, by the dtypes of factors and result."""
    found: collections.Counter = collections.Counter()
    for line in text.splitlines():
        if "stablehlo.dot_general" in line:
            # With an algorithm, the sums could be in another dtype.
            assert "algorithm" not in line
            types = line.rpartition(" : ")[2]
            found[tuple(re.findall(r"x((?:bf|f|i)\d+)>", types))] += 1
    return found


@pytest.mark.parametrize("layers", [1, pytest.param(12, marks=exhaustive)])
@pytest.mark.parametrize("platform", DEVICES)
def test_a_step_lowers_for_other_devices(platform, layers, monkeypatch):
    device, half = DEVICES[platform]
    monkeypatch.setattr(backend, "device", lambda: device)
    text = lowered_step(layers, platform)
    found = products(text)
    # Products of halves give halves, without an algorithm. XLA then sums in
    # float32: on a GPU by cuBLAS (GetBlasComputationType in XLA's sources), on
    # a TPU in its matrix units.
    assert found[half, half, half] > 0
    assert set(found) == {(half, half, half), ("f32", "f32", "f32")}
    # Estimates of the noise wait for no eigenvalues.
    assert not re.search("syevd|geqrf|[Ee]igh|Qr", text)


def lowered_update(monkeypatch, **options):
    """The shapes of two layers' variables; their update as a GPU gets it."""
    monkeypatch.setattr(backend, "device", lambda: "gpu")
    model = make_model(2)
    variables = shapes(model.trainable_variables)
    optimizer = Lanton(**options)
    optimizer.build(model.trainable_variables)

    def step(weights: list, state: list, gradients: list) -> object:
        return optimizer.stateless_apply(state, gradients, weights)

    traced = jax.jit(step).trace(
        variables, shapes(optimizer.variables), variables
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return variables, str(text)


@pytest.mark.parametrize("accumulated", [None, 4])
def test_no_loops(accumulated, monkeypatch):
    """The host waits for a GPU at each loop, and XLA's graphs end there."""
    _, text = lowered_update(
        monkeypatch, gradient_accumulation_steps=accumulated
    )
    assert "stablehlo.while" not in text
    assert "stablehlo.case" in text


def test_few_passes_over_large_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA makes one pass of a reduction and all that leads to it."""
    variables, text = lowered_update(monkeypatch)
    reduced = [
        math.prod(map(int, shape.split("x")))
        for line in text.splitlines()
        if "stablehlo.reduce" in line
        for shape in re.findall(r"tensor<([0-9x]+)x(?:f16|f32|i1)>", line)[:1]
    ]
    total = sum(map(math.prod, (x.shape for x in variables)))
    # Observed 5.7.
    passes = sum(size for size in reduced if size > 2**16) / total
    print(f"{passes:.2f} reductions of all weights")
    assert passes < 5.8

"""How many matrices are worked on at once."""

import math

from keras import ops

from helpers.tiers import logic
from keras_lanton.core.matrices import equal_stacks
from keras_lanton.core.norms import Spectral
from keras_lanton.fast import batching
from keras_lanton.roles.spec import assigned_spec

pytestmark = logic


def stack_of(side, count=1):
    """Square matrices."""
    specs = [
        assigned_spec(f"{i}/kernel", (side, side), "hidden")
        for i in range(count)
    ]
    (stack,) = equal_stacks(specs)
    return stack


def test_single_matrices_on_a_cpu_only(monkeypatch):
    monkeypatch.setattr(batching.backend, "device", lambda: "cpu")
    assert batching.one_by_one(ops.abs, 1024) is not ops.abs
    assert batching.one_by_one(ops.abs, 16) is ops.abs
    monkeypatch.setattr(batching.backend, "device", lambda: "gpu")
    assert batching.one_by_one(ops.abs, 1024) is ops.abs


def test_small_stacks_only_where_a_cpu_is_eager(monkeypatch):
    for device in ("cpu", "gpu"):
        monkeypatch.setattr(batching.backend, "device", lambda d=device: d)
        for eager in (True, False):
            monkeypatch.setattr(batching.backend, "EAGER", eager)
            small = batching.useful_size(stack_of(1024), 2**25) < math.inf
            assert small == (device == "cpu" and eager)
            assert batching.useful_size(stack_of(16), 2**13) == math.inf


def test_what_fits_into_memory():
    """Three copies of a matrix and five squares of its short side."""
    stack = stack_of(64, count=3)
    each = Spectral(rows=()).temporary_bytes(stack.rows, stack.columns)
    assert each == 4 * 8 * 64**2
    assert batching.largest_size(10 * each + 1, each) == 10
    assert batching.largest_size(1, each) == 1  # a matrix cannot be cut
    assert batching.stack_size(stack, 2 * each, each) == 2


def test_small_stacks_are_gathered_whole(monkeypatch):
    monkeypatch.setattr(batching, "GATHERED_WHOLE_BYTES", 4 * 3 * 64**2)
    assert batching.is_gathered_whole(stack_of(64, count=3))
    assert not batching.is_gathered_whole(stack_of(64, count=4))

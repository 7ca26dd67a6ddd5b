"""How many matrices are worked on at once."""

import math

from keras import ops

from helpers.tiers import logic
from keras_lanton.fast import batching

pytestmark = logic


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
            small = batching.make_sizes(None, None).cached_bytes < math.inf
            assert small == (device == "cpu" and eager)

"""Specs of variables of every kind, and tensors for them."""

import numpy as np
from hypothesis import strategies as st

from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import assigned_spec

KINDS = {
    "dense": ((4, 6), "hidden", 0, 1),
    "tall": ((6, 4), "hidden", 0, 1),
    "query": ((4, 2, 3), "hidden", 0, (1, 2)),
    "output": ((2, 3, 4), "hidden", (0, 1), 2),
    "experts": ((5, 4, 6), "hidden", 1, 2),
    "square": ((4, 4), "hidden", 0, 1),
    "table": ((7, 4), "embedding", None, None),
    "bias": ((6,), "vector", None, None),
}


def spec_of(kind: str, number: int = 0) -> VariableSpec:
    return assigned_spec(f"{kind}_{number}", *KINDS[kind])


kinds = st.lists(st.sampled_from(tuple(KINDS)), min_size=1, max_size=8)


def tensors(specs: list[VariableSpec]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(x.shape).astype("float32") for x in specs]

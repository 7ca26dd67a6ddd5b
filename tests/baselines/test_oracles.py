"""The compared optimizers against their oracles (`baseline_oracles.py`)."""

import pytest

import baseline_oracles
from helpers.baselines import BASELINES
from helpers.baselines import ETA
from helpers.baselines import LATE
from helpers.baselines import PLAIN
from helpers.baselines import RATIOS
from helpers.baselines import TOLERANCE
from helpers.baselines import run
from helpers.baselines import some_gradients
from helpers.tiers import keep
from helpers.variables import EXPECTED
from helpers.variables import FEW
from helpers.variables import deviations

OPTIMIZERS = {**BASELINES, **PLAIN}
CASES = {
    "muon": ("Muon", {}),
    "muon_plain": ("Muon", {"nesterov": False}),
    "muon_decay": ("Muon", {"weight_decay": 0.1, "adam_lr_ratio": 0.5}),
    "d_muon": ("DMuon", {}),
    "adamuon": ("AdaMuon", {}),
    "normuon": ("NorMuon", {}),
    "normuon_slow": ("NorMuon", {"beta_2": 0.5}),
    "scion": ("Scion", {}),
    "scion_free": ("Scion", {"constrained": False, "vector_norm": "sign"}),
    "lamb": ("Lamb", {}),
    "lamb_plain": ("Lamb", {"weight_decay": 0.0}),
    "mars": ("Mars", {}),
    "mars_all": (
        "Mars",
        {"optimize_1d": True, "weight_decay": 0.1, "gamma": 0.2},
    ),
    "blockwise": ("BlockwiseAdamW", {}),
    "blockwise_late": ("BlockwiseAdamW", LATE),
}
# What the oracle has by the number of a variable.
OF_ORACLES = {
    "blockwise": {"ratios": RATIOS},
    "blockwise_late": {"ratios": RATIOS},
}
# One case of each class on every backend, of a norm of its own each.
ONE_EACH = (
    *("muon", "d_muon", "adamuon", "normuon", "scion_col"),
    *("lamb", "mars", "blockwise_late"),
)


@pytest.mark.parametrize("case", keep(CASES, ONE_EACH))
def test_oracle(case):
    name, options = CASES[case]
    gradients = some_gradients()
    found, start = run(OPTIMIZERS[name], gradients, **options)
    oracle = getattr(baseline_oracles, f"{name}Oracle")(
        [EXPECTED[path] for path in FEW],
        **{**options, **OF_ORACLES.get(case, {})},
    )
    weights = start
    for one in gradients:
        weights = oracle.step(one, weights, ETA)
    worst = dict(zip(FEW, deviations(found, weights, start), strict=True))
    assert max(worst.values()) < TOLERANCE, worst

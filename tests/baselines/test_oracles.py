"""The compared optimizers against their oracles (`baseline_oracles.py`)."""

import pytest

from baseline_oracles import AdaMuonOracle
from baseline_oracles import BlockwiseAdamWOracle
from baseline_oracles import DMuonOracle
from baseline_oracles import GluonOracle
from baseline_oracles import LambOracle
from baseline_oracles import MarsOracle
from baseline_oracles import MuonOracle
from baseline_oracles import NorMuonOracle
from baseline_oracles import ScionOracle
from helpers.baselines import BASELINES
from helpers.baselines import ETA
from helpers.baselines import GLUON
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
    "muon": ("Muon", MuonOracle, {}, {}),
    "muon_plain": ("Muon", MuonOracle, *[{"nesterov": False}] * 2),
    "muon_decay": (
        "Muon",
        MuonOracle,
        *[{"weight_decay": 0.1, "adam_lr_ratio": 0.5}] * 2,
    ),
    "d_muon": ("DMuon", DMuonOracle, {}, {}),
    "adamuon": ("AdaMuon", AdaMuonOracle, {}, {}),
    "normuon": ("NorMuon", NorMuonOracle, {}, {}),
    "normuon_slow": ("NorMuon", NorMuonOracle, *[{"beta_2": 0.5}] * 2),
    "scion": ("Scion", ScionOracle, {}, {}),
    "scion_free": (
        "Scion",
        ScionOracle,
        *[{"constrained": False, "vector_norm": "sign"}] * 2,
    ),
    "scion_col": ("Scion", ScionOracle, *[{"embedding_norm": "col"}] * 2),
    "scion_row": (
        "Scion",
        ScionOracle,
        *[{"embedding_norm": "row", "embedding_normalized": False}] * 2,
    ),
    "scion_sign": (
        "Scion",
        ScionOracle,
        *[{"embedding_normalized": False}] * 2,
    ),
    "gluon": ("Gluon", GluonOracle, {}, {}),
    "gluon_layers": (
        "Gluon",
        GluonOracle,
        GLUON,
        {
            "radii": {FEW.index("tokens/embeddings"): 2.0, 7: 0.5},
            "smoothness": {0: (0.1, 2.0), 2: (0.0, 3.0), 3: (0.0, 3.0)},
        },
    ),
    "lamb": ("Lamb", LambOracle, {}, {}),
    "lamb_plain": ("Lamb", LambOracle, *[{"weight_decay": 0.0}] * 2),
    "mars": ("Mars", MarsOracle, {}, {}),
    "mars_all": (
        "Mars",
        MarsOracle,
        *[{"optimize_1d": True, "weight_decay": 0.1, "gamma": 0.2}] * 2,
    ),
    "blockwise": (
        "BlockwiseAdamW",
        BlockwiseAdamWOracle,
        {},
        {"ratios": RATIOS},
    ),
    "blockwise_late": (
        "BlockwiseAdamW",
        BlockwiseAdamWOracle,
        LATE,
        {"ratios": RATIOS, **LATE},
    ),
}


# One case of each class on every backend, of a norm of its own each.
ONE_EACH = [
    "muon",
    "d_muon",
    "adamuon",
    "normuon",
    "scion_col",
    "gluon_layers",
    "lamb",
    "mars",
    "blockwise_late",
]


@pytest.mark.parametrize("case", keep(CASES, ONE_EACH))
def test_oracle(case):
    name, oracle_class, options, oracle_options = CASES[case]
    gradients = some_gradients()
    found, start = run(OPTIMIZERS[name], gradients, **options)
    oracle = oracle_class([EXPECTED[path] for path in FEW], **oracle_options)
    weights = start
    for one in gradients:
        weights = oracle.step(one, weights, ETA)
    worst = dict(zip(FEW, deviations(found, weights, start), strict=True))
    assert max(worst.values()) < TOLERANCE, worst

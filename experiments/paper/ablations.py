"""Experiments on Lanton's defaults."""

import dataclasses

from experiments.paper.bench import score

# One change to Lanton's defaults each.
VARIANTS = {
    "defaults": {},
    "beta_1=0.95": {"beta_1": 0.95},
    "nesterov=False": {"nesterov": False},
    "NoiseAdaptiveRate(alpha=0.3)": {"noise.alpha": 0.3},
    "noise=None (no adaptation)": {"noise": None},
    'NoiseAdaptiveRate(group_reduction="max")': {
        "noise.group_reduction": "max"
    },
    'NoiseAdaptiveRate(reference="momentum")': {"noise.reference": "momentum"},
    "embedding_scale=100": {"embedding_scale": 100.0},
    "embedding_scale=300": {"embedding_scale": 300.0},
    "AuxiliaryAdamW(lr_ratio=0.5)": {"auxiliary_adamw.lr_ratio": 0.5},
    'AuxiliaryAdamW(roles=("embedding", "vector"))': {
        "auxiliary_adamw.roles": ("embedding", "vector"),
    },
    "auxiliary_adamw=None": {"auxiliary_adamw": None},
}
OTHERS = {
    "D-Muon": ("d_muon", {}),
    "D-Muon, beta_1=0.9": ("d_muon", {"beta_1": 0.9}),
    "Scion": ("scion", {}),
}


def defaults(bench):
    """13. The effect of each of Lanton's defaults; run by name alone."""
    cases = {name: ("lanton", changes) for name, changes in VARIANTS.items()}
    cases |= OTHERS
    return {t: at_two_rates(bench, t, cases) for t in ("gpt2", "llama")}


def at_two_rates(bench, task, cases):
    """Losses of two seeds, by case and rate: the middle ones of the grid.

    A case has, by name, the method and changes of its options.
    """
    seeds, grids = bench.scale.seeds[:2], bench.scale.grids[task]
    every = [
        dataclasses.replace(trial, seed=seed)
        for method, changes in cases.values()
        for rate in grids[method][1:3]
        for trial in [
            bench.trial(task, method, rate, options=changes, record_every=0)
        ]
        for seed in seeds
    ]
    results = iter(bench.run(every))
    return {
        name: {
            f"{rate:g}": [score(next(results)) for _ in seeds]
            for rate in grids[method][1:3]
        }
        for name, (method, _) in cases.items()
    }


def width(bench):
    """14. The best scale of embeddings' steps by width; run by name alone."""
    cases = {
        f"embedding_scale={scale:g}": ("lanton", {"embedding_scale": scale})
        for scale in (50.0, 100.0, 200.0, 300.0)
    }
    cases |= OTHERS
    return {
        task: {
            "width": bench.scale.tasks[task].width,
            "losses": at_two_rates(bench, task, cases),
        }
        for task in ("llama", "llama_wide")
    }

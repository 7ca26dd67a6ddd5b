"""The compared optimizers, with every argument that is tuned written out.

Defaults of the package may change: what a run was trained with stands here
and in its line of the results. This module is data, and imports no Keras.
"""

import dataclasses

# Of what no argument says. 2: rows and columns of embeddings are measured on
# every step, and b1 warms up from 0.9.
REVISION = 2
ADAMW = {
    "auxiliary_adamw.beta_1": 0.9,
    "auxiliary_adamw.beta_2": 0.95,
    "auxiliary_adamw.lr_ratio": 1.0,
}
# The noise of `Lanton()`: within matrices, and between them in units of the
# momentum.
SIGNAL = {
    "noise.alpha": 1.0,
    "noise.alpha_unit": "signal",
    "noise.beta_2": 0.9,
    "noise.estimator": "frobenius",
    "noise.interval": 10,
    "noise.within_matrices": True,
}
# The paper's: between matrices alone, in units of the noise of the group.
BETWEEN = {
    "noise.alpha": 0.3,
    "noise.alpha_unit": "group_noise",
    "noise.beta_2": 0.9,
    "noise.estimator": "lanczos",
    "noise.group_reduction": "max",
    "noise.interval": 10,
    "noise.within_matrices": False,
}
# The defaults of `Lanton`, but for the noise.
DEFAULTS = {
    **ADAMW,
    "beta_1": 0.95,
    "embedding_scale": 300.0,
    "momentum_warmup": True,
    "nesterov": True,
    "newton_schulz.coefficients": "polar_express",
    "revision": REVISION,
    "step_scale": "fan_in",
    "weight_decay": 0.1,
}
# The defaults of earlier commits: Adam's bias correction in the place of
# `momentum_warmup`, and before that other coefficients. Tables that have not
# been trained with the new ones say so.
BEFORE = {**DEFAULTS, "bias_correction": True}
del BEFORE["momentum_warmup"], BEFORE["revision"]
CUBIC = {"newton_schulz.coefficients": "cubic"}
# What `Lanton.from_adamw` takes from AdamW.
OF_ADAMW = {
    "auxiliary_adamw.beta_1": 0.9,
    "auxiliary_adamw.beta_2": 0.95,
    "auxiliary_adamw.epsilon": 1e-7,
    "auxiliary_adamw.epsilon_before_debiasing": True,
    "auxiliary_adamw.lr_ratio": 1 / 2.5,  # of `rate_factor`
    "step_scale": "rms_matched",
}
# What `Lanton.from_muon` takes from Keras' Muon.
OF_MUON = {
    **OF_ADAMW,
    "auxiliary_adamw.lr_ratio": 1.0,
    "auxiliary_adamw.roles": ("embedding", "vector"),
    "auxiliary_adamw.weight_decay": 0.1,
    "embedding_scale": None,
    "newton_schulz.coefficients": "jordan",
}
OF_FINE_TUNING = {
    "auxiliary_adamw.roles": ("embedding", "vector"),
    "beta_1": 0.9,
    "embedding_scale": None,
}
PAPER = {"beta_1": 0.95, "embedding_scale": 300.0, "weight_decay": 0.1}
CLIPPED = {
    "beta_1": 0.9,
    "beta_2": 0.95,
    "global_clipnorm": 1.0,
    "weight_decay": 0.1,
}
# Of the CNN: no decay before the search, as in airbench.
IMAGES = {**ADAMW, "beta_1": 0.9, "weight_decay": 0.0}


@dataclasses.dataclass(frozen=True)
class Contestant:
    """An optimizer with its arguments."""

    label: str  # as the tables call it
    optimizer: str  # a name of `optimizers.construct`
    options: dict  # "noise.alpha": the argument `alpha` of the part `noise`


CONTESTANTS = {
    "lanton": Contestant("`Lanton()`", "lanton", {**DEFAULTS, **SIGNAL}),
    "lanton_without_noise": Contestant(
        "`Lanton(noise=None)`", "lanton", {**DEFAULTS, "noise": None}
    ),
    "cubic": Contestant(
        "`Lanton()`, cubic", "lanton", {**BEFORE, **CUBIC, **SIGNAL}
    ),
    "before": Contestant("`Lanton()`, before", "lanton", {**BEFORE, **SIGNAL}),
    "cubic_without_noise": Contestant(
        "`Lanton(noise=None)`, cubic",
        "lanton",
        {**BEFORE, **CUBIC, "noise": None},
    ),
    "lanton_fine_tuning": Contestant(
        "`Lanton.for_fine_tuning()`",
        "lanton",
        {**DEFAULTS, **OF_FINE_TUNING, **SIGNAL},
    ),
    "lanton_paper": Contestant(
        "`Lanton.paper()`", "lanton_paper", {**PAPER, **BETWEEN}
    ),
    "lanton_paper_without_noise": Contestant(
        "`Lanton.paper(noise=None)`", "lanton_paper", {**PAPER, "noise": None}
    ),
    "d_muon": Contestant(
        "D-Muon", "d_muon", {**ADAMW, "beta_1": 0.95, "weight_decay": 0.1}
    ),
    "normuon": Contestant(
        "NorMuon",
        "normuon",
        {**ADAMW, "beta_1": 0.95, "beta_2": 0.95, "weight_decay": 0.1},
    ),
    "scion": Contestant(
        "Scion",
        "scion",
        {"beta_1": 0.9, "hidden_scale": 50.0, "embedding_scale": 3000.0},
    ),
    "keras_muon": Contestant(
        "`keras.optimizers.Muon`",
        "keras_muon",
        {
            "momentum": 0.95,
            "adam_beta_2": 0.95,
            "weight_decay": 0.1,
            "adam_weight_decay": 0.1,
            "adam_lr_ratio": 1.0,
        },
    ),
    "adamw": Contestant("AdamW", "adamw", CLIPPED),
    "keras_adamw": Contestant(
        "AdamW",
        "adamw",
        {"beta_1": 0.9, "beta_2": 0.999, "weight_decay": 0.004},
    ),
    "from_keras_adamw": Contestant(
        "`Lanton.from_adamw(AdamW())`",
        "lanton",
        {
            **DEFAULTS,
            **SIGNAL,
            **OF_ADAMW,
            "auxiliary_adamw.beta_2": 0.999,
            "auxiliary_adamw.roles": ("embedding", "vector"),
            "embedding_scale": None,
            "weight_decay": 0.004,
        },
    ),
    "keras_muon_defaults": Contestant(
        "`keras.optimizers.Muon`",
        "keras_muon",
        {
            "momentum": 0.95,
            "adam_beta_2": 0.999,
            "weight_decay": 0.004,
            "adam_weight_decay": 0.004,
            "adam_lr_ratio": 1.0,
        },
    ),
    "adamw_tables": Contestant(
        "AdamW, embeddings at a rate of their own",
        "adamw_tables",
        {**CLIPPED, "table_factor": 4.0},
    ),
    "cnn_sgd": Contestant(
        "SGD with Nesterov momentum",
        "sgd",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.0},
    ),
    "cnn_adamw": Contestant(
        "AdamW", "adamw", {"beta_1": 0.9, "beta_2": 0.95, "weight_decay": 0.0}
    ),
    "cnn_d_muon": Contestant("D-Muon", "d_muon", IMAGES),
    "cnn_lanton": Contestant(
        "`Lanton(weight_decay=None)`",
        "lanton",
        {**DEFAULTS, **IMAGES, **SIGNAL},
    ),
}

"""The compared optimizers, with every argument that is tuned written out.

Defaults of the package may change: what a run was trained with stands here
and in its file.
"""

import keras

from experiments.evidence import variants
from experiments.evidence import within
from experiments.evidence.falling_decay import FallingDecay
from experiments.optimizers import construct
from experiments.optimizers import with_parts
from keras_lanton import Lanton

ADAMW = {
    "auxiliary_adamw.beta_1": 0.9,
    "auxiliary_adamw.beta_2": 0.95,
    "auxiliary_adamw.lr_ratio": 1.0,
}
NOISE = {
    "noise.alpha": None,
    "noise.within_matrices": True,
    "noise.beta_2": 0.9,
    "noise.interval": 10,
}
SIGNAL = {**NOISE, "noise.alpha": 1.0, "noise.alpha_unit": "signal"}
RATES = {
    "noise.within_matrices": False,
    "noise.alpha": 1.0,
    "noise.alpha_unit": "group_noise",
    "noise.group_reduction": "mean",
    "noise.beta_2": 0.9,
    "noise.interval": 10,
}
LANTON = {
    "beta_1": 0.9,
    "nesterov": True,
    "embedding_scale": 100.0,
    "weight_decay": 0.1,
    **ADAMW,
}
# Of the CNN: no decay at the start, as in airbench.
IMAGES = {"weight_decay": 0.0, **ADAMW}
IMAGE_LANTON = {
    "beta_1": 0.9,
    "nesterov": True,
    "newton_schulz.coefficients": "cubic",
    "step_scale": "fan_in",
    **IMAGES,
}
PAPER = {"beta_1": 0.95, "embedding_scale": 300.0, "weight_decay": 0.1}
# Of every run of Lanton whose settings do not name others.
UNNAMED = {
    "bias_correction": False,
    "newton_schulz.coefficients": "jordan",
    "step_scale": "rms_matched",
}
# The defaults of `Lanton`, but for the noise.
DEFAULTS = {
    **LANTON,
    "beta_1": 0.95,
    "bias_correction": True,
    "embedding_scale": 300.0,
    "newton_schulz.coefficients": "cubic",
    "step_scale": "fan_in",
}
# Of every run with noise: all matrices of S are so small that their nuclear
# norms are then exact but for a few percent.
ESTIMATOR = {"noise.estimator": "lanczos"}
# By name: label, builder, options.
CONTESTANTS = {
    "adamw": (
        "AdamW",
        "adamw",
        {
            "beta_1": 0.9,
            "beta_2": 0.95,
            "weight_decay": 0.1,
            "global_clipnorm": 1.0,
        },
    ),
    "keras_muon": (
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
    "d_muon": (
        "D-Muon",
        "d_muon",
        {"beta_1": 0.95, "weight_decay": 0.1, **ADAMW},
    ),
    "normuon": (
        "NorMuon",
        "normuon",
        {"beta_1": 0.95, "beta_2": 0.95, "weight_decay": 0.1, **ADAMW},
    ),
    "scion": (
        "Scion",
        "scion",
        {"beta_1": 0.9, "hidden_scale": 50.0, "embedding_scale": 3000.0},
    ),
    "lanton": (
        "Lanton (base), `alpha=None`",
        "lanton",
        {**LANTON, **NOISE},
    ),
    "lanton_signal": (
        "Lanton (base)",
        "lanton",
        {**LANTON, **SIGNAL},
    ),
    "lanton_rates": (
        'Lanton (base), `within_matrices=False`, `alpha_unit="group_noise"`',
        "lanton",
        {**LANTON, **RATES},
    ),
    "lanton_control": (
        "Lanton (base), `noise=None`",
        "lanton",
        {**LANTON, "noise": None},
    ),
    "lanton_defaults": (
        "`Lanton()`",
        "lanton",
        {**DEFAULTS, **SIGNAL, "noise.estimator": "frobenius"},
    ),
    "lanton_defaults_control": (
        "`Lanton(noise=None)`",
        "lanton",
        {**DEFAULTS, "noise": None},
    ),
    "lanton_paper": (
        "`Lanton.paper()`",
        "lanton_paper",
        {
            **PAPER,
            **RATES,
            "noise.alpha": 0.3,
            "noise.group_reduction": "max",
        },
    ),
    "lanton_paper_control": (
        "`Lanton.paper(noise=None)`",
        "lanton_paper",
        {**PAPER, "noise": None},
    ),
    # AdamW with other handicaps, or without them.
    "adamw_unclipped": (
        "AdamW",
        "adamw",
        {"beta_1": 0.9, "beta_2": 0.95, "weight_decay": 0.1},
    ),
    "adamw_tables": (
        "AdamW, tables at a rate of their own",
        "adamw_tables",
        {
            "beta_1": 0.9,
            "beta_2": 0.95,
            "weight_decay": 0.1,
            "global_clipnorm": 1.0,
            "table_factor": 4.0,
        },
    ),
    # Of the CNN.
    "cnn_sgd": (
        "SGD with Nesterov momentum",
        "sgd",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.0},
    ),
    "cnn_adamw": (
        "AdamW",
        "adamw",
        {"beta_1": 0.9, "beta_2": 0.95, "weight_decay": 0.0},
    ),
    "cnn_d_muon": ("D-Muon", "d_muon", {"beta_1": 0.9, **IMAGES}),
    "cnn_lanton": (
        "Lanton (base)",
        "lanton",
        {**IMAGE_LANTON, **SIGNAL, "noise.estimator": "frobenius"},
    ),
    "cnn_control": (
        "Lanton (base), `noise=None`",
        "lanton",
        {**IMAGE_LANTON, "noise": None},
    ),
}


@keras.saving.register_keras_serializable(package="experiments")
class AdamWOfTables(keras.optimizers.AdamW):
    """AdamW with a learning rate of its own for embeddings.

    Args:
        *args: As `keras.optimizers.AdamW`.
        table_factor: The rate of embeddings over the learning rate.
        **kwargs: As `keras.optimizers.AdamW`.
    """

    def __init__(self, *args, table_factor=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.table_factor = table_factor

    def update_step(self, gradient, variable, learning_rate):
        if "embedding" in variable.path:
            learning_rate = self.table_factor * learning_rate
        super().update_step(gradient, variable, learning_rate)


def make_optimizer(builder, learning_rate, options):
    """The optimizer of a trial.

    Args:
        builder: Of `CONTESTANTS`.
        learning_rate: Float.
        options: Pairs of arguments and values; with "noise.measure" the
            noise is a `Variant`.
    """
    options = dict(options)
    if builder == "keras_muon":
        return keras.optimizers.Muon(learning_rate, **options)
    if builder == "adamw_tables":
        return AdamWOfTables(learning_rate, **options)
    if builder == "lanton":
        options = {**UNNAMED, **options}
    if any(name.startswith("noise.") for name in options):
        options = {**ESTIMATOR, **options}
    if "noise.measure" in options:
        options = variants.with_variant(options)
    if any(name.startswith("inside.") for name in options):
        return within.WithinMatrices(
            learning_rate, **with_parts(Lanton, within.with_inside(options))
        )
    if "horizon" in options:
        return FallingDecay(learning_rate, **with_parts(Lanton, options))
    return construct(builder, learning_rate, options=options)

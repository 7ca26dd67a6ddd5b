"""Optimizers by the flat names of the oracle.

The oracle (`oracle.py`) has every number of Algorithm 1 as an argument of its
own, our optimizers have them in parts. Tests that hand the same settings to
both, or that vary a single one, name them as the oracle does.
"""

import dataclasses
import inspect
import math

import keras
import pytest

from helpers.tiers import keep
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from oracle import Oracle

PARTS = {
    "noise": NoiseAdaptiveRate,
    "newton_schulz": NewtonSchulz,
    "auxiliary_adamw": AuxiliaryAdamW,
}
# The oracle's name, the part, and the name there.
FIELDS = {
    "alpha": ("noise", "alpha"),
    "within_matrices": ("noise", "within_matrices"),
    "alpha_unit": ("noise", "alpha_unit"),
    "group_reduction": ("noise", "group_reduction"),
    "beta_2": ("noise", "beta_2"),
    "noise_interval": ("noise", "interval"),
    "noise_schedule": ("noise", "schedule"),
    "noise_reference": ("noise", "reference"),
    "noise_estimator": ("noise", "estimator"),
    "previous_gradient_dtype": ("noise", "previous_gradient_dtype"),
    "ns_steps": ("newton_schulz", "steps"),
    "ns_coefficients": ("newton_schulz", "coefficients"),
    "ns_dtype": ("newton_schulz", "dtype"),
    "max_temporary_bytes": ("newton_schulz", "max_temporary_bytes"),
    "shard_orthogonalization": ("newton_schulz", "shard"),
    "adamw_roles": ("auxiliary_adamw", "roles"),
    "adam_lr_ratio": ("auxiliary_adamw", "lr_ratio"),
    "adam_beta_1": ("auxiliary_adamw", "beta_1"),
    "adam_beta_2": ("auxiliary_adamw", "beta_2"),
    "adam_weight_decay": ("auxiliary_adamw", "weight_decay"),
    "epsilon": ("auxiliary_adamw", "epsilon"),
}
# What an argument needs beside it in order to be looked at. Scales of vectors
# are those that AdamW does not move.
NEEDS = {
    "ema_momentum": {"use_ema": True},
    "ema_overwrite_frequency": {"use_ema": True},
    "vector_scale": {"auxiliary_adamw": None},
    "vector_norm": {"auxiliary_adamw": None},
}
# The options of a role, which it has where AdamW does not move it.
OF_ROLES = {
    "embedding": ("embedding_scale",),
    "vector": ("vector_scale", "vector_norm"),
}
PAPER = {
    "noise": NoiseAdaptiveRate(
        alpha=0.3,
        within_matrices=False,
        alpha_unit="group_noise",
        group_reduction="max",
    ),
    "newton_schulz": NewtonSchulz(coefficients="jordan"),
    "auxiliary_adamw": None,
}


def arguments_of(cls):
    """Defaults of the arguments of a class and its bases, by name."""
    found = {}
    for base in inspect.getmro(cls):
        if base is object or "__init__" not in vars(base):
            continue
        for one in inspect.signature(base.__init__).parameters.values():
            if one.name != "self" and one.kind not in (
                one.VAR_POSITIONAL,
                one.VAR_KEYWORD,
            ):
                found.setdefault(one.name, one.default)
    return found


def in_parts(make, flat):
    """Options by flat names, as arguments of `make`.

    Args:
        make: An optimizer's class, or `Lanton.paper`.
        flat: Options; those that `make` takes itself stay.
    """
    is_paper = make == Lanton.paper
    own = arguments_of(Lanton if is_paper else make)
    options, changes = {}, {}
    for name, value in flat.items():
        if name in own or name not in FIELDS:
            options[name] = value
        if name in FIELDS and name not in own:
            part, field = FIELDS[name]
            changes.setdefault(part, {})[field] = value
    for part, fields in changes.items():
        start = options.get(part, PAPER[part] if is_paper else own[part])
        if part == "auxiliary_adamw" and fields.get("roles") in ((), []):
            options[part] = None
            continue
        options[part] = dataclasses.replace(start or PARTS[part](), **fields)
    adamw = options.get(
        "auxiliary_adamw",
        PAPER["auxiliary_adamw"] if is_paper else own.get("auxiliary_adamw"),
    )
    for role in getattr(adamw, "roles", ()):
        for name in OF_ROLES[role]:
            options.pop(name, None)
    return options


def make_optimizer(make, learning_rate=None, **flat):
    """An optimizer of ours, of options by flat names."""
    if learning_rate is not None:
        flat = {"learning_rate": learning_rate, **flat}
    return make(**in_parts(make, flat))


def lanton(**flat):
    """`Lanton`, of options by flat names."""
    return make_optimizer(Lanton, **flat)


def paper(**flat):
    """`Lanton.paper`, of options by flat names."""
    return make_optimizer(Lanton.paper, **flat)


def flat_defaults():
    """What `paper(**DEFAULTS)` needs to be `Lanton()`; the oracle gets it too.

    Read without making one: TensorFlow's devices are fixed from its first
    variable on, and tests/keras/test_many_devices.py splits them.
    """
    own = arguments_of(Lanton)
    found = {
        "hidden_scale": 0.2,
        "embedding_scale": 300.0,
        "vector_scale": 1.0,
        "vector_norm": "rms",
    }
    for name in inspect.signature(Oracle).parameters:
        if name in FIELDS:
            part, field = FIELDS[name]
            found[name] = getattr(PARTS[part](), field)
        elif name in own and name not in found:
            found[name] = own[name]
    return found


DEFAULTS = flat_defaults()
PRESETS = {"paper": {}, "defaults": DEFAULTS}
both_presets = pytest.mark.parametrize("preset", keep(PRESETS, ["defaults"]))


def assign_roles(optimizer, layers, variables, by_hand):
    """Roles of the variables that the oracle's layers name by hand."""
    for (path, layer), variable in zip(layers.items(), variables, strict=True):
        if path in by_hand:
            optimizer.assign_role(
                layer.role,
                [variable],
                input_axes=layer.input_axes,
                output_axes=layer.output_axes,
            )
    return optimizer


def paper_rate(t, warmup, total, highest, lowest):
    """Linear over `warmup` steps, then cosine until step `total`."""
    if t <= warmup:
        return highest * t / warmup
    phase = math.pi * (t - warmup) / (total - warmup)
    return lowest + 0.5 * (highest - lowest) * (1.0 + math.cos(phase))


def paper_schedule(warmup, total, highest, lowest):
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=highest / warmup,
        warmup_steps=warmup - 1,
        warmup_target=highest,
        decay_steps=total - warmup,
        alpha=lowest / highest,
    )


def config_of(optimizer):
    """Its config, without the name, which Keras numbers."""
    config = optimizer.get_config()
    del config["name"]
    return config

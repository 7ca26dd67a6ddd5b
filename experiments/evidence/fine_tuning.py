"""Runs of fine-tuning: pretrained on `wiki`, then trained on another text.

What is learned is the loss on the new text, what is forgotten how much the
loss on the old one rose.
"""

import dataclasses

from experiments.evidence import search
from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.trials import FineTuning

TEXT = "wiki"  # of the bases
BASES = {
    "adamw": search.trial_of("adamw", 8e-3, initial="keras_hub"),
    "lanton": search.trial_of("lanton_signal", 2e-2, {"weight_decay": 0.03}),
}

NO_DECAY = {"weight_decay": 0.0}  # which pulls to 0, not to the base
B_ALONE = {"by_adamw": "lora_kernel_a$"}
LORA = {"rank": 8}
# By label: contestant, rates, fields of `FineTuning`.
METHODS = {
    "AdamW": ("adamw", (5e-4, 1e-3, 2e-3), {}),
    "D-Muon": ("d_muon", (2.5e-3, 5e-3, 1e-2), {}),
    "`Lanton()`": ("lanton_signal", (2.5e-3, 5e-3, 1e-2), {}),
    "`Lanton(noise=None)`": ("lanton_control", (2.5e-3, 5e-3, 1e-2), {}),
    "LoRA, AdamW": ("adamw", (4e-3, 8e-3, 1.6e-2), LORA),
    "LoRA, `Lanton()`": ("lanton_signal", (5e-3, 1e-2, 2e-2), LORA),
    "LoRA, `Lanton()` of B, AdamW of A": (
        "lanton_signal",
        (5e-3, 1e-2, 2e-2),
        {**LORA, **B_ALONE},
    ),
}


def trials_of(method, base):
    """The runs of a method from a base, one per rate.

    Args:
        method: A key of `METHODS`.
        base: A key of `BASES`.
    """
    name, rates, fields = METHODS[method]
    _, optimizer, own = CONTESTANTS[name]
    options = tuple(sorted({**own, **NO_DECAY}.items()))
    return [
        FineTuning(
            optimizer=optimizer,
            learning_rate=rate,
            options=options,
            base=base,
            **fields,
        )
        for rate in rates
    ]


def base_of(trial):
    """The pretraining run of a `FineTuning`."""
    return dataclasses.replace(BASES[trial.base], seed=trial.seed)

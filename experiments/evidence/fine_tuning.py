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
TABLES_BY_ADAMW = {
    "auxiliary_adamw.roles": ("embedding", "vector"),
    "embedding_scale": None,
}
LORA = {"rank": 8}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A way to fine-tune.

    Args:
        contestant: A name of `CONTESTANTS`.
        rates: Those that are tried first.
        options: Of the optimizer, besides the contestant's own.
        fields: Of `FineTuning`.
    """

    contestant: str
    rates: tuple = (2.5e-3, 5e-3, 1e-2)
    options: dict = dataclasses.field(default_factory=dict)
    fields: dict = dataclasses.field(default_factory=dict)


METHODS = {
    "AdamW": Method(contestant="adamw", rates=(5e-4, 1e-3, 2e-3)),
    "D-Muon": Method(contestant="d_muon"),
    "Lanton (base)": Method(contestant="lanton_signal"),
    "Lanton (base), `noise=None`": Method(contestant="lanton_control"),
    "Lanton (base), AdamW of tables": Method(
        contestant="lanton_signal", options=TABLES_BY_ADAMW
    ),
    "LoRA, AdamW": Method(
        contestant="adamw", rates=(4e-3, 8e-3, 1.6e-2), fields=LORA
    ),
    "LoRA, Lanton (base)": Method(
        contestant="lanton_signal", rates=(5e-3, 1e-2, 2e-2), fields=LORA
    ),
    'LoRA, Lanton (base), `step_scale="fan_in"`': Method(
        contestant="lanton_signal",
        options={"step_scale": "fan_in"},
        fields=LORA,
    ),
    "LoRA, Lanton (base) of B, AdamW of A": Method(
        contestant="lanton_signal",
        rates=(5e-3, 1e-2, 2e-2),
        fields={**LORA, "by_adamw": "lora_kernel_a$"},
    ),
}


def trials_of(method, base):
    """The runs of a method from a base, one per rate.

    Args:
        method: A key of `METHODS`.
        base: A key of `BASES`.
    """
    found = METHODS[method]
    _, optimizer, own = CONTESTANTS[found.contestant]
    options = tuple(sorted({**own, **NO_DECAY, **found.options}.items()))
    return [
        FineTuning(
            optimizer=optimizer,
            learning_rate=rate,
            options=options,
            base=base,
            **found.fields,
        )
        for rate in found.rates
    ]


def base_of(trial):
    """The pretraining run of a `FineTuning`."""
    return dataclasses.replace(BASES[trial.base], seed=trial.seed)

"""The LANTON paper's hyper-parameters, by method and experiment.

Printed in arXiv 2510.14009, appendices on hyper-parameters and on the CNN. SGD
and AdamW are Keras' own. Options are arguments of the optimizer's class, where
they differ from its defaults; "noise.alpha" is the argument `alpha` of its part
`noise`. Rates are eta_max; schedules are a linear warm-up and a cosine to
`minimum_ratio` of it.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all methods of an experiment share."""

    context: int  # tokens
    batch_size: int  # sequences of `context` tokens
    warmup: int  # steps
    minimum_ratio: float


EXPERIMENTS = {
    # 124M and 355M weights, OpenWebText-100k.
    "gpt2_small": Settings(512, 16, 300, 0.0),
    "gpt2_medium": Settings(512, 16, 300, 0.0),
    # 1.1B, C4; 0.5B, MiniPile.
    "llama_1b_c4": Settings(256, 1024, 1000, 1 / 10),
    "llama_500m_minipile": Settings(512, 300, 1000, 1 / 20),
}
# By method: the rates, in the order of `EXPERIMENTS`.
RATES = {
    "adamw": (1e-4, 1e-4, 3e-4, 8e-4),
    "muon": (3e-3, 3e-3, 5e-3, 5e-3),
    "mars": (1e-3, 1e-3, 1e-3, 1e-3),
    "scion": (3e-4, 2e-4, 5e-4, 5e-4),
    "d_muon": (1e-3, 5e-4, 5e-3, 5e-3),
    "lanton_paper": (5e-3, 3e-3, 5e-3, 5e-3),
}
ADAM_RATES_OF_MUON = (3e-4, 3e-4, 3e-4, 5e-4)
DECAY = {"weight_decay": 0.1}  # "for all methods"; Scion's ball is its own
BETAS = {"beta_1": 0.9, "beta_2": 0.95}
MUON = {
    "beta_1": 0.95,
    "auxiliary_adamw.beta_1": 0.9,
    "auxiliary_adamw.beta_2": 0.95,
}
OPTIONS = {
    "adamw": {**BETAS, **DECAY},
    "muon": {**MUON, **DECAY},
    "mars": {**BETAS, **DECAY},
    "scion": {
        "beta_1": 0.9,
        "hidden_scale": 50.0,
        "embedding_scale": 3000.0,
    },
    "d_muon": {"hidden_scale": 0.2, **MUON, **DECAY},
    "lanton_paper": {
        "beta_1": 0.95,
        "embedding_scale": 300.0,
        "vector_scale": 1.0,
        "noise.beta_2": 0.9,
        **DECAY,
    },
}
# Of the CNN on CIFAR-100.
IMAGE_RATES = {
    "sgd": 0.1,
    "muon": 0.24,
    "mars": 0.1,
    "scion": 0.05,
    "d_muon": 0.1,
    "lanton_paper": 0.1,
}
IMAGE_OPTIONS = {
    "sgd": {"momentum": 0.85},
    "muon": {"beta_1": 0.6},
    "mars": BETAS,
    "scion": {"beta_1": 0.5},
    "d_muon": MUON,
    "lanton_paper": {
        "beta_1": 0.6,
        "vector_norm": "sign",
        "noise.beta_2": 0.85,
    },
}


def options(method, experiment):
    """Options of a method; where the paper has none, those of all methods."""
    if method not in OPTIONS:
        return DECAY
    if method != "muon":
        return OPTIONS[method]
    at = list(EXPERIMENTS).index(experiment)
    ratio = ADAM_RATES_OF_MUON[at] / RATES["muon"][at]
    return {**OPTIONS["muon"], "auxiliary_adamw.lr_ratio": ratio}


def learning_rates(experiment):
    """The printed rate of each method that has one in an experiment."""
    at = list(EXPERIMENTS).index(experiment)
    return {method: rates[at] for method, rates in RATES.items()}


def image_options(method):
    """Arguments of a method's optimizer on the CNN.

    The paper's, but no weight decay; for methods that it has not airbench's,
    or the defaults. Keras' Muon takes matrices alone: here that is the head,
    all other weights go to its Adam.
    """
    others = {
        "sgd": {"momentum": 0.85, "nesterov": True},
        "adamw": {"weight_decay": 0.0},
        "keras_muon": {"weight_decay": 0.0, "adam_weight_decay": 0.0},
    }
    if method in others:
        return others[method]
    paper = "lanton_paper" if method == "lanton" else method
    found = {**IMAGE_OPTIONS[paper], "weight_decay": None}
    if method == "lanton":
        del found["vector_norm"]  # AdamW updates vectors
    return found

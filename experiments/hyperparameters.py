"""The LANTON paper's hyper-parameters, one row per method and experiment.

Printed in arXiv 2510.14009, appendices on hyper-parameters and on the CNN.
`None` stands for what the paper does not give. SGD and AdamW are Keras' own;
`options` are arguments of the optimizer's class, where they differ from its
defaults; "noise.alpha" is the argument `alpha` of its part `noise`. Rates are
eta_max; schedules are a linear warm-up and a cosine to `minimum_ratio` of it.
"""

import dataclasses

EXPERIMENTS = {
    # Batch size in sequences of `context` tokens.
    "gpt2_small": {
        "model": "GPT-2 small, 124M",
        "dataset": "OpenWebText-100k",
        "context": 512,
        "batch_size": 16,
        "warmup": 300,
        "minimum_ratio": 0.0,
    },
    "gpt2_medium": {
        "model": "GPT-2 medium, 355M",
        "dataset": "OpenWebText-100k",
        "context": 512,
        "batch_size": 16,
        "warmup": 300,
        "minimum_ratio": 0.0,
    },
    "llama_1b_c4": {
        "model": "Llama, 1.1B",
        "dataset": "C4",
        "context": 256,
        "batch_size": 1024,
        "warmup": 1000,
        "minimum_ratio": 1 / 10,
    },
    "llama_500m_minipile": {
        "model": "Llama, 0.5B",
        "dataset": "MiniPile",
        "context": 512,
        "batch_size": 300,
        "warmup": 1000,
        "minimum_ratio": 1 / 20,
    },
    "cnn_cifar100": {
        "model": "8-layer CNN",
        "dataset": "CIFAR-100",
        "context": None,
        "batch_size": None,
        "warmup": None,
        "minimum_ratio": None,
    },
}
LANGUAGE = tuple(name for name in EXPERIMENTS if name != "cnn_cifar100")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What the paper prints for one method in one experiment."""

    method: str
    experiment: str
    learning_rate: float
    adam_learning_rate: float | None = None  # Muon's, beside its own
    options: tuple[tuple[str, object], ...] = ()


def _rows(method, rates, **options):
    """One row per language experiment, in the order of `LANGUAGE`."""
    found = []
    for experiment, rate in zip(LANGUAGE, rates, strict=True):
        pair = rate if isinstance(rate, tuple) else (rate, None)
        found.append(
            Row(
                method=method,
                experiment=experiment,
                learning_rate=pair[0],
                adam_learning_rate=pair[1],
                options=tuple(options.items()),
            )
        )
    return found


def _cnn(method, rate, **options):
    return Row(
        method=method,
        experiment="cnn_cifar100",
        learning_rate=rate,
        options=tuple(options.items()),
    )


DECAY = {"weight_decay": 0.1}  # "for all methods"; Scion's ball is its own
MUON = {
    "beta_1": 0.95,
    "auxiliary_adamw.beta_1": 0.9,
    "auxiliary_adamw.beta_2": 0.95,
}
ROWS = (
    *_rows("adamw", (1e-4, 1e-4, 3e-4, 8e-4), beta_1=0.9, beta_2=0.95, **DECAY),
    *_rows(
        "muon",
        ((3e-3, 3e-4), (3e-3, 3e-4), (5e-3, 3e-4), (5e-3, 5e-4)),
        **MUON,
        **DECAY,
    ),
    *_rows("mars", (1e-3, 1e-3, 1e-3, 1e-3), beta_1=0.9, beta_2=0.95, **DECAY),
    *_rows(
        "scion",
        (3e-4, 2e-4, 5e-4, 5e-4),
        beta_1=0.9,
        hidden_scale=50.0,
        embedding_scale=3000.0,
    ),
    *_rows(
        "d_muon", (1e-3, 5e-4, 5e-3, 5e-3), hidden_scale=0.2, **MUON, **DECAY
    ),
    *_rows(
        "lanton_paper",
        (5e-3, 3e-3, 5e-3, 5e-3),
        beta_1=0.95,
        embedding_scale=300.0,
        vector_scale=1.0,
        **{"noise.beta_2": 0.9},
        **DECAY,
    ),
    _cnn("sgd", 0.1, momentum=0.85),
    _cnn("muon", 0.24, beta_1=0.6),
    _cnn("mars", 0.1, beta_1=0.9, beta_2=0.95),
    _cnn("scion", 0.05, beta_1=0.5),
    _cnn("d_muon", 0.1, **MUON),
    _cnn(
        "lanton_paper",
        0.1,
        beta_1=0.6,
        vector_norm="sign",
        **{"noise.beta_2": 0.85},
    ),
)

# Lanton with this package's defaults; the others the paper names, without a
# row in its tables.
WITHOUT_ROWS = (
    "normuon",
    "lanton",
    "lamb",
    "blockwise_adamw",
    "adamuon",
    "gluon",
)


def find(method, experiment):
    """The row of a method in an experiment.

    Raises:
        KeyError: Where the paper has none.
    """
    for row in ROWS:
        if (row.method, row.experiment) == (method, experiment):
            return row
    raise KeyError(
        f"The paper has no row of {method!r} in {experiment!r}. Allowed: "
        f"{[(row.method, row.experiment) for row in ROWS]}"
    )


def options(method, experiment):
    """The options of the row, or where there is none those for all methods."""
    if method in WITHOUT_ROWS:
        return tuple(DECAY.items()) if method != "gluon" else ()
    row = find(method, experiment)
    if row.adam_learning_rate is None:
        return row.options
    ratio = row.adam_learning_rate / row.learning_rate
    return (*row.options, ("auxiliary_adamw.lr_ratio", ratio))


def learning_rates(experiment):
    """The printed rate of each method that has a row in an experiment."""
    return {
        row.method: row.learning_rate
        for row in ROWS
        if row.experiment == experiment
    }


def image_options(method):
    """Arguments of a method's optimizer on the CNN.

    The paper's, but no weight decay; for methods without a row airbench's, or
    the defaults. Keras' Muon takes matrices alone: here that is the head, all
    other weights go to its Adam.
    """
    others = {
        "sgd": {"momentum": 0.85, "nesterov": True},
        "adamw": {"weight_decay": 0.0},
        "keras_muon": {"weight_decay": 0.0, "adam_weight_decay": 0.0},
    }
    if method in others:
        return others[method]
    paper = "lanton_paper" if method == "lanton" else method
    options = dict(find(paper, "cnn_cifar100").options)
    if method == "lanton":
        del options["vector_norm"]  # AdamW updates vectors
    return {**options, "weight_decay": None}

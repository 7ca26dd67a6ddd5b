"""The runs of the paper's experiments, on a small scale.

GPT-2 and Llama of 0.2 million weights, 250 steps of 16 x 64 tokens of Python's
standard library; a narrow airbench94 on scikit-learn's digits. Each rate is
tuned on the same number of rates.
"""

from experiments import hyperparameters
from experiments.contestants import CONTESTANTS
from experiments.run import Run
from experiments.search import Grid
from experiments.search import Table
from experiments.search import at_best
from experiments.search import fixed
from experiments.styles import STYLES

STEPS, WARMUP = 250, 25
SEEDS = (1, 2, 3)  # the first one tunes
LABELS = {
    **{method: label for method, (label, _, _) in STYLES.items()},
    "lanton": CONTESTANTS["lanton"].label,
    "lanton_paper": "`Lanton.paper()`",
}
OURS = LABELS["lanton"]
# Muon's second rate is not tuned by itself: half of the first gives AdamW what
# it has under D-Muon at hidden steps of equal size.
OPTIONS = {
    "lanton": CONTESTANTS["lanton"].options,
    "adamw": {"global_clipnorm": 1.0},
    "mars": {"global_clipnorm": 1.0},
    "muon": {"auxiliary_adamw.lr_ratio": 0.5},
}
EXPERIMENTS = {"gpt2": "gpt2_small", "llama": "llama_500m_minipile"}
MAIN = ("lanton", "lanton_paper", "d_muon", "muon", "scion", "mars", "adamw")
METHODS = {
    "gpt2": (*MAIN, "adamuon"),
    "llama": (*MAIN, "lamb", "blockwise_adamw"),
}
# The second of four rates by factors of 2.
SECOND = {
    "lanton": 5e-3,
    "lanton_paper": 1e-2,
    "d_muon": 2e-2,
    "muon": 4e-2,
    "adamuon": 2e-2,
    "scion": 1e-3,
    "mars": 4e-3,
    "adamw": 4e-3,
    "lamb": 2e-2,
    "blockwise_adamw": 1e-3,
}
IMAGE_SECOND = {
    "lanton": 5e-2,
    "lanton_paper": 5e-2,
    "d_muon": 5e-2,
    "muon": 5e-2,
    "scion": 5e-2,
    "mars": 1e-2,
    "sgd": 1e-1,
}


def around(rate, count=4):
    """A grid by factors of 2; the rate is the second of them."""
    return tuple(float(f"{rate * 2.0 ** (i - 1):.3g}") for i in range(count))


def run_of(method, rate, changes=(), model="gpt2", **fields):
    """A run of a language model; `changes` are arguments of the optimizer."""
    options = {
        **dict(hyperparameters.options(method, EXPERIMENTS[model])),
        **OPTIONS.get(method, {}),
        **dict(changes),
    }
    steps = fields.get("steps", STEPS)
    given = {
        "text": "stdlib",
        "batch_size": 16,
        "steps": steps,
        "warmup": max(2, min(WARMUP, steps // 10)) / steps,
        **fields,
    }
    return Run(
        optimizer=method,
        learning_rate=rate,
        options=tuple(sorted(options.items())),
        model=model,
        size="S",
        initial="keras_hub",
        vocabulary=512,
        validation_blocks=256,
        **given,
    )


def image_run(method, rate):
    """A run of the CNN."""
    if method == "lanton":
        options = {**OPTIONS[method], "weight_decay": None}
    else:
        options = hyperparameters.image_options(method)
    return Run(
        kind="images",
        optimizer=method,
        learning_rate=rate,
        options=tuple(sorted(options.items())),
        model="airbench",
        images="digits",
        widths=(16, 64, 64),
        batch_size=128,
        epochs=6,
        judged_by="test",
    )


GRIDS = {
    model: {
        LABELS[method]: [
            run_of(method, rate, model=model) for rate in around(SECOND[method])
        ]
        for method in methods
    }
    for model, methods in METHODS.items()
}
IMAGE_GRIDS = {
    LABELS[method]: [image_run(method, rate) for rate in around(second)]
    for method, second in IMAGE_SECOND.items()
}
LOSSES = tuple(
    Table(caption=name, decide=at_best(GRIDS[model]), reference=OURS)
    for model, name in (("gpt2", "GPT-2"), ("llama", "Llama"))
)
# Rates of both on the GPT-2; the best of them.
RATES = {"lanton": around(2.5e-3, 5), "d_muon": around(1e-2, 5)}
BEST_RATE = {"lanton": 5e-3, "d_muon": 4e-2}
BASE_RATE = Grid(
    caption="GPT-2, mean over 2 seeds",
    rows=tuple(
        (LABELS[method], run_of(method, rate))
        for method, rates in RATES.items()
        for rate in rates
    ),
    seeds=SEEDS[:2],
)
BATCH_SIZE = Grid(
    caption="GPT-2, mean over 3 seeds, by batch size",
    by="batch_size",
    rows=tuple(
        (
            LABELS[method],
            run_of(method, rate, batch_size=b, steps=STEPS * 16 // b),
        )
        for method, rate in BEST_RATE.items()
        for b in (8, 16, 32, 64)
    ),
    seeds=SEEDS,
)


def reference(name, accumulate=None, **fields):
    """Lanton with another sample of the noise, at its best rate."""
    changes = {"noise.reference": name}
    if accumulate:
        changes["gradient_accumulation_steps"] = accumulate
    return run_of("lanton", BEST_RATE["lanton"], changes, **fields)


TWICE = {"batch_size": 32, "steps": STEPS // 2}
REFERENCES = Table(
    caption="GPT-2, equal numbers of samples",
    decide=fixed(
        ("Option I", reference("previous_gradient")),
        (
            "Option II, halves of the batch",
            reference("independent_gradient", 2),
        ),
        (
            "Option II, two batches, half the steps",
            reference("independent_gradient", 2, **TWICE),
        ),
        ("momentum as reference", reference("momentum")),
    ),
    reference="Option I",
)
CNN = Table(caption="Digits", decide=at_best(IMAGE_GRIDS), reference=OURS)
# What `python -m experiments.paper` trains, in this order.
QUESTIONS = {
    "losses": LOSSES,
    "base_rate": (BASE_RATE,),
    "batch_size": (BATCH_SIZE,),
    "references": (REFERENCES,),
    "cnn": (CNN,),
}

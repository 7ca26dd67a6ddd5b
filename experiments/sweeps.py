"""What is compared: the settings of all questions, as tables of runs."""

from experiments.contestants import OF_ADAMW
from experiments.contestants import OF_MUON
from experiments.search import CHOOSING
from experiments.search import Grid
from experiments.search import Table
from experiments.search import all_of
from experiments.search import at_best
from experiments.search import fixed
from experiments.search import label_of
from experiments.search import run_for
from experiments.search import scaled
from experiments.search import searched
from experiments.search import tune
from experiments.tasks import ADAMW
from experiments.tasks import FINE_TUNED_AT_ONE_RATE
from experiments.tasks import FINE_TUNING

REPORTING = (11, 12, 13, 14, 15)  # seeds of the finals: none of them tunes
QUICK, LONG = 5.0, 80.0  # tokens per weight
OURS = ("lanton", "lanton_without_noise")
EARLIER = ("cubic", "cubic_without_noise")  # their records say which commit
LITTLE_DECAY = {"weight_decay": 0.03}
# Where rates alone are compared: the other arguments, which the searches
# found.
FOUND = {
    "d_muon": LITTLE_DECAY,
    "normuon": LITTLE_DECAY,
    "adamw_tables": {"beta_1": 0.8, "weight_decay": 0.03},
}
LOW = (1.25e-3, 2.5e-3, 5e-3)
MIDDLE = (2.5e-3, 5e-3, 1e-2)
HIGH = (*MIDDLE, 2e-2)


# -- Searches ----------------------------------------------------------------

DECAYS = ("weight_decay", (0.03, 0.3))
MOMENTA = ("beta_1", (0.9, 0.95, 0.98))
AUXILIARY = ("auxiliary_adamw.lr_ratio", (0.25, 0.5))
PAPER = (DECAYS, MOMENTA, ("embedding_scale", (100.0, 200.0)))
IMAGE_DECAYS = ("weight_decay", (0.01, 0.1))
IMAGES = (IMAGE_DECAYS, ("beta_1", (0.6, 0.8, 0.95)), AUXILIARY)
# Of each contestant that is tuned: rates, then arguments, one by one.
SPACES = {
    "adamw": (
        (2e-3, 4e-3, 8e-3),
        (DECAYS, ("beta_2", (0.98, 0.99)), ("beta_1", (0.8, 0.95))),
    ),
    "adamw_tables": (
        (1e-3, 2e-3, 4e-3),
        (
            ("table_factor", (2.0, 8.0)),
            DECAYS,
            ("beta_2", (0.98,)),
            ("beta_1", (0.6, 0.7, 0.8, 0.95)),
        ),
    ),
    "keras_muon": (
        (5e-3, 1e-2, 2e-2),
        (
            DECAYS,
            ("momentum", (0.9, 0.98)),
            ("adam_lr_ratio", (0.25, 0.5)),
        ),
    ),
    "d_muon": ((1e-2, 2e-2, 4e-2), (DECAYS, MOMENTA, AUXILIARY)),
    "normuon": (
        (1e-2, 2e-2, 4e-2),
        (DECAYS, MOMENTA, ("beta_2", (0.98,)), AUXILIARY),
    ),
    "scion": (
        (5e-4, 1e-3, 2e-3),
        (
            ("beta_1", (0.95, 0.98)),
            ("hidden_scale", (25.0, 100.0)),
            ("embedding_scale", (1000.0, 6000.0)),
        ),
    ),
    "lanton_paper": ((5e-3, 1e-2, 2e-2), PAPER),
    "lanton_paper_without_noise": ((5e-3, 1e-2, 2e-2), PAPER),
}
IMAGE_SPACES = {
    "cnn_sgd": (
        (0.1, 0.2, 0.4),
        (
            ("weight_decay", (1e-3, 1e-2)),
            ("momentum", (0.7, 0.8, 0.95)),
            ("nesterov", (False,)),
        ),
    ),
    "cnn_adamw": (
        (4e-3, 8e-3, 1.6e-2),
        (IMAGE_DECAYS, ("beta_2", (0.99, 0.999)), ("beta_1", (0.8, 0.95))),
    ),
    "cnn_d_muon": ((1e-2, 2e-2, 4e-2), IMAGES),
    "cnn_lanton": ((5e-3, 1e-2, 2e-2), IMAGES),
}


def search_of(name, **fields):
    """A function of results: all runs of a contestant's search, sorted.

    Args:
        name: Of `SPACES` or `IMAGE_SPACES`.
        **fields: Of the runs.
    """
    rates, space = {**SPACES, **IMAGE_SPACES}[name]
    first = [run_for(name, rate, **fields) for rate in rates]
    return lambda results: tune(first, space, results)


def searches_of(names, **fields):
    """By label: the searches of contestants; arguments as `search_of`."""
    return {label_of(name): search_of(name, **fields) for name in names}


def runs_at(rates, **fields):
    """By label: a contestant's runs at some rates, other arguments `FOUND`.

    Args:
        rates: By name.
        **fields: Of the runs.
    """
    return {
        label_of(name): [
            run_for(name, rate, FOUND.get(name, ()), **fields) for rate in some
        ]
        for name, some in rates.items()
    }


# -- The finals, the noise, other sizes and lengths --------------------------

# Where `Lanton()` has the losses of the others, in budgets.
DOWN_TO_ADAMW = (0.6, 0.7, 1.0)
# At the rate that the guide starts with.
AT_ONE_PEAK = fixed(
    *((label_of(name), run_for(name, 5e-3, text="sotu")) for name in OURS)
)
FINALS = Table(
    caption="S, 1,024 tokens, `sotu`",
    decide=all_of(
        AT_ONE_PEAK,
        searched(searches_of(SPACES), text="sotu"),
    ),
    seeds=REPORTING,
    curve=label_of("lanton"),
    lengths=DOWN_TO_ADAMW,
)
# By caption: fields of the runs, and rates.
PLACES = {
    "S, 256 tokens": ({"batch_size": 4}, (6.25e-4, *LOW)),
    "S, 4,096 tokens": ({"batch_size": 64}, HIGH),
    "M, 1,024 tokens": ({"size": "M"}, LOW),
    "M, 256 tokens": ({"size": "M", "batch_size": 4}, (6.25e-4, *LOW[:2])),
    "S, 1,024 tokens, 80 tokens per weight": (
        {"tokens_per_weight": LONG},
        (*LOW, 1e-2),
    ),
    "L, 1,024 tokens, 5 tokens per weight": (
        {"size": "L", "tokens_per_weight": QUICK},
        LOW,
    ),
    "Llama, S, 1,024 tokens": ({"model": "llama"}, (6.25e-4, *LOW, 1e-2)),
}
IN_TOKENS = ("S, 256 tokens", "M, 1,024 tokens", "M, 256 tokens")


def noise_of(ours):
    """A `Table` for each of `PLACES`: with noise and without.

    Args:
        ours: The names of the two contestants.
    """
    without = label_of(ours[1])
    return tuple(
        Table(
            caption=caption,
            decide=at_best(runs_at(dict.fromkeys(ours, rates), **fields)),
            reference=without,
            curve=without if caption in IN_TOKENS else None,
        )
        for caption, (fields, rates) in PLACES.items()
    )


NOISE = (
    Table(
        caption=FINALS.caption,
        decide=AT_ONE_PEAK,
        seeds=REPORTING,
        reference=label_of("lanton_without_noise"),
        curve=label_of("lanton"),
        lengths=DOWN_TO_ADAMW,
    ),
    *noise_of(OURS),
)
# Other contestants' rates in some of these places.
OTHERS = {
    "M, 1,024 tokens": {
        "d_muon": MIDDLE,
        "normuon": MIDDLE,
        "adamw_tables": (2e-3, 4e-3, 8e-3, 1.6e-2),
    },
    "S, 1,024 tokens, 80 tokens per weight": {
        "d_muon": HIGH,
        "adamw_tables": (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    },
    "L, 1,024 tokens, 5 tokens per weight": {
        "d_muon": MIDDLE,
        "adamw_tables": (2e-3, 4e-3, 8e-3),
    },
    "Llama, S, 1,024 tokens": {
        "d_muon": HIGH,
        "adamw_tables": (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    },
}


def sizes_of(ours):
    """A `Table` for each of `OTHERS`: ours beside others; as `noise_of`."""
    return tuple(
        Table(
            caption=caption,
            decide=at_best(
                runs_at(
                    {**dict.fromkeys(ours, PLACES[caption][1]), **others},
                    **PLACES[caption][0],
                )
            ),
            reference=label_of(ours[0]),
        )
        for caption, others in OTHERS.items()
    )


# With the vocabulary of the 14 million weights.
LARGE_VOCABULARY = Table(
    caption="M, 4,096 tokens, a vocabulary of 8,192, 5 tokens per weight",
    decide=at_best(
        runs_at(
            {
                "lanton": MIDDLE[1:],
                "d_muon": (*HIGH[2:], 4e-2),
                "normuon": HIGH[2:],
            },
            size="M",
            batch_size=64,
            vocabulary=8192,
            tokens_per_weight=QUICK,
        )
    ),
    seeds=(1, 2),
)
SIZES = sizes_of(OURS)

# Batches so large that a run has 300 steps, and wants a short momentum.
LARGE = {"batch_size": 256}
RATES_OF_LARGE = {
    "lanton": HIGH[1:],
    "d_muon": (2e-2, 4e-2, 8e-2),
    "normuon": (2e-2, 4e-2, 8e-2),
    "adamw_tables": (4e-3, 8e-3, 1.6e-2),
}


def large_batches(caption, beta_1, intervals=(), **fields):
    """A `Table` of runs in large batches; AdamW has the `beta_1` of `FOUND`.

    `intervals` are further ones, in steps, of the noise of `Lanton()`.
    """
    runs = runs_at(RATES_OF_LARGE, **LARGE, **fields)
    for label in set(runs) - {label_of("adamw_tables")}:
        runs[label] = [one.with_options(beta_1=beta_1) for one in runs[label]]
    for x in intervals:
        runs[f"`Lanton(noise=NoiseAdaptiveRate(interval={x}))`"] = [
            one.with_options(**{"noise.interval": x})
            for one in runs[label_of("lanton")]
        ]
    return Table(caption=caption, decide=at_best(runs))


LARGE_BATCHES = (
    large_batches("`beta_1` 0.95", 0.95),
    large_batches("`beta_1` 0.8", 0.8, intervals=(3,)),
    large_batches(
        "`beta_1` 0.95, a vocabulary of 8,192",
        0.95,
        vocabulary=8192,
        steps=300,
    ),
)

# -- Rates -------------------------------------------------------------------

# By row: fields, and rates.
BY_PLACE = {
    **{
        f"{size}, 1,024 tokens, 400 steps": (
            {"size": size, "steps": 400},
            MIDDLE if size == "XL" else HIGH,
        )
        for size in ("S", "M", "L", "XL")
    },
    "S, 1,024 tokens": ({}, (*LOW, 1e-2)),
    **PLACES,
}
# Of these the runs are an earlier commit's.
EARLIER_PLACES = (
    "XL, 1,024 tokens, 400 steps",
    "M, 256 tokens",
    "L, 1,024 tokens, 5 tokens per weight",
)
PEAK_RATES = Grid(
    caption="`Lanton()` by rate, one seed",
    of="size, tokens per batch, length",
    rows=tuple(
        (f"{place}, cubic", run_for("cubic", rate, **fields))
        if place in EARLIER_PLACES
        else (place, run_for("lanton", rate, **fields))
        for place, (fields, rates) in BY_PLACE.items()
        for rate in rates
    ),
)


def by_width(name, rates, changes=()):
    """A `Grid` of 400 steps: a row for each width.

    Args:
        name: Of the contestant.
        rates: Of all widths.
        changes: Arguments of the optimizer.
    """
    rows = [
        (size, run_for(name, rate, changes, size=size, steps=400))
        for size in ("XS", "S", "M", "L")
        for rate in rates
    ]
    return Grid(
        caption=f"{label_of(name)}, GPT-2, 400 steps",
        of="width",
        rows=tuple(rows),
    )


WIDTHS = (
    by_width("lanton", (*LOW, 1e-2, 2e-2)),
    by_width("d_muon", (*HIGH, 4e-2, 8e-2), LITTLE_DECAY),
    by_width("adamw_tables", (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)),
)

# -- Single arguments of `Lanton()` ------------------------------------------

MUCH, LITTLE = (0.03, 0.1, 0.3), (0.01, 0.03, 0.1)
# By row: fields, and the decays.
DECAYED = {
    "S, 1,024, 5": ({"tokens_per_weight": QUICK}, (0.1, 0.3, 1.0)),
    "S, 1,024, 20": ({}, MUCH),
    "S, 256, 20": ({"batch_size": 4}, MUCH),
    "S, 1,024, 80": ({"tokens_per_weight": LONG}, LITTLE),
    "M, 1,024, 20": ({"size": "M"}, LITTLE),
}
DECAY = Grid(
    caption="`Lanton(weight_decay=...)`, cubic",
    by="weight_decay",
    of="size, tokens per batch, tokens per weight",
    rows=tuple(
        (place, run_for("cubic", 5e-3, {"weight_decay": decay}, **fields))
        for place, (fields, decays) in DECAYED.items()
        for decay in decays
    ),
)
# By caption: rate, seeds, and fields.
WARMED_UP = {
    "S, 16,384 tokens, 300 steps": (1e-2, (1,), LARGE),
    "S, 400 steps": (5e-3, CHOOSING, {"steps": 400}),
}
CONSTANT = {"momentum_warmup": False}
MOMENTUM = tuple(
    Table(
        caption=caption,
        decide=fixed(
            (label_of("lanton"), run_for("lanton", rate, **fields)),
            (
                "`Lanton(momentum_warmup=False)`",
                run_for("lanton", rate, CONSTANT, **fields),
            ),
        ),
        seeds=seeds,
    )
    for caption, (rate, seeds, fields) in WARMED_UP.items()
)

# What takes less memory.
LESS = {
    "`Lanton()`": ({}, {}),
    '`momentum_dtype="int8"`': ({"momentum_dtype": "int8"}, {}),
    '`momentum_dtype="bfloat16"`': ({"momentum_dtype": "bfloat16"}, {}),
    '`reference="momentum"`': ({"noise.reference": "momentum"}, {}),
    '`previous_gradient_dtype="bfloat16"`': (
        {"noise.previous_gradient_dtype": "bfloat16"},
        {},
    ),
    'weights in bfloat16, `rounding="stochastic"`': (
        {"rounding": "stochastic"},
        {"dtype": "bfloat16"},
    ),
    "weights in bfloat16": ({}, {"dtype": "bfloat16"}),
}
MEMORY = Table(
    caption="S, 400 steps",
    decide=fixed(
        *(
            (label, run_for("lanton", 5e-3, changes, steps=400, **fields))
            for label, (changes, fields) in LESS.items()
        )
    ),
    seeds=(1, 2, 3),
    reference="`Lanton()`",
)


# Newton-Schulz by its coefficients.
COEFFICIENTS = "newton_schulz.coefficients"
NEWTON_SCHULZ = Grid(
    caption="`Lanton(newton_schulz=NewtonSchulz(coefficients=...))`, 400 steps",
    by=COEFFICIENTS,
    of="width",
    rows=tuple(
        (
            size,
            run_for("before", 5e-3, {COEFFICIENTS: x}, size=size, steps=400),
        )
        for size in ("S", "M", "L", "XL")
        for x in ("cubic", "jordan", "polar_express")
        if (size, x) != ("XL", "jordan")  # its runs are long
    ),
)
LONGER_NEWTON_SCHULZ = Grid(
    caption="`Lanton(newton_schulz=NewtonSchulz(coefficients=...))`, 20 tokens "
    "per weight",
    by=COEFFICIENTS,
    of="width",
    rows=tuple(
        (size, run_for("before", rate, {COEFFICIENTS: name}, size=size))
        for size, rate in (("S", 5e-3), ("M", 2.5e-3))
        for name in ("cubic", "polar_express")
    ),
)
# What `Lanton.from_adamw` takes from the contestant "adamw".
OF_CLIPPED = {
    **OF_ADAMW,
    "auxiliary_adamw.roles": ("embedding", "vector"),
    "embedding_scale": None,
    "global_clipnorm": 1.0,
}


def from_adamw(caption, rate, **fields):
    """A `Grid`: AdamW at its best rate, `from_adamw` of it, and `Lanton()`."""
    adamw = run_for("adamw", rate, **fields)
    ours = run_for("lanton", 5e-3, **fields)
    migrated = run_for("lanton", 2.5 * rate, OF_CLIPPED, **fields)
    return Grid(
        caption=caption,
        rows=(
            ("AdamW", adamw),
            ("AdamW, 1.25 times the tokens", scaled(adamw, 1.25)),
            ("`Lanton.from_adamw(adamw)`", migrated),
            ("`Lanton()`", ours),
            (
                "`Lanton()`, kernels start 0.02",
                ours.replace(initial="keras_hub"),
            ),
        ),
    )


FROM_ADAMW = (
    from_adamw("GPT-2, S, 1,024 tokens", 4e-3),
    from_adamw("Llama, S, 1,024 tokens", 8e-3, model="llama"),
)

# Muon as its search found it.
FROM_MUON = Grid(
    caption="GPT-2, S, 1,024 tokens, from Muon",
    rows=(
        (
            label_of("keras_muon"),
            run_for("keras_muon", 5e-3, {"momentum": 0.98}),
        ),
        ("`Lanton.from_muon(muon)`", run_for("lanton", 5e-3, OF_MUON)),
    ),
)

# -- The CNN -----------------------------------------------------------------

CNN = Table(
    caption="Fashion-MNIST, 8 epochs",
    decide=searched(
        searches_of(IMAGE_SPACES, judged_by="held_out"), judged_by="test"
    ),
    seeds=REPORTING,
    reference=label_of("cnn_lanton"),
)
# AdamW as the search found it, and what `Lanton.from_adamw` takes from it.
ADAMW_OF_CNN = {"beta_1": 0.8, "beta_2": 0.999, "weight_decay": 0.0}
CNN_FROM_ADAMW = Table(
    caption=CNN.caption,
    decide=fixed(
        (label_of("cnn_adamw"), run_for("cnn_adamw", 1.6e-2, ADAMW_OF_CNN)),
        (
            "`Lanton.from_adamw(adamw)`",
            run_for(
                "cnn_lanton",
                4e-2,
                {
                    **OF_ADAMW,  # there are no embeddings
                    "auxiliary_adamw.beta_1": 0.8,
                    "auxiliary_adamw.beta_2": 0.999,
                    "beta_1": 0.95,
                    "weight_decay": 0.0,
                },
            ),
        ),
    ),
    seeds=REPORTING,
    reference=label_of("cnn_adamw"),
)

# -- Small models: at one rate throughout, and with a schedule ----------------


def small(model, batch_size, epochs, **fields):
    """Fields of a run of one of `small.TASKS`."""
    without = ("size", "text", "initial", "tokens_per_weight")
    common = {"kind": "small", **dict.fromkeys(without), **fields}
    sizes = {"batch_size": batch_size, "epochs": epochs}
    return {"model": model, **sizes, **common}


FASHION = {"images": "fashion_mnist"}
# By caption, fields of the runs.
SMALL = {
    "Fashion-MNIST, two hidden layers": small("mlp", 128, 6, **FASHION),
    "Fashion-MNIST, two convolutions": small("cnn", 64, 3, **FASHION),
    "Fashion-MNIST, vision transformer": small("vit", 64, 6, **FASHION),
    "Fashion-MNIST, autoencoder": small("autoencoder", 128, 6, **FASHION),
    "time series, LSTM": small("lstm", 64, 6),
    "smooth function, three hidden layers": small("regression", 64, 20),
    "numbers and categories": small("table", 128, 6),
    "ratings of items by users": small("recommender", 64, 5),
}
DEFAULT = 1e-3  # of Keras' optimizers and of `Lanton`
DEFAULTS = (DEFAULT, 2.5 * DEFAULT)  # and of `Lanton.from_adamw(AdamW())`
ONE_RATES = {
    "lanton": (5e-4, DEFAULT, 2e-3, 5e-3),
    "keras_adamw": (DEFAULT, 3e-3, 1e-2),
    "keras_muon_defaults": (DEFAULT, 3e-3, 1e-2),
    "from_keras_adamw": DEFAULTS[1:],
}


PEAK = 5e-3  # of `Lanton` with a schedule, in docs/guides/learning_rate.md
PEAKS = {
    "lanton": (6.25e-4, *LOW, 1e-2),
    "keras_adamw": (DEFAULT, 3e-3, 1e-2, 3e-2),
    "keras_muon_defaults": (DEFAULT, 3e-3, 1e-2, 3e-2),
    "from_keras_adamw": (*DEFAULTS[1:], 7.5e-3),
}


def at_rates(caption, by_name=ONE_RATES, more=(), **fields):
    """A `Grid` of a task by rate; `more` are further rows."""
    rows = [
        (label_of(name), run_for(name, rate, **fields))
        for name, rates in by_name.items()
        for rate in rates
    ]
    return Grid(caption=caption, rows=(*rows, *more), seeds=CHOOSING)


SCHEDULED = run_for("lanton", 5e-3, tokens_per_weight=QUICK)
AT_ONE_RATE = (
    at_rates(
        "GPT-2, S, 1,024 tokens",
        more=[("`Lanton()`, warm-up and cosine", SCHEDULED)],
        tokens_per_weight=QUICK,
        schedule="constant",
    ),
    *(at_rates(caption, **fields) for caption, fields in SMALL.items()),
    FINE_TUNED_AT_ONE_RATE,
)
WITH_SCHEDULE = tuple(
    at_rates(caption, PEAKS, **fields, schedule="cosine")
    for caption, fields in SMALL.items()
)

# What `python -m experiments` trains, in this order. Nothing that an earlier
# commit trained: today's code cannot.
QUESTIONS = {
    "lowest": (FINALS,),
    "noise": NOISE,
    "sizes": SIZES,
    "large_batches": LARGE_BATCHES,
    "large_vocabulary": (LARGE_VOCABULARY,),
    "widths": WIDTHS,
    "momentum": MOMENTUM,
    "memory": (MEMORY,),
    "cnn": (CNN,),
    "fine_tuning": FINE_TUNING,
    "adamw": (ADAMW, *FROM_ADAMW),
    "from_muon": (FROM_MUON,),
    "cnn_from_adamw": (CNN_FROM_ADAMW,),
    "without_schedule": AT_ONE_RATE,
    "with_schedule": WITH_SCHEDULE,
}

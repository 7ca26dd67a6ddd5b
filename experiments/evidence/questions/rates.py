"""Which learning rates are good, and where."""

from experiments.evidence import sizes
from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.questions.by_rate import by_rate
from experiments.evidence.questions.common import BY_FAN_IN
from experiments.evidence.questions.common import FAN_IN
from experiments.evidence.questions.common import FULL
from experiments.evidence.questions.common import LITTLE_DECAY
from experiments.evidence.questions.common import QUICK
from experiments.evidence.questions.common import REPORTING
from experiments.evidence.questions.common import RMS_MATCHED
from experiments.evidence.questions.common import captioned
from experiments.evidence.search import trial_of
from experiments.evidence.tables import CHOOSING
from experiments.evidence.tables import OneRateTable
from experiments.evidence.tables import Question
from experiments.evidence.tables import RateSearchTable
from experiments.evidence.tables import RateTable
from experiments.evidence.tables import Table
from experiments.evidence.tables import fixed
from experiments.evidence.trials import DeepTrial
from experiments.evidence.trials import ShortTrial

RATES = (0.00125, 0.0025, 0.005, 0.01, 0.02)
SIZES = ("XS", "S", "M", "L", "XL")
MATCHED_RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
ADAMW_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008)
# Fields of the trials and rates by size, tokens per batch and length.
LOW_RATES = (0.00125, 0.0025, 0.005)
HIGH_RATES = (0.0025, 0.005, 0.01)
PLACES = {
    **{
        f"{size}, 1,024, 400 steps": (
            {"kind": ShortTrial, "size": size},
            (*HIGH_RATES, 0.02),
        )
        for size in ("S", "M", "L")
    },
    "XL, 1,024, 400 steps": ({"kind": ShortTrial, "size": "XL"}, HIGH_RATES),
    "S, 1,024, 20 tokens per weight": ({}, (*LOW_RATES, 0.01)),
    "S, 256, 20 tokens per weight": (
        {"batch_size": 4},
        (0.000625, *LOW_RATES),
    ),
    "S, 4,096, 20 tokens per weight": (
        {"batch_size": 64},
        (*HIGH_RATES, 0.02),
    ),
    "S, 1,024, 80 tokens per weight": (
        {"tokens_per_weight": 4 * FULL},
        LOW_RATES,
    ),
    "M, 1,024, 20 tokens per weight": ({"size": "M"}, LOW_RATES),
    "M, 256, 20 tokens per weight": (
        {"size": "M", "batch_size": 4},
        (0.000625, *LOW_RATES[:-1]),
    ),
    "L, 1,024, 5 tokens per weight": (
        {"size": "L", "tokens_per_weight": QUICK},
        LOW_RATES,
    ),
    "Llama, S, 1,024, 20 tokens per weight": (
        {"model": "llama"},
        (*LOW_RATES, 0.01),
    ),
}
# The rates of contestants, for their windows.
WINDOWS = {
    "lanton_defaults": (0.000625, *RATES[:-1]),
    "lanton_defaults_control": (0.000625, *RATES[:-1]),
    "lanton_signal": RATES,
    "d_muon": (*RATES[1:], 0.04),
}


def by_width(name, rates, options=(), *, label="", names=SIZES, seeds=(1,)):
    """A table by rate: a row for each width.

    Args:
        name: Of `CONTESTANTS`.
        rates: Of all widths but 512, whose runs are long: without those below
            0.0025 and above 0.01.
        options: Of the optimizer, besides its own.
        label: Of the optimizer; by default as in `CONTESTANTS`.
        names: Of the sizes.
        seeds: As `RateTable`.
    """
    rows, by_label = [], {}
    for size in names:
        width = str(sizes.WIDTHS[size])
        trial = trial_of(
            name, rates[0], options, kind=ShortTrial, size=size, text="wiki"
        )
        rows.append((width, trial))
        long = size == "XL"
        by_label[width] = [x for x in rates if x in HIGH_RATES or not long]
    means = f", mean over {len(seeds)} seeds" if len(seeds) > 1 else ""
    return RateTable(
        caption=f"{label or CONTESTANTS[name][0]}, GPT-2, 400 steps{means}",
        rows=tuple(rows),
        values=by_label,
        seeds=seeds,
        of="width",
    )


def by_depth(layers, rates):
    """A table of `Lanton()` by rate: a row for each number of blocks.

    Args:
        layers: Numbers of blocks.
        rates: Of all rows.
    """
    rows = [
        (
            str(count),
            trial_of("lanton_defaults", 5e-3, kind=ShortTrial)
            if count == sizes.LAYERS
            else trial_of(
                "lanton_defaults", 5e-3, kind=DeepTrial, layers=count
            ),
        )
        for count in layers
    ]
    return RateTable(
        caption=f"{CONTESTANTS['lanton_defaults'][0]}, GPT-2, S, 400 steps",
        rows=tuple(rows),
        values={label: rates for label, _ in rows},
        of="blocks",
    )


def of_models(models, rates, options):
    """Rows and rates of a `RateSearchTable`.

    Args:
        models: By label: fields of the trials.
        rates: Of all rows.
        options: Of the optimizer, besides its own.
    """
    rows = tuple(
        (
            label,
            trial_of(
                "lanton_signal",
                5e-3,
                options,
                kind=ShortTrial,
                text="wiki",
                **fields,
            ),
        )
        for label, fields in models.items()
    )
    return {
        "rows": rows,
        "values": dict.fromkeys(models, rates),
        "of": "model",
    }


def default_by_rate(caption, kind=RateTable):
    """A table of `Lanton()` by rate: a row for each size, length and batch.

    Args:
        caption: As `RateTable`.
        kind: `RateTable`, or one that has its fields.
    """
    rows = [
        (label, trial_of("lanton_defaults", 5e-3, **fields))
        for label, (fields, _) in PLACES.items()
    ]
    return kind(
        caption=caption,
        rows=tuple(rows),
        values={label: rates for label, (_, rates) in PLACES.items()},
        of="size, tokens per batch, length",
    )


def beside_half(caption, *, seeds=CHOOSING, **fields):
    """A table of the default rate and of half of it.

    Args:
        caption: As `Table`.
        seeds: As `Table`.
        **fields: Of both trials.
    """
    return Table(
        caption=caption,
        rows=fixed(
            *(
                (
                    f"`Lanton({rate:g})`",
                    trial_of("lanton_defaults", rate, **fields),
                )
                for rate in (2.5e-3, 5e-3)
            )
        ),
        seeds=seeds,
        reference="`Lanton(0.005)`",
    )


WINDOW = Question(
    title="How wide is the window of good rates?",
    text=(
        "One seed. The best rate is the lowest point of a parabola "
        "through the best three. The window is the highest rate over the "
        "lowest whose loss is within 1 % of the best, by interpolation. "
        "D-Muon has a decay of 0.03."
    ),
    tables=(by_rate(captioned(), WINDOWS),),
)


WIDTHS = Question(
    title="Does the best rate change with the width?",
    text=(
        "400 steps of batches of 1,024 tokens at every width, one seed; in "
        "the second table the mean over two. The best rate is the lowest "
        "point of a parabola through the best three."
    ),
    tables=(
        by_width("lanton_defaults", RATES),
        by_width("lanton_defaults", HIGH_RATES, seeds=(1, 2)),
        by_width("lanton_signal", RATES, FAN_IN, label=BY_FAN_IN),
        by_width(
            "lanton_signal",
            MATCHED_RATES,
            LITTLE_DECAY,
            label=RMS_MATCHED,
            names=SIZES[:-1],
        ),
        by_width("d_muon", MATCHED_RATES, LITTLE_DECAY, names=SIZES[:-1]),
        by_width("adamw_tables", ADAMW_RATES, names=SIZES[:-1]),
    ),
)


DEPTHS = Question(
    title="Does the best rate change with the depth?",
    text=(
        "400 steps of batches of 1,024 tokens, one seed. The best rate is the "
        "lowest point of a parabola through the best three."
    ),
    tables=(by_depth((2, 4, 8, 16), (*HIGH_RATES, 0.02)),),
)


RATE_FINDER = Question(
    title="Does find_learning_rate find the best rate?",
    text=(
        "`keras_lanton.find_learning_rate` with its defaults, runs of 100 "
        "steps, beside the best rate of runs of 400 steps: the lowest "
        "point of a parabola through the best three. The model, its "
        "initial weights and batches of 1,024 tokens are the same."
    ),
    tables=(
        RateSearchTable(
            caption=BY_FAN_IN,
            **of_models(
                {
                    "GPT-2, width 64": {"size": "S"},
                    "GPT-2, width 128": {"size": "M"},
                    "Llama, width 64": {"model": "llama"},
                },
                RATES,
                FAN_IN,
            ),
        ),
    ),
)


DEFAULT_RATE = Question(
    title="Does the default rate suit other sizes, lengths and batches?",
    text=(
        "GPT-2, unless a row says Llama. The default rate is 0.005. The first "
        "two tables have one seed."
    ),
    tables=(
        default_by_rate(CONTESTANTS["lanton_defaults"][0]),
        default_by_rate("One rate for all rows above", OneRateTable),
        beside_half(f"{captioned()}, `sotu`", seeds=REPORTING, text="sotu"),
        beside_half(f"{captioned()}, `wiki`"),
        beside_half(f"{captioned('M')}, `wiki`", size="M"),
        beside_half(
            f"{captioned(tokens_per_weight=4 * FULL)}, `wiki`",
            tokens_per_weight=4 * FULL,
        ),
        beside_half(
            f"{captioned('L', tokens_per_weight=QUICK)}, `wiki`",
            size="L",
            tokens_per_weight=QUICK,
        ),
        beside_half(f"{captioned(model='llama')}, `wiki`", model="llama"),
    ),
)

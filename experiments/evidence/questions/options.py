"""What single arguments of Lanton cost or gain."""

import dataclasses

from experiments.evidence import fine_tuning
from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.questions.common import AT_THEIR_BEST
from experiments.evidence.questions.common import BY_FAN_IN
from experiments.evidence.questions.common import FAN_IN
from experiments.evidence.questions.common import FULL
from experiments.evidence.questions.common import LITTLE_DECAY
from experiments.evidence.questions.common import QUICK
from experiments.evidence.questions.common import REPORTING
from experiments.evidence.questions.common import RMS_MATCHED
from experiments.evidence.questions.common import captioned
from experiments.evidence.search import trial_of
from experiments.evidence.search import tune
from experiments.evidence.tables import CHOOSING
from experiments.evidence.tables import DecayTable
from experiments.evidence.tables import ImageTable
from experiments.evidence.tables import Question
from experiments.evidence.tables import Table
from experiments.evidence.tables import fixed
from experiments.evidence.trials import ColdTrial
from experiments.evidence.trials import HalfTrial

PRODUCTS = {
    "five quintic rows, float32": {},
    "five cubic rows, float32": {"newton_schulz.coefficients": "cubic"},
    "five quintic rows, bfloat16": {"newton_schulz.dtype": "bfloat16"},
}
STATE = {
    "weights and momentum in float32": {},
    "momentum in int8": {"momentum_dtype": "int8"},
}
ROUNDING = ("stochastic", "nearest")
CORRECTED = "`bias_correction=True`"
SHORT = {"beta_1": 0.9}
LITTLE = (0.01, 0.03, 0.1)
MUCH = (0.03, 0.1, 0.3)
HORIZONS = (800, 1600)
# By row: fields of the trial, its rate and the decays.
DECAYS = {
    "S, 1,024, 5": ({"tokens_per_weight": QUICK}, 5e-3, (0.1, 0.3, 1.0)),
    "S, 1,024, 20": ({}, 5e-3, MUCH),
    "S, 1,024, 20, half the rate": ({}, 2.5e-3, MUCH),
    "S, 256, 20": ({"batch_size": 4}, 5e-3, MUCH),
    "S, 256, 20, half the rate": ({"batch_size": 4}, 2.5e-3, MUCH),
    "S, 1,024, 80": ({"tokens_per_weight": 4 * FULL}, 5e-3, LITTLE),
    "S, 1,024, 80, half the rate": (
        {"tokens_per_weight": 4 * FULL},
        2.5e-3,
        LITTLE,
    ),
    "M, 1,024, 20": ({"size": "M"}, 5e-3, LITTLE),
    "M, 1,024, 20, half the rate": ({"size": "M"}, 2.5e-3, LITTLE),
}


def by_products():
    """Rows of Lanton with other products in Newton-Schulz."""
    rate, options = AT_THEIR_BEST[16]
    return fixed(
        *(
            (label, trial_of("lanton_signal", rate, {**options, **more}))
            for label, more in PRODUCTS.items()
        )
    )


def by_state():
    """Rows of Lanton with less memory for momentum, or for weights."""
    rate, options = AT_THEIR_BEST[16]
    rows = [
        (label, trial_of("lanton_signal", rate, {**options, **more}))
        for label, more in STATE.items()
    ]
    for rounding in ROUNDING:
        changes = {**options, "rounding": rounding}
        like = trial_of("lanton_signal", rate, changes)
        label = f'weights in bfloat16, `rounding="{rounding}"`'
        rows.append((label, HalfTrial(**vars(like))))
    return fixed(*rows)


def by_caution():
    """Rows of Lanton with cautious weight decay and without."""
    rate, options = AT_THEIR_BEST[16]
    return fixed(
        *(
            (
                f"`cautious_weight_decay={cautious}`, {decay:g}",
                trial_of(
                    "lanton_signal",
                    rate,
                    {
                        **options,
                        "weight_decay": decay,
                        **({"cautious_weight_decay": True} if cautious else {}),
                    },
                ),
            )
            for cautious, decay in (
                (False, 0.03),
                (True, 0.03),
                (True, 0.06),
            )
        )
    )


def by_decay():
    """A table of `Lanton()` by decay, for runs of more or fewer steps."""
    return DecayTable(
        caption="Loss by `weight_decay`",
        rows=tuple(
            (label, trial_of("lanton_defaults", rate, **fields))
            for label, (fields, rate, _) in DECAYS.items()
        ),
        values={label: decays for label, (_, _, decays) in DECAYS.items()},
        of="size, tokens per batch, tokens per weight",
    )


def by_horizon(decays, **fields):
    """Rows of `Lanton()` with constant and with falling decay.

    Args:
        decays: The constant ones.
        **fields: Of the trials.
    """
    ours = trial_of("lanton_defaults", 5e-3, **fields)
    return fixed(
        *(
            (f"constant, {decay:g}", ours.with_options(weight_decay=decay))
            for decay in decays
        ),
        *(
            (f"0.1 x {horizon} / step", ours.with_options(horizon=horizon))
            for horizon in HORIZONS
        ),
    )


def by_step_scale(**fields):
    """Rows of Lanton whose hidden updates have one size or another.

    Args:
        **fields: Of the trials.
    """
    return fixed(
        (
            f"{BY_FAN_IN}, `embedding_scale=300`, `weight_decay=0.1`",
            trial_of("lanton_signal", 5e-3, FAN_IN, **fields),
        ),
        (
            f"{RMS_MATCHED}, `weight_decay=0.03`",
            trial_of("lanton_signal", 2e-2, LITTLE_DECAY, **fields),
        ),
    )


def by_start(trial):
    """Rows of a trial of Lanton whose momentum starts one way or another."""
    others = {n: x for n, x in trial.options if n != "bias_correction"}
    return [
        (CORRECTED, trial.with_options(bias_correction=True)),
        (  # of `UNNAMED`
            "`bias_correction=False`",
            dataclasses.replace(trial, options=tuple(others.items())),
        ),
    ]


def by_start_of_cnn(read):
    """The same of the CNN, at the best of Lanton's search."""
    found = tune("cnn_lanton", read, judged_by="held_out")
    if isinstance(found, list):
        return []
    return by_start(dataclasses.replace(found.best, judged_by="test"))


def by_momentum(momenta, d_muon_rate, others=lambda trial: [], **fields):
    """Rows of `Lanton()` by momentum, beside D-Muon.

    Args:
        momenta: Of Lanton.
        d_muon_rate: The rate of D-Muon.
        others: Function of Lanton's trial with its defaults: further rows.
        **fields: Of the trials.
    """
    ours = trial_of("lanton_defaults", 5e-3, **fields)
    d_muon = trial_of("d_muon", d_muon_rate, LITTLE_DECAY, **fields)
    return fixed(
        *((f"`beta_1={b}`", ours.with_options(beta_1=b)) for b in momenta),
        *others(ours),
        (CONTESTANTS["d_muon"][0], d_muon),
    )


def with_tables_of_adamw(trial):
    """A row of Lanton, but tables have AdamW's updates."""
    options = {
        **fine_tuning.TABLES_BY_ADAMW,
        "auxiliary_adamw.lr_ratio": 2.0,
        "beta_1": 0.9,
    }
    label = "`beta_1=0.9`, AdamW of tables, at twice the rate"
    return [(label, trial.with_options(**options))]


def with_first_start(trial):
    """A row of Lanton whose momentum starts as in the paper."""
    _, (label, other) = by_start(trial.with_options(beta_1=0.9))
    return [(f"`beta_1=0.9`, {label}", other)]


CHEAPER_PRODUCTS = Question(
    title="Do cheaper products cost loss?",
    text=(
        "Ten products of Newton-Schulz in place of fifteen, or products "
        "of bfloat16 matrices."
    ),
    tables=(
        Table(
            caption=captioned(),
            rows=by_products(),
            reference="five quintic rows, float32",
            seeds=(1, 2, 3, 4, 5),
        ),
    ),
)


LESS_MEMORY = Question(
    title="Do int8 momentum and bfloat16 weights cost loss?",
    text=(
        "`momentum_dtype` and `rounding` of `Lanton()`. Weights in "
        "bfloat16 are those of the policy of that name."
    ),
    tables=(
        Table(
            caption=captioned(),
            rows=by_state(),
            reference="weights and momentum in float32",
        ),
    ),
)


CAUTION = Question(
    title="Does cautious weight decay pay?",
    text="`cautious_weight_decay` of `Lanton()`.",
    tables=(
        Table(
            caption=captioned(),
            rows=by_caution(),
            reference="`cautious_weight_decay=False`, 0.03",
        ),
    ),
)


DECAY = Question(
    title="How much weight decay for how many steps?",
    text=(
        "`Lanton()` with its defaults, but for the decay, and for half the "
        "rate in some rows; GPT-2, one seed. The best decay is the lowest "
        "point of a parabola through the best three. The last column is "
        "the product of the rate, the best decay and the steps. The tables "
        "after it "
        "have the default rate. There a decay is constant, or falls as "
        "1 / step from at most 1."
    ),
    tables=(
        by_decay(),
        *(
            Table(
                caption=captioned(**fields),
                rows=by_horizon(decays, **fields),
                seeds=(1,),
            )
            for fields, decays in (
                ({}, MUCH),
                ({"tokens_per_weight": 4 * FULL}, LITTLE),
            )
        ),
    ),
)


STEP_SCALE = Question(
    title="How large should hidden updates be?",
    text=(
        "`step_scale` of `Lanton()`, with the rate and the decay of each: "
        "the default, and updates of one RMS at any width, at the best "
        "of their search."
    ),
    tables=(
        Table(
            caption=captioned(),
            rows=by_step_scale(),
            reference=f"{RMS_MATCHED}, `weight_decay=0.03`",
        ),
        Table(
            caption=captioned("M", tokens_per_weight=QUICK),
            rows=by_step_scale(size="M", tokens_per_weight=QUICK),
            seeds=(1,),
            reference=f"{RMS_MATCHED}, `weight_decay=0.03`",
        ),
    ),
)


START = Question(
    title="How should the momentum start?",
    text=(
        "`bias_correction` of `Lanton()`. Without it, as in the paper, "
        "the first gradient is most of the momentum for the first steps. "
        "GPT-2 has the defaults but `beta_1=0.9`, the CNN the best of its "
        "search."
    ),
    tables=(
        Table(
            caption="GPT-2, S, 400 steps without a warm-up",
            rows=fixed(
                *by_start(
                    trial_of("lanton_defaults", 5e-3, SHORT, kind=ColdTrial)
                )
            ),
            seeds=(1, 2, 3, 4, 5, 6),
            reference=CORRECTED,
        ),
        Table(
            caption=captioned(),
            rows=fixed(
                *by_start(trial_of("lanton_defaults", 5e-3, SHORT, text="sotu"))
            ),
            seeds=REPORTING,
            reference=CORRECTED,
        ),
        ImageTable(
            caption="Fashion-MNIST, 8 epochs without a warm-up",
            rows=by_start_of_cnn,
            seeds=REPORTING,
            reference=CORRECTED,
        ),
    ),
)


MOMENTUM = Question(
    title="Which momentum for which length?",
    text=(
        "`Lanton()` with its defaults, but for what a row names, beside "
        "D-Muon at one rate, which was not searched again where the runs "
        "have more than 20 tokens per weight or the model is larger."
    ),
    tables=(
        Table(
            caption=captioned(),
            rows=by_momentum((0.9, 0.95), 1e-2, text="sotu"),
            seeds=REPORTING,
            reference=CONTESTANTS["d_muon"][0],
        ),
        Table(
            caption=captioned(tokens_per_weight=4 * FULL),
            rows=by_momentum(
                (0.9, 0.95, 0.97),
                5e-3,
                others=with_tables_of_adamw,
                tokens_per_weight=4 * FULL,
            ),
            seeds=(1,),
            reference=CONTESTANTS["d_muon"][0],
        ),
        Table(
            caption=captioned("M"),
            rows=by_momentum(
                (0.95,),
                1e-2,
                others=with_first_start,
                size="M",
                tokens_per_weight=FULL,
            ),
            seeds=CHOOSING,
            reference=CONTESTANTS["d_muon"][0],
        ),
    ),
)

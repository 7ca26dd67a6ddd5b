"""Lanton beside other optimizers."""

import dataclasses
import functools

from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.questions.by_rate import by_rate_and_at_best
from experiments.evidence.questions.common import AT_THEIR_BEST
from experiments.evidence.questions.common import CHOICE_OF_RATE
from experiments.evidence.questions.common import FULL
from experiments.evidence.questions.common import QUICK
from experiments.evidence.questions.common import REFERENCE
from experiments.evidence.questions.common import REPORTING
from experiments.evidence.questions.common import captioned
from experiments.evidence.questions.common import with_and_without
from experiments.evidence.search import IMAGE_SPACES
from experiments.evidence.search import SPACES
from experiments.evidence.search import needed_by
from experiments.evidence.search import trial_of
from experiments.evidence.search import tune
from experiments.evidence.tables import ImageTable
from experiments.evidence.tables import Question
from experiments.evidence.tables import Table
from experiments.evidence.tables import fixed

DEFAULTS = (("lanton_defaults", 5e-3),)
BY_INITIAL = {
    "keras_hub": "initial weights of 0.02",
    "scaled": "initial weights by width",
}
RATES_OF_M = {
    "lanton_defaults": (1.25e-3, 2.5e-3, 5e-3),
    "lanton_defaults_control": (1.25e-3, 2.5e-3, 5e-3),
    "d_muon": (2.5e-3, 5e-3, 1e-2),
    "adamw_tables": (2e-3, 4e-3, 8e-3, 1.6e-2),
}
RATES_OF_L = {
    "lanton_defaults": (1.25e-3, 2.5e-3, 5e-3),
    "lanton_defaults_control": (1.25e-3, 2.5e-3, 5e-3),
    "d_muon": (2.5e-3, 5e-3, 1e-2),
    "adamw_tables": (2e-3, 4e-3, 8e-3),
}
RATES_OF_LONG_RUNS = {
    "lanton_defaults": (1.25e-3, 2.5e-3, 5e-3, 1e-2),
    "lanton_defaults_control": (1.25e-3, 2.5e-3, 5e-3, 1e-2),
    "d_muon": (2.5e-3, 5e-3, 1e-2, 2e-2),
    "adamw_tables": (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
}
RATES_OF_LLAMA = {
    "lanton_defaults": (6.25e-4, 1.25e-3, 2.5e-3, 5e-3, 1e-2),
    "lanton_defaults_control": (6.25e-4, 1.25e-3, 2.5e-3, 5e-3, 1e-2),
    "d_muon": (2.5e-3, 5e-3, 1e-2, 2e-2),
    "adamw_tables": (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
}


def adamws():
    """Rows of AdamW without one or another possible handicap."""
    rows = [
        (f"{rate:g}, {told}", trial_of("adamw", rate, initial=initial))
        for initial, told in BY_INITIAL.items()
        for rate in (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
        if (initial, rate) != ("scaled", 3.2e-2)
    ]
    rows += [
        (
            f"{rate:g}, {told}, not clipped",
            trial_of("adamw_unclipped", rate, initial=initial),
        )
        for initial, told in BY_INITIAL.items()
        for rate in (4e-3, 8e-3)
    ]
    rows += [
        (
            f"{rate:g}, tables at {factor:g} times that, {BY_INITIAL[initial]}",
            trial_of(
                "adamw_tables",
                rate,
                {"table_factor": factor},
                initial=initial,
            ),
        )
        for initial, rate, factor in (
            ("keras_hub", 4e-3, 4.0),
            ("keras_hub", 2e-3, 8.0),
            ("keras_hub", 4e-3, 0.25),
            ("scaled", 2e-3, 4.0),
            ("scaled", 1e-3, 8.0),
            ("scaled", 4e-3, 0.25),
        )
    ]
    rate, options = AT_THEIR_BEST[16]
    control = trial_of("lanton_control", rate, options)
    return fixed(*rows, (REFERENCE, control))


def d_muons():
    """Rows of D-Muon around its best rates."""
    rows = [
        (
            f"D-Muon, {rate:g}, `weight_decay={decay:g}`",
            trial_of("d_muon", rate, {"weight_decay": decay}),
        )
        for rate, decay in (
            (1e-2, 0.1),
            (1e-2, 0.03),
            (2e-2, 0.03),
            (4e-2, 0.03),
        )
    ]
    return fixed(*rows, *with_and_without(*AT_THEIR_BEST[16]))


def tuned(names, read, **fields):
    """Rows of contestants at the best that their searches found.

    Args:
        names: Of `CONTESTANTS`.
        read: Function of a trial: its result, or None.
        **fields: Of the trials that are searched.
    """
    rows = []
    for name in names:
        found = tune(name, read, **fields)
        if not isinstance(found, list):
            rows.append((CONTESTANTS[name][0], found.best))
    return rows


def undecided(names, read, **fields):
    """Runs that the searches of these contestants need next."""
    return needed_by([tune(name, read, **fields) for name in names])


def finals(names, fields=None, untuned=(), **changes):
    """Rows of the tuned contestants on data that tune nothing.

    Args:
        names: Of `CONTESTANTS`.
        fields: Of the trials that are searched.
        untuned: Pairs of a name and a rate: rows without a search.
        **changes: Fields of the finals.
    """

    def rows(read):
        found = [
            (CONTESTANTS[name][0], trial_of(name, rate))
            for name, rate in untuned
        ]
        found += tuned(names, read, **(fields or {}))
        return [
            (label, dataclasses.replace(trial, **changes))
            for label, trial in found
        ]

    return rows


ADAMW = Question(
    title="What holds AdamW back?",
    text=(
        "One seed. KerasHub starts every kernel at a standard deviation "
        "of 0.02, which is a sixth of `1 / sqrt(width)` at width 64; by "
        "width it is 0.07. Gradients are clipped to a global norm of 1, "
        "unless a row says otherwise. Tables need a higher rate than "
        "kernels, and clipping helps: AdamW has both in the other tables "
        "that tune it."
    ),
    tables=(
        Table(
            caption="AdamW, " + captioned(),
            rows=adamws(),
            seeds=(1,),
            reference=REFERENCE,
            curve=True,
        ),
    ),
)


D_MUON = Question(
    title="How far behind is D-Muon?",
    text="One seed, around the best rates.",
    tables=(
        Table(
            caption=captioned(),
            rows=d_muons(),
            seeds=(1,),
            reference=REFERENCE,
        ),
    ),
)


LOWEST = Question(
    title="Which optimizer ends lowest?",
    text=(
        "Each contestant at the best of its search, and `Lanton()`, which "
        "has its defaults, on a text that none was tuned on."
    ),
    tables=(
        Table(
            caption=captioned(),
            rows=finals(SPACES, untuned=DEFAULTS, text="sotu"),
            undecided=functools.partial(undecided, tuple(SPACES)),
            seeds=REPORTING,
            reference=REFERENCE,
            curve=True,
        ),
    ),
)


CNN = Question(
    title="Which optimizer trains a CNN best?",
    text=(
        "A narrow airbench network on Fashion-MNIST: 8 epochs of batches "
        "of 500 images. Each contestant is tuned on 10,000 training "
        "images that are held out, then trained on all training images "
        "and tested on the test images. Lanton (base) has the "
        "coefficients, the step scale and the estimator of `Lanton()` "
        "here. No contestant has weight decay before its search."
    ),
    tables=(
        ImageTable(
            caption="Fashion-MNIST, 8 epochs",
            rows=finals(
                IMAGE_SPACES, {"judged_by": "held_out"}, judged_by="test"
            ),
            undecided=functools.partial(
                undecided, tuple(IMAGE_SPACES), judged_by="held_out"
            ),
            seeds=REPORTING,
            reference=REFERENCE,
        ),
    ),
)


OTHER_SIZES = Question(
    title="Does it hold at other sizes and lengths?",
    text=(
        "`Lanton()` has its defaults, others the arguments that were best "
        "for S at 20 tokens per weight. Each has its own best rate of "
        f"those that ran. {CHOICE_OF_RATE} A table of the first seed comes "
        "before. It has no best rate where that is the lowest or the "
        "highest that ran."
    ),
    tables=(
        *by_rate_and_at_best(RATES_OF_M, "d_muon", size="M"),
        *by_rate_and_at_best(
            RATES_OF_LONG_RUNS, "d_muon", tokens_per_weight=4 * FULL
        ),
        *by_rate_and_at_best(
            RATES_OF_L, "d_muon", size="L", tokens_per_weight=QUICK
        ),
    ),
)


LLAMA = Question(
    title="Does it hold on a Llama?",
    text=(
        "As in the question before: the arguments of the others are those "
        "that were best for the GPT-2, only their rates are searched here."
    ),
    tables=by_rate_and_at_best(RATES_OF_LLAMA, "d_muon", model="llama"),
)

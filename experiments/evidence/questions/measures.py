"""What to measure as noise, where, how often and how exactly."""

from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.questions.common import AT_THEIR_BEST
from experiments.evidence.questions.common import FULL
from experiments.evidence.questions.common import LESS_DECAY
from experiments.evidence.questions.common import QUICK
from experiments.evidence.questions.common import RATE
from experiments.evidence.questions.common import REFERENCE
from experiments.evidence.questions.common import captioned
from experiments.evidence.questions.common import told
from experiments.evidence.search import trial_of
from experiments.evidence.tables import Question
from experiments.evidence.tables import Table
from experiments.evidence.tables import fixed
from experiments.evidence.trials import FrozenTrial

# What may be measured, and where: options on top of those of line 8 for noise
# between matrices, and of `Lanton(noise=None)` for noise inside them.
UNITLESS = {
    "noise.measure": "signal",
    "noise.alpha_unit": "absolute",
    "noise.groups": "role",
}
ALIGNMENT = {
    "noise.measure": "alignment",
    "noise.beta_2": 0.99,
    "noise.groups": "role",
    "noise.power": 0.5,
}
BETWEEN = {
    "line 8": {},
    "line 8, groups by kind of block": {
        "noise.measure": "noise",
        "noise.groups": "block",
    },
    "line 8, `a` to the power of 1": {
        "noise.measure": "noise",
        "noise.power": 1.0,
    },
    "in units of the signal": {"noise.alpha_unit": "signal"},
    "in units of the signal, groups by role": UNITLESS,
    "in units of the signal, power 1": {**UNITLESS, "noise.power": 1.0},
    "alignment": ALIGNMENT,
    "alignment, one group": {**ALIGNMENT, "noise.groups": "all"},
    "alignment, power 1": {**ALIGNMENT, "noise.power": 1.0},
}
# On top of noise inside matrices: noise between them too.
BOTH = {
    "line 8": {"noise.alpha": 1.0},
    "signal, `alpha=0.3`": {"noise.alpha_unit": "signal", "noise.alpha": 0.3},
    "signal, `alpha=1`": {"noise.alpha_unit": "signal", "noise.alpha": 1.0},
    "signal, `alpha=3`": {"noise.alpha_unit": "signal", "noise.alpha": 3.0},
    "alignment": ALIGNMENT,
    "alignment, one group": {**ALIGNMENT, "noise.groups": "all"},
}
ROWS_COLUMNS = ("factored", "before", 0.5)
SOFT = ("factored", "soft", 0.1)
INSIDE = {
    "hidden: rows and columns": {"inside.hidden": ROWS_COLUMNS},
    "hidden: fourth roots of rows and columns": {
        "inside.hidden": ("factored", "before", 0.25)
    },
    "hidden: inputs": {"inside.hidden": ("inputs", "before", 0.5)},
    "hidden: outputs": {"inside.hidden": ("outputs", "before", 0.5)},
    "hidden: outputs, after the LMO": {
        "inside.hidden": ("outputs", "after", 0.5)
    },
    "hidden: updates of outputs, as in NorMuon": {
        "inside.hidden": ("outputs", "after", 0.5, "update")
    },
    "hidden: entries": {"inside.hidden": ("entries", "before", 0.5)},
    "tables: rows and columns": {"inside.embedding": SOFT},
    "tables: entries": {"inside.embedding": ("entries", "soft", 0.1)},
    "rows and columns": {
        "inside.hidden": ROWS_COLUMNS,
        "inside.embedding": SOFT,
    },
    "rows and columns, every tenth step": {
        "inside.hidden": ROWS_COLUMNS,
        "inside.embedding": SOFT,
        "inside.interval": 10,
        "inside.beta": 0.9,
    },
    "rows and columns; hidden: of gradients, not of noise": {
        "inside.hidden": (*ROWS_COLUMNS, "gradient"),
        "inside.embedding": SOFT,
    },
}
NUCLEAR = '`estimator="lanczos"`'
ESTIMATORS = {
    NUCLEAR: {},
    '`estimator="frobenius"`': {"noise.estimator": "frobenius"},
}


def measures(names=None, **fields):
    """Rows of `Lanton(noise=None)` and of every measure of noise.

    Args:
        names: Of `BETWEEN`, `INSIDE` and `BOTH`; None for all.
        **fields: Of the trials.
    """
    rows = [
        (REFERENCE, trial_of("lanton_control", RATE, **fields)),
        (CONTESTANTS["lanton"][0], trial_of("lanton", RATE, **fields)),
    ]
    for options, contestant, where in (
        (BETWEEN, "lanton_rates", "between matrices: "),
        (INSIDE, "lanton_control", "inside matrices: "),
        (BOTH, "lanton", "`within_matrices=True`, and between matrices: "),
    ):
        rows += [
            (where + name, trial_of(contestant, RATE, changes, **fields))
            for name, changes in options.items()
            if names is None or name in names
        ]
    return fixed(*rows)


def by_interval(batch_size):
    """Rows of Lanton that measures its noise more or less often.

    Args:
        batch_size: A key of `AT_THEIR_BEST`.
    """
    rate, options = AT_THEIR_BEST[batch_size]
    return fixed(
        *(
            (
                f"every {interval} steps",
                trial_of(
                    "lanton_signal",
                    rate,
                    {**options, "noise.interval": interval},
                    batch_size=batch_size,
                ),
            )
            for interval in (10, 20, 40)
        )
    )


def by_estimator(rate, options, **fields):
    """Rows of Lanton with other dual norms of hidden matrices, or without.

    Args:
        rate: The learning rate.
        options: Of all rows.
        **fields: Of the trials.
    """
    rows = [
        (
            label,
            trial_of("lanton_signal", rate, {**options, **more}, **fields),
        )
        for label, more in ESTIMATORS.items()
    ]
    rows.append(("`alpha=None`", trial_of("lanton", rate, options, **fields)))
    return fixed(*rows)


def frozen():
    """Rows of Lanton with measured and with constant noise."""
    rate, options = AT_THEIR_BEST[16]
    measured = trial_of("lanton_signal", rate, options)
    return fixed(
        ("noise as measured", measured),
        *(
            (
                f"constant: the mean of {run}",
                trial_of(
                    "lanton_signal",
                    rate,
                    options,
                    kind=FrozenTrial,
                    other_seed=other,
                ),
            )
            for run, other in (
                ("the same run", False),
                ("a run of another seed", True),
            )
        ),
        (REFERENCE, trial_of("lanton_control", rate, options)),
    )


WORTH_MEASURING = Question(
    title="Which noise is worth measuring?",
    text=(
        "Quick runs of one seed, a quarter of the budget, everything else "
        "as in the reference: they choose what the next question asks."
    ),
    tables=(
        Table(
            caption=captioned(tokens_per_weight=QUICK),
            rows=measures(tokens_per_weight=QUICK),
            seeds=(1,),
            reference=REFERENCE,
        ),
    ),
)


IN_FULL_RUNS = Question(
    title="Which noise pays in full runs?",
    text=(
        "Against `noise=None`, all with the same rate, momentum, "
        "scales and decay, before any of them was tuned."
    ),
    tables=tuple(
        Table(
            caption=captioned(batch_size=batch_size),
            rows=measures(
                names=(
                    "line 8",
                    "signal, `alpha=1`",
                    "alignment, one group",
                    "rows and columns, every tenth step",
                ),
                tokens_per_weight=FULL,
                batch_size=batch_size,
            ),
            reference=REFERENCE,
            curve=True,
        )
        for batch_size in (16,)
    ),
)


HOW_OFTEN = Question(
    title="How often must noise be measured?",
    text=(
        "Each matrix once in so many steps, at the rates and momenta of "
        "the question on whether noise pays; one seed."
    ),
    tables=tuple(
        Table(
            caption=captioned(batch_size=batch_size),
            rows=by_interval(batch_size),
            seeds=(1,),
            reference="every 10 steps",
        )
        for batch_size in (16, 4)
    ),
)


HOW_EXACT = Question(
    title="How exact must the dual norm be?",
    text=(
        "The noise between matrices, in units of the momentum, with "
        "nuclear norms or with Frobenius norms of hidden matrices, or "
        "without any (`alpha=None`). Noise is measured within matrices "
        "in all rows."
    ),
    tables=(
        *(
            Table(
                caption=captioned(batch_size=batch_size) + told(options),
                rows=by_estimator(rate, options, batch_size=batch_size),
                reference=NUCLEAR,
            )
            for batch_size, (rate, options) in (
                (16, AT_THEIR_BEST[16]),
                (4, LESS_DECAY),
            )
        ),
        Table(
            caption=captioned("M", tokens_per_weight=QUICK)
            + told(AT_THEIR_BEST[16][1]),
            rows=by_estimator(
                *AT_THEIR_BEST[16], size="M", tokens_per_weight=QUICK
            ),
            seeds=(1,),
            reference=NUCLEAR,
        ),
    ),
)


CONSTANTS = Question(
    title="Would constants do as well as measured noise?",
    text=(
        "The same runs with noise that is constant from the first step to "
        "the last: the mean over time of what a run measured, for every "
        "matrix, row and column."
    ),
    tables=(
        Table(
            caption=captioned() + told(AT_THEIR_BEST[16][1]),
            rows=frozen(),
            reference="noise as measured",
        ),
    ),
)

"""Whether the noise pays, each side with settings that suit it."""

import dataclasses

from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.questions.by_rate import by_rate_and_at_best
from experiments.evidence.questions.common import AT_THEIR_BEST
from experiments.evidence.questions.common import CHOICE_OF_RATE
from experiments.evidence.questions.common import FULL
from experiments.evidence.questions.common import LESS_DECAY
from experiments.evidence.questions.common import QUICK
from experiments.evidence.questions.common import REFERENCE
from experiments.evidence.questions.common import REPORTING
from experiments.evidence.questions.common import captioned
from experiments.evidence.questions.common import told
from experiments.evidence.questions.common import with_and_without
from experiments.evidence.search import best_of_close
from experiments.evidence.search import needed_by
from experiments.evidence.search import trial_of
from experiments.evidence.search import tune_rate
from experiments.evidence.tables import CHOOSING
from experiments.evidence.tables import Question
from experiments.evidence.tables import Table
from experiments.evidence.tables import fixed

# Names of `CONTESTANTS`: with the noise, without it.
BOTH = ("lanton_defaults", "lanton_defaults_control")
TRIED = {
    16: (
        (2e-2, {}),
        (1e-2, {}),
        (2e-2, {"beta_1": 0.85}),
        (2e-2, {"beta_1": 0.95}),
        (2e-2, {"beta_1": 0.97}),
        (2e-2, {"weight_decay": 0.3}),
        (2e-2, {"weight_decay": 0.03}),
        (4e-2, {"weight_decay": 0.03}),
        (2e-2, {"weight_decay": 0.01}),
        (2e-2, {"weight_decay": 0.03, "beta_1": 0.95}),
        (2e-2, {"embedding_scale": 50.0}),
        (2e-2, {"embedding_scale": 200.0}),
        (2e-2, {"auxiliary_adamw.lr_ratio": 0.25}),
    ),
    4: (
        (2e-2, {}),
        (1e-2, {}),
        (5e-3, {}),
        (1e-2, {"beta_1": 0.95}),
        (5e-3, {"beta_1": 0.95}),
        (2.5e-3, {"beta_1": 0.95}),
        (1e-2, {"beta_1": 0.97}),
        (5e-3, {"beta_1": 0.97}),
        (5e-3, {"beta_1": 0.98}),
        (5e-3, {"beta_1": 0.97, "weight_decay": 0.03}),
        (5e-3, {"beta_1": 0.97, "weight_decay": 0.01}),
    ),
}


def changed_by(changes, **fields):
    """Rows of both for each of some changes.

    Args:
        changes: Pairs of a rate and options.
        **fields: Of the trials.
    """
    rows = []
    for rate, options in changes:
        where = f", {rate:g}{told(options)}"
        rows += with_and_without(rate, options, where, **fields)
    return fixed(*rows)


def searched_rates(read, rates, **fields):
    """Searches of the rate of `Lanton()`, and of it without its noise.

    Args:
        read: Function of a trial: its result, or None.
        rates: To start from.
        **fields: Of the trials.

    Returns:
        Pairs of a label and what `tune_rate` says.
    """
    return [
        (
            CONTESTANTS[name][0],
            tune_rate([trial_of(name, r, **fields) for r in rates], read),
        )
        for name in BOTH
    ]


def by_noise(caption, rates, *, seeds=CHOOSING, text="wiki", **fields):
    """A table of the noise alone, each row at its best rate.

    Args:
        caption: As `Table`.
        rates: To start from, on the first seed of `wiki`; close ones are
            compared on `CHOOSING`.
        seeds: As `Table`.
        text: Of the rows.
        **fields: Of all trials.
    """

    def found_so_far(read):
        searched = searched_rates(read, rates, **fields)
        return {
            label: best_of_close(found.tried, read, CHOOSING)
            for label, found in searched
            if not isinstance(found, list)
        }

    def rows(read):
        return [
            (label, dataclasses.replace(best, text=text))
            for label, (best, _) in found_so_far(read).items()
        ]

    def undecided(read):
        searched = searched_rates(read, rates, **fields)
        needed = needed_by([found for _, found in searched])
        for _, missing in found_so_far(read).values():
            needed += missing
        return needed

    return Table(
        caption=caption,
        rows=rows,
        undecided=undecided,
        seeds=seeds,
        reference=CONTESTANTS["lanton_defaults_control"][0],
        curve=True,
    )


SETTINGS = Question(
    title="Which rate, momentum and decay?",
    text=(
        "One seed, with the noise and without it. Small batches want a "
        "lower rate and a longer momentum."
    ),
    tables=tuple(
        Table(
            caption=captioned(batch_size=batch_size),
            rows=changed_by(TRIED[batch_size], batch_size=batch_size),
            seeds=(1,),
        )
        for batch_size in (16, 4)
    ),
)


AT_THE_BEST = Question(
    title="Does the noise pay, at the best rate, momentum and decay?",
    text=(
        "The best of what the question before tried, which is the same "
        "with the noise and without it."
    ),
    tables=(
        *(
            Table(
                caption=captioned(batch_size=batch_size) + told(options),
                rows=fixed(
                    *with_and_without(rate, options, batch_size=batch_size)
                ),
                reference=REFERENCE,
                curve=True,
            )
            for batch_size, (rate, options) in AT_THEIR_BEST.items()
        ),
        Table(
            caption=captioned(batch_size=4) + told(LESS_DECAY[1]),
            rows=fixed(*with_and_without(*LESS_DECAY, batch_size=4)),
            reference=REFERENCE,
        ),
        *(
            Table(
                caption=captioned("M", tokens_per_weight=length)
                + told(AT_THEIR_BEST[16][1]),
                rows=fixed(
                    *with_and_without(
                        *AT_THEIR_BEST[16],
                        size="M",
                        tokens_per_weight=length,
                    )
                ),
                seeds=(1,),
                reference=REFERENCE,
            )
            for length in (QUICK, FULL)
        ),
    ),
)


WITH_THE_DEFAULTS = Question(
    title="Does the noise pay, with the defaults?",
    text=(
        "With batches of 256 tokens the noise saves about a fifth of the "
        "tokens, at S and at M, with 1,024 less than a tenth. With 4,096 it "
        "lowers the loss. Elsewhere its gain is within the spread of the "
        "seeds. `Lanton()` beside `Lanton(noise=None)`, each at the best of "
        f"its rates, which differ by a factor of 2. {CHOICE_OF_RATE}"
    ),
    tables=(
        by_noise(
            f"{captioned()}, `sotu`",
            (2.5e-3, 5e-3, 1e-2),
            seeds=REPORTING,
            text="sotu",
        ),
        by_noise(
            captioned(batch_size=4),
            (1.25e-3, 2.5e-3, 5e-3),
            batch_size=4,
        ),
        by_noise(
            captioned(batch_size=64),
            (2.5e-3, 5e-3, 1e-2),
            batch_size=64,
        ),
        *by_rate_and_at_best(
            dict.fromkeys(BOTH, (1.25e-3, 2.5e-3, 5e-3)),
            "lanton_defaults_control",
            curve=True,
            size="M",
        ),
        *by_rate_and_at_best(
            dict.fromkeys(BOTH, (6.25e-4, 1.25e-3, 2.5e-3)),
            "lanton_defaults_control",
            curve=True,
            size="M",
            batch_size=4,
        ),
        *by_rate_and_at_best(
            dict.fromkeys(BOTH, (1.25e-3, 2.5e-3, 5e-3, 1e-2)),
            "lanton_defaults_control",
            tokens_per_weight=4 * FULL,
        ),
        *by_rate_and_at_best(
            dict.fromkeys(BOTH, (1.25e-3, 2.5e-3, 5e-3)),
            "lanton_defaults_control",
            size="L",
            tokens_per_weight=QUICK,
        ),
        by_noise(
            captioned(model="llama"),
            (6.25e-4, 1.25e-3, 2.5e-3, 5e-3, 1e-2),
            model="llama",
        ),
    ),
)

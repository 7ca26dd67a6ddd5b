"""Losses by rate, and each optimizer at the best of its rates."""

from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.questions.common import FAN_IN
from experiments.evidence.questions.common import LITTLE_DECAY
from experiments.evidence.questions.common import captioned
from experiments.evidence.search import best_of_close
from experiments.evidence.search import trial_of
from experiments.evidence.tables import CHOOSING
from experiments.evidence.tables import RateTable
from experiments.evidence.tables import Table

# Where rates alone are compared: the other options, found by the searches at S.
FOUND = {
    "lanton_defaults": {},
    "lanton_defaults_control": {},
    "lanton_signal": FAN_IN,
    "d_muon": LITTLE_DECAY,
    "adamw_tables": {"beta_1": 0.8, "weight_decay": 0.03},
}


def by_rate(caption, rates, **fields):
    """A table of losses by rate, one seed.

    Args:
        caption: As `Table`.
        rates: By name of `FOUND`.
        **fields: Of the trials.
    """
    return RateTable(
        caption=f"{caption}, by rate",
        rows=tuple(
            (
                CONTESTANTS[name][0],
                trial_of(name, tried[0], FOUND[name], **fields),
            )
            for name, tried in rates.items()
        ),
        values={CONTESTANTS[name][0]: tried for name, tried in rates.items()},
    )


def best_of_rows(table, read):
    """By label: what `best_of_close` says of the rates so far.

    Args:
        table: A `RateTable`.
        read: Function of a trial: its result, or None.
    """
    losses = table.losses(read)
    return {
        label: best_of_close(
            [
                (trial, losses[label][rate])
                for rate, trial in table.trials(label, row).items()
                if rate in losses[label]
            ],
            read,
            CHOOSING,
        )
        for label, row in table.rows
        if label in losses
    }


def at_best(table):
    """Rows of a `RateTable` at the best rate so far."""
    return lambda read: [
        (label, best) for label, (best, _) in best_of_rows(table, read).items()
    ]


def undecided_by(table):
    """Runs that decide between close rates of a `RateTable`."""
    return lambda read: [
        trial
        for _, missing in best_of_rows(table, read).values()
        for trial in missing
    ]


def by_rate_and_at_best(rates, reference, *, curve=False, **fields):
    """Two tables: losses by rate of one seed, and of all at the best rate.

    Close rates are compared on all seeds.

    Args:
        rates: By name of `FOUND`.
        reference: One of these names.
        curve: As `Table`.
        **fields: Of the trials, those of `captioned`.
    """
    caption = captioned(**fields)
    tried = by_rate(caption, rates, **fields)
    best = Table(
        caption=f"{caption}, each at its best rate",
        rows=at_best(tried),
        undecided=undecided_by(tried),
        reference=CONTESTANTS[reference][0],
        curve=curve,
    )
    return tried, best

"""Tuning: one argument after the other, every contestant by the same rule.

The rule: learning rates by factors of 2, then each further argument of the
contestant's space at the best values so far. Where the best rate lies at the
edge of its grid, the grid grows, until it does not.
"""

import dataclasses

from experiments.evidence import trials
from experiments.evidence.contestants import CONTESTANTS

# What each contestant tries, in this order: the rates first.
DECAYS = ("weight_decay", (0.03, 0.3))
MOMENTA = ("beta_1", (0.9, 0.95, 0.98))
AUXILIARY = ("auxiliary_adamw.lr_ratio", (0.25, 0.5))
LANTON = (
    DECAYS,
    MOMENTA,
    ("embedding_scale", (50.0, 200.0)),
    ("auxiliary_adamw.lr_ratio", (0.25,)),
)
PAPER = (DECAYS, MOMENTA, ("embedding_scale", (100.0, 200.0)))
SPACES = {
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
            ("weight_decay", (0.03, 0.3)),
            ("momentum", (0.9, 0.98)),
            ("adam_lr_ratio", (0.25, 0.5)),
        ),
    ),
    "d_muon": ((1e-2, 2e-2, 4e-2), (DECAYS, MOMENTA, AUXILIARY)),
    "scion": (
        (5e-4, 1e-3, 2e-3),
        (
            ("beta_1", (0.95, 0.98)),
            ("hidden_scale", (25.0, 100.0)),
            ("embedding_scale", (1000.0, 6000.0)),
        ),
    ),
    "lanton_signal": ((1e-2, 2e-2, 4e-2), LANTON),
    "lanton_rates": ((1e-2, 2e-2, 4e-2), LANTON),
    "lanton_control": ((1e-2, 2e-2, 4e-2), LANTON),
    "lanton_paper": ((5e-3, 1e-2, 2e-2), PAPER),
    "lanton_paper_control": ((5e-3, 1e-2, 2e-2), PAPER),
}
IMAGE_DECAYS = ("weight_decay", (0.01, 0.1))
IMAGE_MOMENTA = ("beta_1", (0.6, 0.8, 0.95))
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
        (
            IMAGE_DECAYS,
            ("beta_2", (0.99, 0.999)),
            ("beta_1", (0.8, 0.95)),
        ),
    ),
    "cnn_d_muon": (
        (1e-2, 2e-2, 4e-2),
        (IMAGE_DECAYS, IMAGE_MOMENTA, AUXILIARY),
    ),
    "cnn_lanton": (
        (5e-3, 1e-2, 2e-2),
        (IMAGE_DECAYS, IMAGE_MOMENTA, AUXILIARY),
    ),
    "cnn_control": (
        (5e-3, 1e-2, 2e-2),
        (IMAGE_DECAYS, IMAGE_MOMENTA, AUXILIARY),
    ),
}
LARGEST_GRID = 8  # rates, so that a search ends
CLOSE = 0.01  # nats: losses of one seed that do not say which rate is better


def trial_of(name, learning_rate, options=(), kind=None, **changes):
    """A contestant's run with its own options, and with changes.

    Args:
        name: Of `CONTESTANTS`.
        learning_rate: The peak rate.
        options: More options, by name.
        kind: Class of the run; None for `ImageTrial` of a contestant in
            `IMAGE_SPACES`, and `Trial` of others.
        **changes: Fields of the class.
    """
    _, optimizer, own = CONTESTANTS[name]
    merged = {**own, **dict(options)}
    if kind is None:
        kind = trials.ImageTrial if name in IMAGE_SPACES else trials.Trial
    return kind(
        optimizer=optimizer,
        learning_rate=learning_rate,
        options=tuple(sorted(merged.items())),
        **changes,
    )


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The best trial of a search, and all that it tried."""

    best: trials.Trial
    loss: float
    tried: tuple  # pairs of a trial and its loss


def tune(name, read, **changes):
    """One search, as far as there are results.

    Args:
        name: Of `SPACES` or `IMAGE_SPACES`.
        read: Function of a trial: its result, or None.
        **changes: Fields of the trials.

    Returns:
        A `Tuned`, or else the list of trials that it needs next.
    """
    rates, space = {**SPACES, **IMAGE_SPACES}[name]
    wanted = [trial_of(name, rate, **changes) for rate in rates]
    found = tune_rate(wanted, read)
    for argument, values in space:
        if isinstance(found, list):
            return found
        more = [
            found.best.with_options(**{argument: value})
            for value in values
            if dict(found.best.options)[argument] != value
        ]
        found = with_more(found, more, read)
    return found


def tune_rate(wanted, read):
    """The best of some rates, and of rates beyond while it is at the edge."""
    while True:
        found = with_more(None, wanted, read)
        if isinstance(found, list) or len(wanted) >= LARGEST_GRID:
            return found
        rates = sorted(trial.learning_rate for trial in wanted)
        best = found.best.learning_rate
        if best not in (rates[0], rates[-1]):
            return found
        beyond = best / 2 if best == rates[0] else best * 2
        wanted = [
            *wanted,
            dataclasses.replace(wanted[0], learning_rate=beyond),
        ]


def with_more(found, wanted, read):
    """The best of what was found and these trials; those missing, if any."""
    results = [read(trial) for trial in wanted]
    missing = [t for t, r in zip(wanted, results, strict=True) if r is None]
    if missing:
        return missing
    tried = () if found is None else found.tried
    losses = map(trials.loss_of, results)
    tried = (*tried, *zip(wanted, losses, strict=True))
    best, loss = min(tried, key=lambda pair: pair[1])
    return Tuned(best, loss, tried)


def best_of_close(tried, read, seeds):
    """The best of the trials that one seed does not tell apart.

    Those within `CLOSE` of the lowest loss are compared by their mean over
    the seeds. Until all seeds have run, those with the most seeds are.

    Args:
        tried: Pairs of a trial and its loss, of one of the seeds.
        read: Function of a trial: its result, or None.
        seeds: That compare them.

    Returns:
        The trial, and those of other seeds that have no result yet.
    """
    lowest = min(loss for _, loss in tried)
    close = [trial for trial, loss in tried if loss <= lowest + CLOSE]
    if len(close) == 1:
        return close[0], []
    losses, missing = {trial: {} for trial in close}, []
    for trial in close:
        for seed in seeds:
            again = dataclasses.replace(trial, seed=seed)
            result = read(again)
            if result is None:
                missing.append(again)
            else:
                losses[trial][seed] = trials.loss_of(result)
    most = max(map(len, losses.values()))
    ran = [trial for trial in close if len(losses[trial]) == most]
    shared = set.intersection(*(set(losses[trial]) for trial in ran))
    best = min(ran, key=lambda t: sum(losses[t][seed] for seed in shared))
    return best, missing


def needed_by(found):
    """The runs that searches need next.

    Args:
        found: What `tune` or `tune_rate` says, of each.
    """
    return [t for one in found if isinstance(one, list) for t in one]


def tune_all(searches, run, read):
    """Searches side by side, until each has ended.

    Args:
        searches: Functions of `read`, as `tune` with its arguments.
        run: Function of a list of trials: trains them.
        read: Function of a trial: its result, or None.

    Returns:
        A `Tuned` for each.
    """
    while True:
        found = [search(read) for search in searches]
        wanted = needed_by(found)
        if not wanted:
            return found
        run(wanted)

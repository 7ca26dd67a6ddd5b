"""Paired differences and speed-ups, with 95 % intervals."""

import numpy as np
from scipy import stats

from keras_lanton.tools.rate_finder import lowest_point


def interval(values):
    """Mean of some values and half the width of its 95 % interval.

    Student's t; the second is infinite for fewer than two values.
    """
    values = np.asarray(values, float)
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return mean, float("inf")
    error = values.std(ddof=1) / count**0.5
    return mean, float(stats.t.ppf(0.975, count - 1) * error)


def best_rate(losses):
    """The lowest point of a parabola through the best three rates.

    None where the best is the lowest or the highest, as it is of fewer than
    three.

    Args:
        losses: Of runs, by rate.
    """
    rates = sorted(losses)
    best = min(rates, key=losses.get, default=None)
    if best in (*rates[:1], *rates[-1:], None):
        return None
    return lowest_point(rates, [losses[rate] for rate in rates])


def tokens_to_reach(loss, budgets, losses):
    """The budget that ends at `loss`, by interpolation.

    Linear in the logarithm of the budget, and beyond the shortest and the
    longest along the nearest two.

    Args:
        loss: The loss to reach.
        budgets: At least two, rising.
        losses: Of runs that decayed to rate 0 at each of them.
    """
    x, y = np.log(budgets), np.asarray(losses, float)
    i = int(np.clip(np.sum(y > loss) - 1, 0, len(x) - 2))
    slope = (y[i + 1] - y[i]) / (x[i + 1] - x[i])
    return float(np.exp(x[i] + (loss - y[i]) / slope))


def token_ratio(loss, curve):
    """Tokens of a run over those that the reference needs for its loss.

    Args:
        loss: Of the run.
        curve: The reference's loss by length, in lengths of the run.
    """
    lengths = sorted(curve)
    return 1 / tokens_to_reach(loss, lengths, [curve[x] for x in lengths])

"""Experiments on rates, batch sizes and numbers of tokens."""

import dataclasses

import numpy as np

from experiments.paper import scales
from experiments.paper.bench import score


def base_rate(bench):
    """5. Validation loss over a range of base learning rates."""
    found = {}
    methods = ("lanton", "d_muon")
    tuned = bench.tune("gpt2", methods)
    wanted = {}
    for method in methods:
        best = tuned[method].trial
        wanted[method] = [
            dataclasses.replace(best, learning_rate=rate, seed=seed)
            for rate in wider(best.learning_rate)
            for seed in bench.scale.seeds[:2]
        ]
    results = iter(bench.run([t for each in wanted.values() for t in each]))
    for method, each in wanted.items():
        scores = {}
        for trial in each:
            scores.setdefault(trial.learning_rate, []).append(
                score(next(results))
            )
        means = [float(np.mean(s)) for s in scores.values()]
        found[method] = {
            "rates": list(scores),
            "losses": list(scores.values()),
            "width": window(list(scores), means),
        }
    return found


def wider(rate):
    """Seven rates by factors of 2, which span 64."""
    return scales.around(rate / 4, 7)


def window(rates, losses, margin=0.01):
    """The highest good rate over the lowest.

    A rate is good if its loss is within `margin` of the lowest; between two
    rates the loss is linear in the logarithm of the rate.
    """
    x, y = np.log(rates), np.array(losses)
    limit = y.min() * (1 + margin)
    best = int(y.argmin())
    low = edge(x[best::-1], y[best::-1], limit)
    high = edge(x[best:], y[best:], limit)
    return float(np.exp(high - low))


def edge(x, y, limit):
    """The first x at which y crosses the limit."""
    for k in range(1, len(x)):
        if y[k] > limit:
            if not np.isfinite(y[k]):
                return float(x[k - 1])
            share = (limit - y[k - 1]) / (y[k] - y[k - 1])
            return float(x[k - 1] + share * (x[k] - x[k - 1]))
    return float(x[-1])


def batch_size(bench):
    """6. Validation loss by batch size, at equal tokens."""
    methods = ("lanton", "d_muon")
    tuned = bench.tune("gpt2", methods)
    found = {}
    for method in methods:
        best = tuned[method].trial
        tokens = best.steps * best.batch_size
        wanted = [
            dataclasses.replace(
                best, batch_size=size, steps=tokens // size, record_every=0
            )
            for size in bench.scale.batch_sizes
        ]
        found[method] = {
            "batch_size": list(bench.scale.batch_sizes),
            "final": [[score(r) for r in s] for s in bench.repeat(wanted)],
        }
    return found


def sample_efficiency(bench):
    """7. Tokens that others need for Lanton's final loss."""
    found = {}
    for task in ("gpt2", "llama"):
        methods = ("lanton", *bench.scale.longer)
        tuned = bench.tune(task, methods)
        (goal,) = bench.repeat([tuned["lanton"].trial])
        target = float(np.mean([score(result) for result in goal]))
        found[task] = {"target": target}
        for method, factors in bench.scale.longer.items():
            best = tuned[method].trial
            wanted = [
                dataclasses.replace(best, steps=round(best.steps * factor))
                for factor in (1.0, *factors)
            ]
            means = [
                float(np.mean([score(r) for r in seeds]))
                for seeds in bench.repeat(wanted)
            ]
            found[task][method] = {
                "times": [1.0, *factors],
                "losses": means,
                "needed": needed([1.0, *factors], means, target),
            }
    return found


def needed(times, losses, target):
    """The number of times the steps at which the loss reaches the target.

    Linear between two lengths; None if the longest does not reach it, 1 if
    the shortest does already.
    """
    if losses[0] <= target:
        return 1.0
    for k in range(1, len(times)):
        if losses[k] <= target:
            share = (losses[k - 1] - target) / (losses[k - 1] - losses[k])
            return float(times[k - 1] + share * (times[k] - times[k - 1]))
    return None

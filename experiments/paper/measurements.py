"""Experiments on noise and learning rates within a run."""

import dataclasses

import numpy as np

from experiments.optimizers import LANTONS
from experiments.paper.bench import score
from experiments.paper.trials import learning_rates


def reports(bench, method):
    """Noise reports and rates of the first seed's best run on the Llama."""
    tuned = bench.tune("llama", (method,))[method]
    (result,) = bench.run([tuned.trial])
    task = bench.scale.tasks["llama"]
    return result["reports"], learning_rates(tuned.trial, task)


HIDDEN = ("qk", "vo", "mlp")


def effective_rates(bench):
    """8. Learning rates of the layers over the base rate, in training."""
    found = {}
    for method in LANTONS:
        recorded, rates = reports(bench, method)
        found[method] = {"step": [r["step"] for r in recorded]}
        # The last rate may be 0.
        recorded = [r for r in recorded if rates[r["step"] - 1] > 0]
        for name, blocks in (
            ("hidden", HIDDEN),
            ("embedding", ("embedding", "head")),
            ("vector", ("norm",)),
        ):
            each = [
                np.array(values_of(r, blocks, "learning_rate"))
                / rates[r["step"] - 1]
                for r in recorded
            ]
            found[method][name] = {
                "mean": [float(e.mean()) for e in each],
                "std": [float(e.std()) for e in each],
            }
    return found


def values_of(report, blocks, name):
    return [
        value
        for layer in report["layers"]
        if layer["block"] in blocks
        for value in layer[name]
    ]


def noise(bench):
    """9. Largest, smallest and mean noise of the layers of each kind."""
    recorded, _ = reports(bench, "lanton_paper")
    found = {"step": [r["step"] for r in recorded]}
    for block in HIDDEN:
        each = [np.array(values_of(r, (block,), "noise")) for r in recorded]
        found[block] = {
            name: [float(getattr(e, name)()) for e in each]
            for name in ("max", "min", "mean")
        }
    return found


def references(bench):
    """10. Option I against Option II, at equal samples."""
    (tuned,) = bench.tune("gpt2", ("lanton",)).values()
    best = dataclasses.replace(tuned.trial, record_every=0)

    def option(reference, accumulate=None):
        options = {**dict(best.options), "noise.reference": reference}
        if accumulate:
            options["gradient_accumulation_steps"] = accumulate
        return dataclasses.replace(best, options=tuple(sorted(options.items())))

    halves = option(reference="independent_gradient", accumulate=2)
    cases = {
        "Option I": option(reference="previous_gradient"),
        "Option II, halves of the batch": halves,
        "Option II, two batches, half the steps": dataclasses.replace(
            halves, batch_size=2 * best.batch_size, steps=best.steps // 2
        ),
        "momentum as reference": option(reference="momentum"),
    }
    results = bench.repeat(list(cases.values()))
    return {
        name: [score(r) for r in seeds]
        for name, seeds in zip(cases, results, strict=True)
    }

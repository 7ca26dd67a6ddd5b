"""Experiments that compare the optimizers, each tuned alike."""

import statistics

import numpy as np

from experiments.paper import scales
from experiments.paper.bench import score
from experiments.paper.learners import learner
from experiments.paper.learners import new_result


def describe(tuned, results):
    """A method's grid, final losses and curves, for the results."""
    return {
        "learning_rate": tuned.trial.learning_rate,
        "rates": tuned.rates,
        "scores": tuned.scores,
        "at_edge": tuned.at_edge,
        "final": [score(result) for result in results],
        "validation_step": results[0]["validation_step"],
        "validation_loss": [r["validation_loss"] for r in results],
        "training_loss": [thin(r["loss"]) for r in results],
        "training_step": thin_steps(len(results[0]["loss"])),
    }


def thin_steps(count):
    return np.linspace(0, count, min(count, 30) + 1).astype(int)[1:].tolist()


def thin(losses):
    """Means over thirtieths of the run; of a short run, all its losses."""
    pieces = np.split(np.array(losses), thin_steps(len(losses))[:-1])
    return [float(np.mean(piece)) for piece in pieces]


def compare(bench, task, methods):
    """Methods tuned alike, then trained on all seeds."""
    tuned = bench.tune(task, methods)
    results = bench.repeat([tuned[m].trial for m in methods])
    return {
        method: describe(tuned[method], found)
        for method, found in zip(methods, results, strict=True)
    }


def losses(bench):
    """1. Training and validation loss of all optimizers."""
    return {t: compare(bench, t, scales.MAIN) for t in ("gpt2", "llama")}


def by_layer(bench):
    """2. Against layer-wise and block-wise rates."""
    methods = ("lanton", "lanton_paper", "lamb", "blockwise_adamw", "adamw")
    return {"llama": compare(bench, "llama", methods)}


def adamuon(bench):
    """3. Against AdaMuon."""
    return {
        "gpt2": compare(
            bench, "gpt2", ("lanton", "lanton_paper", "adamuon", "d_muon")
        )
    }


ROUNDS = 6  # turns of each method, after one that compiles
STEPS = 10  # of a turn


def running_time(bench):
    """4. Running time per step, the methods in turns."""
    methods = (*scales.MAIN, "adamuon", "lamb", "blockwise_adamw")
    learners, wanted = {}, {}
    for method in methods:
        trial = bench.trial(
            "gpt2", method, 1e-3, record_every=0, steps=(ROUNDS + 1) * STEPS
        )
        wanted[method] = trial
        learners[method] = learner(trial, bench.scale.tasks, bench.data)
    results = {method: new_result() for method in methods}
    for k in range(ROUNDS + 1):
        for method, one in learners.items():
            one.fit(wanted[method], results[method], k * STEPS, (k + 1) * STEPS)
    medians = {
        method: statistics.median(result["seconds"][STEPS:])
        for method, result in results.items()
    }
    return {
        "seconds": medians,
        "over_d_muon": {m: s / medians["d_muon"] for m, s in medians.items()},
    }


def cnn(bench):
    """11. Accuracy of the CNN."""
    tuned = bench.tune("cnn", scales.CNN)
    results = bench.repeat([tuned[m].trial for m in scales.CNN])
    return {
        method: {
            "learning_rate": tuned[method].trial.learning_rate,
            "rates": tuned[method].rates,
            "at_edge": tuned[method].at_edge,
            "test_accuracy": [r["test_accuracy"] for r in seeds],
            "train_accuracy": [r["train_accuracy"] for r in seeds],
        }
        for method, seeds in zip(scales.CNN, results, strict=True)
    }

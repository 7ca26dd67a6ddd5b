"""The bench: a scale, its data, and trials whose results stay on disk."""

import dataclasses
import functools
import hashlib
import importlib.util
import pathlib

import keras
import numpy as np

from experiments import batches
from experiments import pretraining
from experiments.optimizers import LANTONS
from experiments.paper import pool
from experiments.paper import scales
from experiments.paper.trials import Trial
from experiments.tokens import load_data

EXPERIMENTS = pathlib.Path(__file__).resolve().parents[1]


class Bench:
    """Trains what the experiments ask for, once."""

    def __init__(self, args):
        self.scale = scales.SCALES[args.scale]
        self.args = args
        self.data = {}  # tokens or images, by task

    def load(self, task):
        """The data of a task, made at its first use."""
        if task not in self.data:
            self.data[task] = (
                self.scale.load_images(self.scale.seeds[0])
                if task == "cnn"
                else load_tokens(self.args, self.scale.tasks[task])
            )
        return self.data[task]

    @functools.cached_property
    def folder(self):
        """The folder of results; its name has a digest of what they share.

        They share the code of the package and of the experiments, the models,
        the text and the backend.
        """
        digest = hashlib.sha256()
        package = importlib.util.find_spec("keras_lanton").origin
        for root in (pathlib.Path(package).parent, EXPERIMENTS):
            for file in sorted(root.rglob("*.py")):
                digest.update(file.read_bytes())
        text = [[str(f.resolve()), f.stat().st_size] for f in self.args.text]
        digest.update(repr((self.scale.tasks, text)).encode())
        name = f"{keras.backend.backend()}-{digest.hexdigest()[:10]}"
        return (self.args.output / "trials" / name).resolve()

    def trial(self, task, method, rate, **changes):
        """The standard run of a task, with changes."""
        preset = self.scale.tasks[task]
        cnn = task == "cnn"
        added = self.scale.cnn_options if cnn else self.scale.options
        options = {**added.get(method, {}), **changes.pop("options", {})}
        if cnn:
            count = len(self.load(task).x_train) // preset.batch_size
            steps = preset.epochs * count
        else:
            blocks = batches.count_blocks(
                self.load(task).training, preset.context
            )
            steps = preset.steps or blocks // preset.batch_size
        records = method in LANTONS and not cnn
        return Trial(
            **{
                "task": task,
                "method": method,
                "learning_rate": rate,
                "options": tuple(sorted(options.items())),
                "steps": steps,
                "batch_size": preset.batch_size,
                "seed": self.scale.seeds[0],
                "record_every": max(1, steps // 20) if records else 0,
                **changes,
            }
        )

    def run(self, wanted):
        """The results of trials, in their order."""
        return pool.run_all(
            wanted,
            tasks=self.scale.tasks,
            data=self.data,
            folder=self.folder,
            workers=self.scale.workers,
        )

    def tune(self, task, methods):
        """Each method's best trial of its grid, and the grid's scores."""
        grids = {
            method: [
                self.trial(task, method, rate)
                for rate in self.scale.grids[task][method]
            ]
            for method in methods
        }
        results = iter(self.run([t for grid in grids.values() for t in grid]))
        tuned = {}
        for method, grid in grids.items():
            scores = [score(next(results)) for _ in grid]
            best = int(np.argmin(scores))
            tuned[method] = Tuned(
                trial=grid[best],
                rates=[trial.learning_rate for trial in grid],
                scores=scores,
                at_edge=best in (0, len(grid) - 1),
            )
        return tuned

    def repeat(self, wanted):
        """The results of all seeds, per trial."""
        seeds = self.scale.seeds
        every = [
            dataclasses.replace(trial, seed=seed)
            for trial in wanted
            for seed in seeds
        ]
        results = self.run(every)
        return [
            results[i : i + len(seeds)]
            for i in range(0, len(results), len(seeds))
        ]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A method's best trial, and its grid."""

    trial: Trial
    rates: list
    scores: list
    at_edge: bool  # of the grid: a rate outside might be better


def score(result):
    """The lower the better: validation loss, or the CNN's share of errors."""
    if "test_accuracy" in result:
        return 1.0 - result["test_accuracy"]
    last = result["validation_loss"][-1]
    return last if np.isfinite(last) else float("inf")


def load_tokens(args, preset):
    """The tokens of a task."""
    folder = args.output / f"tokens_{preset.dataset}_{preset.vocabulary}"
    given = ["--output", str(args.output), "--data", str(folder)]
    if args.text:
        given += ["--text", *map(str, args.text)]
    wanted = pretraining.parse(given)
    wanted.preset, wanted.dataset = preset, preset.dataset
    return load_data(wanted)

"""The LANTON paper's experiments, on one's own machine.

    python examples/paper/experiments.py                 # all of them
    python examples/paper/experiments.py losses cnn      # these
    python examples/paper/experiments.py --scale paper   # the printed settings

`--scale cpu` trains models of 0.2 million weights on the Python standard
library's source text (or `--text FILE ...`) and the CNN on scikit-learn's
digits. Every optimizer's learning rate is tuned on the same number of rates,
by the first seed's validation loss; then all seeds train at the best. Results
go to benchmarks/results/paper_SCALE as JSON, one file an experiment, single
runs to OUTPUT/trials: an interrupted command goes on where it was, as long as
neither code nor text has changed.
`python examples/paper/report.py` makes docs/paper.md of the results.
"""

import argparse
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import pretraining  # noqa: E402
import scales  # noqa: E402
import trials  # noqa: E402


class Bench:
    """Where experiments train: a scale, its data, and runs on disk."""

    def __init__(self, args):
        self.scale = scales.SCALES[args.scale]
        self.args = args
        self.data = {}  # tokens or images, by task

    def load(self, task):
        """The task's data, made once; nobody waits for those of others."""
        if task not in self.data:
            self.data[task] = (
                self.scale.load_images(self.scale.seeds[0])
                if task == "cnn"
                else load_tokens(self.args, task, self.scale.tasks[task])
            )
        return self.data[task]

    @functools.cached_property
    def folder(self):
        """Of single runs: another one where anything that they share differs.

        That is the code of the package and of the examples, the models, the
        text and the backend.
        """
        digest = hashlib.sha256()
        package = importlib.util.find_spec("keras_lanton").origin
        for root in (pathlib.Path(package).parent, trials.EXAMPLES):
            for file in sorted(root.rglob("*.py")):
                digest.update(file.read_bytes())
        text = [[str(f.resolve()), f.stat().st_size] for f in self.args.text]
        digest.update(repr((self.scale.tasks, text)).encode())
        name = f"{self.args.backend}-{digest.hexdigest()[:10]}"
        return (self.args.output / "trials" / name).resolve()

    def trial(self, task, method, rate, **changes):
        """The task's own run, unless changed."""
        preset = self.scale.tasks[task]
        cnn = task == "cnn"
        options = dict(() if cnn else self.scale.options.get(method, ()))
        options |= changes.pop("options", {})
        if cnn:
            count = len(self.load(task).x_train) // preset.batch_size
            steps = preset.epochs * count
        else:
            blocks = pretraining.count_blocks(
                self.load(task).training, preset.context
            )
            steps = preset.steps or blocks // preset.batch_size
        records = method in pretraining.LANTONS and not cnn
        return trials.Trial(
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
        """Results of trials, in their order."""
        return trials.run_all(
            wanted,
            tasks=self.scale.tasks,
            data=self.data,
            folder=self.folder,
            backend=self.args.backend,
            workers=self.scale.workers,
        )

    def tune(self, task, methods):
        """Of each method the best trial of its grid, and the grid's scores."""
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
        """For each trial the results of all seeds."""
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
    """What tuning found of one method."""

    trial: trials.Trial
    rates: list
    scores: list
    at_edge: bool  # of the grid: a rate outside might be better


def score(result):
    """What is tuned by: validation loss, or the CNN's share of errors."""
    if "test_accuracy" in result:
        return 1.0 - result["test_accuracy"]
    last = result["validation_loss"][-1]
    return last if np.isfinite(last) else float("inf")


def load_tokens(args, task, preset):
    """The tokens of a task, as its example loads them."""
    example = dataclasses.replace(
        scales.EXAMPLES[task], presets={"demo": preset}
    )
    folder = args.output / f"tokens_{preset.dataset}_{preset.vocabulary}"
    given = ["--output", str(args.output), "--data", str(folder)]
    if args.text:
        given += ["--text", *map(str, args.text)]
    return pretraining.load_data(pretraining.parse(example, given))


# -- Losses ------------------------------------------------------------------


def describe(tuned, results):
    """What is kept of a method: grid, final losses, curves."""
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
    """Means over thirtieths of the run, of a short one each step's own."""
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


# -- Time --------------------------------------------------------------------


ROUNDS = 6  # turns of each method, and one before that compiles
STEPS = 10  # of a turn


def running_time(bench):
    """4. Running time per step, the methods in turns."""
    os.environ["KERAS_BACKEND"] = bench.args.backend
    methods = (*scales.MAIN, "adamuon", "lamb", "blockwise_adamw")
    learners, wanted = {}, {}
    for method in methods:
        trial = bench.trial(
            "gpt2", method, 1e-3, record_every=0, steps=(ROUNDS + 1) * STEPS
        )
        wanted[method] = trial
        learners[method] = trials.learner(trial, bench.scale.tasks, bench.data)
    results = {method: trials.new_result() for method in methods}
    for k in range(ROUNDS + 1):
        for method, learner in learners.items():
            learner.fit(
                wanted[method], results[method], k * STEPS, (k + 1) * STEPS
            )
    medians = {
        method: statistics.median(result["seconds"][STEPS:])
        for method, result in results.items()
    }
    return {
        "seconds": medians,
        "over_d_muon": {m: s / medians["d_muon"] for m, s in medians.items()},
    }


# -- Robustness --------------------------------------------------------------


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
    """How many times the lowest good rate the highest is.

    Good is a loss within `margin` of the lowest; between two rates the loss is
    linear in the logarithm of the rate.
    """
    x, y = np.log(rates), np.array(losses)
    limit = y.min() * (1 + margin)
    best = int(y.argmin())
    low = edge(x[best::-1], y[best::-1], limit)
    high = edge(x[best:], y[best:], limit)
    return float(np.exp(high - low))


def edge(x, y, limit):
    """Where y first crosses the limit, going along x."""
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


# -- Sample efficiency -------------------------------------------------------


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
    """Times the steps at which the loss reaches the target.

    Linear between two lengths; None where the longest does not reach it, 1
    where the shortest does already.
    """
    if losses[0] <= target:
        return 1.0
    for k in range(1, len(times)):
        if losses[k] <= target:
            share = (losses[k - 1] - target) / (losses[k - 1] - losses[k])
            return float(times[k - 1] + share * (times[k] - times[k - 1]))
    return None


# -- What is measured on the way ---------------------------------------------


def reports(bench, method):
    """Reports of the first seed's best run on the Llama, and its rates."""
    tuned = bench.tune("llama", (method,))[method]
    (result,) = bench.run([tuned.trial])
    task = bench.scale.tasks["llama"]
    return result["reports"], trials.learning_rates(tuned.trial, task)


HIDDEN = ("qk", "vo", "mlp")


def effective_rates(bench):
    """8. Learning rates of the layers over the base rate, in training."""
    found = {}
    for method in pretraining.LANTONS:
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

    def option(**changes):
        options = {**dict(best.options), **changes}
        return dataclasses.replace(best, options=tuple(sorted(options.items())))

    halves = option(
        noise_reference="independent_gradient", gradient_accumulation_steps=2
    )
    cases = {
        "Option I": option(noise_reference="previous_gradient"),
        "Option II, halves of the batch": halves,
        "Option II, two batches, half the steps": dataclasses.replace(
            halves, batch_size=2 * best.batch_size, steps=best.steps // 2
        ),
        "momentum as reference": option(noise_reference="momentum"),
    }
    results = bench.repeat(list(cases.values()))
    return {
        name: [score(r) for r in seeds]
        for name, seeds in zip(cases, results, strict=True)
    }


# -- Images, theory ----------------------------------------------------------


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


def bounds(bench):
    """12. Theory: the lemmas' bounds, and the rate of convergence.

    Thousands of steps of a hundred settings: PyTorch, where it is installed,
    need not compile them.
    """
    torch = importlib.util.find_spec("torch")
    folder = bench.args.output / "theory"
    script = pathlib.Path(__file__).with_name("theory.py")
    command = [sys.executable, str(script), "--scale", bench.args.scale]
    command += ["--output", str(folder), "--seeds"]
    subprocess.run(
        [*command, *map(str, bench.scale.seeds)],
        check=True,
        env={
            **os.environ,
            "KERAS_BACKEND": "torch" if torch else bench.args.backend,
            # Matrices of 16 x 24: threads would only wait for each other.
            "OMP_NUM_THREADS": "1",
        },
    )
    return pretraining.read_json(folder / "theory.json")


# One change to Lanton's defaults each.
VARIANTS = {
    "defaults": {},
    "beta_1=0.95": {"beta_1": 0.95},
    "nesterov=False": {"nesterov": False},
    "alpha=0.3": {"alpha": 0.3},
    "alpha=1000 (no adaptation)": {"alpha": 1000.0},
    'group_reduction="max"': {"group_reduction": "max"},
    'noise_reference="momentum"': {"noise_reference": "momentum"},
    "embedding_scale=100": {"embedding_scale": 100.0},
    "embedding_scale=300": {"embedding_scale": 300.0},
    "adam_lr_ratio=0.5": {"adam_lr_ratio": 0.5},
    'adamw_roles=("embedding", "vector")': {
        "adamw_roles": ("embedding", "vector"),
    },
    "adamw_roles=()": {"adamw_roles": ()},
}
OTHERS = {
    "D-Muon": ("d_muon", {}),
    "D-Muon, beta_1=0.9": ("d_muon", {"beta_1": 0.9}),
    "Scion": ("scion", {}),
}


def defaults(bench):
    """What each of Lanton's defaults does; run by name alone."""
    cases = {name: ("lanton", changes) for name, changes in VARIANTS.items()}
    cases |= OTHERS
    return {t: at_two_rates(bench, t, cases) for t in ("gpt2", "llama")}


def at_two_rates(bench, task, cases):
    """Losses of two seeds, by case and rate: the middle ones of the grid.

    Of cases, by name, there are the method and changes of its options.
    """
    seeds, grids = bench.scale.seeds[:2], bench.scale.grids[task]
    every = [
        dataclasses.replace(trial, seed=seed)
        for method, changes in cases.values()
        for rate in grids[method][1:3]
        for trial in [
            bench.trial(task, method, rate, options=changes, record_every=0)
        ]
        for seed in seeds
    ]
    results = iter(bench.run(every))
    return {
        name: {
            f"{rate:g}": [score(next(results)) for _ in seeds]
            for rate in grids[method][1:3]
        }
        for name, (method, _) in cases.items()
    }


def width(bench):
    """The scale of embeddings' steps by the model's width; run by name."""
    cases = {
        f"embedding_scale={scale:g}": ("lanton", {"embedding_scale": scale})
        for scale in (50.0, 100.0, 200.0, 300.0)
    }
    cases |= OTHERS
    return {
        task: {
            "width": bench.scale.tasks[task].width,
            "losses": at_two_rates(bench, task, cases),
        }
        for task in ("llama", "llama_wide")
    }


EXPERIMENTS = {
    function.__name__: function
    for function in (
        losses,
        by_layer,
        adamuon,
        running_time,
        base_rate,
        batch_size,
        sample_efficiency,
        effective_rates,
        noise,
        references,
        cnn,
        bounds,
        defaults,
        width,
    )
}
BY_NAME_ALONE = ("defaults", "width")


def machine(backend):
    """Where it ran, for the page."""
    packages = ("keras", "keras-hub", backend, "numpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def parse(argv):
    parser = argparse.ArgumentParser(
        description="The LANTON paper's experiments."
    )
    add = parser.add_argument
    add(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help=f"of {', '.join(EXPERIMENTS)}; by default all but "
        f"{', '.join(BY_NAME_ALONE)}",
    )
    add("--scale", choices=scales.SCALES, default="cpu")
    add("--backend", choices=("jax", "torch", "tensorflow"), default="jax")
    add(
        "--text",
        nargs="+",
        type=pretraining.existing_file,
        default=[],
        metavar="FILE",
        help="train the language models on these files",
    )
    add("--output", type=pathlib.Path, help="default: runs/paper_SCALE")
    add(
        "--results",
        type=pathlib.Path,
        help="default: benchmarks/results/paper_SCALE",
    )
    args = parser.parse_args(argv)
    unknown = set(args.experiments) - set(EXPERIMENTS)
    if unknown:
        parser.error(
            f"there is no experiment {', '.join(sorted(unknown))}; there are "
            f"{', '.join(EXPERIMENTS)}"
        )
    args.experiments = args.experiments or [
        name for name in EXPERIMENTS if name not in BY_NAME_ALONE
    ]
    name = f"paper_{args.scale}"
    args.output = args.output or pathlib.Path("runs", name)
    root = pathlib.Path(__file__).resolve().parents[2]
    args.results = args.results or root / "benchmarks" / "results" / name
    return args


def main(argv=None):
    args = parse(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    bench = Bench(args)
    for name in args.experiments:
        function = EXPERIMENTS[name]
        print(function.__doc__.strip().splitlines()[0], flush=True)
        started = time.perf_counter()
        result = {
            "experiment": name,
            "scale": args.scale,
            "backend": args.backend,
            "text": [path.name for path in args.text] or "standard library",
            "machine": machine(args.backend),
            "result": function(bench),
        }
        result["seconds"] = time.perf_counter() - started
        args.results.mkdir(parents=True, exist_ok=True)
        path = args.results / f"{name}.json"
        pretraining.write_json(path, result)
        print(f"{path}, {result['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()

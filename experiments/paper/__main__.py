"""The LANTON paper's experiments, on one's own machine.

    KERAS_BACKEND=jax python -m experiments.paper                 # all of them
    KERAS_BACKEND=jax python -m experiments.paper losses cnn      # these
    KERAS_BACKEND=jax python -m experiments.paper --scale paper   # its sizes

`--scale cpu` trains models of 0.2 million weights on the source text of
Python's standard library (or `--text FILE ...`), and the CNN on scikit-learn's
digits. Every optimizer's learning rate is tuned on the same number of rates,
by the first seed's validation loss; then all seeds train at the best. Results
go to benchmarks/results/paper_SCALE as JSON, one file per experiment, single
runs to OUTPUT/trials: an interrupted command continues, as long as neither code
nor text has changed. `python -m experiments.paper.report` writes docs/paper.md
from the results.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import subprocess
import sys
import time

import keras

from experiments.paper import ablations
from experiments.paper import comparisons
from experiments.paper import measurements
from experiments.paper import robustness
from experiments.paper import scales
from experiments.paper.bench import Bench
from experiments.pretraining import existing_file
from experiments.token_files import read_json
from experiments.token_files import write_json

ROOT = pathlib.Path(__file__).resolve().parents[2]


def bounds(bench):
    """12. Theory: the lemmas' bounds, and the rate of convergence.

    Thousands of steps of a hundred settings: PyTorch, if it is installed,
    need not compile them.
    """
    torch = importlib.util.find_spec("torch")
    folder = bench.args.output / "theory"
    module = "experiments.paper.theory"
    command = [sys.executable, "-m", module, "--scale", bench.args.scale]
    command += ["--output", str(folder), "--seeds"]
    subprocess.run(
        [*command, *map(str, bench.scale.seeds)],
        check=True,
        env={
            **os.environ,
            "KERAS_BACKEND": "torch" if torch else keras.backend.backend(),
            "PYTHONPATH": str(ROOT),
            # Matrices of 16 x 24: threads would only wait for each other.
            "OMP_NUM_THREADS": "1",
        },
    )
    return read_json(folder / "theory.json")


EXPERIMENTS = {
    function.__name__: function
    for function in (
        comparisons.losses,
        comparisons.by_layer,
        comparisons.adamuon,
        comparisons.running_time,
        robustness.base_rate,
        robustness.batch_size,
        robustness.sample_efficiency,
        measurements.effective_rates,
        measurements.noise,
        measurements.references,
        comparisons.cnn,
        bounds,
        ablations.defaults,
        ablations.width,
    )
}
BY_NAME_ALONE = ("defaults", "width")


def machine(backend):
    """The machine and the versions, for the page."""
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
        prog="python -m experiments.paper",
        description="The LANTON paper's experiments.",
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
    add(
        "--text",
        nargs="+",
        type=existing_file,
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
    args.results = args.results or ROOT / "benchmarks" / "results" / name
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
            "backend": keras.backend.backend(),
            "text": [path.name for path in args.text] or "standard library",
            "machine": machine(keras.backend.backend()),
            "result": function(bench),
        }
        result["seconds"] = time.perf_counter() - started
        args.results.mkdir(parents=True, exist_ok=True)
        path = args.results / f"{name}.json"
        write_json(path, result)
        print(f"{path}, {result['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()

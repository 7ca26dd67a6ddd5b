"""What the benchmarks share: the command line, clocks, results as a table.

Keras reads KERAS_BACKEND when it is first imported, and a run on the CPU
hides the GPUs before that: nothing here imports Keras or a backend outside a
function, and every benchmark calls `parse` first.
"""

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

import numpy as np

STARTED = time.perf_counter()
ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = pathlib.Path("benchmarks", "results")
BACKENDS = ("jax", "torch", "tensorflow")
PACKAGES = (
    "keras",
    "keras-hub",
    "numpy",
    *("jax", "jaxlib", "optax"),
    *("torch", "triton"),
    *("tensorflow", "tensorflow-cpu"),
)
PRETENDED = "no GPU"  # the device of --pretend


# -- The command line --------------------------------------------------------


def make_parser(description):
    """A parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0],
        epilog="The backend is taken from KERAS_BACKEND (default: jax).",
    )
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help="tiny sizes, to test the benchmark itself; the results go to "
        "runs/benchmarks and mean nothing",
    )
    add("--gpu", action="store_true", help="on the GPU, larger sizes")
    add(
        "--pretend",
        action="store_true",
        help="what --gpu does, on the CPU and with the sizes of --quick: to "
        "test that it starts, runs and reports where there is no GPU",
    )
    add("--commit", help="what to record as the commit where git is missing")
    add("--output", type=pathlib.Path, help=f"folder, default: {RESULTS}")
    return parser


def positive(text):
    """An integer above 0, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def parse(parser, argv=None, backends=BACKENDS):
    """Read the arguments and choose backend and device accordingly.

    Args:
        parser: From `make_parser`.
        argv: Arguments; those of the process by default.
        backends: Those that the benchmark is for.
    """
    args = parser.parse_args(argv)
    args.backend = os.environ.setdefault("KERAS_BACKEND", "jax")
    if args.backend not in backends:
        parser.error(
            f"KERAS_BACKEND must be one of {', '.join(backends)}. "
            f"Received: {args.backend}"
        )
    args.gpu |= args.pretend
    args.quick |= args.pretend
    args.output = args.output or (
        pathlib.Path("runs", "benchmarks") if args.quick else RESULTS
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if args.pretend or not args.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["JAX_PLATFORMS"] = "cpu"
    elif gpu_name(args.backend) is None:
        parser.error(f"--gpu: {args.backend} sees no GPU")
    if args.pretend:
        os.environ["TRITON_INTERPRET"] = "1"
        choose_as_on_gpu()
    return args


def choose_as_on_gpu():
    """Have the package take matrices together, as a GPU does best."""
    from keras_lanton.backends import backend

    backend.device = lambda: "gpu"


# -- Where it ran ------------------------------------------------------------


def gpu_name(backend):
    """Name of the GPU that a backend computes on, or None."""
    if backend == "torch":
        import torch

        found = torch.cuda.is_available()
        return torch.cuda.get_device_name() if found else None
    if backend == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        details = tf.config.experimental.get_device_details
        return details(found[0])["device_name"] if found else None
    import jax

    device = jax.devices()[0]
    return device.device_kind if device.platform == "gpu" else None


def cpu_name():
    """Model and number of usable cores of the CPU."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text()
        found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        name = found[1] if found else name
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def versions(backend):
    """Versions of Python and of the packages that matter."""
    import keras_lanton

    found = {
        "python": platform.python_version(),
        "keras_lanton": keras_lanton.__version__,
    }
    others = {"jaxlib": "jax", "optax": "jax", "triton": "torch"}
    for name in PACKAGES:
        owner = others.get(name, name.removesuffix("-cpu"))
        if owner in BACKENDS and owner != backend:
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit():
    """The commit of this repository, "+" behind it when it was changed."""

    def git(*arguments):
        return subprocess.check_output(
            ["git", *arguments],
            cwd=ROOT,
            text=True,
            stderr=subprocess.DEVNULL,
        ).strip()

    try:
        changed = git("status", "--porcelain", "--", "keras_lanton")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# -- Results -----------------------------------------------------------------


def command_line(args):
    """What was called; `--output` may be a folder of this machine."""
    given = [
        one for one in sys.argv if one not in ("--output", str(args.output))
    ]
    script = pathlib.Path(given[0]).resolve().relative_to(ROOT)
    command = ["python", str(script), *given[1:]]
    return f"KERAS_BACKEND={args.backend} {' '.join(command)}"


def write(args, benchmark, rows, **settings):
    """Print the rows as a table and write everything as JSON.

    Args:
        args: From `parse`.
        benchmark: Name of the results' file.
        rows: List of dicts, one per line of the table.
        **settings: What else to record.
    """
    gpu = gpu_name(args.backend) if args.gpu else None
    gpu = PRETENDED if args.pretend else gpu
    result = {
        "benchmark": benchmark,
        "backend": args.backend,
        "command": command_line(args),
        "device": gpu or cpu_name(),
        "gpu": args.gpu,
        "quick": args.quick,
        "versions": versions(args.backend),
        "commit": args.commit or commit(),
        "seconds": round(time.perf_counter() - STARTED, 1),
        "settings": settings,
        "rows": list(rows),
    }
    where = re.sub(r"\W+", "_", gpu).lower() if gpu else "cpu"
    path = args.output / f"{benchmark}_{args.backend}_{where}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{benchmark}, {args.backend}, {result['device']}\n")
    print_table(rows)
    print(f"\n{path} ({result['seconds']} s in all)", flush=True)


def cell(value):
    """One value of a table as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(rows):
    """Print rows as a table in Markdown whose columns line up."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [keys, *([cell(row.get(key)) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        padded = [
            text.rjust(width) if i else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        print(f"| {' | '.join(padded)} |")


# -- Clocks ------------------------------------------------------------------


def synchronize(value=None):
    """Wait until a backend tensor, or all work on the GPU, is there."""
    import keras

    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
    elif backend == "jax":
        import jax

        jax.block_until_ready(value)
    elif value is not None:
        first = value[0] if isinstance(value, (list, tuple)) else value
        # One number is enough: a step is one XLA program.
        np.asarray(first).ravel()[:1]


def seconds(function):
    """Seconds that a call takes, all its work included."""
    synchronize()
    started = time.perf_counter()
    synchronize(function())
    return time.perf_counter() - started


def interleave(functions, calls, warm_up):
    """Time several functions in turns, so that all share the same weather.

    Args:
        functions: Dict of functions without arguments that return a tensor.
        calls: Dict of the number of timed calls. Those of a function with
            fewer calls than another are spread evenly.
        warm_up: Dict of the number of calls before the first timed one.

    Returns:
        Dict of lists of seconds.
    """
    for name, function in functions.items():
        for _ in range(warm_up[name]):
            synchronize(function())
    times = {name: [] for name in functions}
    rounds = max(calls.values(), default=0)
    for i in range(rounds):
        for name, function in functions.items():
            if (i + 1) * calls[name] // rounds > len(times[name]):
                times[name].append(seconds(function))
    return times


def release():
    """Give back what nobody holds any more."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def median(values):
    """Median as a float, None for nothing."""
    return statistics.median(values) if values else None

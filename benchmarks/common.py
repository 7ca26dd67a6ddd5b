"""What the benchmarks share: variables, gradients, clocks, results.

Keras reads KERAS_BACKEND when it is first imported, and a run on the CPU
hides the GPUs before that: nothing here imports Keras or a backend outside a
function, and every benchmark calls `parse` first.
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib.metadata
import json
import math
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


def parse(parser, argv=None):
    """Read the arguments and choose backend and device accordingly."""
    args = parser.parse_args(argv)
    args.backend = os.environ.setdefault("KERAS_BACKEND", "jax")
    if args.backend not in BACKENDS:
        parser.error(
            f"KERAS_BACKEND must be one of {', '.join(BACKENDS)}, "
            f"not {args.backend!r}"
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
        pretend()
    return args


def pretend():
    """Have the package choose as on a GPU; its kernels are interpreted."""
    os.environ["TRITON_INTERPRET"] = "1"
    choose_as_on_gpu()


def choose_as_on_gpu():
    """Have the package take matrices together, as a GPU does best."""
    from keras_lanton import backends

    backends.load().device = lambda: "gpu"


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
    packages = {
        "jax": ("jax", "jaxlib", "optax"),
        "torch": ("torch", "triton"),
        "tensorflow": ("tensorflow", "tensorflow-cpu"),
    }
    for name in ("keras", "keras-hub", "numpy", *packages[backend]):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit():
    """The commit of this repository, "+" behind it when it was changed."""

    def git(*arguments):
        return subprocess.run(
            ["git", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "keras_lanton")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# -- Results -----------------------------------------------------------------


def write(args, benchmark, rows, figures=(), **settings):
    """Print the rows as a table and write everything as JSON.

    Args:
        args: From `parse`.
        benchmark: Name of the results' file.
        rows: List of dicts, one per line of the table.
        figures: Dict of the figures that `tables.py` looks for.
        **settings: What else to record.
    """
    gpu = gpu_name(args.backend) if args.gpu else None
    gpu = PRETENDED if args.pretend else gpu
    script = pathlib.Path(sys.argv[0]).name
    result = {
        "benchmark": benchmark,
        "backend": args.backend,
        "command": " ".join(
            [
                f"KERAS_BACKEND={args.backend}",
                "python",
                f"benchmarks/{script}",
                *sys.argv[1:],
            ]
        ),
        "device": gpu or cpu_name(),
        "gpu": args.gpu,
        "quick": args.quick,
        "versions": versions(args.backend),
        "commit": args.commit or commit(),
        "seconds": round(time.perf_counter() - STARTED, 1),
        "settings": settings,
        "figures": dict(figures),
        "rows": list(rows),
    }
    where = re.sub(r"\W+", "_", gpu).lower() if gpu else "cpu"
    path = args.output / f"{benchmark}_{args.backend}_{where}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{benchmark}, {args.backend}, {result['device']}\n")
    print_table(rows)
    if figures:
        print()
        print_table([{"figure": k, "value": v} for k, v in figures.items()])
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


def columns(rows):
    """Every key of the rows, in the order of first sight."""
    return list(dict.fromkeys(key for row in rows for key in row))


def print_table(rows):
    """Print rows in columns that line up."""
    keys = columns(rows)
    lines = [keys, *([cell(row.get(key)) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = [
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(padded).rstrip())


# -- Models as lists of variables --------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spec:
    """One trainable variable: KerasHub's path and shape, and its matrix."""

    path: str
    shape: tuple
    matrix: tuple | None = None  # (d_in, d_out), for hidden kernels

    @property
    def size(self):
        """Number of entries."""
        return math.prod(self.shape)

    def equal_work(self):
        """The same as a plain matrix, or as a plain vector.

        Keras' Muon leaves 3-D kernels to AdamW and orthogonalizes 2-D
        biases; torch.optim.Muon takes nothing but matrices.
        """
        if self.matrix:
            return dataclasses.replace(self, shape=self.matrix)
        if "embedding" in self.path:
            return self
        return dataclasses.replace(self, shape=(self.size,))


def gpt2_specs(*, vocabulary, context, layers, heads, width, inner):
    """The trainable variables of KerasHub's GPT2Backbone, in its order."""
    head = width // heads
    yield Spec("token_embedding/embeddings", (vocabulary, width))
    yield Spec("position_embedding/embeddings", (context, width))
    square = (width, width)
    for i in range(layers):
        block = f"transformer_layer_{i}"
        attention = f"{block}/self_attention"
        for name in ("query", "key", "value"):
            path = f"{attention}/{name}"
            yield Spec(f"{path}/kernel", (width, heads, head), square)
            yield Spec(f"{path}/bias", (heads, head))
        path = f"{attention}/attention_output"
        yield Spec(f"{path}/kernel", (heads, head, width), square)
        yield Spec(f"{path}/bias", (width,))
        yield Spec(f"{attention}_layer_norm/gamma", (width,))
        yield Spec(f"{attention}_layer_norm/beta", (width,))
        for name, shape in (
            ("intermediate", (width, inner)),
            ("output", (inner, width)),
        ):
            path = f"{block}/feedforward_{name}_dense"
            yield Spec(f"{path}/kernel", shape, shape)
            yield Spec(f"{path}/bias", shape[1:])
        yield Spec(f"{block}/feedforward_layer_norm/gamma", (width,))
        yield Spec(f"{block}/feedforward_layer_norm/beta", (width,))
    yield Spec("layer_norm/gamma", (width,))
    yield Spec("layer_norm/beta", (width,))


def llama_specs(*, vocabulary, layers, heads, groups, width, inner, tied):
    """The trainable variables of KerasHub's LlamaBackbone, in its order."""
    head = width // heads
    narrow = groups * head
    yield Spec("token_embedding/embeddings", (vocabulary, width))
    if not tied:
        yield Spec("token_embedding/reverse_embeddings", (width, vocabulary))
    for i in range(layers):
        block = f"transformer_layer_{i}"
        attention = f"{block}/self_attention"
        for name, count, size in (
            ("query", heads, width),
            ("key", groups, narrow),
            ("value", groups, narrow),
        ):
            path = f"{attention}/{name}/kernel"
            yield Spec(path, (width, count, head), (width, size))
        path = f"{attention}/attention_output/kernel"
        yield Spec(path, (heads, head, width), (width, width))
        yield Spec(f"{attention}_layernorm/scale", (width,))
        for name, shape in (
            ("intermediate", (width, inner)),
            ("gate", (width, inner)),
            ("output", (inner, width)),
        ):
            path = f"{block}/feedforward_{name}_dense/kernel"
            yield Spec(path, shape, shape)
        yield Spec(f"{block}/feedforward_layernorm/scale", (width,))
    yield Spec("sequence_output_layernorm/scale", (width,))


GPT2 = {
    "vocabulary": 50257,
    "context": 1024,
    "layers": 12,
    "heads": 12,
    "width": 768,
    "inner": 3072,
}
LLAMA_SMALL = {  # 100M
    "vocabulary": 32000,
    "layers": 12,
    "heads": 12,
    "groups": 4,
    "width": 768,
    "inner": 2048,
    "tied": True,
}
LLAMA_LARGE = {  # 1.1B, the shapes of TinyLlama
    "vocabulary": 32000,
    "layers": 22,
    "heads": 32,
    "groups": 4,
    "width": 2048,
    "inner": 5632,
    "tied": False,
}
QUICK = {
    "vocabulary": 512,
    "layers": 2,
    "heads": 4,
    "width": 64,
    "inner": 192,
}
MODELS = ("gpt2", "llama")
# As many variables, whose arithmetic takes no time.
NARROW = {**GPT2, "vocabulary": 512, "context": 64, "width": 24, "inner": 96}


def model_specs(model, *, quick=False, large=False, narrow=False):
    """The variables of a model: a list of `Spec`.

    Args:
        model: One of `MODELS`.
        quick: Two layers of width 64 instead.
        large: The Llama of 1.1B parameters instead of 100M.
        narrow: GPT-2 small of width 24; of "gpt2" alone.
    """
    if narrow and not quick:
        return list(gpt2_specs(**NARROW))
    if model == "gpt2":
        sizes = {**GPT2, **(QUICK if quick else {})}
        return list(gpt2_specs(**sizes))
    sizes = dict(LLAMA_LARGE if large else LLAMA_SMALL)
    if quick:
        sizes.update(QUICK, groups=2)
    return list(llama_specs(**sizes))


def make_variables(specs, dtype="float32", *, allocate=True):
    """Keras variables of these paths and shapes.

    Args:
        specs: List of `Spec`.
        dtype: Of the weights.
        allocate: False gives variables without values, which optimizers can
            be built on inside `unallocated()`.
    """
    import keras

    scope = contextlib.nullcontext() if allocate else unallocated()
    variables = []
    for spec in specs:
        *parents, name = spec.path.split("/")
        with scope, contextlib.ExitStack() as stack:
            for parent in parents:
                stack.enter_context(keras.name_scope(parent))
            variable = keras.Variable(
                "zeros", shape=spec.shape, dtype=dtype, name=name
            )
        if variable.path != spec.path:
            raise RuntimeError(f"{variable.path} instead of {spec.path}")
        variables.append(variable)
    return variables


def unallocated():
    """Scope in which Keras defers the values of new variables."""
    import keras

    return keras.StatelessScope(initialize_variables=False)


def make_gradients(specs, dtype="float32"):
    """Backend tensors of Gaussian noise, the same in every run."""
    from keras import ops

    random = np.random.default_rng(0)
    return [
        ops.convert_to_tensor(
            random.standard_normal(spec.shape, "float32"), dtype=dtype
        )
        for spec in specs
    ]


def rotate(gradients, by):
    """The gradients handed on among the variables of equal shape.

    So that one step's gradients differ from the last step's without a second
    copy of them: a noise sample must not be zero. A variable alone of its
    shape has its rows the other way round on every second step.
    """
    from keras import ops

    groups = {}
    for i, gradient in enumerate(gradients):
        groups.setdefault(tuple(gradient.shape), []).append(i)
    rotated = list(gradients)
    for group in groups.values():
        if len(group) == 1 and by % 2:
            rotated[group[0]] = ops.flip(gradients[group[0]], axis=0)
            continue
        for position, i in enumerate(group):
            rotated[i] = gradients[group[(position + by) % len(group)]]
    return rotated


def jit_apply(optimizer):
    """A jitted step of JAX: values, state and gradients to values and state.

    Buffers are donated in the order of the results, as `fit` has them: JAX
    gives the memory of a donated buffer to the first result of its shape.
    """
    import jax

    def apply(values, state, gradients):
        return optimizer.stateless_apply(state, gradients, values)

    return jax.jit(apply, donate_argnums=(0, 1))


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


def interleave(functions, rounds, most=None, warm_up=1):
    """Time several functions in turns, so that all share the same weather.

    Args:
        functions: Dict of functions without arguments that return a tensor.
        rounds: Number of rounds.
        most: Dict of the number of calls of those functions that are not
            called in every round; theirs are spread evenly.
        warm_up: Calls of each function before the rounds: a number, or a
            dict of numbers; 1 for those that it leaves out.

    Returns:
        Dict of lists of seconds.
    """
    if isinstance(warm_up, int):
        warm_up = dict.fromkeys(functions, warm_up)
    for name, function in functions.items():
        for _ in range(warm_up.get(name, 1)):
            synchronize(function())
    times = {name: [] for name in functions}
    for i in range(rounds):
        for name, function in functions.items():
            calls = min((most or {}).get(name, rounds), rounds)
            if (i + 1) * calls // rounds > i * calls // rounds:
                times[name].append(seconds(function))
    return times


def compiled(function):
    """The function as the backend's users run it: XLA, or eager PyTorch."""
    import keras

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.jit(function)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)
    import torch

    return torch.no_grad()(function)


def release():
    """Give back what nobody holds any more."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def median(values):
    """Median as a float, None for nothing."""
    return statistics.median(values) if values else None

"""A run as a record, the table of results, and the training of what it lacks.

This process loads no Keras: what trains a run is imported by its kind, in a
process of its own.
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import subprocess
import time
import typing

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "runs.jsonl"
# By kind of run: Keras' backend, and the module whose `train(run, cache)`
# gives its result.
RUNNERS = {
    "language": ("jax", "experiments.language"),
    "fine_tuning": ("jax", "experiments.fine_tuning"),
    "images": ("tensorflow", "experiments.images"),
    "small": ("jax", "experiments.small"),
}
# Likewise, of runs that are alike: the module whose `train(runs, cache, turn)`
# gives their results.
SIDE_BY_SIDE = {"language": "experiments.beside"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """All that decides a result. Fields that are None do not apply."""

    kind: str = "language"  # a key of `RUNNERS`, or what trained it once
    optimizer: str  # a name of `optimizers.construct`
    learning_rate: float  # the peak rate
    options: tuple = ()  # sorted pairs of the optimizer's arguments and values
    seed: int = 1  # of the initial weights and the order of the batches
    model: str = "gpt2"  # or "llama", "airbench", one of `small.TASKS`
    size: str | None = None  # a key of `language.WIDTHS`
    text: str | None = None  # a name of `texts`
    batch_size: int  # blocks of 64 tokens, or images
    tokens_per_weight: float | None = None  # length, unless `steps` says it
    steps: int | None = None  # whatever the size of the model
    initial: str | None = None  # "scaled" by the width, or "keras_hub"
    warmup: float | None = None  # share of the steps, if not `language.WARMUP`
    # "constant": no warm-up, no fall; of a small model "cosine": with both
    schedule: str | None = None
    layers: int | None = None  # if not `language.LAYERS`
    vocabulary: int | None = None  # tokens, if not `texts.VOCABULARY`
    dtype: str | None = None  # Keras' dtype policy, if not float32
    validation_blocks: int | None = None  # if not `language.VALIDATION_BLOCKS`
    base: str | None = None  # whose weights fine-tuning starts from
    rank: int | None = None  # of LoRA; 0 trains all weights
    images: str | None = None  # a name of `image_data.LOADERS`
    widths: tuple | None = None  # channels of the CNN
    epochs: int | None = None  # of what `fit` trains
    judged_by: str | None = None  # "test", or "held_out" of the training images

    def record(self) -> dict:
        """The fields that apply, as JSON has them."""
        fields = dataclasses.asdict(self)
        fields["options"] = dict(sorted(self.options))
        applying = {k: v for k, v in fields.items() if v is not None}
        return json.loads(json.dumps(applying))

    @functools.cached_property
    def id(self) -> str:
        """Another one for another record."""
        text = json.dumps(self.record(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def replace(self, **changes: typing.Any) -> "Run":
        """The same run with other fields."""
        return dataclasses.replace(self, **changes)

    def with_options(self, **options: typing.Any) -> "Run":
        """The same run with some of the optimizer's arguments changed."""
        merged = dict(self.options) | options
        return self.replace(options=tuple(sorted(merged.items())))

    def alike(self) -> "Run":
        """Equal for runs that share what is compiled."""
        return self.replace(
            learning_rate=1.0,
            seed=0,
            text=None,
            tokens_per_weight=None,
            steps=None,
            initial=None,
            warmup=None,
            schedule=None,
            base=None,
            epochs=None,
            judged_by=None,
        )


def run_of(record: dict) -> Run:
    """The run of a record from `Run.record`."""

    def plain(values):
        return {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }

    options = tuple(sorted(plain(record["options"]).items()))
    return Run(**{**plain(record), "options": options})


class Results:
    """A table of results, a line of JSON for each run.

    A line has the run's `"record"` and `"id"`, its `"loss"` (null where it
    diverged), what else its kind measures, `"seconds"`, `"machine"`, `"date"`
    and `"commit"`: of the code, or where older results were collected, of
    their first commit. `"questions"` names what it answers.
    `"repeat"` marks another result of a run that has a line already. The file
    need not exist.
    """

    def __init__(self, path: pathlib.Path = RESULTS):
        self.path = path
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line]
        self.lines = [line for line in lines if not line.get("repeat")]
        self.repeats = [line for line in lines if line.get("repeat")]
        self.by_id = {line["id"]: line for line in self.lines}

    def get(self, run: Run) -> dict | None:
        """The line of a run; None if it has not run."""
        return self.by_id.get(run.id)

    def loss(self, run: Run) -> float | None:
        """Its loss; infinite if it diverged, None if it has not run."""
        line = self.get(run)
        if line is None:
            return None
        return float("inf") if line["loss"] is None else line["loss"]

    def of_seeds(self, run: Run, seeds: tuple) -> dict:
        """The lines of a run by seed, where it has run."""
        lines = {seed: self.get(run.replace(seed=seed)) for seed in seeds}
        return {seed: line for seed, line in lines.items() if line is not None}

    def add(self, run: Run, result: dict) -> None:
        """Append the line of a run, with what it measured as JSON has it."""
        line = {"id": run.id, "record": run.record(), **result}
        self.lines.append(line)
        self.by_id[run.id] = line
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


# -- Processes ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs are trained: folders, and processes."""

    texts: pathlib.Path = pathlib.Path("texts")  # and images
    # Tokens, weights and what JAX has compiled.
    cache: pathlib.Path = pathlib.Path("runs", "evidence")
    workers: int = os.cpu_count() or 1  # of a core each; 0: this process
    together: bool = False  # runs that are alike share a GPU's steps


SHARED: dict = {}  # in each process: the cache, and the lock of a GPU


def set_up(cache: pathlib.Path, pin: bool, turn: typing.Any) -> None:
    """Prepare a process, before it imports Keras.

    With `pin` it has one core of its own. `turn` is a lock of whoever trains
    on a GPU: products are then in float32, as on a CPU, not in TensorFloat-32.
    """
    if turn is not None:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    if pin and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        number = multiprocessing.current_process()._identity[0]
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache / "jax-cache")
    SHARED.update(cache=cache, turn=turn)


def train_group(runs: list[Run]) -> list[tuple[Run, dict]]:
    """Train runs that are alike; pairs of a run and its result."""
    kind, cache, turn = runs[0].kind, SHARED["cache"], SHARED["turn"]
    if turn is None:
        module = importlib.import_module(RUNNERS[kind][1])
        results = [module.train(run, cache) for run in runs]
    else:
        module = importlib.import_module(SIDE_BY_SIDE[kind])
        results = module.train(runs, cache, turn)
    about = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
    }
    return [(r, {**x, **about}) for r, x in zip(runs, results, strict=True)]


def machine() -> dict:
    """Milliseconds for a sum of a million squares, and the versions."""
    import keras  # reads its environment, which `set_up` sets

    times = []
    for _ in range(3):
        started = time.perf_counter()
        sum(i * i for i in range(10**6))
        times.append(time.perf_counter() - started)
    backend = importlib.import_module(keras.backend.backend())
    device = backend.devices()[0] if hasattr(backend, "devices") else None
    gpu = getattr(device, "platform", "") == "gpu"
    packages = ("keras", "keras-hub")
    return {
        **({"gpu": device.device_kind} if gpu else {}),
        "sum_of_squares_ms": round(1e3 * min(times)),
        "versions": {
            **{name: importlib.metadata.version(name) for name in packages},
            keras.backend.backend(): backend.__version__,
        },
    }


def commit() -> str | None:
    """The commit of the code; None without git."""
    with contextlib.suppress(OSError):
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() or None
    return None


def train_missing(
    wanted: list[Run], results: Results, place: Place, question: str = ""
) -> None:
    """Train the runs that have no line yet; each leaves its own when it ends.

    Equal ones run once. A line names the question that it answers.
    """
    missing = [r for r in dict.fromkeys(wanted) if results.get(r) is None]
    named = [question] if question else []
    cache = place.cache.resolve()
    _prepare(missing, place.texts, cache)
    for backend in dict.fromkeys(RUNNERS[run.kind][0] for run in missing):
        here = [r for r in missing if RUNNERS[r.kind][0] == backend]
        beside = [r for r in here if place.together and r.kind in SIDE_BY_SIDE]
        alone = [[r] for r in here if r not in beside]
        groups: dict = {}
        for run in beside:
            groups.setdefault(run.alike(), []).append(run)
        os.environ["KERAS_BACKEND"] = backend  # of processes from now on
        for turn, some in ((True, [*groups.values()]), (None, alone)):
            for done in _map(some, cache, place.workers, turn):
                for run, result in done:
                    results.add(run, {**result, "questions": named})
                    show(run, result)


def _prepare(runs, folder, cache):
    """Leave the tokens of the runs' texts in `cache`."""
    from experiments import texts

    for run in runs:
        if run.base:  # the new text in the vocabulary of the old one
            texts.prepare(texts.BASE, folder, cache)
            texts.prepare(run.text, folder, cache, vocabulary_of=texts.BASE)
        elif run.text:
            texts.prepare(run.text, folder, cache, run.vocabulary)
        if run.images:
            texts.copy_images(run.images, folder, cache)


def _map(groups, cache, workers, turn):
    """Results of groups of runs, as they end."""
    if not groups:
        return
    if not workers:
        set_up(cache, False, contextlib.nullcontext() if turn else None)
        yield from map(train_group, groups)
        return
    context = multiprocessing.get_context("spawn")
    lock = context.Lock() if turn else None
    with concurrent.futures.ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=set_up,
        initargs=(cache, workers > 1 and not turn, lock),
    ) as pool:
        futures = [pool.submit(train_group, group) for group in groups]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def show(run: Run, result: dict) -> None:
    """Print one line about a finished run."""
    loss = result["loss"]
    ended = "diverged" if loss is None else f"loss {loss:.4f}"
    print(
        f"{run.model} {run.size or ''} {run.optimizer}, rate "
        f"{run.learning_rate:g}, seed {run.seed}: {ended}, "
        f"{result['seconds']:.0f} s",
        flush=True,
    )

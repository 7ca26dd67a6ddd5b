"""Missing runs, some at a time; each leaves its file when it ends."""

import contextlib
import importlib
import importlib.metadata
import multiprocessing
import os
import platform
import time

from experiments.evidence import trials
from experiments.token_files import write_json

SHARED = {}  # in each process: the folders, and the learner in use


def set_up(cache, results, pin, turn=None):
    """Prepare a process: one core each, and a cache of what is compiled.

    Args:
        cache: Folder of the cache.
        results: Folder of the results.
        pin: Whether this process has one core of its own.
        turn: For a process that shares a GPU with others: a lock of whoever
            trains there. Products of the model are then in float32, as on a
            CPU, not in TensorFloat-32.
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
    SHARED.update(cache=cache, results=results, turn=turn)


def speed():
    """Milliseconds that this machine takes for a sum of a million squares."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        sum(i * i for i in range(10**6))
        times.append(time.perf_counter() - started)
    return round(1e3 * min(times))


def machine():
    """Where a run ran."""
    import keras  # reads its environment, which `set_up` sets

    backend = keras.backend.backend()
    versions = {
        package: importlib.metadata.version(package)
        for package in ("keras", "keras-hub")
    }
    module = importlib.import_module(backend)
    versions[backend] = module.__version__
    device = module.devices()[0] if backend == "jax" else None
    on_gpu = device is not None and device.platform == "gpu"
    return {
        **({"gpu": device.device_kind} if on_gpu else {}),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "sum_of_squares_ms": speed(),
        "versions": versions,
    }


def learner_of(trial):
    """The learner in use, if it trains this trial; else a new one."""
    key = trial.alike()
    if SHARED.get("key") != key:
        SHARED.update(key=key, learner=None)  # the old one's memory first
        SHARED["learner"] = trial.learner()
    return SHARED["learner"]


def run(trial):
    """Train one trial and write its result."""
    result = learner_of(trial).train(trial, SHARED["cache"])
    return write(trial, result)


def run_together(group):
    """Train trials that are alike, side by side, and write their results."""
    from experiments.evidence import together  # imports Keras and JAX

    learner = learner_of(group[0])
    results = together.train(learner, group, SHARED["cache"], SHARED["turn"])
    return [write(*pair) for pair in zip(group, results, strict=True)]


def write(trial, result):
    """Leave the file of a result; the trial, its loss and its seconds."""
    result["machine"] = machine()
    path = trials.path_of(trial, SHARED["results"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    return trial, result["loss"], result["seconds"]


def groups_of(wanted):
    """Trials by what they share, in the order of their first one."""
    groups = {}
    for trial in wanted:
        groups.setdefault(trial.alike(), []).append(trial)
    return list(groups.values())


def run_all(
    wanted, *, cache, results=trials.RESULTS, workers=2, together=False
):
    """Train the trials that have no result yet, in their order.

    Args:
        wanted: Trials; equal ones run once.
        cache: Folder of the tokens and of what JAX has compiled.
        results: Folder of the results.
        workers: Processes at once, one core each; 0 for this process.
        together: Train runs of language models that are alike side by side,
            for a GPU that all processes share.
    """
    missing = [
        trial
        for trial in dict.fromkeys(wanted)
        if trials.read(trial, results) is None
    ]
    if not missing:
        return
    if together:
        alike = [trial for trial in missing if trial.side_by_side]
        train_groups(groups_of(alike), cache, results, workers)
        missing = [trial for trial in missing if not trial.side_by_side]
    if not workers:
        set_up(cache, results, pin=False)
        for trial in missing:
            show(*run(trial))
        return
    for backend in dict.fromkeys(trial.backend for trial in missing):
        os.environ["KERAS_BACKEND"] = backend  # of processes from now on
        shared = (cache, results, workers > 1)
        alike = [trial for trial in missing if trial.backend == backend]
        context = multiprocessing.get_context("spawn")
        with context.Pool(workers, set_up, shared) as pool:
            for done, found in enumerate(pool.imap_unordered(run, alike), 1):
                print(f"{done} of {len(alike)}: ", end="")
                show(*found)


def train_groups(groups, cache, results, workers):
    """Train groups of trials; arguments as `run_all`.

    While one process trains, the others compile.
    """
    if not workers:
        set_up(cache, results, False, contextlib.nullcontext())
        for group in groups:
            for found in run_together(group):
                show(*found)
        return
    os.environ["KERAS_BACKEND"] = "jax"  # of processes from now on
    context = multiprocessing.get_context("spawn")
    shared = (cache, results, False, context.Lock())
    with context.Pool(workers, set_up, shared) as pool:
        for done in pool.imap_unordered(run_together, groups):
            for found in done:
                show(*found)


def show(trial, loss, seconds):
    """One line about a finished run."""
    loss = "diverged" if loss is None else f"loss {loss:.4f}"
    print(
        f"{trial.name}, seed {trial.seed}: {loss}, {seconds:.0f} s", flush=True
    )

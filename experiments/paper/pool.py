"""Many trials, some at a time, and the cache of their results.

`run_all` trains the trials whose result is not on disk yet, and returns the
results of all: experiments share runs, and an interrupted command continues.
"""

import multiprocessing
import os
import time

from experiments.paper.learners import learner
from experiments.paper.trials import group
from experiments.token_files import read_json
from experiments.token_files import write_json

SHARED = {}  # by all runs of a process: tasks, data, folder


def prepare_environment(folder):
    """Set variables that the processes of a pool inherit."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # JAX compiles a step once for all processes and seeds.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "jax-cache")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def set_up(pinned, tasks, data, folder):
    """Prepare a process: one core each, if several work at once."""
    if pinned and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        number = multiprocessing.current_process()._identity[0]
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    SHARED.update(tasks=tasks, data=data, folder=folder)


def train_group(trials):
    """Train trials that differ in rate and seed alone: one compilation."""
    model = learner(trials[0], SHARED["tasks"], SHARED["data"])
    for trial in trials:
        started = time.perf_counter()
        result = model.train(trial)
        result["wall_seconds"] = time.perf_counter() - started
        result["settings"] = trial.settings()
        write_json(SHARED["folder"] / f"{trial.name}.json", result)
    return len(trials)


def run_all(trials, *, tasks, data, folder, workers):
    """Results of all trials, in their order.

    Args:
        trials: Equal ones run once.
        tasks: By name.
        data: By name: tokenizer and tokens, or images.
        folder: Of the results, one file each.
        workers: Processes at once; 0 for this one.
    """
    import tqdm

    folder.mkdir(parents=True, exist_ok=True)
    missing = [
        trial
        for trial in dict.fromkeys(trials)
        if not (folder / f"{trial.name}.json").exists()
    ]
    if missing and workers:
        context = multiprocessing.get_context("spawn")
        prepare_environment(folder)
        shared = (workers > 1, tasks, data, folder)
        progress = tqdm.tqdm(total=len(missing), unit="run")
        with context.Pool(workers, set_up, shared) as pool:
            for done in pool.imap_unordered(train_group, group(missing)):
                progress.update(done)
        progress.close()
    elif missing:
        SHARED.update(tasks=tasks, data=data, folder=folder)
        for alike in group(missing):
            train_group(alike)
    return [read_json(folder / f"{trial.name}.json") for trial in trials]

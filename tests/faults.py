"""The fault campaign: what is broken on purpose, and what came of it.

    make faults
    python tests/faults.py --backend jax --kills 0 --sequences 1000

Four kinds of faults, each a function that returns `Count`s:

- `kills`: a process that trains is killed with SIGKILL at random moments and
  started again; the run must end with the state of an undisturbed one, bit for
  bit.
- `corruptions`: damaged and wrong checkpoints must be refused, with the model
  and the optimizer as they were, or load what was saved.
- `sequences`: gradients with NaN, infinities and huge numbers must leave no NaN
  and no infinity in weights and state; a skipped step leaves all of them as
  they were.
- `values`: a wrong argument must be a ValueError or a TypeError that names it.

The exit status is 1 if anything else happened.
"""

import argparse
import dataclasses
import inspect
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
import warnings

if __name__ == "__main__":
    PARSER = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, default in (
        ("kills", 20),
        ("corruptions", 200),
        ("sequences", 10_000),
        ("values", 1000),
        ("seed", 0),
    ):
        PARSER.add_argument(f"--{option}", type=int, default=default)
    PARSER.add_argument(
        "--backend", default=os.environ.get("KERAS_BACKEND", "torch")
    )
    ARGS = PARSER.parse_args()
    # Keras reads it when it is first imported.
    os.environ["KERAS_BACKEND"] = ARGS.backend

import hypothesis  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from keras import ops  # noqa: E402

from helpers.models import COUNTS  # noqa: E402
from helpers.models import batch_of  # noqa: E402
from helpers.models import make_model  # noqa: E402
from helpers.models import state  # noqa: E402
from helpers.optimizers import arguments_of  # noqa: E402
from helpers.optimizers import lanton  # noqa: E402
from keras_lanton import AuxiliaryAdamW  # noqa: E402
from keras_lanton import Lanton  # noqa: E402
from keras_lanton import NewtonSchulz  # noqa: E402
from keras_lanton import NoiseAdaptiveRate  # noqa: E402
from keras_lanton import baselines  # noqa: E402
from keras_lanton import callbacks  # noqa: E402
from keras_lanton import load_checkpoint  # noqa: E402

# Few Newton-Schulz steps and short intervals, so that all kinds of steps occur.
OPTIONS = {"learning_rate": 0.01, "noise_interval": 3, "ns_steps": 2}


@dataclasses.dataclass
class Count:
    """What came of the faults of one kind.

    Args:
        kind: What was broken.
        injected: How many faults.
        refused: Ended in the right error, with nothing changed.
        harmless: Ended as without the fault.
        unnoticed: Loaded other numbers than were saved, where the format has
            no checksums.
        failures: What happened else.
        note: Printed below the table.
    """

    kind: str
    injected: int = 0
    refused: int = 0
    harmless: int = 0
    unnoticed: int = 0
    failures: list = dataclasses.field(default_factory=list)
    note: str = ""


# -- A model -----------------------------------------------------------------


def built_model(width=6, seed=0, **options):
    """Table, norm and two kernels, built with an optimizer."""
    model = make_model(width, seed=seed)
    model.compile(
        lanton(**{**OPTIONS, **options}), loss="mse", jit_compile=False
    )
    model.optimizer.build(model.trainable_variables)
    return model


def train(model, steps):
    for step in range(steps):
        model.train_on_batch(*batch_of(step))


def equal(found, wanted):
    return len(found) == len(wanted) and all(
        np.array_equal(one, two, equal_nan=True)
        for one, two in zip(found, wanted, strict=True)
    )


def count_steps(model):
    return int(ops.convert_to_numpy(model.optimizer.iterations))


# -- Kills -------------------------------------------------------------------

# Saves are frequent, so that many kills are within one.
STEPS_PER_EPOCH = 6
SAVE_EVERY = 2
START = "forkserver"  # Keras is imported once, not once a kill.


class Batches(keras.utils.PyDataset):
    """Goes on where the optimizer's count of steps is.

    Not where Keras' callback says: it starts the epoch anew that it was killed
    in, and writes weights and epoch one after the other.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.first = 0

    def __len__(self):
        return STEPS_PER_EPOCH

    def __getitem__(self, index):
        return batch_of(self.first + index)


def run_to_the_end(way, folder, steps, started):
    """A process's work: go on from what is in the folder, until all is done.

    Args:
        way: `"backup"`: `keras.callbacks.BackupAndRestore`; `"checkpoint"`:
            `keras.callbacks.ModelCheckpoint`, one file per save.
        folder: Of the run.
        steps: Of the whole run.
        started: An event, set when the first step begins.
    """
    folder = pathlib.Path(folder)
    model = built_model()
    data = Batches(model)

    class Counts(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            data.first = count_steps(model)
            started.set()

        def on_train_batch_end(self, batch, logs=None):
            if count_steps(model) >= steps:
                model.stop_training = True

    if way == "backup":
        remove_cut_off(folder / "backup" / "training_metadata.json")
        replace_at_once(model)
        saves = keras.callbacks.BackupAndRestore(
            folder / "backup", save_freq=SAVE_EVERY, delete_checkpoint=False
        )
    else:
        restore_newest(model, folder)
        saves = keras.callbacks.ModelCheckpoint(
            folder / f"{count_steps(model):06d}-{{epoch:06d}}-{{batch:06d}}"
            ".keras",
            save_freq=SAVE_EVERY,
        )
    if count_steps(model) < steps:
        model.fit(
            data,
            epochs=steps,
            shuffle=False,
            verbose=0,
            callbacks=[saves, Counts()],
        )
    new = folder / "new.npz"
    np.savez(new, *state(model))
    os.replace(new, folder / "end.npz")


def replace_at_once(model):
    """Makes `save_weights` leave the old file or the new one, none between.

    Keras writes over the old file. A kill within that left files that could
    not be opened, also where `double_checkpoint=True` had no copy yet, and may
    leave some that can be opened but lack numbers.
    """
    write = model.save_weights

    def save_weights(filepath, overwrite=True):
        new = pathlib.Path(filepath).with_name("new.weights.h5")
        write(new, overwrite=True)
        os.replace(new, filepath)

    model.save_weights = save_weights


def remove_cut_off(path):
    """Removes Keras' note of the epoch where a kill left it cut off."""
    try:
        json.loads(path.read_text())
    except FileNotFoundError:
        pass
    except ValueError:
        path.unlink()


def restore_newest(model, folder):
    """Loads the newest checkpoint that is whole; removes those cut off."""
    for path in sorted(folder.glob("*.keras"), reverse=True):
        try:
            load_checkpoint(model, path)
            return
        except ValueError:
            path.rename(path.with_suffix(".refused"))


def start(way, folder, steps):
    """A process at work, once its first step begins."""
    context = multiprocessing.get_context(START)
    if START == "forkserver":
        context.set_forkserver_preload(["keras", "keras_lanton"])
    started = context.Event()
    process = context.Process(
        target=run_to_the_end, args=(way, str(folder), steps, started)
    )
    process.start()
    while not started.wait(0.05) and process.exitcode is None:
        pass
    return process


def end_of(folder):
    with np.load(folder / "end.npz") as saved:
        return [saved[name] for name in saved.files]


def kills(count, seed, way, steps=120):
    """Kills one run again and again.

    Where a run is done before all kills are made, another begins.
    """
    result = Count(f"kills, {WAYS[way]}")
    if not count:
        return [result]
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "whole").mkdir()
        begin = time.perf_counter()
        start(way, folder / "whole", steps).join()
        seconds = time.perf_counter() - begin
        wanted = end_of(folder / "whole")
        runs, here = 0, folder / "whole"
        while result.injected < count or not (here / "end.npz").exists():
            if (here / "end.npz").exists():
                runs += 1
                here = folder / str(runs)
                here.mkdir()
            process = start(way, here, steps)
            if result.injected < count:
                process.join(rng.uniform(0.0, seconds / count))
            else:
                process.join()
            if process.exitcode is None:
                process.kill()
                process.join()
                result.injected += 1
            elif process.exitcode != 0:
                result.failures.append(
                    f"after {result.injected} kills the run does not go on: "
                    f"exit status {process.exitcode}"
                )
                break
            # Also where the kill came after the end.
            if not (here / "end.npz").exists():
                continue
            if equal(end_of(here), wanted):
                result.harmless = result.injected
            else:
                result.failures.append("the run ends with another state")
        cut_off = sum(
            len(list((folder / str(r)).glob("*.refused")))
            for r in range(1, runs + 1)
        )
        result.note = f"{result.kind}: {runs} runs of {steps} steps"
        if way == "checkpoint":
            result.note += f"; {cut_off} kills were within a save"
    return [result]


WAYS = {"backup": "BackupAndRestore", "checkpoint": "ModelCheckpoint"}


# -- Corruptions -------------------------------------------------------------


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def flip(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def zero(data, rng):
    data = bytearray(data)
    size = rng.randint(1, min(4096, len(data)))
    first = rng.randrange(len(data) - size + 1)
    data[first : first + size] = bytes(size)
    return bytes(data)


DAMAGES = {"cut off": cut, "flipped": flip, "zeroed": zero}
# Files that are whole, but not of this model and optimizer.
OTHERS = {
    "another width": {"width": 5},
    "another reference": {"noise_reference": "momentum"},
    "other roles for AdamW": {"adamw_roles": ("embedding", "vector")},
    "averages": {"use_ema": True},
}


def save(model, folder, name):
    """Both kinds of files."""
    for kind, write in (
        (".keras", model.save),
        (".weights.h5", model.save_weights),
    ):
        write(folder / f"{name}{kind}")


def load_whole(victim, path):
    """`keras.models.load_model`, as state; the victim is not involved."""
    return state(keras.models.load_model(path))


def load_into(victim, path):
    load_checkpoint(victim, path)
    return state(victim)


# Which file, how it is loaded, and whether damage may go unnoticed: HDF5 files
# of Keras have no checksums.
LOADERS = {
    ".keras, load_checkpoint": (".keras", load_into, False),
    ".weights.h5, load_checkpoint": (".weights.h5", load_into, True),
    ".keras, keras.models.load_model": (".keras", load_whole, False),
}
SHARES = (2, 2, 1)


def corruptions(count, seed):
    """Damages files and loads them, one row per loader."""
    rng = random.Random(seed)
    results = {name: Count(f"corruptions, {name}") for name in LOADERS}
    order = [
        name
        for name, share in zip(LOADERS, SHARES, strict=True)
        for _ in range(share)
    ]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = built_model()
        train(model, 7)
        wanted = state(model)
        save(model, folder, "saved")
        for name, options in OTHERS.items():
            other = built_model(**options)
            train(other, 3)
            save(other, folder, name)
        victim = built_model(seed=1)
        train(victim, 2)
        before = state(victim)
        for i in range(count):
            name = order[i % len(order)]
            suffix, load, may_pass = LOADERS[name]
            # A whole file of something else is none for `load_model`.
            kinds = [*DAMAGES, *([] if load is load_whole else OTHERS)]
            damage = rng.choice([*DAMAGES, rng.choice(kinds)])
            # A name of its own: HDF5 takes a file that an earlier error left
            # open for what it was then.
            path = folder / f"damaged{i}{suffix}"
            if damage in OTHERS:
                shutil.copy(folder / f"{damage}{suffix}", path)
            else:
                data = (folder / f"saved{suffix}").read_bytes()
                path.write_bytes(DAMAGES[damage](data, rng))
            judge(
                results[name],
                f"{name}, number {i}, {damage}",
                lambda load=load, path=path: load(victim, path),
                victim,
                before,
                wanted,
                may_pass=may_pass and damage in ("flipped", "zeroed"),
                any_error=load is load_whole,
            )
            path.unlink()
            if not equal(state(victim), before):
                put_back(victim, before)
    return list(results.values())


def judge(
    result, what, load, victim, before, wanted, *, may_pass, any_error=False
):
    """Loads, and counts what came of it."""
    result.injected += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = load()
    except Exception as error:
        if not any_error and not isinstance(error, ValueError):
            result.failures.append(f"{what}: {type(error).__name__}: {error}")
        elif not equal(state(victim), before):
            result.failures.append(f"{what}: half-loaded: {error}")
        else:
            result.refused += 1
        return
    if equal(found, wanted):
        result.harmless += 1
    elif may_pass:
        result.unnoticed += 1
    else:
        result.failures.append(f"{what}: loaded other values than were saved")


def put_back(model, values):
    variables = [*model.variables, *model.optimizer.variables]
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value.astype(variable.dtype))


# -- Gradient sequences ------------------------------------------------------

SHAPES = {
    "tokens/embeddings": (5, 3),
    "first/kernel": (3, 4),
    "first/bias": (4,),
}
SIZES = (1.0, 0.0, 1e-30, 1e-3, 1e10, 1e19, 1e30)
BAD = (np.nan, np.inf, -np.inf)
# One gradient: its seed, its size, and what stands where in it.
GRADIENT = st.tuples(
    st.integers(0, 99),
    st.sampled_from(SIZES),
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(BAD)), max_size=2),
)
SEQUENCE = st.lists(
    st.tuples(*[GRADIENT] * len(SHAPES)), min_size=1, max_size=4
)
SETTINGS = (
    {},
    {"noise_reference": "momentum", "adamw_roles": ("embedding", "vector")},
    {"adamw_roles": (), "noise_schedule": "interval", "group_reduction": "max"},
)


class Stepper:
    """An optimizer on bare variables that starts over."""

    def __init__(self, **options):
        self.variables = []
        for path, shape in SHAPES.items():
            layer, name = path.split("/")
            with keras.name_scope(layer):
                self.variables.append(
                    keras.Variable(np.ones(shape, "float32"), name=name)
                )
        self.optimizer = lanton(**{**OPTIONS, "noise_interval": 1, **options})
        self.optimizer.build(self.variables)
        self.all = [*self.variables, *self.optimizer.variables]
        self.first = [np.array(ops.convert_to_numpy(v.value)) for v in self.all]
        self.step = self._compiled() or self._step

    def _compiled(self):
        if keras.backend.backend() != "jax":
            return None
        import jax

        stateless = jax.jit(self.optimizer.stateless_apply)

        def step(gradients):
            weights = [v.value for v in self.variables]
            slots = [v.value for v in self.optimizer.variables]
            weights, slots = stateless(slots, gradients, weights)
            values = [*weights, *slots]
            for variable, value in zip(self.all, values, strict=True):
                variable.assign(value)

        return step

    def _step(self, gradients):
        self.optimizer.apply(
            [ops.convert_to_tensor(g) for g in gradients], self.variables
        )

    def start_over(self):
        for variable, value in zip(self.all, self.first, strict=True):
            variable.assign(value)

    def values(self):
        return {
            f"{i} {v.name}": np.array(ops.convert_to_numpy(v.value))
            for i, v in enumerate(self.all)
        }


def make_gradients(drawn):
    """Of one step, and whether all of it is finite."""
    made = []
    for (seed, size, holes), shape in zip(drawn, SHAPES.values(), strict=True):
        rng = np.random.default_rng(seed)
        gradient = (size * rng.standard_normal(shape)).astype("float32")
        for place, bad in holes:
            gradient.flat[place % gradient.size] = bad
        made.append(gradient)
    return made, all(np.isfinite(g).all() for g in made)


def check_sequence(stepper, drawn):
    """AssertionError if the state is poisoned; returns the steps skipped."""
    stepper.start_over()
    before, skipped = stepper.values(), 0
    for t, one in enumerate(drawn):
        gradients, finite = make_gradients(one)
        stepper.step(gradients)
        after = stepper.values()
        skipped += not finite
        for key, value in after.items():
            assert np.isfinite(value).all(), f"step {t}: {key} is not finite"
            counts = key.endswith(COUNTS)
            if not finite and not counts:
                assert np.array_equal(value, before[key]), f"step {t}: {key}"
        assert stepper.optimizer.skipped_steps == skipped
        before = after
    return skipped


def sequences(count, seed):
    """Sequences of gradients, drawn by hypothesis."""
    result = Count("gradient sequences")
    bad_steps = 0
    shares = [count // 3, count // 3, count - 2 * (count // 3)]
    for options, share in zip(SETTINGS, shares, strict=True):
        if not share:
            continue
        stepper = Stepper(**options)

        def one(stepper, drawn):
            nonlocal bad_steps
            result.injected += 1
            bad_steps += check_sequence(stepper, drawn)
            result.harmless += 1

        settings = hypothesis.settings(
            max_examples=share,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        given = hypothesis.given(drawn=SEQUENCE)
        run = hypothesis.seed(seed)(settings(given(one)))
        try:
            run(stepper)
        except Exception as error:
            notes = "; ".join(getattr(error, "__notes__", []))
            result.failures.append(f"{options}: {error} {notes}")
    result.note = f"gradient sequences: {bad_steps} steps were not finite"
    return [result]


# -- Wrong values of arguments -----------------------------------------------


class Odd:
    """No number, no string, and it cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


def number(rng):
    sizes = (0.0, 1.0, 1e-3, 1e-300, 1e39, 1e300, float("inf"), float("nan"))
    return rng.choice(sizes) * rng.choice((-1, 1)) * rng.random()


def integer(rng):
    return rng.choice((-1, 1)) * rng.choice(
        (0, 1, 2, 3, 7, 2**31, 2**63, 10**30, 10**400, 10**5000)
    )


def text(rng):
    known = ("", "(", "muon", "nan", "1e-3", "a/b", "hidden", "vector", "None")
    if rng.random() < 0.5:
        return rng.choice(known)
    return "".join(chr(rng.randrange(1, 0x3000)) for _ in range(3))


def scalar(rng):
    kinds = (
        number,
        integer,
        text,
        lambda r: text(r).encode("utf-8", "replace"),
        lambda r: complex(r.random(), r.choice((0.0, 1.0, float("nan")))),
        lambda r: np.complex64(complex(r.random(), 1.0)),
        lambda r: np.float16(number(r)),
        lambda r: np.float64(number(r)),
        lambda r: np.int64(r.randrange(-3, 4)),
        lambda r: np.bool_(r.random() < 0.5),
        lambda r: r.choice((None, True, False, Ellipsis, NotImplemented)),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        return rng.choice(kinds)(rng)


def container(rng):
    size = rng.randrange(4)
    items = [scalar(rng) for _ in range(size)]
    kinds = (
        lambda: items,
        lambda: tuple(items),
        lambda: [items] * size,
        lambda: {text(rng): one for one in items},
        lambda: {i: one for i, one in enumerate(items)},
        lambda: set(map(str, range(size))),
        lambda: np.zeros(rng.choice(((), (0,), (2,), (2, 3)))),
        lambda: np.full((2,), np.nan),
        lambda: np.array([None, "a"], object),
        lambda: range(size),
        lambda: [{}, {"role": "hidden"}][: 1 + size % 2],
        lambda: [{"role": [], "shape": "abc"}],
    )
    return rng.choice(kinds)()


def thing(rng):
    kinds = (
        object,
        Odd,
        lambda: Odd,
        lambda: int,
        lambda: lambda: None,
        lambda: iter(()),
        lambda: itertools.count(),
        lambda: keras.Variable(1.0),
        lambda: keras.initializers.Zeros(),
        lambda: sys,
        Exception,
    )
    return rng.choice(kinds)()


def wrong_value(rng):
    return rng.choice((scalar, scalar, container, thing))(rng)


def parameters(make):
    """Names of all arguments, those behind `**kwargs` too."""
    return list(arguments_of(make.__self__ if inspect.ismethod(make) else make))


# What an argument needs beside it in order to be looked at.
NEEDS = {
    "rank": {"estimator": "randomized_svd"},
    "power_iterations": {"estimator": "randomized_svd"},
    "vector_scale": {"auxiliary_adamw": None},
    "vector_norm": {"auxiliary_adamw": None},
    "ema_momentum": {"use_ema": True},
    "ema_overwrite_frequency": {"use_ema": True},
}
CONSTRUCTORS = {
    "Lanton": Lanton,
    "Lanton.paper": Lanton.paper,
    "NoiseAdaptiveRate": NoiseAdaptiveRate,
    "NewtonSchulz": NewtonSchulz,
    "AuxiliaryAdamW": AuxiliaryAdamW,
    "NoiseMonitor": callbacks.NoiseMonitor,
    **{name: getattr(baselines, name) for name in baselines.__all__},
}


def needed(make, name):
    """Other arguments of this call."""
    return {
        other: value
        for other, value in NEEDS.get(name, {}).items()
        if other in parameters(make)
    }


def values(count, seed):
    """Wrong values for every argument of every public class."""
    results = []
    for title, make in CONSTRUCTORS.items():
        names = parameters(make)
        result = Count(f"arguments of {title} ({len(names)})")
        for name in names:
            rng = random.Random(f"{seed} {title} {name}")
            others = needed(make, name)
            for _ in range(count):
                try_value(result, make, title, name, wrong_value(rng), others)
        results.append(result)
    return results


def try_value(result, make, title, name, value, others):
    result.injected += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make(**{**others, name: value})
    except (ValueError, TypeError) as error:
        if name in str(error):
            result.refused += 1
            return
        problem = f"{type(error).__name__} without the name: {error}"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        result.harmless += 1
        return
    kind = type(value).__name__
    result.failures.append(f"{title}({name}=<{kind}>): {problem}"[:300])


# -- The table ---------------------------------------------------------------


def print_table(results):
    titles = ("injected", "refused", "harmless", "unnoticed", "failed")
    print(("{:<46}" + "{:>10}" * len(titles)).format("fault", *titles))
    for one in results:
        numbers = (
            one.injected,
            one.refused,
            one.harmless,
            one.unnoticed,
            len(one.failures),
        )
        print(("{:<46}" + "{:>10}" * len(titles)).format(one.kind, *numbers))
    for one in results:
        if one.note:
            print(one.note)
    for one in results:
        for failure in one.failures[:5]:
            print(f"FAILED {failure}")


def main(args):
    """The whole campaign; the exit status."""
    results = []
    for kind, run in (
        # First: on PyTorch no process forks well after a backward pass.
        ("kills", lambda n, s: kills(n, s, "backup")),
        ("kills", lambda n, s: kills(n, s, "checkpoint")),
        ("corruptions", corruptions),
        ("sequences", sequences),
        ("values", values),
    ):
        count = getattr(args, kind)
        if count:
            begin = time.perf_counter()
            results += run(count, args.seed)
            seconds = time.perf_counter() - begin
            print(f"{kind}: {seconds:.0f} s", file=sys.stderr)
    print_table(results)
    return int(any(one.failures for one in results))


if __name__ == "__main__":
    sys.exit(main(ARGS))

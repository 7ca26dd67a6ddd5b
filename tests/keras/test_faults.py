"""What is broken on purpose, and what must come of it.

- Kills: a run that is killed at random moments and started again must end with
  the state of an undisturbed one, bit for bit.
- Corruptions: damaged and wrong checkpoints must be refused, with the model
  and the optimizer as they were, or load what was saved.
- Sequences: gradients with NaN, infinities and huge numbers must leave no NaN
  and no infinity in weights and state; a skipped step leaves all of them as
  they were.
- Values: a wrong argument must be a ValueError or a TypeError that names it.

`make faults` breaks `FAULTS` times as many.
"""

import inspect
import itertools
import os
import random
import shutil
import sys
import warnings

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st

import faults
from helpers.models import COUNTS
from helpers.models import to_arrays
from helpers.optimizers import NEEDS
from helpers.optimizers import arguments_of
from helpers.optimizers import lanton
from helpers.tiers import exhaustive
from helpers.tiers import logic
from helpers.variables import Steps
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from keras_lanton import baselines
from keras_lanton import callbacks
from keras_lanton import load_checkpoint

BACKEND = keras.backend.backend()
FAULTS = int(os.environ.get("FAULTS", "1"))


def examples(count):
    """Settings of hypothesis for so many examples, times `FAULTS`."""
    return hypothesis.settings(
        max_examples=count * FAULTS,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@exhaustive
@pytest.mark.skipif(BACKEND != "torch", reason="nothing here is the backend's")
@pytest.mark.parametrize("way", faults.WAYS)
def test_kills(way):
    faults.kill_and_go_on(way, 2 * FAULTS, steps=24 if FAULTS == 1 else 120)


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


# Files that are whole, but not of this model and optimizer.
OTHERS = {
    "another width": {"width": 5},
    "another reference": {"noise_reference": "momentum"},
    "other roles for AdamW": {"adamw_roles": ("embedding", "vector")},
    "averages": {"use_ema": True},
}


def load_whole(victim, path):
    """As state; the victim is not involved."""
    return faults.state(keras.models.load_model(path))


def load_into(victim, path):
    load_checkpoint(victim, path)
    return faults.state(victim)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of saved models, and the state of the right one."""
    folder = tmp_path_factory.mktemp("saved")
    for name, options in {"right": {}, **OTHERS}.items():
        model = faults.built_model(**options)
        faults.train(model, 3)
        model.save(folder / f"{name}.keras")
        model.save_weights(folder / f"{name}.weights.h5")
        if name == "right":
            wanted = faults.state(model)
    return folder, wanted


@logic
@pytest.mark.parametrize(
    ("suffix", "load"),
    [(".keras", load_into), (".weights.h5", load_into), (".keras", load_whole)],
    ids=["keras", "h5", "load_model"],
)
def test_corruptions(suffix, load, saved, tmp_path):
    folder, wanted = saved
    rng = random.Random(0)
    victim = faults.built_model(seed=1)
    faults.train(victim, 2)
    before = faults.state(victim)
    # A whole file of something else is none for `load_model`.
    kinds = [cut, flip, zero, *(OTHERS if load is load_into else ())]
    for i, damage in zip(range(14 * FAULTS), itertools.cycle(kinds)):
        # A name of its own: HDF5 takes a file that an earlier error left open
        # for what it was then.
        path = tmp_path / f"damaged{i}{suffix}"
        if damage in OTHERS:
            shutil.copy(folder / f"{damage}{suffix}", path)
        else:
            data = (folder / f"right{suffix}").read_bytes()
            path.write_bytes(damage(data, rng))
        check_load(load, victim, path, before, wanted, damage)
        path.unlink()
        faults.put_back(victim, before)


def check_load(load, victim, path, before, wanted, damage):
    """AssertionError unless it is refused, or loads what was saved."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = load(victim, path)
    except Exception as error:
        # Keras' own loader may raise anything.
        assert load is load_whole or isinstance(error, ValueError), error
        assert faults.equal(faults.state(victim), before), "half-loaded"
    else:
        # HDF5 files of Keras have no checksums.
        unnoticed = path.suffix == ".h5" and damage in (flip, zero)
        assert unnoticed or faults.equal(found, wanted), (path, damage)


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


@logic
@pytest.mark.parametrize("options", SETTINGS, ids=["default", "adamw", "all"])
def test_sequences(options):
    variables = []
    for path, shape in SHAPES.items():
        layer, name = path.split("/")
        with keras.name_scope(layer):
            value = np.ones(shape, "float32")
            variables.append(keras.Variable(value, name=name))
    settings = {**faults.OPTIONS, "noise_interval": 1, **options}
    optimizer = lanton(**settings)
    optimizer.build(variables)
    step = Steps(optimizer, variables)
    everything = [*variables, *optimizer.variables]
    first = to_arrays(everything)

    # Eager steps, and compiling, take long elsewhere.
    @examples(30 if BACKEND == "torch" else 3)
    @hypothesis.given(drawn=SEQUENCE)
    def check(drawn):
        for variable, value in zip(everything, first, strict=True):
            variable.assign(value)
        before, skipped = first, 0
        for t, one in enumerate(drawn):
            gradients, finite = make_gradients(one)
            step(gradients)
            after = to_arrays(everything)
            skipped += not finite
            for variable, old, new in zip(
                everything, before, after, strict=True
            ):
                assert np.isfinite(new).all(), (t, variable.path)
                if not finite and variable.name not in COUNTS:
                    assert np.array_equal(new, old), (t, variable.path)
            before = after
        assert optimizer.skipped_steps == skipped

    check()


# -- Wrong values of arguments -----------------------------------------------


class Odd:
    """No number, no string, and it cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    # The last one is too long for Python to print.
    st.sampled_from((31, 63, 2000, 20_000)).map(lambda bits: 2**bits),
    st.sampled_from((1e39, -1e300)),
    st.floats(),
    st.complex_numbers(),
    st.floats(width=16).map(np.float16),
    st.integers(-3, 3).map(np.int64),
    st.booleans().map(np.bool_),
    st.text(max_size=3),
    st.sampled_from(("(", "muon", "1e-3", "a/b", "hidden", "vector")),
    st.binary(max_size=3),
)
CONTAINERS = st.one_of(
    st.lists(SCALARS, max_size=3),
    st.lists(SCALARS, max_size=3).map(tuple),
    st.lists(st.lists(SCALARS, max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=2), SCALARS, max_size=3),
    st.dictionaries(st.integers(0, 3), SCALARS, max_size=3),
    st.sets(st.text(max_size=1)),
    st.sampled_from(((), (0,), (2,), (2, 3))).map(np.zeros),
    st.sampled_from(([{}, {"role": "hidden"}], [{"role": [], "shape": "a"}])),
)
THINGS = st.sampled_from(
    (
        object,
        Odd,
        lambda: Odd,
        lambda: int,
        lambda: lambda: None,
        lambda: iter(()),
        itertools.count,
        lambda: np.array([None, "a"], object),
        lambda: keras.Variable(1.0),
        keras.initializers.Zeros,
        lambda: sys,
        lambda: ...,
    )
).map(lambda make: make())
CONSTRUCTORS = {
    "Lanton": Lanton,
    "Lanton.paper": Lanton.paper,
    "NoiseAdaptiveRate": NoiseAdaptiveRate,
    "NewtonSchulz": NewtonSchulz,
    "AuxiliaryAdamW": AuxiliaryAdamW,
    "NoiseMonitor": callbacks.NoiseMonitor,
    **{name: getattr(baselines, name) for name in baselines.__all__},
}


@logic
@pytest.mark.parametrize("title", CONSTRUCTORS)
def test_values(title):
    make = CONSTRUCTORS[title]
    # All arguments, those behind `**kwargs` too.
    owner = make.__self__ if inspect.ismethod(make) else make
    names = list(arguments_of(owner))

    @examples(10 * len(names))
    @hypothesis.given(
        name=st.sampled_from(names), value=SCALARS | CONTAINERS | THINGS
    )
    def check(name, value):
        beside = NEEDS.get(name, {})
        beside = {key: one for key, one in beside.items() if key in names}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                make(**{**beside, name: value})
        except (ValueError, TypeError) as error:
            assert name in str(error)

    check()


# -- Bad days ----------------------------------------------------------------
def test_batch_of_zeros():
    """No gradient reaches a kernel behind zeros: it stays, the bias moves."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, name="dense")(inputs))
    optimizer = lanton(**faults.OPTIONS)
    model.compile(optimizer, loss="mse", jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 4)), rng.standard_normal((4, 3))
    model.train_on_batch(x, y)
    kernel, bias = to_arrays(model.weights)
    state = to_arrays(optimizer.variables)
    model.train_on_batch(np.zeros_like(x), y)
    after = to_arrays(model.weights)
    np.testing.assert_array_equal(after[0], kernel)
    assert np.abs(after[1] - bias).max() > 1e-4
    for variable, old, new in zip(
        optimizer.variables, state, to_arrays(optimizer.variables), strict=True
    ):
        if variable.name in ("dense_kernel_momentum", "noise"):
            np.testing.assert_array_equal(new, old)
    # Targets of zero as well: nothing moves at all, and nothing is skipped.
    model.get_layer("dense").bias.assign(np.zeros(3))
    before = to_arrays(model.weights)
    model.train_on_batch(np.zeros_like(x), np.zeros_like(y))
    assert faults.equal(to_arrays(model.weights), before)
    assert optimizer.skipped_steps == 0


def test_learning_rate_that_goes_to_zero():
    """From then on only the state moves; nothing divides by the rate."""
    model = faults.built_model(
        learning_rate=keras.optimizers.schedules.PolynomialDecay(0.1, 4, 0.0)
    )
    faults.train(model, 4)
    weights = to_arrays(model.trainable_variables)
    state = to_arrays(model.optimizer.variables)
    faults.train(model, 4)
    assert faults.equal(to_arrays(model.trainable_variables), weights)
    after = to_arrays(model.optimizer.variables)
    assert not faults.equal(after, state)
    assert all(np.isfinite(x).all() for x in after)
    for one in model.optimizer.noise_report().values():
        np.testing.assert_array_equal(one["learning_rate"], 0.0)


def test_weights_with_infinities():
    """The gradients are NaN, all steps are skipped, the rest is as it was."""
    model = faults.built_model()
    faults.train(model, 2)
    kernel = model.get_layer("second").kernel
    value = to_arrays([kernel])[0]
    value[0, 0] = np.inf
    kernel.assign(value)
    before = faults.state(model)
    faults.train(model, 3)
    assert model.optimizer.skipped_steps == 3
    variables = [*model.variables, *model.optimizer.variables]
    for variable, old, new in zip(
        variables, before, faults.state(model), strict=True
    ):
        if variable.name not in COUNTS:
            np.testing.assert_array_equal(new, old, variable.path)

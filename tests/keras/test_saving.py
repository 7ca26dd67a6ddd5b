"""Stop and go on: configs, `.keras` files, weights, between backends.

Run as a script, `test_saving.py FOLDER RUN` writes what the current backend
saves and reaches, for the comparison between backends.
"""

import copy
import importlib.util
import itertools
import json
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

from helpers.models import dtype_policy
from helpers.models import make_data
from helpers.optimizers import DEFAULTS
from helpers.optimizers import arguments_of
from helpers.optimizers import paper
from helpers.processes import LIMIT
from helpers.processes import environment
from helpers.saves import COMPILED
from helpers.saves import OPTIONS
from helpers.saves import apply
from helpers.saves import assert_same
from helpers.saves import compiled_model
from helpers.saves import resumed
from helpers.saves import state
from helpers.saves import train
from helpers.saves import with_roles
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate

BACKEND = keras.backend.backend()
BACKENDS = {"jax", "torch", "tensorflow"}
INDEPENDENT = {
    "noise_reference": "independent_gradient",
    "gradient_accumulation_steps": 4,
    "noise_interval": 1,
}


# -- Configs ---------------------------------------------------------------


@keras.saving.register_keras_serializable(package="test_saving")
def half_a_percent():
    return 0.005


SCHEDULE = keras.optimizers.schedules.CosineDecay(
    0.01, 10, warmup_target=0.02, warmup_steps=3
)
RECORD = {
    "path": "first/kernel",
    "role": "embedding",
    "shape": [4, 6],
    "batch_axes": [],
    "input_axes": [0],
    "output_axes": [1],
    "output_blocks": 1,
}


# Every argument at another value than its default, in as few optimizers as
# exclusive options need: a reference other than the previous gradient has no
# dtype of it, the operator's scale no hidden one, AdamW moves embeddings or
# they have a scale, and Keras clips in one way. Odd values: they are no
# defaults to come either.
ADAMW = {
    "lr_ratio": 0.37,
    "beta_1": 0.83,
    "beta_2": 0.973,
    "epsilon": 3e-6,
    "weight_decay": 0.07,
    "epsilon_before_debiasing": True,
}
NOISE = {
    "alpha": 0.77,
    "within_matrices": False,
    "alpha_unit": "absolute",
    "group_reduction": "max",
    "beta_2": 0.5,
    "interval": 3,
    "schedule": "interval",
    "estimator": "randomized_svd",
}
OWN = {
    "beta_1": 0.83,
    "nesterov": False,
    "momentum_warmup": False,
    "newton_schulz": NewtonSchulz(
        steps=3,
        coefficients=[[2.0, -1.5, 0.5], [1.875, -1.25, 0.375]],
        dtype="bfloat16",
        max_temporary_bytes=2**20,
        shard=False,
    ),
    "momentum_dtype": "bfloat16",
    "nonfinite": "propagate",
    "weight_decay": 0.3,
    "weight_decay_exclude": ["bias$", "norm/"],
    "rate_multipliers": {"kernel": 0.5},
    "name": "other",
}
EVERYTHING = {
    "independent_gradient": {
        "learning_rate": 0.03,
        **OWN,
        "noise": NoiseAdaptiveRate(reference="independent_gradient", **NOISE),
        "gradient_accumulation_steps": 2,
        "hidden_scale": 0.43,
        "vector_scale": 0.5,
        "vector_norm": "sign",
        "auxiliary_adamw": AuxiliaryAdamW(roles=["embedding"], **ADAMW),
        "clipvalue": 2.0,
    },
    "previous_gradient": {
        "learning_rate": SCHEDULE,
        **OWN,
        "noise": NoiseAdaptiveRate(previous_gradient_dtype="bfloat16", **NOISE),
        "step_scale": "operator",
        "embedding_scale": 3.0,
        "auxiliary_adamw": AuxiliaryAdamW(**ADAMW),
        "rounding": "stochastic",
        "clipnorm": 2.0,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 5,
        "loss_scale_factor": 8.0,
    },
}
CONFIGS = {
    "defaults": (Lanton, {}),
    "paper": (Lanton.paper, {}),
    "roles": (Lanton, {"roles": [RECORD], "global_clipnorm": 2.0}),
    **{name: (Lanton, options) for name, options in EVERYTHING.items()},
}
PARTS = ("noise", "newton_schulz", "auxiliary_adamw")


@logic
def test_no_argument_is_forgotten():
    """By the signatures: a new argument needs a value in `EVERYTHING`."""
    made = [options for _, options in CONFIGS.values()]
    for name, default in arguments_of(Lanton).items():
        assert any(o.get(name, default) != default for o in made), name
    for part in PARTS:
        of_part = [options[part] for options in EVERYTHING.values()]
        for name, default in arguments_of(type(of_part[0])).items():
            assert any(getattr(o, name) != default for o in of_part), name


@pytest.mark.parametrize("name", keep(EVERYTHING, ["previous_gradient"]))
def test_every_argument_survives(name, tmp_path):
    """Saved and loaded with nothing at its default: config, state, steps."""
    options = EVERYTHING[name]
    stochastic = options.get("rounding") == "stochastic"
    dtype = "bfloat16" if stochastic else None
    model = compiled_model(Lanton(**options), dtype)
    apply(model, 0, 5)
    resumed(model, tmp_path, lambda one: apply(one, 5, 9))


@logic
@pytest.mark.parametrize("name", CONFIGS)
def test_config_round_trip(name):
    """Through JSON, by class and by registered name."""
    make, options = CONFIGS[name]
    optimizer = make(**options)
    config = json.loads(json.dumps(optimizer.get_config()))
    whole = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    assert whole["registered_name"] == "keras_lanton>Lanton"
    # Keras' `from_config` changes its argument if it holds a schedule.
    for loaded in (
        Lanton.from_config(copy.deepcopy(config)),
        keras.optimizers.deserialize(whole),
    ):
        assert isinstance(loaded, Lanton)
        assert loaded.get_config() == config
        for part in PARTS:
            assert getattr(loaded, part) == getattr(optimizer, part)
    for name in options.keys() - {*PARTS, "learning_rate"}:
        assert config[name] == options[name], name
    for name in options.keys() & {*PARTS}:
        part, of_part = options[name], config[name]
        assert (
            of_part["registered_name"] == f"keras_lanton>{type(part).__name__}"
        )
        assert of_part["config"].keys() == arguments_of(type(part)).keys()
        assert keras.saving.deserialize_keras_object(of_part) == part


@logic
@pytest.mark.parametrize(
    ("rate", "at"),
    [
        (0.03, lambda step: 0.03),
        (half_a_percent, lambda step: half_a_percent()),
        (SCHEDULE, SCHEDULE),
    ],
)
def test_rate_of_a_config(rate, at):
    config = json.loads(json.dumps(Lanton(rate).get_config()))
    loaded = Lanton.from_config(config)
    for step in range(15):
        assert float(loaded.learning_rate) == pytest.approx(float(at(step)))
        loaded.iterations.assign(step + 1)


@logic
def test_config_does_not_share_state():
    """Changing a config, or what was passed in, changes no optimizer."""
    patterns, rows = ["bias"], [[1.875, -1.25, 0.375]]
    part = NewtonSchulz(coefficients=rows)
    optimizer = Lanton(weight_decay_exclude=patterns, newton_schulz=part)
    wanted = json.dumps(optimizer.get_config(), sort_keys=True)
    optimizer.get_config()["weight_decay_exclude"].append("kernel")
    config = optimizer.get_config()["newton_schulz"]["config"]
    config["coefficients"][0][0] = 0.0
    patterns.append("kernel")
    rows[0][0] = 0.0
    assert json.dumps(optimizer.get_config(), sort_keys=True) == wanted


@logic
def test_a_file_from_when_every_name_was_the_class():
    """Its name is kept, whatever this process has numbered so far."""
    old = {**Lanton().get_config(), "name": "lanton"}
    for _ in range(2):
        assert Lanton.from_config(old).name == "lanton"
    assert Lanton(name="mine").name == "mine"
    first, second = Lanton(), Lanton()
    assert first.name != second.name
    assert first.name.startswith("lanton")


# -- Roles -----------------------------------------------------------------


@pytest.mark.parametrize("read", keep([False, True], [False]))
def test_roles_survive(read, tmp_path):
    """Assigned ones that nobody would infer, and those read of a model."""
    model = compiled_model()
    optimizer = paper(**OPTIONS)
    if read:
        optimizer.read_roles(model)
    else:
        with_roles(model, optimizer)
    model.compile(optimizer=optimizer, **COMPILED)
    optimizer.build(model.trainable_variables)
    by_path = {one.path: one for one in optimizer.layers}
    if not read:
        first = by_path["first/kernel"]
        assert (first.role, first.d_in, first.d_out) == ("embedding", 6, 4)
        assert by_path["second/kernel"].role == "vector"
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.layers == optimizer.layers


# -- Resuming --------------------------------------------------------------

# Options, and after how many steps the state is saved. The first two runs
# measure their noise on different steps than they save on, and on the same.
RUNS = {
    "previous_gradient": (
        {
            "nesterov": True,
            "loss_scale_factor": 8.0,
            "within_matrices": True,
            "alpha_unit": "signal",
        },
        (1, 3, 4, 6),
    ),
    "defaults": (
        {**DEFAULTS, "noise_interval": 3, "momentum_dtype": "bfloat16"},
        (1, 4, 6),
    ),
    "independent_gradient": (INDEPENDENT, (2, 4, 7)),
    "momentum": (
        {
            "noise_reference": "momentum",
            "learning_rate": SCHEDULE,
            "clipnorm": 0.1,
            "use_ema": True,
            "ema_momentum": 0.8,
            "ema_overwrite_frequency": 3,
            "weight_decay_exclude": ["bias", "norm/"],
        },
        (4, 5),
    ),
}


@pytest.mark.parametrize(
    "name", keep(RUNS, ["defaults", "independent_gradient"])
)
def test_resume(name, tmp_path):
    """Bit for bit, from a `.keras` file and from saved weights."""
    options, stops = RUNS[name]
    end = 9
    model = compiled_model(paper(**{**OPTIONS, **options}))
    for start, stop in zip((0, *stops), (*stops, end), strict=True):
        train(model, start, stop)
        if stop != end:
            model.save_weights(tmp_path / f"{stop}.weights.h5")
            model.save(tmp_path / f"{stop}.keras")
    wanted = state(model)
    assert model.optimizer.skipped_steps == 1
    assert max(
        one["noise"].max() for one in model.optimizer.noise_report().values()
    )

    loaded = keras.models.load_model(tmp_path / f"{stops[-1]}.keras")
    assert loaded.optimizer.layers == model.optimizer.layers
    train(loaded, stops[-1], end)
    assert_same(state(loaded), wanted)

    for stop in stops:  # into a model that has moved on
        loaded.load_weights(tmp_path / f"{stop}.weights.h5")
        train(loaded, stop, end)
        assert_same(state(loaded), wanted)


def test_weights_without_a_built_optimizer(tmp_path):
    """Keras says that it leaves the optimizer's state out."""
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 1)
    model.save_weights(tmp_path / "x.weights.h5")
    fresh = compiled_model(paper(**OPTIONS))
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        fresh.load_weights(tmp_path / "x.weights.h5")


@logic
def test_loss_scale_optimizer(tmp_path):
    with dtype_policy("mixed_float16"):
        model = compiled_model(paper(**OPTIONS))
        train(model, 0, 4)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        loaded = resumed(model, tmp_path, lambda one: train(one, 4, 6))
    inner = loaded.optimizer.inner_optimizer
    assert isinstance(inner, Lanton)
    assert inner.layers == model.optimizer.inner_optimizer.layers


@logic
def test_sequential(tmp_path):
    """Loaded, its variables' paths lack the model's own name."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(7, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(4, activation="tanh", name="a"),
            layers.Dense(3),
        ],
        name="whole",
    )
    patterns = {
        "rate_multipliers": {"^whole/a/": 0.0},
        "weight_decay_exclude": ["^whole/a/"],
    }
    model.compile(optimizer=paper(**OPTIONS, **patterns), **COMPILED)
    train(model, 0, 3)
    loaded = resumed(model, tmp_path, lambda one: train(one, 3, 5))
    roles = [layer.role for layer in loaded.optimizer.layers]
    assert roles == [layer.role for layer in model.optimizer.layers]
    for one in (model.optimizer._layout, loaded.optimizer._layout):
        assert one.rate_multipliers == (1.0, 0.0, 0.0, 1.0, 1.0)
        assert one.decayed == (True, False, False, True, True)


@logic
def test_backup_and_restore(tmp_path):
    """A run that dies in its second epoch goes on where the first ended."""
    x, y = make_data(8, seed=0)
    kwargs = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    model = compiled_model(paper(**OPTIONS))
    model.fit(x, y, **kwargs)
    wanted = state(model)
    dead = compiled_model(paper(**OPTIONS))
    with pytest.raises(KeyboardInterrupt):
        dead.fit(x, y, callbacks=[backup(), Dies()], **kwargs)
    again = compiled_model(paper(**OPTIONS))
    again.optimizer.build(again.trainable_variables)
    again.fit(x, y, callbacks=[backup()], **kwargs)
    assert_same(state(again), wanted)


@logic
def test_no_file_has_the_random_state_of_dropout(tmp_path):
    """Where Keras changes this, docs/keras.md has to follow."""
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3), layers.Dropout(0.5)]
    )
    model.compile(optimizer=Lanton(), loss="mse")
    model.save(tmp_path / "x.keras")
    loaded = keras.models.load_model(tmp_path / "x.keras")
    for one, two in zip(model.variables, loaded.variables, strict=True):
        same = np.array_equal(*map(ops.convert_to_numpy, (one, two)))
        assert same == ("seed_generator" not in one.path)


@logic
def test_orbax(tmp_path):
    """A run that died goes on from the last folder that Orbax wrote."""
    pytest.importorskip("orbax.checkpoint")
    if not hasattr(keras.callbacks, "OrbaxCheckpoint"):
        pytest.skip("this Keras has no OrbaxCheckpoint")
    x, y = make_data(16, seed=0)
    kwargs = {"batch_size": 4, "shuffle": False, "verbose": 0}
    model = compiled_model(paper(**OPTIONS))
    folder = str(tmp_path / "checkpoints")
    saves = keras.callbacks.OrbaxCheckpoint(folder, save_freq=2)
    model.fit(x[:8], y[:8], callbacks=[saves], **kwargs)
    loaded = keras.models.load_model(folder)
    assert_same(state(loaded), state(model))
    for each in (model, loaded):
        each.fit(x[8:], y[8:], **kwargs)
    assert_same(state(loaded), state(model))


@logic
@pytest.mark.parametrize(
    "rate", [1e-3, keras.optimizers.schedules.CosineDecay(1e-3, 10)]
)
def test_saved_before_the_first_step(tmp_path, rate):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="only")])
    model.compile(optimizer=Lanton(rate), loss="mse")
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
    loaded.optimizer.build(loaded.trainable_variables)
    assert float(loaded.optimizer.learning_rate) == pytest.approx(1e-3)
    loaded.fit(x, y, verbose=0)
    with pytest.warns(UserWarning, match="keeps its own"):
        loaded.load_weights(tmp_path / "model.weights.h5")


# -- Several optimizers, and TensorFlow's own savers -------------------------


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="this Keras has no MultiOptimizer",
)
@logic
def test_two_optimizers_of_one_model(tmp_path):
    """Of two layers, each with an optimizer of its own."""
    makers = keras.optimizers
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4, name="a"), layers.Dense(2)]
    )
    options = {"noise": None, "newton_schulz": NewtonSchulz(steps=2)}
    optimizer = makers.MultiOptimizer(
        makers.OptimizerMap(
            default_optimizer=Lanton(1e-2, **options),
            optimizer_map={".*/a/.*": Lanton(2e-2, **options)},
        )
    )
    model.compile(optimizer, **COMPILED)
    x = np.ones((4, 3), "float32")
    model.fit(x, x[:, :2], verbose=0)
    names = [one.name for one in optimizer.optimizers]
    assert len(set(names)) == 2, names
    tree = model.get_state_tree(value_format="numpy_array")
    state = tree["optimizer_variables"]
    assert {*names} <= {*state}
    for name in names:
        assert {"iteration", "learning_rate", "last_step"} <= {*state[name]}
    pytest.importorskip("orbax.checkpoint")
    saves = keras.callbacks.OrbaxCheckpoint(str(tmp_path), save_freq=1)
    model.fit(x, x[:, :2], callbacks=[saves], verbose=0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="savers of TensorFlow")
@pytest.mark.parametrize("optimizer", ["lanton", "lanton_paper"])
def test_savers_of_tensorflow(optimizer, tmp_path):
    tf = pytest.importorskip("tensorflow")
    model = compiled_model(paper(**OPTIONS))
    if optimizer == "lanton":  # all defaults
        model.compile(Lanton(), **COMPILED)
    train(model, 0, 3)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    tf.train.Checkpoint(model).save(str(tmp_path / "checkpoint"))
    before = state(model)
    train(model, 3, 4)
    path = tf.train.latest_checkpoint(str(tmp_path))
    tf.train.Checkpoint(model).restore(path).assert_consumed()
    assert_same(state(model), before)


# -- Between backends ------------------------------------------------------

CROSSED = {
    "plain": (
        {"nesterov": True, "use_ema": True, "learning_rate": SCHEDULE},
        4,
        7,
    ),
    "accumulating": ({**INDEPENDENT, "gradient_accumulation_steps": 2}, 3, 6),
    "defaults": (DEFAULTS, 4, 7),
}


def cross(folder, run):
    """Saves in the middle, goes on, and then from what the others saved."""
    options, stop, end = CROSSED[run]
    model = compiled_model(paper(**{**OPTIONS, **options}))
    apply(model, 0, stop)
    model.save(folder / f"new-{BACKEND}.keras")
    (folder / f"new-{BACKEND}.keras").rename(folder / f"{BACKEND}.keras")
    apply(model, stop, end)
    np.savez(folder / f"{BACKEND}.npz", *state(model).values())
    for other in BACKENDS - {BACKEND}:
        path, until = folder / f"{other}.keras", time.monotonic() + LIMIT
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.1)
        loaded = keras.models.load_model(path)
        apply(loaded, stop, end)
        target = folder / f"{BACKEND}-from-{other}.npz"
        np.savez(target, *state(loaded).values())


@pytest.mark.skipif(BACKEND != "jax", reason="one backend starts the other two")
@pytest.mark.parametrize("run", keep(CROSSED, ["defaults"], exhaustive))
def test_between_backends(run, tmp_path):
    if not all(map(importlib.util.find_spec, BACKENDS)):
        pytest.skip("needs the three backends")
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path), run],
            env=environment(KERAS_BACKEND=name),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in BACKENDS - {BACKEND}
    ]
    cross(tmp_path, run)
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output
    for saved_by, loaded_by in itertools.permutations(BACKENDS, 2):
        wanted = np.load(tmp_path / f"{saved_by}.npz")
        found = np.load(tmp_path / f"{loaded_by}-from-{saved_by}.npz")
        assert found.keys() == wanted.keys()
        for key in wanted:
            # Observed 1e-6.
            np.testing.assert_allclose(
                found[key],
                wanted[key],
                rtol=2e-5,
                atol=2e-5,
                err_msg=f"{saved_by} to {loaded_by}: {key}",
            )


if __name__ == "__main__":
    cross(pathlib.Path(sys.argv[1]), sys.argv[2])

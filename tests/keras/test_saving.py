"""Stop and go on: configs, `.keras` files, weights, between backends.

Run as a script, `test_saving.py save FOLDER RUN` and `test_saving.py resume
FOLDER RUN` write what the current backend saves and reaches, for the comparison
between backends.
"""

import copy
import importlib.util
import inspect
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

from helpers.models import make_data
from helpers.optimizers import DEFAULTS
from helpers.optimizers import PRESETS
from helpers.optimizers import arguments_of
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.processes import environment
from helpers.saves import COMPILED
from helpers.saves import OPTIONS
from helpers.saves import apply
from helpers.saves import assert_same
from helpers.saves import compiled_model
from helpers.saves import state
from helpers.saves import train
from helpers.saves import values
from helpers.saves import with_roles
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import AuxiliaryAdamW
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate

BACKEND = keras.backend.backend()
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


# Each argument at another value than its default, and what it needs. Odd ones:
# they are no defaults to come either.
ARGUMENTS = {
    "learning_rate": (0.03, {}),
    "beta_1": (0.83, {}),
    "nesterov": (False, {}),
    "bias_correction": (False, {}),
    "noise": (NoiseAdaptiveRate(alpha=0.77), {}),
    "newton_schulz": (NewtonSchulz(steps=7), {}),
    "auxiliary_adamw": (AuxiliaryAdamW(lr_ratio=0.37), {}),
    "hidden_scale": (0.43, {}),
    "embedding_scale": (3.0, {}),
    "vector_scale": (0.5, {"auxiliary_adamw": None}),
    "vector_norm": ("sign", {"auxiliary_adamw": None}),
    "step_scale": ("operator", {}),
    "momentum_dtype": ("bfloat16", {}),
    "rounding": ("stochastic", {}),
    "nonfinite": ("propagate", {}),
    "weight_decay": (0.3, {}),
    "weight_decay_exclude": (["bias$", "norm/"], {}),
    "cautious_weight_decay": (True, {}),
    "rate_multipliers": ({"kernel": 0.5}, {}),
    "roles": ([RECORD], {}),
    "clipnorm": (2.0, {}),
    "clipvalue": (2.0, {}),
    "global_clipnorm": (2.0, {}),
    "use_ema": (True, {}),
    "ema_momentum": (0.5, {"use_ema": True}),
    "ema_overwrite_frequency": (5, {"use_ema": True}),
    "loss_scale_factor": (8.0, {}),
    "gradient_accumulation_steps": (2, {}),
    "name": ("other", {}),
}
PARTS = ("noise", "newton_schulz", "auxiliary_adamw")
# As few optimizers as exclusive options need: a reference other than the
# previous gradient has no dtype of it, the operator's scale no hidden one, and
# AdamW moves embeddings or they have a scale.
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
    "rank": 3,
    "power_iterations": 1,
}
OWN = {
    "beta_1": 0.83,
    "nesterov": False,
    "bias_correction": False,
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
    "cautious_weight_decay": True,
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
    },
    "previous_gradient": {
        "learning_rate": SCHEDULE,
        **OWN,
        "noise": NoiseAdaptiveRate(previous_gradient_dtype="bfloat16", **NOISE),
        "step_scale": "operator",
        "embedding_scale": 3.0,
        "auxiliary_adamw": AuxiliaryAdamW(**ADAMW),
        "rounding": "stochastic",
    },
}


@logic
def test_no_argument_is_forgotten():
    """By the signatures: a new argument needs a value in each table."""
    defaults = arguments_of(Lanton)
    assert defaults.keys() == ARGUMENTS.keys()
    for name, (value, _) in ARGUMENTS.items():
        assert value != defaults[name], name
    made = EVERYTHING.values()
    for name in inspect.signature(Lanton).parameters.keys() - {"kwargs"}:
        default = defaults[name]
        assert any(o.get(name, default) != default for o in made), name
    for part in PARTS:
        for name, default in arguments_of(type(OWN_PARTS[part])).items():
            values_ = [getattr(options[part], name) for options in made]
            assert any(value != default for value in values_), (part, name)


OWN_PARTS = {name: ARGUMENTS[name][0] for name in PARTS}


@pytest.mark.parametrize("name", keep(EVERYTHING, ["previous_gradient"]))
def test_every_argument_survives(name, tmp_path):
    """Saved and loaded with nothing at its default: config, state, steps."""
    options = EVERYTHING[name]
    stochastic = options.get("rounding") == "stochastic"
    dtype = "bfloat16" if stochastic else None
    model = compiled_model(Lanton(**options), dtype)
    apply(model, 0, 5)
    model.save(tmp_path / "x.keras")
    loaded = keras.models.load_model(tmp_path / "x.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for part in PARTS:
        assert getattr(loaded.optimizer, part) == options[part]
    assert_same(state(loaded), state(model))
    for one in (model, loaded):
        apply(one, 5, 9)
    assert_same(state(loaded), state(model))


def assert_round_trip(optimizer):
    """Through JSON, by class and by registered name."""
    config = json.loads(json.dumps(optimizer.get_config()))
    # Keras' `from_config` changes its argument if it holds a schedule.
    loaded = Lanton.from_config(copy.deepcopy(config))
    assert loaded.get_config() == config
    whole = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    assert whole["registered_name"] == "keras_lanton>Lanton"
    loaded = keras.optimizers.deserialize(whole)
    assert isinstance(loaded, Lanton)
    assert loaded.get_config() == config
    return config


@logic
@pytest.mark.parametrize("name", ARGUMENTS)
def test_config_has_every_argument(name):
    value, needs = ARGUMENTS[name]
    config = assert_round_trip(Lanton(**{name: value, **needs}))
    if name == "learning_rate":  # kept as a float32 variable
        value = float(np.float32(value))
    found = config[name]
    if name in PARTS:
        found = keras.saving.deserialize_keras_object(found)
    assert found == value


@logic
@pytest.mark.parametrize("optimizer", EVERYTHING.values(), ids=EVERYTHING)
@pytest.mark.parametrize("name", PARTS)
def test_config_of_a_part(name, optimizer):
    part = optimizer[name]
    config = json.loads(json.dumps(part.get_config()))
    assert config.keys() == arguments_of(type(part)).keys()
    assert type(part).from_config(copy.deepcopy(config)) == part
    whole = json.loads(json.dumps(keras.saving.serialize_keras_object(part)))
    assert whole["registered_name"] == f"keras_lanton>{type(part).__name__}"
    assert keras.saving.deserialize_keras_object(whole) == part


@logic
def test_defaults_round_trip():
    assert_round_trip(Lanton())
    loaded = Lanton.from_config(Lanton().get_config())
    for name in PARTS:
        assert getattr(loaded, name) == arguments_of(Lanton)[name]


@logic
def test_paper_round_trip():
    assert_round_trip(Lanton.paper())
    loaded = Lanton.from_config(Lanton.paper().get_config())
    assert loaded.auxiliary_adamw is None and not loaded.nesterov
    assert loaded.noise == Lanton.paper().noise


@logic
def test_config_with_a_schedule():
    config = assert_round_trip(Lanton(learning_rate=SCHEDULE))
    loaded = Lanton.from_config(copy.deepcopy(config))
    for step in range(15):
        assert float(loaded._learning_rate(step)) == float(SCHEDULE(step))


@logic
def test_config_with_a_callable():
    config = Lanton(learning_rate=half_a_percent).get_config()
    loaded = Lanton.from_config(json.loads(json.dumps(config)))
    assert float(loaded.learning_rate) == 0.005


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
def test_config_holds_no_state():
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 3)
    loaded = Lanton.from_config(model.optimizer.get_config())
    assert not loaded.built
    assert int(ops.convert_to_numpy(loaded.iterations)) == 0
    loaded.build(model.trainable_variables)
    assert loaded.layers == model.optimizer.layers
    assert loaded.skipped_steps == 0


@logic
def test_get_by_name():
    config = {"class_name": "keras_lanton>Lanton", "config": {"beta_1": 0.77}}
    optimizer = keras.optimizers.get(config)
    assert isinstance(optimizer, Lanton)
    assert optimizer.beta_1 == 0.77


# -- Roles -----------------------------------------------------------------


def test_roles_survive(tmp_path):
    model = compiled_model()
    model.compile(optimizer=with_roles(model, paper(**OPTIONS)), **COMPILED)
    model.optimizer.build(model.trainable_variables)
    wanted = model.optimizer.layers
    by_path = {one.path: one for one in wanted}
    assert by_path["first/kernel"].role == "embedding"
    assert (by_path["first/kernel"].d_in, by_path["first/kernel"].d_out) == (
        6,
        4,
    )
    assert by_path["second/kernel"].role == "vector"
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.layers == wanted


@logic
def test_read_roles_survive(tmp_path):
    model = compiled_model()
    optimizer = paper(**OPTIONS).read_roles(model)
    model.compile(optimizer=optimizer, **COMPILED)
    optimizer.build(model.trainable_variables)
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

    for stop in stops:  # into a model that has moved on
        model.load_weights(tmp_path / f"{stop}.weights.h5")
        train(model, stop, end)
        assert_same(state(model), wanted)

    loaded = keras.models.load_model(tmp_path / f"{stops[-1]}.keras")
    assert loaded.optimizer.layers == model.optimizer.layers
    train(loaded, stops[-1], end)
    assert_same(state(loaded), wanted)


def test_weights_into_a_new_model(tmp_path):
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 4)
    model.save_weights(tmp_path / "x.weights.h5")
    fresh = compiled_model(paper(**OPTIONS))
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(tmp_path / "x.weights.h5")
    assert_same(state(fresh), state(model))


def test_weights_without_a_built_optimizer(tmp_path):
    """Keras says that it leaves the optimizer's state out."""
    model = compiled_model(paper(**OPTIONS))
    apply(model, 0, 1)
    model.save_weights(tmp_path / "x.weights.h5")
    fresh = compiled_model(paper(**OPTIONS))
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        fresh.load_weights(tmp_path / "x.weights.h5")


@both_presets
def test_bfloat16_state(preset, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = compiled_model(paper(**{**OPTIONS, **PRESETS[preset]}))
        apply(model, 0, 3)
        model.save(tmp_path / "x.keras")
        loaded = keras.models.load_model(tmp_path / "x.keras")
        assert_same(state(loaded), state(model))
        apply(model, 3, 6)
        apply(loaded, 3, 6)
        assert_same(state(loaded), state(model))
    finally:
        keras.config.set_dtype_policy(before)


@logic
def test_loss_scale_optimizer(tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled_model(paper(**OPTIONS))
        train(model, 0, 4)
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        model.save(tmp_path / "x.keras")
        loaded = keras.models.load_model(tmp_path / "x.keras")
        inner = loaded.optimizer.inner_optimizer
        assert isinstance(inner, Lanton)
        assert inner.layers == model.optimizer.inner_optimizer.layers
        assert_same(state(loaded), state(model))
        train(model, 4, 6)
        train(loaded, 4, 6)
        assert_same(state(loaded), state(model))
    finally:
        keras.config.set_dtype_policy(before)


@logic
def test_sequential(tmp_path):
    """Loaded, its variables' paths lack the model's own name."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(7, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(4, activation="tanh"),
            layers.Dense(3),
        ]
    )
    model.compile(optimizer=paper(**OPTIONS), **COMPILED)
    train(model, 0, 3)
    model.save(tmp_path / "x.keras")
    loaded = keras.models.load_model(tmp_path / "x.keras")
    train(model, 3, 5)
    train(loaded, 3, 5)
    assert_same(state(loaded), state(model))
    roles = [layer.role for layer in loaded.optimizer.layers]
    assert roles == [layer.role for layer in model.optimizer.layers]


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


# -- Several optimizers, and TensorFlow's own savers -------------------------


def two_lantons():
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
    return model


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="this Keras has no MultiOptimizer",
)
@logic
def test_two_optimizers_of_one_model(tmp_path):
    model = two_lantons()
    names = [one.name for one in model.optimizer.optimizers]
    assert len(set(names)) == 2, names
    tree = model.get_state_tree(value_format="numpy_array")
    state = tree["optimizer_variables"]
    assert {*names} <= {*state}
    for name in names:
        assert {"iteration", "learning_rate", "last_step"} <= {*state[name]}
    pytest.importorskip("orbax.checkpoint")
    saves = keras.callbacks.OrbaxCheckpoint(str(tmp_path), save_freq=1)
    x = np.ones((4, 3), "float32")
    model.fit(x, x[:, :2], callbacks=[saves], verbose=0)


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


@pytest.mark.skipif(BACKEND != "tensorflow", reason="savers of TensorFlow")
@pytest.mark.parametrize("optimizer", ["lanton", "lanton_paper"])
def test_savers_of_tensorflow(optimizer, tmp_path):
    tf = pytest.importorskip("tensorflow")
    model = compiled_model(paper(**OPTIONS))
    if optimizer == "lanton":  # by name: all defaults
        model.compile(optimizer, **COMPILED)
    train(model, 0, 3)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    tf.train.Checkpoint(model).save(str(tmp_path / "checkpoint"))
    before = state(model)
    train(model, 3, 4)
    path = tf.train.latest_checkpoint(str(tmp_path))
    tf.train.Checkpoint(model).restore(path).assert_consumed()
    assert_same(state(model), before)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="variables of TensorFlow")
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_bare_variables_of_tensorflow(rounding):
    """Beside those of Keras, of two dtypes."""
    tf = pytest.importorskip("tensorflow")
    optimizer = Lanton(1e-2, rounding=rounding)
    kernel = keras.Variable(np.ones((3, 2), "float32"), name="kernel")
    bare = [
        tf.Variable(tf.ones((4, 3), dtype), name=f"{dtype}_kernel")
        for dtype in ("bfloat16", "float32")
    ]
    variables = [kernel, *bare]
    optimizer.build(variables)
    optimizer.apply([tf.ones(v.shape, v.dtype) for v in variables], variables)
    for one in variables:
        assert (ops.convert_to_numpy(ops.cast(one, "float32")) != 1).all()


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


def write_saved(folder, run):
    """Saves in the middle and goes on to the end."""
    options, stop, end = CROSSED[run]
    model = compiled_model(paper(**{**OPTIONS, **options}))
    apply(model, 0, stop)
    model.save(folder / f"{BACKEND}.keras")
    apply(model, stop, end)
    np.savez(folder / f"{BACKEND}.npz", **plain_names(model))


def write_resumed(folder, run):
    """Goes on from what the others saved."""
    _, stop, end = CROSSED[run]
    for path in sorted(folder.glob("*.keras")):
        if path.stem != BACKEND:
            model = keras.models.load_model(path)
            apply(model, stop, end)
            target = folder / f"{BACKEND}-from-{path.stem}.npz"
            np.savez(target, **plain_names(model))


def plain_names(model):
    pairs = [
        *model.variables,
        *model.optimizer.variables,
    ]
    return {f"v{i}": one for i, one in enumerate(values(pairs).values())}


def in_other_backends(names, task, folder, run):
    """Runs this file as a script, all backends at once."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, task, str(folder), run],
            env=environment(KERAS_BACKEND=name),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    ]
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output


@pytest.mark.skipif(BACKEND != "jax", reason="one backend starts the other two")
@pytest.mark.parametrize("run", keep(CROSSED, ["defaults"], exhaustive))
def test_between_backends(run, tmp_path):
    others = [
        name
        for name in ("torch", "tensorflow")
        if importlib.util.find_spec(name)
    ]
    if not others:
        pytest.skip("neither torch nor tensorflow is installed")
    write_saved(tmp_path, run)
    in_other_backends(others, "save", tmp_path, run)
    write_resumed(tmp_path, run)
    in_other_backends(others, "resume", tmp_path, run)
    names = ["jax", *others]
    for saved_by in names:
        wanted = np.load(tmp_path / f"{saved_by}.npz")
        for loaded_by in set(names) - {saved_by}:
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
    {"save": write_saved, "resume": write_resumed}[sys.argv[1]](
        pathlib.Path(sys.argv[2]), sys.argv[3]
    )


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


@logic
def test_patterns_hold_for_a_loaded_model(tmp_path):
    """Which lacks the name of its own that a `Sequential` gives its paths."""
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(3)],
        name="whole",
    )
    optimizer = Lanton(
        rate_multipliers={"^whole/a/": 0.0}, weight_decay_exclude=["^whole/a/"]
    )
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    wanted, found = optimizer._layout, loaded.optimizer._layout
    assert wanted.rate_multipliers == (0.0, 0.0, 1.0, 1.0)
    assert found.rate_multipliers == wanted.rate_multipliers
    assert found.decayed == wanted.decayed == (False, False, True, True)

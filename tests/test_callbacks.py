"""NoiseMonitor: what it records is what the optimizer reports."""

import csv

import keras
import numpy as np
import pytest
from keras import layers

from helpers.optimizers import lanton
from helpers.optimizers import paper
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz
from keras_lanton import NoiseAdaptiveRate
from keras_lanton.baselines import DMuon
from keras_lanton.callbacks import NoiseMonitor

BACKEND = keras.backend.backend()
STEPS = 6  # of an epoch
SHORT = {"noise_interval": 2, "ns_steps": 2}
EVERY_STEP = NoiseAdaptiveRate(interval=1)


def make_model(optimizer=None, **options):
    """A table, one head of attention by its names, and a head."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,), dtype="int32")
    x = layers.Embedding(7, 4, name="tokens")(inputs)
    for name in ("query", "value", "dense"):
        x = layers.Dense(4, name=name)(x)
    model = keras.Model(inputs, layers.Dense(7, name="head")(x))
    if optimizer is None:
        optimizer = lanton(learning_rate=0.01, **SHORT, **options)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=BACKEND == "jax",
    )
    return model


def make_data():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 7, (4 * STEPS, 3)).astype("int32")
    return x, x


def fit(model, *callbacks, **options):
    """The last of the callbacks, and the history."""
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, **options}
    history = model.fit(*make_data(), callbacks=list(callbacks), **options)
    return callbacks[-1], history.history


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Reports(keras.callbacks.Callback):
    """What `noise_report` says after every batch."""

    def __init__(self):
        super().__init__()
        self.all = []

    def on_train_batch_end(self, batch, logs=None):
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self.all.append(optimizer.noise_report())


SCHEDULE = keras.optimizers.schedules.CosineDecay(0.01, 20)


@pytest.mark.parametrize(
    "optimizer",
    [
        None,
        pytest.param(paper(learning_rate=SCHEDULE, **SHORT), marks=logic),
        pytest.param(
            DMuon(
                0.01,
                noise=NoiseAdaptiveRate(interval=2),
                newton_schulz=NewtonSchulz(steps=2),
            ),
            marks=logic,
        ),
    ],
    ids=["lanton", "paper_schedule", "d_muon"],
)
def test_figures_are_those_of_the_report(optimizer):
    model = make_model(optimizer)
    reports, monitor = Reports(), NoiseMonitor(every=2)
    fit(model, reports, monitor, epochs=2)
    np.testing.assert_array_equal(monitor.steps, [2, 4, 6, 8, 10, 12])
    assert len(monitor.paths) == len(monitor.roles) == len(monitor.blocks)
    for name in ("noise", "ratio", "learning_rate"):
        wanted = [
            np.concatenate([report[path][name] for path in monitor.paths])
            for report in reports.all[1::2]
        ]
        np.testing.assert_array_equal(getattr(monitor, name), wanted)
    assert (monitor.noise[-1] > 0).all()


@logic
def test_measured_layers_alone():
    monitor, _ = fit(make_model(), NoiseMonitor(every=STEPS))
    assert monitor.roles == ["embedding", *["hidden"] * 3, "embedding"]
    assert monitor.blocks == ["embedding", "qk", "vo", "mlp", "head"]
    assert not any("bias" in path for path in monitor.paths)


def test_loss_scaling_and_steps_per_execution():
    options = {} if BACKEND == "torch" else {"steps_per_execution": 3}
    model = make_model()
    model.compile(
        keras.optimizers.LossScaleOptimizer(model.optimizer),
        model.loss,
        jit_compile=BACKEND == "jax",
        **options,
    )
    monitor, _ = fit(model, NoiseMonitor(every=2))
    if not options:
        assert monitor.steps.tolist() == [2, 4, 6]
    else:
        # Keras 3.10 names the first of the batches, newer ones the last.
        oldest = keras.__version__.startswith("3.10.")
        assert monitor.steps.tolist() == ([6] if oldest else [3, 6])


@logic
def test_several_calls_of_fit_are_one_run():
    model, monitor = make_model(), NoiseMonitor(every=4)
    fit(model, monitor)
    fit(model, monitor)
    assert monitor.steps.tolist() == [4, 8, 12]


@logic
def test_another_model():
    monitor = NoiseMonitor(every=STEPS)
    fit(make_model(), monitor)
    fit(make_model(), monitor)  # of the same layers
    other = keras.Sequential([keras.Input((3,)), layers.Dense(7)])
    other.compile(
        Lanton(newton_schulz=NewtonSchulz(steps=2)), "mse", jit_compile=False
    )
    x, y = make_data()
    with pytest.raises(ValueError, match="for one model"):
        other.fit(x, np.zeros((len(x), 7)), 4, callbacks=[monitor], verbose=0)


# -- Files -----------------------------------------------------------------
@logic
def test_csv(tmp_path):
    path = tmp_path / "folder" / "noise.csv"
    monitor, _ = fit(make_model(), NoiseMonitor(every=3, csv=path))
    rows = rows_of(path)
    assert [row["step"] for row in rows] == ["3"] * 5 + ["6"] * 5
    assert [row["path"] for row in rows[:5]] == monitor.paths
    assert rows[0]["role"] == rows[0]["block"] == "embedding"
    for name in ("noise", "ratio", "learning_rate"):
        found = np.array([float(row[name]) for row in rows], "float32")
        wanted = getattr(monitor, name)
        np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


@logic
def test_csv_of_a_run_that_is_gone_on_with(tmp_path):
    """It died behind its last checkpoint, in the middle of a row."""
    path = tmp_path / "noise.csv"
    model = make_model()
    fit(model, NoiseMonitor(every=3, csv=path))
    with path.open("a") as file:
        file.write("9,a,0,hidden,mlp,1.0,1.0,0.1\n9,b,0,hid")
    # The optimizer is at 6.
    monitor, _ = fit(model, NoiseMonitor(every=3, csv=path))
    assert monitor.steps.tolist() == [3, 6, 9, 12]
    assert monitor.noise.shape == (4, 5)
    steps = [row["step"] for row in rows_of(path)]
    assert steps == [k for k in ("3", "6", "9", "12") for _ in range(5)]
    fit(make_model(), NoiseMonitor(every=6, csv=path))  # a new run
    assert {row["step"] for row in rows_of(path)} == {"6"}


@logic
def test_csv_of_a_model_that_is_numbered_anew(tmp_path):
    """The same model, made again in a process: `dense_1` for `dense`."""
    path = tmp_path / "noise.csv"
    models = []
    for name in ("head", "head_1"):
        model = keras.Sequential([layers.Dense(2, name=name)])
        model.compile(lanton(learning_rate=0.01, **SHORT), "mse")
        models.append(model)
    x = np.ones((12, 3), "float32")
    first, second = models
    first.fit(x, x[:, :2], batch_size=2, callbacks=[NoiseMonitor(3, csv=path)])
    first.save_weights(tmp_path / "x.weights.h5")
    second.build((None, 3))
    second.optimizer.build(second.trainable_variables)
    second.load_weights(tmp_path / "x.weights.h5")
    monitor = NoiseMonitor(3, csv=path)
    second.fit(x, x[:, :2], batch_size=2, callbacks=[monitor])
    assert monitor.steps.tolist() == [3, 6, 9, 12]
    assert {row["path"] for row in rows_of(path)} == set(monitor.paths)


@logic
def test_csv_of_something_else(tmp_path):
    """Of another table, or of another model: it stays."""
    path = tmp_path / "other.csv"
    model = make_model()
    fit(model, NoiseMonitor(every=3, csv=path))
    renamed = path.read_text().replace("query", "key")
    for text, said in (
        ("a,b\n1,2\n", "Received: csv=.*other.csv"),
        (renamed, "matrices, or a new"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            fit(model, NoiseMonitor(every=3, csv=path))
        assert path.read_text() == text


@logic
def test_csv_whose_last_row_is_cut_off(tmp_path):
    path = tmp_path / "noise.csv"
    model = make_model()
    fit(model, NoiseMonitor(every=3, csv=path))
    path.write_text(path.read_text()[:-4])
    monitor, _ = fit(model, NoiseMonitor(every=3, csv=path))
    assert monitor.steps.tolist() == [3, 9, 12]


@logic
def test_logs_have_a_summary(tmp_path):
    """What CSVLogger and `History` get, though no record was taken yet."""
    model, monitor = make_model(), NoiseMonitor(every=100)
    logger = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    _, logs = fit(model, monitor, logger, epochs=2)
    optimizer = model.optimizer
    report = optimizer.noise_report()
    measured = [s for s in optimizer.layers if s.role in optimizer.lmo_roles]
    ratios = np.concatenate([report[s.path]["ratio"] for s in measured])
    assert logs["smallest_ratio"][-1] == pytest.approx(ratios.min())
    assert logs["largest_ratio"][-1] == pytest.approx(ratios.max())
    query = report["query/kernel"]["noise"].mean()
    assert logs["noise_qk"][-1] == pytest.approx(query)
    rows = rows_of(tmp_path / "log.csv")
    assert [float(row["noise_qk"]) for row in rows] == logs["noise_qk"]


# -- Pictures --------------------------------------------------------------
@logic
def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    monitor = NoiseMonitor(every=1)
    with pytest.raises(ValueError, match="Received: every=1, 0 batches"):
        monitor.plot()
    fit(make_model(), monitor)
    figure = monitor.plot(tmp_path / "noise.png")
    assert (tmp_path / "noise.png").stat().st_size > 10_000
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[1] == "Spread within QK, VO, MLP"


# -- Wrong arguments -------------------------------------------------------
@logic
@pytest.mark.parametrize(
    "arguments",
    [
        {"every": 0},
        {"every": 1.5},
        {"every": None},
        {"csv": 3},
    ],
    ids=str,
)
def test_wrong_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}="):
        NoiseMonitor(**arguments)


@logic
@pytest.mark.parametrize(
    "optimizer", [keras.optimizers.SGD(0.1), DMuon(0.01)], ids=["sgd", "d_muon"]
)
def test_optimizers_that_measure_nothing(optimizer):
    with pytest.raises(ValueError, match="Received: optimizer="):
        fit(make_model(optimizer), NoiseMonitor())


@logic
def test_csv_with_accumulation_and_a_backup(tmp_path):
    """Whichever callback comes first."""
    path = tmp_path / "noise.csv"

    def fit_on(epochs):
        model = make_model(
            Lanton(0.01, gradient_accumulation_steps=2, noise=EVERY_STEP)
        )
        backup = keras.callbacks.BackupAndRestore(
            str(tmp_path / "backup"), delete_checkpoint=False
        )
        monitor = NoiseMonitor(every=3, csv=path)
        fit(model, monitor, backup, epochs=epochs)
        return monitor.steps.tolist()

    assert fit_on(1) == [3, 6]
    assert fit_on(2) == [3, 6, 9, 12]


@logic
def test_a_model_without_a_matrix():
    model = keras.Sequential([keras.Input((4,)), layers.LayerNormalization()])
    model.compile(Lanton(), "mse")
    x = np.ones((8, 4), "float32")
    with pytest.raises(ValueError, match="needs a model with trainable mat"):
        model.fit(x, x, verbose=0, callbacks=[NoiseMonitor(every=1)])

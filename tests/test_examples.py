"""The examples run, resume exactly and refuse bad arguments."""

import contextlib
import dataclasses
import importlib.util
import inspect
import io
import json
import pathlib
import shutil
import sys
import zipfile

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))  # as when an example is run


def load_example(name):
    """Import examples/NAME.py, which is no package, as a fresh module."""
    spec = importlib.util.spec_from_file_location(
        f"example_{name}", EXAMPLES / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


# -- gpt2_pretraining.py -----------------------------------------------------


@pytest.fixture(scope="module")
def gpt2():
    """The example with its demo cut down to seconds."""
    # On a Keras too old for it, KerasHub raises an ImportError of its own.
    pytest.importorskip(
        "keras_hub",
        reason="the example trains a KerasHub GPT",
        exc_type=ImportError,
    )
    pytest.importorskip("tokenizers", reason="the example learns a vocabulary")
    pytest.importorskip("matplotlib", reason="the example draws its curves")
    module = load_example("gpt2_pretraining")
    module.PRESETS["demo"] = dataclasses.replace(
        module.PRESETS["demo"],
        layers=1,
        width=64,
        vocabulary=300,
        context=16,
        batch_size=2,
        steps=9,
        warmup=2,
        dropout=0.1,  # its random state must survive the interruption
        save_every=3,
        validation_blocks=4,
        sweep_steps=4,
    )
    return module


@pytest.fixture
def no_sample(gpt2, monkeypatch):
    """Leave out the text sample, whose generation takes long to compile."""
    monkeypatch.setattr(gpt2, "print_sample", lambda *_: None)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Two small files of words, enough for some dozens of blocks."""
    folder = tmp_path_factory.mktemp("text")
    random = np.random.default_rng(0)
    words = np.array("noise layer rate norm step of the and a is\n".split(" "))
    files = []
    for name in ("one.txt", "two.txt"):
        files.append(folder / name)
        files[-1].write_text(" ".join(random.choice(words, 600)))
    return [str(f) for f in files]


@dataclasses.dataclass
class Whole:
    folder: pathlib.Path
    printed: str


@pytest.fixture(scope="module")
def whole(gpt2, text, tmp_path_factory):
    """An undisturbed run with both optimizers."""
    folder = tmp_path_factory.mktemp("whole")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        gpt2.main(["--text", *text, "--output", str(folder)])
    return Whole(folder, printed.getvalue())


def read_history(folder):
    return json.loads((folder / "history.json").read_text())


def final_state(folder):
    """All arrays of a run's checkpoint: weights and optimizer state."""
    import h5py

    arrays = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()]

    with zipfile.ZipFile(folder / "model.keras") as archive:
        content = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(content) as file:
        file.visititems(visit)
    return arrays


def test_gpt2_trains_each_optimizer_on_the_users_text(whole):
    histories = [read_history(whole.folder / n) for n in ("lanton", "adamw")]
    for history in histories:
        assert history["finished"]
        assert len(history["loss"]) == len(history["seconds"]) == 9
        assert history["validation_step"] == [3, 6, 9]
        assert np.isfinite(history["loss"]).all()
        assert np.isfinite(history["validation_loss"]).all()
    # One seed, one data order: both start from the same weights.
    first, second = (history["loss"][0] for history in histories)
    assert first == pytest.approx(second, rel=1e-5)
    assert (whole.folder / "loss.png").stat().st_size > 10_000
    assert "validation loss" in whole.printed
    assert "Text from" in whole.printed


def interrupt_in_step(module, monkeypatch, step):
    """Ctrl-C after `step`, between two checkpoints."""
    make_recorder = module.make_recorder

    def make(run, model, history):
        recorder = make_recorder(run, model, history)
        record = recorder.on_train_batch_end

        def on_train_batch_end(batch, logs=None):
            record(batch, logs)
            if len(history["loss"]) == step:
                raise KeyboardInterrupt

        recorder.on_train_batch_end = on_train_batch_end
        return recorder

    monkeypatch.setattr(module, "make_recorder", make)


def interrupt_in_save(module, monkeypatch, step):
    """Killed with the history written and the checkpoint not."""
    save = module.save

    def save_or_die(run, model, history):
        if len(history["loss"]) < step:
            return save(run, model, history)
        module.write_json(run.history, history)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "save", save_or_die)


@pytest.mark.parametrize(
    ("interrupt", "optimizer"),
    [(interrupt_in_step, "lanton"), (interrupt_in_save, "adamw")],
)
@pytest.mark.usefixtures("no_sample")
def test_gpt2_resumed_run_equals_the_undisturbed_run(
    gpt2, text, whole, tmp_path, monkeypatch, capsys, interrupt, optimizer
):
    command = ["--text", *text, "--optimizer", optimizer]
    command += ["--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        interrupt(gpt2, patch, 5)
        with pytest.raises(SystemExit, match="--resume"):
            gpt2.main(command)
    capsys.readouterr()
    gpt2.main([*command, "--resume"])
    assert "at step 3" in capsys.readouterr().out
    folders = whole.folder / optimizer, tmp_path / optimizer
    expected, resumed = map(read_history, folders)
    for key in ("loss", "validation_step", "validation_loss"):
        assert resumed[key] == expected[key]
    expected, resumed = map(final_state, folders)
    assert resumed.keys() == expected.keys()
    assert any(name.startswith("optimizer/") for name in expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, name)


def test_gpt2_checkpoint_loads_in_keras(gpt2, whole):
    import keras

    path = whole.folder / "lanton" / "model.keras"
    model = keras.saving.load_model(path, compile=False)
    tokens = np.ones((1, 16), "int32")
    logits = model.predict(
        {"token_ids": tokens, "padding_mask": tokens}, verbose=0
    )
    assert np.isfinite(logits).all()


@pytest.mark.usefixtures("no_sample")
def test_gpt2_resume_keeps_finished_runs(gpt2, text, whole, tmp_path, capsys):
    folder = tmp_path / "out"
    shutil.copytree(whole.folder, folder)
    command = ["--text", *text, "--output", str(folder)]
    checkpoint = folder / "adamw" / "model.keras"
    written = checkpoint.stat().st_mtime_ns
    gpt2.main([*command, "--resume"])
    assert checkpoint.stat().st_mtime_ns == written
    assert f"{folder / 'adamw'} is finished" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="other settings"):
        gpt2.main([*command, "--resume", "--learning-rate", "1e-4", "1e-4"])
    gpt2.main([*command, "--optimizer", "adamw", "--steps", "4"])
    assert f"Starting {folder / 'adamw'} anew" in capsys.readouterr().out
    assert len(read_history(folder / "adamw")["loss"]) == 4


def test_gpt2_sweep_names_the_best_rate(gpt2, text, tmp_path, capsys):
    command = ["--text", *text, "--output", str(tmp_path), "--sweep"]
    gpt2.main(
        [*command, "--optimizer", "adamw", "--learning-rate", "1e-2", "1e-9"]
    )
    results = json.loads((tmp_path / "sweep.json").read_text())
    assert [r["learning_rate"] for r in results] == [1e-2, 1e-9]
    assert results[0]["validation_loss"] < results[1]["validation_loss"]
    assert "Best for adamw: learning rate 0.01" in capsys.readouterr().out


@pytest.mark.usefixtures("no_sample")
def test_gpt2_reads_openwebtext_with_gpt2s_vocabulary(
    gpt2, text, tmp_path, monkeypatch
):
    datasets = pytest.importorskip("datasets", reason="reads Hugging Face data")
    import tokenizers

    documents = pathlib.Path(text[0]).read_text().split(". ") * 3
    documents = [f"{i} {d}" for i, d in enumerate(documents * 20)]
    asked = []

    def load_dataset(name, split):
        asked.append((name, split))
        return datasets.Dataset.from_dict({"text": documents})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    # Stands in for GPT-2's vocab.json and merges.txt.
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        documents, vocab_size=300, special_tokens=[gpt2.END_OF_TEXT]
    )
    tokenizer.save_model(str(tmp_path))
    gpt2.main(
        ["--dataset", "openwebtext-100k", "--output", str(tmp_path / "out")]
        + ["--vocab", str(tmp_path / "vocab.json")]
        + ["--merges", str(tmp_path / "merges.txt")]
        + ["--optimizer", "adamw", "--steps", "4"]
    )
    assert asked == [("Elriggs/openwebtext-100k", "train")]
    assert read_history(tmp_path / "out" / "adamw")["finished"]
    # 90 % of the documents are for training, each closed by one end token.
    end = tokenizer.token_to_id(gpt2.END_OF_TEXT)
    tokens = np.load(tmp_path / "out" / "data" / "training.npy")
    assert (tokens == end).sum() == len(documents) * 9 // 10


def test_gpt2_demo_reads_the_standard_library(gpt2, capsys):
    training, held_out = gpt2.stdlib_documents()
    assert len(held_out) == (len(training) + len(held_out)) // 10
    assert not set(training[:50]) & set(held_out)
    assert "MB, from" in capsys.readouterr().out


def test_gpt2_paper_schedule(gpt2):
    """Linear over N steps, then a cosine to 0; t counts from 1 to T."""
    import keras

    steps, warmup, peak = 50, 5, 5e-3
    schedule = gpt2.make_schedule(peak, steps, warmup)
    t = np.arange(1, steps + 1)
    expected = np.where(
        t <= warmup,
        peak * t / warmup,
        peak * 0.5 * (1 + np.cos(np.pi * (t - warmup) / (steps - warmup))),
    )
    actual = [float(keras.ops.convert_to_numpy(schedule(i - 1))) for i in t]
    np.testing.assert_allclose(actual, expected, atol=1e-9, rtol=1e-5)


def test_gpt2_paper_presets(gpt2):
    """What the paper states of its two GPT-2 runs."""
    small, medium = gpt2.PRESETS["gpt2_small"], gpt2.PRESETS["gpt2_medium"]
    assert (small.layers, small.width, small.heads) == (12, 768, 12)
    assert (medium.layers, medium.width, medium.heads) == (24, 1024, 16)
    assert small.learning_rates["lanton"] == 5e-3
    assert medium.learning_rates["lanton"] == 3e-3
    for preset in (small, medium):
        assert preset.learning_rates["adamw"] == 1e-4
        assert (preset.context, preset.batch_size, preset.warmup) == (
            512,
            16,
            300,
        )


def test_gpt2_makes_every_optimizer(gpt2):
    import hyperparameters

    for name in gpt2.OPTIMIZERS:
        optimizer = gpt2.make_optimizer(name, 1e-3)
        assert float(optimizer.learning_rate) == pytest.approx(1e-3)
        assert gpt2.PRESETS["demo"].learning_rates[name] > 0
        assert len(gpt2.PRESETS["demo"].sweep[name]) == 4
    for row in hyperparameters.ROWS:
        made = hyperparameters.make_optimizer(
            row.method,
            row.learning_rate,
            options=hyperparameters.options(row.method, row.experiment),
        )
        config = made.get_config()
        assert all(config[name] == value for name, value in row.options)
    assert gpt2.PRESETS["gpt2_medium"].learning_rates["scion"] == 2e-4
    muon = gpt2.make_optimizer("muon", 3e-3)
    assert muon.adam_lr_ratio == pytest.approx(0.1)
    with pytest.raises(KeyError, match="no row of 'lamb'"):
        hyperparameters.find("lamb", "gpt2_small")


def test_gpt2_optimizer_without_a_rate_of_the_paper(gpt2, capsys):
    with pytest.raises(SystemExit):
        gpt2.parse(["--preset", "gpt2_small", "--optimizer", "lamb"])
    assert "no learning rate for lamb" in capsys.readouterr().err


def test_gpt2_data_order_depends_on_seed_and_step_alone(gpt2):
    whole = gpt2.training_rows(0, 12, blocks=11, batch_size=2, seed=1)
    parts = [
        gpt2.training_rows(a, b, blocks=11, batch_size=2, seed=1)
        for a, b in ((0, 1), (1, 4), (4, 5), (5, 10), (10, 12))
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert len(set(whole[:10])) == 10  # no block twice within an epoch
    assert list(whole[:10]) != list(whole[10:20])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "sgd"], "invalid choice"),
        (["--learning-rate", "1e-3"], "give one for each"),
        (["--learning-rate", "0", "1"], "not above 0"),
        (["--steps", "3"], "at least 4"),
        (["--vocab", __file__], "go together"),
        (["--text", "no-such-file"], "there is no file"),
        (["--text", __file__, "--dataset", "stdlib"], "not allowed with"),
        (["--sweep", "--learning-rate", "1", "1"], "single --optimizer"),
    ],
)
def test_gpt2_refuses_bad_arguments(gpt2, capsys, arguments, message):
    with pytest.raises(SystemExit):
        gpt2.parse(arguments)
    assert message in capsys.readouterr().err


def test_gpt2_refuses_a_text_too_short(gpt2, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a b c")
    with pytest.raises(SystemExit, match="too short"):
        gpt2.main(["--text", str(short), "--output", str(tmp_path / "out")])


# -- cnn_images.py -----------------------------------------------------------


@pytest.fixture
def cnn(monkeypatch):
    """The example with very narrow networks."""
    module = load_example("cnn_images")
    for name in ("digits", "cifar100"):
        tiny = dataclasses.replace(
            module.PRESETS[name], widths=(8, 8, 8), batch_size=64, epochs=1
        )
        monkeypatch.setitem(module.PRESETS, name, tiny)
    return module


def test_cnn_learns_digits(cnn, tmp_path, capsys):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    cnn.main(
        ["--optimizer", "lanton", "--epochs", "2", "--output", str(tmp_path)]
    )
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert result["test_accuracy"] > 0.3  # a tenth would be chance
    assert "test accuracy" in capsys.readouterr().out


def test_cnn_makes_every_optimizer(cnn):
    import keras

    arguments = inspect.signature(keras.optimizers.Muon).parameters
    for name in cnn.OPTIMIZERS:
        if name == "keras_muon" and "adam_weight_decay" not in arguments:
            continue  # an older Keras
        optimizer = cnn.make_optimizer(name, 0.1, 10)
        assert optimizer.weight_decay in (None, 0.0)
        for preset in cnn.PRESETS.values():
            assert preset.learning_rates[name] > 0
    assert cnn.make_optimizer("scion", 0.05, 10).beta_1 == 0.5


def test_cnn_reads_cifar100(cnn, tmp_path, monkeypatch):
    import keras

    random = np.random.default_rng(0)
    x = random.integers(0, 256, (192, 32, 32, 3), dtype="uint8")
    y = np.arange(192)[:, None] % 100
    monkeypatch.setattr(
        keras.datasets.cifar100,
        "load_data",
        lambda: ((x[:128], y[:128]), (x[128:], y[128:])),
    )
    cnn.main(
        ["--dataset", "cifar100", "--optimizer", "sgd"]
        + ["--output", str(tmp_path)]
    )
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert np.isfinite(result["loss"]).all()


def test_cnn_is_airbench94(cnn):
    """8 weight layers, 1.995 million trainable weights with 100 classes."""
    images = cnn.Images(
        np.random.default_rng(0).normal(size=(100, 32, 32, 3)).astype("f"),
        np.arange(100),
        *(None, None),
    )
    model = cnn.make_model(images, (64, 256, 256))
    kernels = [v for v in model.variables if v.name == "kernel"]
    assert len(kernels) == 8
    count = sum(np.prod(v.shape) for v in model.trainable_variables)
    # 24 whitening biases, 6 convolutions, 2 * (64 + 256 + 256) batch norm
    # biases, the head.
    convolutions = 24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256
    assert count == 24 + 9 * convolutions + 1152 + 256 * 100
    paths = [v.path for v in model.trainable_variables]
    assert "whitening/bias" in paths
    assert "whitening/kernel" not in paths


def test_cnn_whitening_decorrelates_patches(cnn):
    import keras

    random = np.random.default_rng(0)
    x = random.normal(size=(50, 9, 9, 3)).cumsum(1).astype("float32")
    kernel = cnn.whitening_kernel(x)
    assert kernel.shape == (2, 2, 3, 24)
    y = keras.ops.convert_to_numpy(keras.ops.conv(x, kernel.astype("float32")))
    y = y[..., :12].reshape(-1, 12)
    np.testing.assert_allclose(y.T @ y / len(y), np.eye(12), atol=0.05)


def test_cnn_batches_are_shifted_crops(cnn):
    """Without augmentation's randomness, a batch is the images themselves."""
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 8, 8, 2)).astype("float32")
    images = cnn.Images(x, np.arange(6), x, np.arange(6))
    preset = dataclasses.replace(
        cnn.PRESETS["cifar100"], batch_size=3, flip=True
    )
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    mirrored = [[], []]
    for i, (batch, targets) in enumerate(
        cnn.training_batches(images, preset, epochs=2, seed=0)
    ):
        for image, row in zip(batch, targets.argmax(-1), strict=True):
            crops = {
                mirror: any(
                    np.array_equal(
                        image[:, ::-1] if mirror else image,
                        padded[row, dy : dy + 8, dx : dx + 8],
                    )
                    for dy in range(5)
                    for dx in range(5)
                )
                for mirror in (False, True)
            }
            assert crops[False] != crops[True]
            mirrored[i // 2].append((row, crops[True]))
    # Every image is flipped in exactly one of two consecutive epochs.
    first, second = (dict(epoch) for epoch in mirrored)
    assert all(first[row] != second[row] for row in range(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "rmsprop"], "invalid choice"),
        (["--dataset", "mnist"], "invalid choice"),
        (["--learning-rate", "1e-3"], "give one for each"),
        (["--epochs", "0"], "not above 0"),
    ],
)
def test_cnn_refuses_bad_arguments(cnn, capsys, arguments, message):
    with pytest.raises(SystemExit):
        cnn.parse(arguments)
    assert message in capsys.readouterr().err

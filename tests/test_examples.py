"""The examples run, resume exactly and refuse bad arguments."""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from marks import some_fast

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
def pretraining():
    """What the examples of pretraining share."""
    # On a Keras too old for it, KerasHub raises an ImportError of its own.
    pytest.importorskip(
        "keras_hub",
        reason="the examples train KerasHub's models",
        exc_type=ImportError,
    )
    pytest.importorskip("tokenizers", reason="they learn a vocabulary")
    pytest.importorskip("matplotlib", reason="they draw their curves")
    pytest.importorskip("tqdm", reason="they show a progress bar")
    return importlib.import_module("pretraining")


@pytest.fixture(scope="module")
def gpt2(pretraining):
    """The example with its demo cut down to seconds."""
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
def no_sample(pretraining, monkeypatch):
    """Leave out the text sample, whose generation takes long to compile."""
    monkeypatch.setattr(pretraining, "print_sample", lambda *_: None)


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


@pytest.mark.compiles_a_lot
@pytest.mark.parametrize(
    "distribution", ["data", pytest.param("model", marks=pytest.mark.slow)]
)
def test_gpt2_on_all_devices(
    gpt2, text, tmp_path, no_sample, distribution, capsys
):
    """Here one: the same losses. Two are in the test below."""
    command = ["--text", *text, "--steps", "4", "--optimizer", "lanton"]
    there = [*command, "--distribution", distribution]
    there += ["--output", str(tmp_path / distribution)]
    backend = keras.backend.backend()
    if backend == "torch" or (backend, distribution) == ("tensorflow", "model"):
        with pytest.raises(SystemExit, match=f"Received: .*{distribution}"):
            gpt2.main(there)
        return
    gpt2.main(there)
    gpt2.main([*command, "--output", str(tmp_path / "none")])
    found, wanted = (
        read_history(tmp_path / name / "lanton")
        for name in (distribution, "none")
    )
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="keras.distribution"
)
@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["data", "model"])
def test_gpt2_demo_on_two_devices(text, tmp_path, distribution):
    losses = {}
    for name in ("none", distribution):
        folder = tmp_path / name
        example = EXAMPLES / "gpt2_pretraining.py"
        command = [sys.executable, str(example), "--text", *text]
        command += ["--steps", "4", "--optimizer", "lanton", "--batch-size"]
        command += ["4", "--output", str(folder), "--distribution", name]
        flag = "--xla_force_host_platform_device_count=2"
        subprocess.run(
            command, check=True, env={**os.environ, "XLA_FLAGS": flag}
        )
        losses[name] = read_history(folder / "lanton")["loss"]
    np.testing.assert_allclose(losses[distribution], losses["none"], rtol=1e-4)


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
    pretraining,
    gpt2,
    text,
    whole,
    tmp_path,
    monkeypatch,
    capsys,
    interrupt,
    optimizer,
):
    command = ["--text", *text, "--optimizer", optimizer]
    command += ["--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        interrupt(pretraining, patch, 5)
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


@pytest.mark.compiles_a_lot
def test_gpt2_sweep_names_the_best_rate(gpt2, text, tmp_path, capsys):
    command = ["--text", *text, "--output", str(tmp_path), "--sweep"]
    gpt2.main(
        [*command, "--optimizer", "adamw", "--learning-rate", "1e-2", "1e-9"]
    )
    results = json.loads((tmp_path / "sweep.json").read_text())
    assert [r["learning_rate"] for r in results] == [1e-2, 1e-9]
    assert results[0]["validation_loss"] < results[1]["validation_loss"]
    assert "Best for adamw: learning rate 0.01" in capsys.readouterr().out


@pytest.mark.compiles_a_lot
@pytest.mark.usefixtures("no_sample")
def test_gpt2_reads_openwebtext_with_gpt2s_vocabulary(
    pretraining, gpt2, text, tmp_path, monkeypatch
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
        documents, vocab_size=300, special_tokens=[pretraining.END_OF_TEXT]
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
    end = tokenizer.token_to_id(pretraining.END_OF_TEXT)
    folder = tmp_path / "out" / "data" / "openwebtext-100k" / "training"
    tokens = np.load(folder / "00000.npy")
    assert (tokens == end).sum() == len(documents) * 9 // 10


@pytest.mark.compiles_a_lot
def test_gpt2_demo_reads_the_standard_library(pretraining, capsys):
    training, held_out = pretraining.stdlib_documents()
    assert len(held_out) == (len(training) + len(held_out)) // 10
    assert not set(training[:50]) & set(held_out)
    assert "MB, from" in capsys.readouterr().out


def test_gpt2_paper_schedule(pretraining):
    """Linear over N steps, then a cosine to 0; t counts from 1 to T."""
    import keras

    steps, warmup, peak = 50, 5, 5e-3
    schedule = pretraining.make_schedule(peak, steps, warmup)
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
    for name in ("lanton", "lanton_paper"):
        assert small.learning_rates[name] == 5e-3
        assert medium.learning_rates[name] == 3e-3
    for preset in (small, medium):
        assert preset.learning_rates["adamw"] == 1e-4
        assert (preset.context, preset.batch_size, preset.warmup) == (
            512,
            16,
            300,
        )


def test_gpt2_makes_every_optimizer(pretraining, gpt2):
    import hyperparameters

    from keras_lanton import Lanton

    for name in pretraining.OPTIMIZERS:
        optimizer = pretraining.make_optimizer(name, 1e-3)
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
    ours, papers = (
        pretraining.make_optimizer(name, 5e-3).get_config()
        for name in ("lanton", "lanton_paper")
    )
    assert ours == Lanton(5e-3, weight_decay=0.1).get_config()
    assert papers == Lanton.paper(5e-3).get_config()
    muon = pretraining.make_optimizer("muon", 3e-3)
    assert muon.adam_lr_ratio == pytest.approx(0.1)
    with pytest.raises(KeyError, match="no row of 'lamb'"):
        hyperparameters.find("lamb", "gpt2_small")


def test_gpt2_optimizer_without_a_rate_of_the_paper(pretraining, gpt2, capsys):
    with pytest.raises(SystemExit):
        pretraining.parse(
            gpt2.EXAMPLE, ["--preset", "gpt2_small", "--optimizer", "lamb"]
        )
    assert "no learning rate for lamb" in capsys.readouterr().err


def test_gpt2_data_order_depends_on_seed_and_step_alone(pretraining):
    whole = pretraining.training_rows(0, 12, blocks=11, batch_size=2, seed=1)
    parts = [
        pretraining.training_rows(a, b, blocks=11, batch_size=2, seed=1)
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
def test_gpt2_refuses_bad_arguments(
    pretraining, gpt2, capsys, arguments, message
):
    with pytest.raises(SystemExit):
        pretraining.parse(gpt2.EXAMPLE, arguments)
    assert message in capsys.readouterr().err


def test_gpt2_refuses_a_text_too_short(gpt2, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a b c")
    with pytest.raises(SystemExit, match="too short"):
        gpt2.main(["--text", str(short), "--output", str(tmp_path / "out")])


# -- llama_pretraining.py ----------------------------------------------------


@pytest.fixture(scope="module")
def llama(pretraining):
    """The example with its demo cut down to seconds; grouped queries."""
    module = load_example("llama_pretraining")
    module.PRESETS["demo"] = dataclasses.replace(
        module.PRESETS["demo"],
        layers=1,
        width=128,
        feed_forward=64,
        vocabulary=300,
        context=16,
        batch_size=4,
        steps=6,
        warmup=2,
        dropout=0.1,  # its random state must survive the interruption
        save_every=2,
        validation_blocks=4,
    )
    return module


@pytest.mark.compiles_a_lot
@pytest.mark.usefixtures("no_sample")
def test_llama_resumed_run_equals_the_undisturbed_run(
    pretraining, llama, text, tmp_path, monkeypatch, capsys
):
    """With two micro-batches a step."""
    command = ["--text", *text, "--optimizer", "lanton", "--accumulate", "2"]
    folders = [tmp_path / name for name in ("whole", "resumed")]
    llama.main([*command, "--output", str(folders[0])])
    command += ["--output", str(folders[1])]
    with monkeypatch.context() as patch:
        interrupt_in_step(pretraining, patch, 3)
        with pytest.raises(SystemExit, match="--resume"):
            llama.main(command)
    capsys.readouterr()
    llama.main([*command, "--resume"])
    assert "at step 2" in capsys.readouterr().out
    expected, resumed = (read_history(f / "lanton") for f in folders)
    assert expected["finished"]
    assert len(expected["loss"]) == 6
    assert expected["validation_step"] == [2, 4, 6]
    for key in ("loss", "validation_step", "validation_loss"):
        assert resumed[key] == expected[key]
    expected, resumed = (final_state(f / "lanton") for f in folders)
    assert resumed.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, name)
    with pytest.raises(SystemExit, match="other settings"):
        llama.main([*command, "--resume", "--accumulate", "4"])


@pytest.mark.compiles_a_lot
@pytest.mark.usefixtures("no_sample")
def test_llama_accumulated_run_is_that_of_whole_batches(
    llama, text, tmp_path, monkeypatch
):
    quiet = dataclasses.replace(llama.PRESETS["demo"], dropout=0.0)
    monkeypatch.setitem(llama.PRESETS, "demo", quiet)
    histories = []
    for count in ("1", "2"):
        folder = tmp_path / count
        llama.main(
            ["--text", *text, "--optimizer", "adamw", "--output", str(folder)]
            + ["--accumulate", count, "--data", str(tmp_path / "data")]
        )
        histories.append(read_history(folder / "adamw"))
        assert not (folder / "data").exists()
    for key in ("loss", "validation_loss"):
        # AdamW makes steps of rounding errors where gradients vanish: up to
        # 7e-4 on TensorFlow. A schedule that counts otherwise is off by 0.13.
        np.testing.assert_allclose(
            histories[1][key], histories[0][key], rtol=2e-3
        )


def test_accumulated_schedule_is_that_of_the_updates(pretraining):
    import keras

    def rates(count):
        schedule = pretraining.make_schedule(
            5e-3, 50 * count, 5 * count, minimum_ratio=0.1
        )
        return [
            float(keras.ops.convert_to_numpy(schedule(step)))
            for step in range(count - 1, 50 * count, count)
        ]

    np.testing.assert_allclose(rates(4), rates(1), rtol=1e-5)
    assert rates(1)[-1] == pytest.approx(5e-4)


@dataclasses.dataclass
class Stream:
    """Stands in for C4, and for the network's failures."""

    asked: list = dataclasses.field(default_factory=list)
    readings: list = dataclasses.field(default_factory=list)
    interrupted_reading: int | None = None

    def load_dataset(self, name, configuration, split, streaming):
        import datasets

        self.asked.append((name, configuration, split, streaming))
        return datasets.IterableDataset.from_generator(self.generate)

    def generate(self):
        self.readings.append(0)
        for i in range(300):
            if (len(self.readings), i) == (self.interrupted_reading, 12):
                raise KeyboardInterrupt
            self.readings[-1] += 1
            yield {"text": f"{i} noise layer rate norm step {i % 7}"}


@pytest.fixture
def c4(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="reads Hugging Face data")
    stream = Stream()
    monkeypatch.setattr(datasets, "load_dataset", stream.load_dataset)
    return stream


@pytest.mark.compiles_a_lot
@pytest.mark.usefixtures("no_sample")
def test_llama_trains_on_as_much_of_c4_as_it_needs(
    pretraining, llama, c4, tmp_path, monkeypatch
):
    import token_files

    monkeypatch.setattr(token_files, "BATCH", 5)
    monkeypatch.setattr(token_files, "SHARD", 60)
    command = ["--dataset", "c4", "--optimizer", "adamw", "--steps", "4"]
    command += ["--output", str(tmp_path), "--dtype-policy", "mixed_bfloat16"]
    folder = tmp_path / "data" / "c4"
    c4.interrupted_reading = 2  # the first is for the vocabulary
    with pytest.raises(SystemExit, match="--resume"):
        llama.main(command)
    index = token_files.read_json(folder / "training" / "index.json")
    assert 0 < index["documents"] <= 12
    llama.main([*command, "--resume"])
    assert c4.asked[-2:] == [
        ("allenai/c4", "en", split, True) for split in ("train", "validation")
    ]
    history = read_history(tmp_path / "adamw")
    assert history["finished"]
    assert np.isfinite(history["loss"]).all()
    # No more of the stream than wanted, in its order, nothing twice.
    needed = 4 * 4 * 16 + 1  # steps, batch, context
    training = token_files.read(folder / "training")
    assert needed <= len(training) < needed + 5 * 20
    args = pretraining.parse(llama.EXAMPLE, command)
    data = pretraining.load_data(args)
    assert len(data.training) == needed
    text = data.tokenizer.decode(
        training[:].tolist(), skip_special_tokens=False
    )
    documents = text.split(pretraining.END_OF_TEXT)[:-1]
    numbers = [int(document.split()[0]) for document in documents]
    assert numbers == list(range(len(numbers)))
    # The files serve fewer tokens, too, and nothing is read again.
    asked = len(c4.asked)
    args = pretraining.parse(llama.EXAMPLE, [*command, "--tokens", "100"])
    assert len(pretraining.load_data(args).training) == 100
    assert len(c4.asked) == asked


def test_another_vocabulary_makes_the_tokens_anew(
    pretraining, llama, text, tmp_path, capsys
):
    def load(**changes):
        args = pretraining.parse(
            llama.EXAMPLE, ["--text", *text, "--output", str(tmp_path)]
        )
        args.preset = dataclasses.replace(args.preset, **changes)
        return pretraining.load_data(args)

    first = len(load().training)
    assert "anew" not in capsys.readouterr().out
    assert len(load(vocabulary=280).training) > first
    assert "made anew" in capsys.readouterr().out


def test_llama_paper_presets(pretraining, llama):
    """What the paper states of its Llama runs."""
    half, one, two = (
        llama.PRESETS[name] for name in ("llama_500m", "llama_1b", "llama_2b")
    )
    assert (half.layers, half.width, half.heads) == (15, 1280, 20)
    assert (one.layers, one.width, one.heads) == (22, 2048, 32)
    assert (half.feed_forward, one.feed_forward) == (5120, 5632)
    assert (half.context, half.batch_size) == (512, 300)
    assert (half.warmup, half.minimum_ratio) == (1000, 1 / 20)
    assert half.learning_rates["adamw"] == 8e-4
    for preset in (one, two):
        assert (preset.context, preset.batch_size) == (256, 1024)
        assert (preset.warmup, preset.minimum_ratio) == (1000, 1 / 10)
        assert preset.learning_rates["adamw"] == 3e-4
        assert preset.learning_rates["lanton"] == 5e-3
        assert preset.learning_rates["lanton_paper"] == 5e-3
        assert preset.heads % preset.key_value_heads == 0
    muon = pretraining.make_optimizer("muon", 5e-3, one.experiment)
    assert muon.adam_lr_ratio == pytest.approx(3e-4 / 5e-3)


def weights(preset, vocabulary):
    """Embedding and head, both norms' gains, attention, feed-forward."""
    width, keys = preset.width, 64 * preset.key_value_heads
    attention = 2 * width * width + 2 * width * keys
    layer = attention + 3 * width * preset.feed_forward + 2 * width
    return 2 * vocabulary * width + preset.layers * layer + width


def test_llama_paper_sizes(llama):
    model = llama.make_model(llama.PRESETS["demo"], 300)
    assert model.count_params() == weights(llama.PRESETS["demo"], 300)
    for name, billions in (
        # The paper's, with 50304 tokens; it only calls the last 2B.
        ("llama_500m", 0.522),
        ("llama_1b", 1.175),
        ("llama_2b", 2.047),
    ):
        count = weights(llama.PRESETS[name], 50304)
        assert count / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--accumulate", "3"], "must divide the batch size of 4"),
        (["--accumulate", "0"], "not above 0"),
        (["--tokens", "0"], "not above 0"),
        (["--dtype-policy", "mixed_float16"], "invalid choice"),
        (["--dataset", "pile"], "invalid choice"),
        (["--preset", "gpt2_small"], "invalid choice"),
    ],
)
def test_llama_refuses_bad_arguments(
    pretraining, llama, capsys, arguments, message
):
    with pytest.raises(SystemExit):
        pretraining.parse(llama.EXAMPLE, arguments)
    assert message in capsys.readouterr().err


def test_gpt2_on_a_stream_wants_an_end(pretraining, gpt2, capsys):
    command = ["--preset", "gpt2_small", "--dataset", "c4"]
    with pytest.raises(SystemExit):
        pretraining.parse(gpt2.EXAMPLE, command)
    assert "takes --steps or --tokens" in capsys.readouterr().err
    args = pretraining.parse(gpt2.EXAMPLE, [*command, "--steps", "5"])
    assert pretraining.token_limits(args)[0] == 5 * 16 * 512 + 1


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


@pytest.mark.parametrize(
    "name", some_fast(["lanton", "lanton_paper"], ["lanton"])
)
def test_cnn_learns_digits(cnn, tmp_path, capsys, name):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    cnn.main(["--optimizer", name, "--epochs", "2", "--output", str(tmp_path)])
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert result["test_accuracy"] > 0.3  # a tenth would be chance
    assert "test accuracy" in capsys.readouterr().out


def test_cnn_makes_every_optimizer(cnn):
    import keras

    arguments = inspect.signature(keras.optimizers.Muon).parameters
    for name in cnn.OPTIMIZERS:
        if name == "keras_muon" and "adam_weight_decay" not in arguments:
            continue  # an older Keras
        optimizer = cnn.make_optimizer(name, 0.1)
        assert optimizer.weight_decay in (None, 0.0)
        for preset in cnn.PRESETS.values():
            assert preset.learning_rates[name] > 0
    assert cnn.make_optimizer("scion", 0.05).beta_1 == 0.5
    recipe = cnn.make_optimizer("lanton_paper", 0.1)
    assert (recipe.beta_1, recipe.noise.beta_2) == (0.6, 0.85)
    assert (recipe.vector_norm, recipe.adamw_roles) == ("sign", ())


@pytest.mark.compiles_a_lot
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

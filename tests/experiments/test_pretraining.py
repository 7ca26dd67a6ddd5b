"""Runs of language models: they train, resume exactly, refuse bad arguments."""

import contextlib
import dataclasses
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

from helpers.tiers import exhaustive
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # as with `python -m experiments.pretraining`

# On a Keras too old for it, KerasHub raises an ImportError of its own.
pytest.importorskip(
    "keras_hub",
    reason="the experiments train KerasHub's models",
    exc_type=ImportError,
)
pytest.importorskip("tokenizers", reason="they learn a vocabulary")
pytest.importorskip("matplotlib", reason="they draw their curves")
pytest.importorskip("tqdm", reason="they show a progress bar")

from experiments import presets  # noqa: E402
from experiments import pretraining  # noqa: E402
from experiments import token_files  # noqa: E402
from experiments import tokens  # noqa: E402
from experiments import training  # noqa: E402

pytestmark = logic

GPT2 = dataclasses.replace(
    presets.PRESETS["gpt2_demo"],
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
# With grouped queries.
LLAMA = dataclasses.replace(
    presets.PRESETS["llama_demo"],
    layers=1,
    width=128,
    feed_forward=64,
    vocabulary=300,
    context=16,
    batch_size=4,
    steps=6,
    warmup=2,
    dropout=0.1,
    save_every=2,
    validation_blocks=4,
)
LLAMA_DEMO = ["--preset", "llama_demo"]


@pytest.fixture(scope="module", autouse=True)
def demos():
    """The demos, cut down to seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "gpt2_demo", GPT2)
        patch.setitem(presets.PRESETS, "llama_demo", LLAMA)
        yield


@pytest.fixture
def no_sample(monkeypatch):
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


@pytest.mark.parametrize(
    "distribution", ["data", pytest.param("model", marks=exhaustive)]
)
def test_gpt2_on_all_devices(text, tmp_path, no_sample, distribution, capsys):
    """Here one: the same losses. Two are in the test below."""
    command = ["--text", *text, "--steps", "4", "--optimizer", "lanton"]
    there = [*command, "--distribution", distribution]
    there += ["--output", str(tmp_path / distribution)]
    backend = keras.backend.backend()
    if backend == "torch" or (backend, distribution) == ("tensorflow", "model"):
        with pytest.raises(SystemExit, match=f"Received: .*{distribution}"):
            pretraining.main(there)
        return
    pretraining.main(there)
    pretraining.main([*command, "--output", str(tmp_path / "none")])
    found, wanted = (
        read_history(tmp_path / name / "lanton")
        for name in (distribution, "none")
    )
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="keras.distribution"
)
@exhaustive
@pytest.mark.parametrize("distribution", ["data", "model"])
def test_demo_on_two_devices(text, tmp_path, distribution):
    losses = {}
    for name in ("none", distribution):
        folder = tmp_path / name
        module = "experiments.pretraining"
        command = [sys.executable, "-m", module, "--text", *text]
        command += ["--steps", "4", "--optimizer", "lanton", "--batch-size"]
        command += ["4", "--output", str(folder), "--distribution", name]
        flag = "--xla_force_host_platform_device_count=2"
        subprocess.run(
            command,
            check=True,
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": flag},
        )
        losses[name] = read_history(folder / "lanton")["loss"]
    np.testing.assert_allclose(losses[distribution], losses["none"], rtol=1e-4)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """An undisturbed run with both optimizers."""
    folder = tmp_path_factory.mktemp("whole")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        pretraining.main(["--text", *text, "--output", str(folder)])
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
        interrupt(training, patch, 5)
        with pytest.raises(SystemExit, match="--resume"):
            pretraining.main(command)
    capsys.readouterr()
    pretraining.main([*command, "--resume"])
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


def test_gpt2_checkpoint_loads_in_keras(whole):
    path = whole.folder / "lanton" / "model.keras"
    model = keras.saving.load_model(path, compile=False)
    ids = np.ones((1, 16), "int32")
    logits = model.predict({"token_ids": ids, "padding_mask": ids}, verbose=0)
    assert np.isfinite(logits).all()


@pytest.mark.usefixtures("no_sample")
def test_gpt2_resume_keeps_finished_runs(text, whole, tmp_path, capsys):
    folder = tmp_path / "out"
    shutil.copytree(whole.folder, folder)
    command = ["--text", *text, "--output", str(folder)]
    checkpoint = folder / "adamw" / "model.keras"
    written = checkpoint.stat().st_mtime_ns
    pretraining.main([*command, "--resume"])
    assert checkpoint.stat().st_mtime_ns == written
    assert f"{folder / 'adamw'} is finished" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="other settings"):
        pretraining.main(
            [*command, "--resume", "--learning-rate", "1e-4", "1e-4"]
        )
    pretraining.main([*command, "--optimizer", "adamw", "--steps", "4"])
    assert f"Starting {folder / 'adamw'} anew" in capsys.readouterr().out
    assert len(read_history(folder / "adamw")["loss"]) == 4


def test_gpt2_sweep_names_the_best_rate(text, tmp_path, capsys):
    command = ["--text", *text, "--output", str(tmp_path), "--sweep"]
    pretraining.main(
        [*command, "--optimizer", "adamw", "--learning-rate", "1e-2", "1e-9"]
    )
    results = json.loads((tmp_path / "sweep.json").read_text())
    assert [r["learning_rate"] for r in results] == [1e-2, 1e-9]
    assert results[0]["validation_loss"] < results[1]["validation_loss"]
    assert "Best for adamw: learning rate 0.01" in capsys.readouterr().out


@pytest.mark.usefixtures("no_sample")
def test_gpt2_reads_openwebtext_with_gpt2s_vocabulary(
    text, tmp_path, monkeypatch
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
        documents, vocab_size=300, special_tokens=[tokens.END_OF_TEXT]
    )
    tokenizer.save_model(str(tmp_path))
    pretraining.main(
        ["--dataset", "openwebtext-100k", "--output", str(tmp_path / "out")]
        + ["--vocab", str(tmp_path / "vocab.json")]
        + ["--merges", str(tmp_path / "merges.txt")]
        + ["--optimizer", "adamw", "--steps", "4"]
    )
    assert asked == [("Elriggs/openwebtext-100k", "train")]
    assert read_history(tmp_path / "out" / "adamw")["finished"]
    # 90 % of the documents are for training, each closed by one end token.
    end = tokenizer.token_to_id(tokens.END_OF_TEXT)
    folder = tmp_path / "out" / "data" / "openwebtext-100k" / "training"
    ids = token_files.read(folder)
    assert (ids == end).sum() == len(documents) * 9 // 10


def test_gpt2_optimizer_without_a_rate_of_the_paper(capsys):
    with pytest.raises(SystemExit):
        pretraining.parse(["--preset", "gpt2_small", "--optimizer", "lamb"])
    assert "no learning rate for lamb" in capsys.readouterr().err


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
def test_gpt2_refuses_bad_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit):
        pretraining.parse(arguments)
    assert message in capsys.readouterr().err


def test_gpt2_refuses_a_text_too_short(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a b c")
    with pytest.raises(SystemExit, match="too short"):
        pretraining.main(
            ["--text", str(short), "--output", str(tmp_path / "out")]
        )


@pytest.mark.usefixtures("no_sample")
def test_llama_resumed_run_equals_the_undisturbed_run(
    text, tmp_path, monkeypatch, capsys
):
    """With two micro-batches a step."""
    command = [*LLAMA_DEMO, "--text", *text, "--optimizer", "lanton"]
    command += ["--accumulate", "2"]
    folders = [tmp_path / name for name in ("whole", "resumed")]
    pretraining.main([*command, "--output", str(folders[0])])
    command += ["--output", str(folders[1])]
    with monkeypatch.context() as patch:
        interrupt_in_step(training, patch, 3)
        with pytest.raises(SystemExit, match="--resume"):
            pretraining.main(command)
    capsys.readouterr()
    pretraining.main([*command, "--resume"])
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
        pretraining.main([*command, "--resume", "--accumulate", "4"])


@pytest.mark.usefixtures("no_sample")
def test_llama_accumulated_run_is_that_of_whole_batches(
    text, tmp_path, monkeypatch
):
    quiet = dataclasses.replace(LLAMA, dropout=0.0)
    monkeypatch.setitem(presets.PRESETS, "llama_demo", quiet)
    histories = []
    for count in ("1", "2"):
        folder = tmp_path / count
        pretraining.main(
            [
                *LLAMA_DEMO,
                "--text",
                *text,
                "--optimizer",
                "adamw",
                "--output",
                str(folder),
            ]
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


@pytest.mark.usefixtures("no_sample")
def test_llama_trains_on_as_much_of_c4_as_it_needs(c4, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "BATCH", 5)
    command = [*LLAMA_DEMO, "--dataset", "c4", "--optimizer", "adamw"]
    command += ["--steps", "4"]
    command += ["--output", str(tmp_path), "--dtype-policy", "mixed_bfloat16"]
    folder = tmp_path / "data" / "c4"
    c4.interrupted_reading = 2  # the first is for the vocabulary
    with pytest.raises(SystemExit, match="--resume"):
        pretraining.main(command)
    index = token_files.read_json(folder / "training" / "index.json")
    assert 0 < index["documents"] <= 12
    pretraining.main([*command, "--resume"])
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
    args = pretraining.parse(command)
    data = tokens.load_data(args)
    assert len(data.training) == needed
    text = data.tokenizer.decode(
        training[:].tolist(), skip_special_tokens=False
    )
    documents = text.split(tokens.END_OF_TEXT)[:-1]
    numbers = [int(document.split()[0]) for document in documents]
    assert numbers == list(range(len(numbers)))
    # The files serve fewer tokens, too, and nothing is read again.
    asked = len(c4.asked)
    args = pretraining.parse([*command, "--tokens", "100"])
    assert len(tokens.load_data(args).training) == 100
    assert len(c4.asked) == asked


def test_another_vocabulary_makes_the_tokens_anew(text, tmp_path, capsys):
    def load(**changes):
        args = pretraining.parse(
            [*LLAMA_DEMO, "--text", *text, "--output", str(tmp_path)]
        )
        args.preset = dataclasses.replace(args.preset, **changes)
        return tokens.load_data(args)

    first = len(load().training)
    assert "anew" not in capsys.readouterr().out
    assert len(load(vocabulary=280).training) > first
    assert "made anew" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--accumulate", "3"], "must divide the batch size of 4"),
        (["--accumulate", "0"], "not above 0"),
        (["--tokens", "0"], "not above 0"),
        (["--dtype-policy", "mixed_float16"], "invalid choice"),
        (["--dataset", "pile"], "invalid choice"),
        (["--preset", "llama_3b"], "invalid choice"),
    ],
)
def test_llama_refuses_bad_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit):
        pretraining.parse([*LLAMA_DEMO, *arguments])
    assert message in capsys.readouterr().err


def test_gpt2_on_a_stream_wants_an_end(capsys):
    command = ["--preset", "gpt2_small", "--dataset", "c4"]
    with pytest.raises(SystemExit):
        pretraining.parse(command)
    assert "takes --steps or --tokens" in capsys.readouterr().err
    args = pretraining.parse([*command, "--steps", "5"])
    assert tokens.token_limits(args)[0] == 5 * 16 * 512 + 1

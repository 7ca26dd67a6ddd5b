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

from helpers.saves import arrays_of
from helpers.saves import assert_same_arrays
from helpers.tiers import exhaustive
from helpers.tiers import logic

# On a Keras too old for it, KerasHub raises an ImportError of its own.
pytest.importorskip("keras_hub", exc_type=ImportError)
pytest.importorskip("tokenizers")
pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

from experiments import presets
from experiments import pretraining
from experiments import token_files
from experiments import tokens
from experiments import training

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = logic

SMALL = {
    "layers": 1,
    "vocabulary": 300,
    "context": 16,
    "warmup": 2,
    "dropout": 0.1,  # its random state must survive the interruption
    "validation_blocks": 4,
}
GPT2 = dataclasses.replace(
    presets.PRESETS["gpt2_demo"],
    **SMALL,
    width=64,
    batch_size=2,
    steps=9,
    save_every=3,
    sweep_steps=4,
)
# With grouped queries.
LLAMA = dataclasses.replace(
    presets.PRESETS["llama_demo"],
    **SMALL,
    width=128,
    feed_forward=64,
    batch_size=4,
    steps=6,
    save_every=2,
)
LLAMA_DEMO = ["--preset", "llama_demo"]
LANTON = ["--optimizer", "lanton"]
ADAMW = ["--optimizer", "adamw"]


@pytest.fixture(scope="module", autouse=True)
def demos():
    """The demos, cut down to seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "gpt2_demo", GPT2)
        patch.setitem(presets.PRESETS, "llama_demo", LLAMA)
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Two small files of words, enough for some dozens of blocks."""
    folder = tmp_path_factory.mktemp("text")
    random = np.random.default_rng(0)
    words = np.array("noise layer rate norm step of the and a is\n".split(" "))
    files = [folder / "one.txt", folder / "two.txt"]
    for file in files:
        file.write_text(" ".join(random.choice(words, 600)))
    return ["--text", *map(str, files)]


def train(*command, output):
    """Train without the sample, whose generation takes long to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "print_sample", lambda *_: None)
        pretraining.main([*command, "--output", str(output)])


def read_history(folder):
    return token_files.read_json(folder / "history.json")


@pytest.mark.parametrize(
    "distribution", ["data", pytest.param("model", marks=exhaustive)]
)
def test_gpt2_on_all_devices(text, tmp_path, distribution):
    """Here one: the same losses. Two are in the test below."""
    command = [*text, "--steps", "4", *LANTON]
    there = [*command, "--distribution", distribution]
    backend = keras.backend.backend()
    if backend == "torch" or (backend, distribution) == ("tensorflow", "model"):
        with pytest.raises(SystemExit, match=f"Received: .*{distribution}"):
            train(*there, output=tmp_path)
        return
    losses = []
    for name, one in (("there", there), ("here", command)):
        train(*one, output=tmp_path / name)
        losses.append(read_history(tmp_path / name / "lanton")["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="keras.distribution"
)
@exhaustive
@pytest.mark.parametrize("distribution", ["data", "model"])
def test_demo_on_two_devices(text, tmp_path, distribution):
    losses = {}
    command = [sys.executable, "-m", "experiments.pretraining", *text, *LANTON]
    command += ["--steps", "4", "--batch-size", "4"]
    flag = "--xla_force_host_platform_device_count=2"
    for name in ("none", distribution):
        folder = tmp_path / name
        there = ["--output", str(folder), "--distribution", name]
        given = {"env": {**os.environ, "XLA_FLAGS": flag}, "cwd": ROOT}
        subprocess.run([*command, *there], check=True, **given)
        losses[name] = read_history(folder / "lanton")["loss"]
    np.testing.assert_allclose(losses[distribution], losses["none"], rtol=1e-4)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """An undisturbed run with both optimizers."""
    folder = tmp_path_factory.mktemp("whole")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        pretraining.main([*text, "--output", str(folder)])
    return folder, printed.getvalue()


def final_state(folder):
    """All arrays of a run's checkpoint: weights and optimizer state."""
    with zipfile.ZipFile(folder / "model.keras") as archive:
        return arrays_of(io.BytesIO(archive.read("model.weights.h5")))


def test_gpt2_trains_each_optimizer_on_the_users_text(whole):
    folder, printed = whole
    histories = [read_history(folder / name) for name in ("lanton", "adamw")]
    for history in histories:
        assert history["finished"]
        assert len(history["loss"]) == len(history["seconds"]) == 9
        assert history["validation_step"] == [3, 6, 9]
        assert np.isfinite(history["loss"]).all()
        assert np.isfinite(history["validation_loss"]).all()
    # One seed, one data order: both start from the same weights.
    first, second = (history["loss"][0] for history in histories)
    assert first == pytest.approx(second, rel=1e-5)
    assert (folder / "loss.png").stat().st_size > 10_000
    assert "validation loss" in printed
    assert "Text from" in printed
    path = folder / "lanton" / "model.keras"
    model = keras.saving.load_model(path, compile=False)
    ids = np.ones((1, 16), "int32")
    logits = model.predict({"token_ids": ids, "padding_mask": ids}, verbose=0)
    assert np.isfinite(logits).all()


def interrupt_in_step(monkeypatch, step):
    """Ctrl-C after `step`, between two checkpoints."""
    make_recorder = training.make_recorder

    def make(run, model, history):
        recorder = make_recorder(run, model, history)
        record = recorder.on_train_batch_end

        def on_train_batch_end(batch, logs=None):
            record(batch, logs)
            if len(history["loss"]) == step:
                raise KeyboardInterrupt

        recorder.on_train_batch_end = on_train_batch_end
        return recorder

    monkeypatch.setattr(training, "make_recorder", make)


def interrupt_in_save(monkeypatch, step):
    """Killed with the history written and the checkpoint not."""
    save = training.save

    def save_or_die(run, model, history):
        if len(history["loss"]) < step:
            return save(run, model, history)
        training.write_json(run.history, history)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "save", save_or_die)


@pytest.fixture
def resume(monkeypatch, capsys):
    """Interrupt a command after some steps, resume it, and compare."""

    def run_twice(command, interrupt, step, saved, whole, resumed):
        output = resumed.parent
        with monkeypatch.context() as patch:
            interrupt(patch, step)
            with pytest.raises(SystemExit, match="--resume"):
                train(*command, output=output)
        capsys.readouterr()
        train(*command, "--resume", output=output)
        assert f"at step {saved}" in capsys.readouterr().out
        expected, found = map(read_history, (whole, resumed))
        for key in ("loss", "validation_step", "validation_loss"):
            assert found[key] == expected[key]
        expected, found = map(final_state, (whole, resumed))
        assert_same_arrays(found, expected)

    return run_twice


@pytest.mark.parametrize(
    ("interrupt", "optimizer"),
    [(interrupt_in_step, "lanton"), (interrupt_in_save, "adamw")],
)
def test_gpt2_resumed_run_equals_the_undisturbed_run(
    text, whole, tmp_path, resume, interrupt, optimizer
):
    command = [*text, "--optimizer", optimizer]
    folders = whole[0] / optimizer, tmp_path / optimizer
    resume(command, interrupt, 5, 3, *folders)


def test_gpt2_resume_keeps_finished_runs(text, whole, tmp_path, capsys):
    folder = tmp_path / "out"
    shutil.copytree(whole[0], folder)
    checkpoint = folder / "adamw" / "model.keras"
    written = checkpoint.stat().st_mtime_ns
    train(*text, "--resume", output=folder)
    assert checkpoint.stat().st_mtime_ns == written
    assert f"{folder / 'adamw'} is finished" in capsys.readouterr().out
    rates = ["--learning-rate", "1e-4", "1e-4"]
    with pytest.raises(SystemExit, match="other settings"):
        train(*text, "--resume", *rates, output=folder)
    train(*text, *ADAMW, "--steps", "4", output=folder)
    assert f"Starting {folder / 'adamw'} anew" in capsys.readouterr().out
    assert len(read_history(folder / "adamw")["loss"]) == 4


def test_gpt2_sweep_names_the_best_rate(text, tmp_path, capsys):
    rates = ["--sweep", "--learning-rate", "1e-2", "1e-9"]
    train(*text, *ADAMW, *rates, output=tmp_path)
    results = json.loads((tmp_path / "sweep.json").read_text())
    assert [r["learning_rate"] for r in results] == [1e-2, 1e-9]
    assert results[0]["validation_loss"] < results[1]["validation_loss"]
    assert "Best for adamw: learning rate 0.01" in capsys.readouterr().out


def test_gpt2_reads_openwebtext_with_gpt2s_vocabulary(
    text, tmp_path, monkeypatch
):
    datasets = pytest.importorskip("datasets", reason="reads Hugging Face data")
    import tokenizers

    documents = pathlib.Path(text[1]).read_text().split(". ") * 3
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
    command = ["--dataset", "openwebtext-100k", *ADAMW, "--steps", "4"]
    for name in ("vocab.json", "merges.txt"):
        command += [f"--{name.split('.')[0]}", str(tmp_path / name)]
    train(*command, output=tmp_path)
    assert asked == [("Elriggs/openwebtext-100k", "train")]
    assert read_history(tmp_path / "adamw")["finished"]
    # 90 % of the documents are for training, each closed by one end token.
    end = tokenizer.token_to_id(tokens.END_OF_TEXT)
    folder = tmp_path / "data" / "openwebtext-100k" / "training"
    ids = token_files.read(folder)
    assert (ids == end).sum() == len(documents) * 9 // 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--optimizer sgd", "invalid choice"),
        ("--learning-rate 1e-3", "give one for each"),
        ("--learning-rate 0 1", "not above 0"),
        ("--steps 3", "at least 4"),
        (f"--vocab {__file__}", "go together"),
        ("--text no-such-file", "there is no file"),
        (f"--text {__file__} --dataset stdlib", "not allowed with"),
        ("--sweep --learning-rate 1 1", "single --optimizer"),
        ("--preset gpt2_small --optimizer lamb", "no learning rate for lamb"),
        ("--preset gpt2_small --dataset c4", "takes --steps or --tokens"),
        ("--preset llama_demo --accumulate 3", "divide the batch size of 4"),
        ("--accumulate 0", "not above 0"),
        ("--tokens 0", "not above 0"),
        ("--dtype-policy mixed_float16", "invalid choice"),
        ("--dataset pile", "invalid choice"),
        ("--preset llama_3b", "invalid choice"),
    ],
)
def test_bad_arguments_are_refused(capsys, arguments, message):
    with pytest.raises(SystemExit):
        pretraining.parse(arguments.split())
    assert message in capsys.readouterr().err


def test_a_stream_has_as_many_tokens_as_the_steps():
    command = ["--preset", "gpt2_small", "--dataset", "c4", "--steps", "5"]
    args = pretraining.parse(command)
    assert tokens.token_limits(args)[0] == 5 * 16 * 512 + 1


def test_gpt2_refuses_a_text_too_short(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a b c")
    with pytest.raises(SystemExit, match="too short"):
        train("--text", str(short), output=tmp_path / "out")


def test_llama_resumed_run_equals_the_undisturbed_run(text, tmp_path, resume):
    """With two micro-batches a step."""
    command = [*LLAMA_DEMO, *text, *LANTON, "--accumulate", "2"]
    train(*command, output=tmp_path / "whole")
    folders = [tmp_path / name / "lanton" for name in ("whole", "resumed")]
    expected = read_history(folders[0])
    assert expected["finished"]
    assert len(expected["loss"]) == 6
    assert expected["validation_step"] == [2, 4, 6]
    resume(command, interrupt_in_step, 3, 2, *folders)
    more = ["--resume", "--accumulate", "4"]
    with pytest.raises(SystemExit, match="other settings"):
        train(*command, *more, output=tmp_path / "resumed")


def test_llama_accumulated_run_is_that_of_whole_batches(
    text, tmp_path, monkeypatch
):
    quiet = dataclasses.replace(LLAMA, dropout=0.0)
    monkeypatch.setitem(presets.PRESETS, "llama_demo", quiet)
    histories = []
    for count in ("1", "2"):
        folder = tmp_path / count
        command = [*LLAMA_DEMO, *text, *ADAMW, "--accumulate", count]
        train(*command, "--data", str(tmp_path / "data"), output=folder)
        histories.append(read_history(folder / "adamw"))
        assert not (folder / "data").exists()
    for key in ("loss", "validation_loss"):
        # AdamW makes steps of rounding errors where gradients vanish: up to
        # 7e-4 on TensorFlow. A schedule that counts otherwise is off by 0.13.
        np.testing.assert_allclose(
            histories[1][key], histories[0][key], rtol=2e-3
        )


class Stream:
    """Stands in for C4, and for the network's failures."""

    interrupted_reading = 2  # the first is for the vocabulary

    def __init__(self):
        self.asked, self.readings = [], []

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


def test_llama_trains_on_as_much_of_c4_as_it_needs(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="reads Hugging Face data")
    c4 = Stream()
    monkeypatch.setattr(datasets, "load_dataset", c4.load_dataset)
    monkeypatch.setattr(token_files, "BATCH", 5)
    command = "--preset llama_demo --dataset c4 --optimizer adamw --steps 4"
    command = f"{command} --dtype-policy mixed_bfloat16".split()
    folder = tmp_path / "data" / "c4"
    with pytest.raises(SystemExit, match="--resume"):
        train(*command, output=tmp_path)
    index = token_files.read_json(folder / "training" / "index.json")
    assert 0 < index["documents"] <= 12
    train(*command, "--resume", output=tmp_path)
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
    command += ["--output", str(tmp_path)]
    data = tokens.load_data(pretraining.parse(command))
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
        output = ["--output", str(tmp_path)]
        args = pretraining.parse([*LLAMA_DEMO, *text, *output])
        args.preset = dataclasses.replace(args.preset, **changes)
        return tokens.load_data(args)

    first = len(load().training)
    assert "anew" not in capsys.readouterr().out
    assert len(load(vocabulary=280).training) > first
    assert "made anew" in capsys.readouterr().out

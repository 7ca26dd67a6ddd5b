"""The examples run, resume exactly, and stand on their own.

Run as a script, `test_examples.py NAME FOLDER` trains the small example until
it kills itself in a save.
"""

import ast
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_lanton
from helpers.processes import environment
from helpers.tiers import exhaustive
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # for the experiments
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LANGUAGE = ("gpt2_pretraining", "llama_pretraining")


def load_example(name):
    """Import examples/NAME.py, which is no package, as a fresh module."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_stands_on_its_own(path):
    """One file of 250 lines, which imports public names alone."""
    text = path.read_text()
    assert len(text.splitlines()) <= 250
    others = {"experiments", *(p.stem for p in EXAMPLES)}
    public = {"callbacks": ("NoiseMonitor",), "": keras_lanton.__all__}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert not others & {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            package, _, module = node.module.partition(".")
            assert package not in others
            if package == "keras_lanton":
                names = {alias.name for alias in node.names}
                assert names <= set(public[module])


def test_there_are_three_examples():
    names = [path.stem for path in EXAMPLES]
    assert names == ["cnn_images", *LANGUAGE]


# -- Language models ---------------------------------------------------------


def words():
    random = np.random.default_rng(0)
    words = np.array("noise layer rate norm step of the and a is\n".split(" "))
    return [" ".join(random.choice(words, 300)) for _ in range(4)]


@pytest.fixture(scope="module")
def small():
    """A function that gives an example, cut down to seconds."""
    pytest.importorskip("keras_hub", exc_type=ImportError)
    for name in ("tokenizers", "matplotlib", "tqdm"):
        pytest.importorskip(name, reason="the examples need it")

    return lambda name, patch: cut_down(name, patch.setattr)


def cut_down(name, change=setattr):
    """An example as a module, of seconds."""
    module = load_example(name)
    settings = {
        "VOCABULARY": 300,
        "CONTEXT": 16,
        "BATCH_SIZE": 2,
        "LAYERS": 1,
        "HEADS": 1,
        "WIDTH": 32,
        "STEPS_PER_EPOCH": 5,
    }
    if name == "llama_pretraining":
        settings["FEED_FORWARD"] = 48
    for key, value in settings.items():
        assert hasattr(module, key)
        change(module, key, value)
    texts = words()
    change(module, "read_standard_library", lambda: (texts[:3], texts[3:]))
    # 1024 blocks would take most of the time.
    few = module.cut_blocks
    change(module, "validation_blocks", lambda tokens: few(tokens, range(6)))
    return module


def test_language_example_runs(small, tmp_path, monkeypatch, capsys):
    """Also the sample, whose generation takes long to compile."""
    module = small("gpt2_pretraining", monkeypatch)
    module.main(["--steps", "20", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "validation loss" in printed
    assert "LANTON's model continues 16 tokens" in printed
    for name in ("lanton", "adamw"):
        losses = json.loads((tmp_path / name / "losses.json").read_text())
        assert len(losses) == 4
        assert np.isfinite([one["val_loss"] for one in losses]).all()
        assert losses[-1]["loss"] < losses[0]["loss"]
    for picture in ("loss.png", "lanton/noise.png"):
        assert (tmp_path / picture).stat().st_size > 10_000


def arrays(path):
    """All arrays of a checkpoint: weights and optimizer state."""
    import h5py

    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def interruptions():
    """TensorFlow turns what a generator raises into an error of its own."""
    if keras.backend.backend() != "tensorflow":
        return KeyboardInterrupt
    import tensorflow as tf

    return KeyboardInterrupt, tf.errors.UnknownError


def in_a_step(module, stop, change):
    batches = module.training_batches

    def deadly(tokens, first_step):
        for i, batch in enumerate(batches(tokens, first_step)):
            if i == 13:
                stop()
            yield batch

    change(module, "training_batches", deadly)


def in_a_save(module, stop, change):
    replace, calls = module.os.replace, []

    def deadly(old, new):
        calls.extend([new] if "weights" in str(new) else [])
        if len(calls) == 3:
            stop()  # the losses are written already
        replace(old, new)

    change(module.os, "replace", deadly)


def interrupt():
    raise KeyboardInterrupt


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@logic
@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize(
    "stop",
    [in_a_step, in_a_save, pytest.param("killed", marks=exhaustive)],
    ids=["in a step", "in a save", "killed in a save"],
)
def test_resumed_example_equals_the_undisturbed(
    small, tmp_path, monkeypatch, capsys, name, stop
):
    module = small(name, monkeypatch)
    monkeypatch.setattr(module, "print_sample", lambda *_: None)
    module.main(["--steps", "20", "--output", str(tmp_path / "whole")])
    command = ["--steps", "20", "--output", str(tmp_path / "resumed")]
    if stop == "killed":
        script = [sys.executable, __file__, name, command[-1]]
        done = subprocess.run(script, env=environment())
        assert done.returncode == -signal.SIGKILL
    else:
        with monkeypatch.context() as patch:
            stop(module, interrupt, patch.setattr)
            with pytest.raises(interruptions()):
                module.main(command)
    capsys.readouterr()
    module.main([*command, "--resume"])
    assert "lanton, from step 10 of 20" in capsys.readouterr().out
    for optimizer in ("lanton", "adamw"):
        folders = [tmp_path / x / optimizer for x in ("whole", "resumed")]
        expected, found = (
            json.loads((folder / "losses.json").read_text())
            for folder in folders
        )
        assert found == expected
        expected, found = (
            arrays(folder / "checkpoint.weights.h5") for folder in folders
        )
        assert found.keys() == expected.keys()
        assert any(key.startswith("optimizer/") for key in expected)
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, key)


@logic
@pytest.mark.parametrize("name", LANGUAGE)
def test_resuming_a_finished_example_changes_nothing(
    small, tmp_path, monkeypatch, name
):
    module = small(name, monkeypatch)
    monkeypatch.setattr(module, "print_sample", lambda *_: None)
    command = ["--steps", "20", "--output", str(tmp_path)]
    module.main(command)
    path = tmp_path / "lanton" / "checkpoint.weights.h5"
    before = path.read_bytes()
    module.main([*command, "--resume"])
    assert path.read_bytes() == before


@logic
@pytest.mark.parametrize("name", LANGUAGE)
def test_preset_is_the_example(small, tmp_path, monkeypatch, name):
    """`experiments.pretraining` has the losses of the examples."""
    import dataclasses

    from experiments import presets
    from experiments import pretraining

    module = small(name, monkeypatch)
    for one in (module, pretraining):
        monkeypatch.setattr(one, "print_sample", lambda *_: None)
    module.main(["--steps", "20", "--output", str(tmp_path / "example")])
    preset = f"{name.partition('_')[0]}_demo"
    wanted = presets.PRESETS[preset]
    assert wanted.learning_rates["lanton"] == module.LEARNING_RATES["lanton"]
    assert wanted.learning_rates["adamw"] == module.LEARNING_RATES["adamw"]
    changes = {"feed_forward": 48} if name == "llama_pretraining" else {}
    tiny = dataclasses.replace(
        wanted,
        vocabulary=300,
        context=16,
        batch_size=2,
        layers=1,
        width=32,
        head_width=32,
        save_every=5,
        **changes,
    )
    monkeypatch.setitem(presets.PRESETS, preset, tiny)
    texts = words()
    monkeypatch.setattr(
        "experiments.corpora.stdlib_documents",
        lambda: (texts[:3], texts[3:]),
    )
    monkeypatch.setattr(
        "experiments.batches.validation_rows", lambda *_: np.arange(6)
    )
    folder = tmp_path / "experiment"
    pretraining.main(
        ["--preset", preset, "--steps", "20", "--output", str(folder)]
    )
    for optimizer in ("lanton", "adamw"):
        losses = json.loads(
            (tmp_path / "example" / optimizer / "losses.json").read_text()
        )
        history = json.loads((folder / optimizer / "history.json").read_text())
        np.testing.assert_allclose(
            [one["val_loss"] for one in losses],
            history["validation_loss"],
            rtol=1e-5,
        )


def test_steps_are_whole_epochs(small, monkeypatch, capsys):
    module = small("gpt2_pretraining", monkeypatch)
    for steps in ("0", "7"):
        with pytest.raises(SystemExit):
            module.main(["--steps", steps])
        assert "a multiple of 5" in capsys.readouterr().err


# -- cnn_images.py -----------------------------------------------------------


@logic
def test_cnn_learns_digits(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    pytest.importorskip("matplotlib", reason="the example draws")
    module = load_example("cnn_images")
    monkeypatch.setattr(module, "WIDTHS", (8, 8, 8))
    monkeypatch.setattr(module, "LEARNING_RATES", {"lanton": 0.05})
    module.main(["--epochs", "2", "--output", str(tmp_path)])
    assert "test accuracy" in capsys.readouterr().out
    for picture in ("accuracy.png", "noise.png"):
        assert (tmp_path / picture).stat().st_size > 10_000


@logic
def test_cnn_is_that_of_the_experiments():
    """Both train the same network on the same batches."""
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    from experiments import airbench
    from experiments import image_data
    from experiments import images

    module = load_example("cnn_images")
    x_train, y_train, x_test, _ = module.load_digits()
    wanted = image_data.load_digits(module.SEED)
    np.testing.assert_allclose(x_train, wanted.x_train, atol=1e-5)
    np.testing.assert_allclose(x_test, wanted.x_test, atol=1e-5)
    keras.utils.set_random_seed(0)
    model = module.make_model(x_train)
    keras.utils.set_random_seed(0)
    other = airbench.make_model(wanted, images.PRESETS["digits"].widths)
    for one, two in zip(model.variables, other.variables, strict=True):
        np.testing.assert_allclose(
            *map(keras.ops.convert_to_numpy, (one, two)), atol=1e-4
        )
    assert len(model.trainable_variables) == len(other.trainable_variables)


if __name__ == "__main__":
    EXAMPLE = cut_down(sys.argv[1])
    in_a_save(EXAMPLE, kill, setattr)
    EXAMPLE.main(["--steps", "20", "--output", sys.argv[2]])

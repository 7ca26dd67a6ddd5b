"""The examples run, resume exactly, and stand on their own."""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import pathlib

import keras
import numpy as np
import pytest

import keras_lanton
from helpers.saves import arrays_of
from helpers.saves import assert_same_arrays
from helpers.tiers import logic

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LANGUAGE = ("gpt2_pretraining", "llama_pretraining")
OPTIMIZERS = ("lanton", "adamw")
STEPS = ["--steps", "20"]


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


# -- Language models ---------------------------------------------------------


def words():
    random = np.random.default_rng(0)
    words = np.array("noise layer rate norm step of the and a is\n".split(" "))
    texts = [" ".join(random.choice(words, 300)) for _ in range(4)]
    return texts[:3], texts[3:]


def cut_down(name):
    """An example as a module, of seconds."""
    module = load_example(name)
    settings = {
        "VOCABULARY": 300,
        "CONTEXT": 16,
        "BATCH_SIZE": 2,
        "LAYERS": 1,
        "HEADS": 1,
        "WIDTH": 32,
        "STEPS_PER_EPOCH": 10,
    }
    if name == "llama_pretraining":
        settings["FEED_FORWARD"] = 48
    for key, value in settings.items():
        assert hasattr(module, key)
        setattr(module, key, value)
    module.read_standard_library = words
    # 1024 blocks would take most of the time.
    few = module.cut_blocks
    module.validation_blocks = lambda tokens: few(tokens, range(6))
    return module


def without_sample(name):
    """Its generation takes long to compile."""
    module = cut_down(name)
    module.print_sample = lambda *_: None
    return module


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function of an example's name: the folder of a run of it."""
    pytest.importorskip("keras_hub", exc_type=ImportError)
    for name in ("tokenizers", "matplotlib", "tqdm"):
        pytest.importorskip(name, reason="the examples need it")

    @functools.cache
    def train(name):
        folder = tmp_path_factory.mktemp(name)
        make = cut_down if name == "gpt2_pretraining" else without_sample
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            make(name).main([*STEPS, "--output", str(folder)])
        (folder / "printed.txt").write_text(printed.getvalue())
        return folder

    return train


def losses_of(folder):
    return json.loads((folder / "losses.json").read_text())


def test_language_example_runs(whole, capsys):
    folder = whole("gpt2_pretraining")
    printed = (folder / "printed.txt").read_text()
    assert "validation loss" in printed
    assert "LANTON's model continues 16 tokens" in printed
    for name in OPTIMIZERS:
        losses = losses_of(folder / name)
        assert len(losses) == 2
        assert np.isfinite([one["val_loss"] for one in losses]).all()
        assert losses[-1]["loss"] < losses[0]["loss"]
    for picture in ("loss.png", "lanton/noise.png"):
        assert (folder / picture).stat().st_size > 10_000
    for steps in ("0", "7"):
        with pytest.raises(SystemExit):
            cut_down("gpt2_pretraining").main(["--steps", steps])
        assert "a multiple of 10" in capsys.readouterr().err


def interruptions():
    """TensorFlow turns what a generator raises into an error of its own."""
    if keras.backend.backend() != "tensorflow":
        return KeyboardInterrupt
    import tensorflow as tf

    return KeyboardInterrupt, tf.errors.UnknownError


def in_a_step(module, patch):
    batches = module.training_batches

    def deadly(tokens, first_step):
        for i, batch in enumerate(batches(tokens, first_step)):
            if i == 13:
                raise KeyboardInterrupt
            yield batch

    patch.setattr(module, "training_batches", deadly)


def in_a_save(module, patch):
    """Where a kill would leave the losses written, the weights not."""
    replace, calls = module.os.replace, []

    def deadly(old, new):
        calls.extend([new] if "weights" in str(new) else [])
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(old, new)

    patch.setattr(module.os, "replace", deadly)


@logic
@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("stop", [in_a_step, in_a_save])
def test_resumed_example_equals_the_undisturbed(
    whole, tmp_path, monkeypatch, capsys, name, stop
):
    expected = whole(name)
    module = without_sample(name)
    command = [*STEPS, "--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        stop(module, patch)
        with pytest.raises(interruptions()):
            module.main(command)
    for start in (10, 20):  # the second time all is there
        capsys.readouterr()
        module.main([*command, "--resume"])
        printed = capsys.readouterr().out
        assert f"lanton, from step {start} of 20" in printed
    for optimizer in OPTIMIZERS:
        folders = [folder / optimizer for folder in (expected, tmp_path)]
        wanted, found = map(losses_of, folders)
        assert found == wanted
        wanted, found = (
            arrays_of(folder / "checkpoint.weights.h5") for folder in folders
        )
        assert_same_arrays(found, wanted)


@logic
@pytest.mark.parametrize("name", LANGUAGE)
def test_preset_is_the_example(whole, tmp_path, monkeypatch, name):
    """`experiments.pretraining` has the losses of the examples."""
    from experiments import presets
    from experiments import pretraining

    preset = f"{name.partition('_')[0]}_demo"
    wanted = presets.PRESETS[preset]
    rates = load_example(name).LEARNING_RATES
    assert rates.items() <= wanted.learning_rates.items()
    tiny = dataclasses.replace(
        wanted,
        vocabulary=300,
        context=16,
        batch_size=2,
        layers=1,
        width=32,
        head_width=32,
        save_every=10,
        **({"feed_forward": 48} if name == "llama_pretraining" else {}),
    )
    monkeypatch.setitem(presets.PRESETS, preset, tiny)
    for function, value in (
        ("pretraining.print_sample", lambda *_: None),
        ("corpora.stdlib_documents", words),
        ("batches.validation_rows", lambda *_: np.arange(6)),
    ):
        monkeypatch.setattr(f"experiments.{function}", value)
    pretraining.main([*STEPS, "--preset", preset, "--output", str(tmp_path)])
    for optimizer in OPTIMIZERS:
        losses = losses_of(whole(name) / optimizer)
        history = json.loads(
            (tmp_path / optimizer / "history.json").read_text()
        )
        np.testing.assert_allclose(
            [one["val_loss"] for one in losses],
            history["validation_loss"],
            rtol=1e-5,
        )


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

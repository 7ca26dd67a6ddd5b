"""The CNN: its data, its network, and runs of a narrow one."""

import dataclasses
import inspect
import json

import keras
import numpy as np
import pytest

from experiments import airbench
from experiments import image_data
from experiments import images
from helpers.tiers import logic

pytestmark = logic


@pytest.fixture
def tiny(monkeypatch):
    """Presets with very narrow networks."""
    for name in ("digits", "cifar100"):
        narrow = dataclasses.replace(
            images.PRESETS[name], widths=(8, 8, 8), batch_size=64, epochs=1
        )
        monkeypatch.setitem(images.PRESETS, name, narrow)


def run(folder, *command):
    """The only result of a command, and what it leaves."""
    images.main([*command, "--output", str(folder)])
    (result,) = json.loads((folder / "results.json").read_text())
    return result


def test_cnn_learns_digits(tiny, tmp_path, capsys):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    result = run(tmp_path, "--optimizer", "lanton", "--epochs", "2")
    assert result["test_accuracy"] > 0.3  # a tenth would be chance
    assert "test accuracy" in capsys.readouterr().out


def test_cnn_makes_every_optimizer():
    arguments = inspect.signature(keras.optimizers.Muon).parameters
    for name in images.OPTIMIZERS:
        if name == "keras_muon" and "adam_weight_decay" not in arguments:
            continue  # an older Keras
        optimizer = images.make_optimizer(name, 0.1)
        assert optimizer.weight_decay in (None, 0.0)
        for preset in images.PRESETS.values():
            assert preset.learning_rates[name] > 0
    assert images.make_optimizer("scion", 0.05).beta_1 == 0.5
    recipe = images.make_optimizer("lanton_paper", 0.1)
    assert (recipe.beta_1, recipe.noise.beta_2) == (0.6, 0.85)
    assert (recipe.vector_norm, recipe.auxiliary_adamw) == ("sign", None)


def test_cnn_reads_cifar100(tiny, tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (192, 32, 32, 3), dtype="uint8")
    y = np.arange(192)[:, None] % 100
    data = (x[:128], y[:128]), (x[128:], y[128:])
    monkeypatch.setattr(keras.datasets.cifar100, "load_data", lambda: data)
    result = run(tmp_path, "--dataset", "cifar100", "--optimizer", "sgd")
    assert np.isfinite(result["loss"]).all()


def test_cnn_is_airbench94():
    """8 weight layers, 1.995 million trainable weights with 100 classes."""
    pictures = image_data.Images(
        np.random.default_rng(0).normal(size=(100, 32, 32, 3)).astype("f"),
        np.arange(100),
        *(None, None),
    )
    model = airbench.make_model(pictures, (64, 256, 256))
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


def test_cnn_whitening_decorrelates_patches():
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 9, 9, 3)).cumsum(1).astype("float32")
    kernel = airbench.whitening_kernel(x)
    assert kernel.shape == (2, 2, 3, 24)
    y = keras.ops.convert_to_numpy(keras.ops.conv(x, kernel.astype("float32")))
    y = y[..., :12].reshape(-1, 12)
    np.testing.assert_allclose(y.T @ y / len(y), np.eye(12), atol=0.05)


def test_cnn_batches_are_shifted_crops():
    """Without augmentation's randomness, a batch is the images themselves."""
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 8, 8, 2)).astype("float32")
    pictures = image_data.Images(x, np.arange(6), x, np.arange(6))
    preset = dataclasses.replace(
        images.PRESETS["cifar100"], batch_size=3, flip=True
    )
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    mirrored = [[], []]
    for i, (batch, targets) in enumerate(
        image_data.training_batches(pictures, preset, epochs=2, seed=0)
    ):
        for image, row in zip(batch, targets.argmax(-1), strict=True):
            crops = [
                padded[row, dy : dy + 8, dx : dx + 8]
                for dy in range(5)
                for dx in range(5)
            ]
            plain, flipped = (
                any(np.array_equal(one, crop) for crop in crops)
                for one in (image, image[:, ::-1])
            )
            assert plain != flipped
            mirrored[i // 2].append((row, flipped))
    # Every image is flipped in exactly one of two consecutive epochs.
    first, second = (dict(epoch) for epoch in mirrored)
    assert all(first[row] != second[row] for row in range(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--optimizer rmsprop", "invalid choice"),
        ("--dataset mnist", "invalid choice"),
        ("--learning-rate 1e-3", "give one for each"),
        ("--epochs 0", "not above 0"),
    ],
)
def test_cnn_refuses_bad_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit):
        images.parse(arguments.split())
    assert message in capsys.readouterr().err

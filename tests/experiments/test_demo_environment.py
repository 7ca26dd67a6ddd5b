"""The demo needs no TensorFlow, and nothing of ours imports it on JAX."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import keras
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()
# KerasHub imports them where it needs them, which is not in GPT-2 or Llama.
OPTIONAL = {"kagglehub", "kagglesdk", "sentencepiece"}


def name(requirement):
    """The normalized name of a requirement's package."""
    found = re.match(r"[\w.-]+", requirement)[0]
    return re.sub(r"[-_.]+", "-", found).lower()


def names(*extras):
    return {name(one) for extra in extras for one in EXTRAS[extra]}


def needed(package):
    """Packages that a package requires, without its extras."""
    found = importlib.metadata.requires(package) or ()
    return {name(one) for one in found if "extra ==" not in one}


def test_demo_environment_has_no_tensorflow():
    """It installs the extras `jax` and `demo`, and KerasHub by itself."""
    start = MAKEFILE.index("$(DEMO_VENV)/ready: pyproject.toml\n")
    commands = MAKEFILE[start:].split("\n\n")[0]
    assert re.findall(r"\.\[(.*?)\]", commands) == ["jax,demo"]
    assert "--no-deps" in commands
    assert "requirements,$(DEMO_VENV),hub" in commands
    assert names("hub") == {"keras-hub"}
    assert not {x for x in names("jax", "demo") if "tensorflow" in x}


def test_examples_have_all_of_the_demo():
    assert "keras-lanton[hub,demo]" in EXTRAS["examples"]


def test_demo_has_what_keras_hub_needs():
    """All of its requirements but TensorFlow, and those of Keras."""
    try:
        wanted = needed("keras-hub")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("KerasHub is not installed")
    left_out = {one for one in wanted if one.startswith("tensorflow")}
    # With `[hub]` a user gets them: KerasHub itself asks for tensorflow-text.
    assert left_out == {"tensorflow-text"}
    given = {"keras", "numpy"} | needed("keras") | names("demo")
    assert wanted - left_out - OPTIONAL <= given


ONE_STEP = """
import sys
import keras
of_keras = "tensorflow" in sys.modules
import keras_lanton
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
# PyTorch would compile for longer than all else.
jit = "auto" if keras.backend.backend() == "jax" else False
model.compile(keras_lanton.Lanton(1e-2), "mse", jit_compile=jit)
x = keras.random.normal((8, 4))
monitor = keras_lanton.callbacks.NoiseMonitor(every=1)
model.fit(x, x[:, :3], batch_size=8, verbose=0, callbacks=[monitor])
print("RESULT", of_keras, "tensorflow" in sys.modules)
"""


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="once for all backends"
)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_training_does_not_import_tensorflow(backend):
    """Neither Keras nor this package does; KerasHub does where it can."""
    if backend == "torch":
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", ONE_STEP],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "RESULT False False" in done.stdout, done.stdout + done.stderr

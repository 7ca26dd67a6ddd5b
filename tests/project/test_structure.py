"""The house: which way imports point, and where each line of the paper is."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "keras_lanton"
FLOORS = {
    "version": 0,
    "checkpoints": 0,
    "arguments": 0,
    "pictures": 0,
    "products": 0,
    "views": 1,
    "polar": 1,
    "backends": 2,
    "forms": 3,
    "norms": 4,
    "noise": 4,
    "rescaling": 4,
    "roles": 4,
    "blocks": 5,
    "summaries": 5,
    "stacks": 5,
    "rounds": 6,
    "plan": 7,
    "base": 8,
    "adaptive_rate": 8,
    "adamw": 9,
    "migration": 9,
    "norm_optimizer": 9,
    "lanton": 10,
    "baselines": 10,
    "callbacks": 11,
    "explanations": 11,
    "rate_finder": 11,
    "scaling": 11,
    "diagnosis": 11,
    "__init__": 12,
    "__main__": 12,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: pathlib.Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def room(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.name))
def test_imports_point_down(path: pathlib.Path) -> None:
    for name in imports(path):
        top = name.split(".")[0]
        assert not name.startswith("keras.src"), name
        if top in ("jax", "torch", "tensorflow"):
            assert room(path) == "backends", name
        if top == "keras_lanton":
            below = name.split(".")[1]
            if below == room(path) and below in ("backends", "baselines"):
                continue
            assert FLOORS[below] < FLOORS[room(path)], name


def test_imports_with_keras_numpy_and_one_backend_only() -> None:
    # Everything that Keras itself does not need is made unimportable.
    code = (
        "import sys\n"
        "for name in ('keras_hub', 'keras_nlp', 'tokenizers', 'datasets',"
        " 'matplotlib', 'sklearn', 'hypothesis'):\n"
        "    sys.modules[name] = None\n"
        "import keras_lanton\n"
        "import keras_lanton.baselines\n"
        "others = {'jax', 'torch', 'tensorflow'} & {m.split('.')[0]"
        " for m in sys.modules if m.startswith('keras_lanton.backends.')}\n"
        "assert not others, others\n"
        "import keras\n"
        "loaded = [m for m in sys.modules"
        " if m.startswith('keras_lanton.backends.')]\n"
        "own = 'keras_lanton.backends.' + keras.backend.backend()\n"
        "shared = 'keras_lanton.backends.functional'\n"
        "assert set(loaded) == {own, shared}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("line", "home"),
    [
        (5, "lanton"),
        (6, "norms"),
        (7, "noise"),
        (7, "norms"),
        (8, "noise"),
        (9, "rescaling"),
        (10, "lanton"),
    ],
)
def test_line_of_the_paper_is_found_by_searching(line: int, home: str) -> None:
    # Tags close a docstring's first line: [Alg. 1, line 6], or a range.
    for tag in re.findall(
        r"\[Alg\. 1, lines? ([\d, toand]+)\]",
        (PACKAGE / f"{home}.py").read_text(),
    ):
        numbers = [int(n) for n in re.findall(r"\d+", tag)]
        if "to" in tag:
            numbers = list(range(numbers[0], numbers[1] + 1))
        if line in numbers:
            return
    pytest.fail(f"no tag of line {line} in {home}.py")

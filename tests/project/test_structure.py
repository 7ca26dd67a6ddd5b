"""The house: which way imports point, and where each line of the paper is."""

import ast
import functools
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

from helpers.tiers import logic

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "keras_lanton"
# One line per folder, from the bottom up: each imports what is above it here.
FLOORS = (
    ("types", "version", "validation", "coefficients", "settings"),
    ("backends",),
    ("roles",),
    ("core",),
    ("fast",),
    ("optimizer",),
    ("lanton", "baselines"),
    ("tools",),
    ("callbacks",),
    ("__init__", "__main__"),
)
# Rooms of a floor that may not see each other; elsewhere siblings may.
APART = (("lanton", "baselines"),)
FILES = sorted(PACKAGE.rglob("*.py"))
# Test files of no single module: what several share.
SHARED = {
    "fast/test_kernels.py": "triton_kernels",
    "baselines/test_all.py": "every optimizer of `helpers.baselines.BASELINES`",
    "baselines/test_oracles.py": "the same, against their oracles",
    "baselines/test_published.py": "the same, against others' code",
}


@functools.cache
def imports(path: pathlib.Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def room(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor(name: str) -> int:
    (found,) = (i for i, rooms in enumerate(FLOORS) if name in rooms)
    return found


def module(path: pathlib.Path) -> str:
    """A file's dotted name; a folder's is that of its `__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module(path): path for path in FILES}


def own_modules(path: pathlib.Path) -> set[str]:
    """The modules of the package that a file imports."""
    found = set()
    for name in imports(path):
        if name.split(".")[0] == "keras_lanton":
            owner = name if name in MODULES else name.rpartition(".")[0]
            assert owner in MODULES, f"{path}: {name}"
            found.add(owner)
    return found


@logic
def test_every_room_has_a_floor() -> None:
    assert sorted(set(map(room, FILES))) == sorted(sum(FLOORS, ()))


@logic
@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_point_down(path: pathlib.Path) -> None:
    here = room(path)
    for name in own_modules(path):
        there = room(MODULES[name])
        if there == here and name != "keras_lanton":
            continue
        apart = any({here, there} <= set(rooms) for rooms in APART)
        assert floor(there) <= floor(here) and not apart, name


@logic
def test_no_module_imports_itself_over_others() -> None:
    """No circles, within a folder either."""
    graph = {name: own_modules(path) for name, path in MODULES.items()}
    # The root is what users import; nothing below does.
    for name, names in graph.items():
        if not name.endswith("__main__"):
            assert "keras_lanton" not in names, name
    # A folder's `__init__.py` may gather what is in it, as baselines' does.
    graphlib.TopologicalSorter(graph).prepare()


@logic
@pytest.mark.parametrize("path", FILES, ids=module)
def test_backends_are_behind_their_folder(path: pathlib.Path) -> None:
    for name in imports(path):
        assert not name.startswith("keras.src"), name
        if name.split(".")[0] in ("jax", "torch", "tensorflow"):
            assert room(path) in ("backends", "fast"), name
    if room(path) == "backends":  # which know of no algorithm
        rooms = {room(MODULES[name]) for name in own_modules(path)}
        assert rooms <= {"types", "validation", "backends"}, rooms


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
        "package = 'keras_lanton.backends.'\n"
        "plain = {package + 'reference', package + 'arithmetic'}\n"
        "extra = {own + '_arithmetic', own + '_parts'}\n"
        "assert set(loaded) - extra == plain | {own}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@logic
def test_optimizers_are_at_most_two_steps_from_keras() -> None:
    """LayerwiseOptimizer, then LMOOptimizer, then a leaf."""
    import keras_lanton
    from keras_lanton import baselines
    from keras_lanton.optimizer.base import LayerwiseOptimizer
    from keras_lanton.optimizer.lmo import LMOOptimizer

    leaves = [getattr(baselines, name) for name in baselines.__all__]
    for cls in [keras_lanton.Lanton, *leaves]:
        ours = [
            base
            for base in cls.__mro__
            if base.__module__.startswith("keras_lanton")
            and issubclass(base, LayerwiseOptimizer)
        ]
        assert ours == [cls, LMOOptimizer, LayerwiseOptimizer]


# -- The whole repository ----------------------------------------------------

# What stands around the package, and the longest chain of imports there; an
# import inside a function is one, too. The package's own modules do not count:
# it imports nothing of what stands around it.
AROUND = ("experiments", "benchmarks", "tools", "tests/helpers")
LONGEST_CHAIN = 10


def around() -> dict[str, set[str]]:
    """By module around the package: the modules there that it imports."""
    paths = {}
    for folder in AROUND:
        root = ROOT / folder
        # Scripts see what lies beside them, by bare names.
        base = root.parent if (root / "__init__.py").exists() else root
        for path in root.rglob("*.py"):
            if base == root and path.parent != root:
                name = path.stem  # of a folder of scripts
            else:
                parts = path.relative_to(base).with_suffix("").parts
                name = ".".join(part for part in parts if part != "__init__")
            assert name not in paths, name
            paths[name] = path
    graph = {}
    for name, path in paths.items():
        found = set()
        for wanted in imports(path):
            owner = wanted if wanted in paths else wanted.rpartition(".")[0]
            found |= {owner} & (set(paths) - {name})
        graph[name] = found
    return graph


@logic
def test_nothing_around_the_package_imports_itself() -> None:
    graph = around()
    assert len(graph) > 50
    graphlib.TopologicalSorter(graph).prepare()


@logic
def test_chains_of_imports_around_the_package_are_short() -> None:
    graph = around()
    chains: dict[str, list[str]] = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        below = max((chains[one] for one in graph[name]), key=len, default=[])
        chains[name] = [name, *below]
    longest = max(chains.values(), key=len)
    assert len(longest) <= LONGEST_CHAIN, longest


@logic
def test_the_package_imports_nothing_around_it() -> None:
    names = {name.split(".")[0] for name in around()}
    for path in FILES:
        for name in imports(path):
            assert name.split(".")[0] not in names, f"{path}: {name}"


@logic
def test_what_trains_a_run_is_a_module() -> None:
    """The table of strings names no module that is not there."""
    from experiments import run

    for _, name in run.RUNNERS.values():
        assert name in around()


# -- The paper ---------------------------------------------------------------


@logic
@pytest.mark.parametrize(
    ("line", "home"),
    [
        (5, "core/step"),
        (6, "core/norms"),
        (7, "core/noise"),
        (7, "core/norms"),
        (8, "core/noise"),
        (9, "core/noise"),
        (10, "core/step"),
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


STEP = ("roles", "core", "fast", "optimizer")


@logic
@pytest.mark.parametrize(
    "path",
    [p for p in FILES if room(p) in STEP and p.name != "__init__.py"],
    ids=module,
)
def test_modules_of_the_step_are_in_the_table(path: pathlib.Path) -> None:
    """CONTRIBUTING.md says what each is for; of backends/ as a whole."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    name = str(path.relative_to(PACKAGE))
    assert any(f"`{name}`" in row for row in rows), name


# -- The tests ---------------------------------------------------------------


@logic
def test_tests_mirror_the_package() -> None:
    """The test of keras_lanton/a/b.py is tests/a/test_b.py."""
    tests = ROOT / "tests"
    ours = {"gpu", "keras", "project", "experiments", "helpers"}
    for path in tests.rglob("test_*.py"):
        name = path.relative_to(tests)
        if name.parts[0] in ours or str(name) in SHARED:
            continue
        stem = path.stem.removeprefix("test_")
        found = [
            PACKAGE / name.parent / f"{one}.py" for one in (stem, f"__{stem}__")
        ]
        assert any(file.exists() for file in found), name

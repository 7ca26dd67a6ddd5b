"""What the documentation shows runs, and public names are documented.

The ```python blocks of a page run in order, in one namespace, on this process'
backend. A comment in the line before a block says where it does not:

    <!-- only: jax -->              on other backends
    <!-- needs: keras_hub -->       where that module cannot be imported
    <!-- skip: needs two GPUs -->   nowhere; the text is the reason

Such a block still has to compile. One with a title quotes that file.
"""

import ast
import dataclasses
import doctest
import importlib
import inspect
import json
import os
import pathlib
import pkgutil
import re
import socket
import subprocess
import sys
import textwrap
import types

import keras
import numpy as np
import pytest

import keras_lanton
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import baselines
from keras_lanton.optimizer.base import LayerwiseOptimizer

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples" / "keras_io").glob("*.py"))
FENCE = re.compile(
    r"^(?:<!-- (?P<key>\w+): (?P<value>[^\n]+) -->\n+)?"
    r'^```python(?: title="(?P<title>[^"\n]+)")?\n(?P<code>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of Python in a page."""

    page: pathlib.Path
    line: int  # of its first line of code
    code: str
    key: str | None
    value: str | None
    title: str | None

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def compiled(self):
        """Its code, whose tracebacks name the page's lines."""
        lines = "\n" * (self.line - 1)
        return compile(lines + self.code, str(self.page), "exec")

    def runs_here(self):
        if self.key == "only":
            return keras.backend.backend() in self.value.split(", ")
        if self.key == "needs":
            try:
                importlib.import_module(self.value)
            except ImportError:
                return False
        return self.key != "skip"


def blocks(page):
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start("code")) + 1, **named)
        for found in FENCE.finditer(text)
        if (named := found.groupdict())
    ]


BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = [page for page in PAGES if any(not b.title for b in blocks(page))]
START = [ROOT / "README.md", ROOT / "docs" / "index.md"]


def small_model():
    """A dense layer and a kernel of rank 3."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.EinsumDense("bi,ijk->bjk", (2, 3), name="einsum"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def small_data():
    """Inputs and targets of `small_model`."""
    x = np.random.default_rng(0).standard_normal((512, 4)).astype("float32")
    return x, x[:, :1]


def given(page):
    """What a page speaks of without making it."""
    if page.name != "README.md":
        return {}
    model, (x, y) = small_model(), small_data()
    return {
        "model": model,
        "x": x,
        "y": y,
        "kernel": model.get_layer("einsum").kernel,
        "CosineDecay": keras.optimizers.schedules.CosineDecay,
        "eta_max": 5e-3,
        "eta_min": 0.0,
        "N": 10,
        "T": 100,
    }


@pytest.fixture
def clean(tmp_path, monkeypatch):
    """A folder to write to, one process of `torchrun`; all undone after."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", port),
        ("RANK", 0),
        ("WORLD_SIZE", 1),
    ):
        monkeypatch.setenv(name, str(value))
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)
    keras.distribution.set_distribution(None)


@logic
def test_blocks_are_found():
    """None is hidden from the tests by a slip in its fence."""
    for page in PAGES:
        assert page.read_text().count("```python") == len(blocks(page)), page


@logic
def test_comments_before_blocks_are_known():
    for block in BLOCKS:
        assert block.key in (None, "only", "needs", "skip"), block
        if block.key == "only":
            known = {"jax", "torch", "tensorflow"}
            assert set(block.value.split(", ")) <= known, block


def name_of(path):
    return str(path.relative_to(ROOT))


# The pages are about Keras as it is; compiling them again takes minutes.
@pytest.mark.skipif(
    keras.__version__.startswith("3.10."), reason="run on the newest Keras"
)
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("page", keep(RUN, START), ids=name_of)
def test_blocks_run(page):
    names = {"__name__": "__main__", **given(page)}
    for block in blocks(page):
        if block.title:
            continue  # a quote, which may be half of a function
        code = block.compiled()
        if block.runs_here():
            exec(code, names)


def bare(code):
    """Without what a formatter may change."""
    return re.sub(r",([)\]}])", r"\1", "".join(code.split()))


@logic
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.title], ids=str)
def test_quotes_are_the_code(block):
    """A quote is lines of its file, one after the other."""
    file = ROOT / block.title
    assert bare(block.code) in bare(file.read_text()), f"not in {file} any more"


@logic
def test_every_page_is_in_the_site():
    """`mkdocs build --strict` says so too, but is no part of the tests."""
    listed = re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text())
    found = {str(p.relative_to(ROOT / "docs")) for p in PAGES[1:]}
    # tools/notebook_pages.py makes a page of each notebook.
    found |= {f"gallery/{path.stem}.md" for path in NOTEBOOKS}
    assert found == set(listed)


# -- Docstrings --------------------------------------------------------------


def modules():
    """All of the package's that this process' backend can import."""
    other = {"jax", "torch", "tensorflow", "pallas", "triton"}
    other.remove(keras.backend.backend())
    for found in pkgutil.walk_packages(keras_lanton.__path__, "keras_lanton."):
        if found.name.rpartition(".")[-1].split("_")[0] not in other:
            yield importlib.import_module(found.name)


class AnyWhereNoneIsShown(doctest.OutputChecker):
    """An example that shows no output may have any."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


@logic
def test_examples_in_docstrings_run(capsys):
    model, (x, y) = small_model(), small_data()
    model.compile(keras_lanton.Lanton(), "mse", jit_compile=False)
    names = {
        "keras": keras,
        "np": np,
        "model": model,
        "x": x,
        "y": y,
        **{name: getattr(keras_lanton, name) for name in keras_lanton.__all__},
        **{name: getattr(baselines, name) for name in baselines.__all__},
    }
    runner = doctest.DocTestRunner(checker=AnyWhereNoneIsShown())
    finder = doctest.DocTestFinder()
    count = 0
    for module in modules():
        for test in finder.find(module, extraglobs=names):
            count += len(test.examples)
            runner.run(test)
    assert count >= 8
    assert not runner.summarize().failed, capsys.readouterr().out


def public():
    """Public names and what they stand for, Lanton's own methods included."""
    for package in (keras_lanton, baselines):
        for name in package.__all__:
            member = getattr(package, name)
            if name != "__version__" and not inspect.ismodule(member):
                yield f"{package.__name__}.{name}", member
    for name, member in vars(keras_lanton.callbacks).items():
        own = getattr(member, "__module__", "") == "keras_lanton.callbacks"
        if own and not name.startswith("_"):
            yield f"callbacks.{name}", member
    for name in dir(keras_lanton.Lanton):
        owners = owners_of(name)
        if not name.startswith("_") and owners:
            yield f"Lanton.{name}", vars(owners[0])[name]


def owners_of(name):
    """Lanton and its bases in this package, those that define the name."""
    return [
        base
        for base in keras_lanton.Lanton.__mro__
        if base.__module__.startswith("keras_lanton")
        and callable_of(vars(base).get(name))
    ]


def callable_of(member):
    """The function behind a method, a property or a class method."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, (classmethod, staticmethod)):
        return member.__func__
    return member if callable(member) else None


PUBLIC = dict(public())


def documentation(name, member):
    """Its docstring, with those of what it overrides."""
    if not name.startswith("Lanton."):
        return inspect.cleandoc(member.__doc__ or "")
    own = name.removeprefix("Lanton.")
    texts = [
        getattr(callable_of(vars(base).get(own)), "__doc__", None)
        for base in keras_lanton.Lanton.__mro__
    ]
    return "\n\n".join(inspect.cleandoc(text) for text in texts if text)


@logic
@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name):
    member = PUBLIC[name]
    function = callable_of(member)
    assert inspect.cleandoc(function.__doc__ or ""), "no docstring of its own"
    text = documentation(name, member)
    assert "Example:" not in text, "the site knows `Examples:` alone"

    # Keras' own `name` is explained where Keras explains it.
    marks = {"VAR_KEYWORD": "**", "VAR_POSITIONAL": "*"}
    parameters = [
        marks.get(p.kind.name, "") + p.name
        for p in inspect.signature(function).parameters.values()
        if p.name not in ("self", "cls", "name")
    ]
    missing = [
        one
        for one in parameters
        if not re.search(rf"^ +{re.escape(one)}:", text, re.MULTILINE)
    ]
    assert not missing, f"Args lacks {missing}"

    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    if inspect.isclass(function):
        # A dataclass checks its arguments after its own `__init__`.
        (tree,) = (
            node
            for node in tree.body[0].body
            if getattr(node, "name", None) in ("__init__", "__post_init__")
        )
    kinds = [
        type(node)
        for node in own_nodes(tree)
        if not (isinstance(node, ast.Return) and node.value is None)
    ]
    if ast.Raise in kinds:
        assert "Raises:" in text
    # A first line with an article names what is returned, and an alternative
    # constructor returns its class.
    named = text.startswith(("A ", "An ", "The ")) or "Args:" not in text
    if (
        ast.Return in kinds
        and not named
        and not isinstance(member, classmethod)
    ):
        assert "Returns:" in text


def own_nodes(tree):
    """Of a function, without the functions inside of it."""
    inner = (ast.FunctionDef, ast.Lambda, ast.ClassDef)
    (top,) = tree.body if isinstance(tree, ast.Module) else (tree,)
    pending = list(top.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, inner):
            pending += ast.iter_child_nodes(node)


@logic
def test_lantons_bases_are_looked_at():
    assert {"read_roles", "summary", "noise_report", "skipped_steps"} <= {
        name.removeprefix("Lanton.") for name in PUBLIC
    }
    assert LayerwiseOptimizer in owners_of("step_")


# -- Notebooks ---------------------------------------------------------------


@logic
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_are_in_the_form_of_keras_io(path):
    """A header, then cells: text in quotes, code between them."""
    tree = ast.parse(path.read_text())
    header = ast.get_docstring(tree)
    for field in (
        "Title",
        "Author",
        "Date created",
        "Last modified",
        "Description",
        "Accelerator",
    ):
        assert re.search(rf"^{field}: \S", header, re.MULTILINE), field
    cells = [
        node.value.value
        for node in tree.body[1:]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    assert len(cells) >= 4
    assert cells[0].strip().startswith("## ")


@pytest.fixture
def tool(monkeypatch):
    """A function that imports a module of tools/."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module


@logic
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_are_those_of_the_examples(path, tool):
    """`make notebooks` was run after the last change."""
    notebooks = tool("make_notebooks")
    text = (ROOT / notebooks.notebook_path(path)).read_text()
    cells = json.loads(text)["cells"]
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert found == notebooks.notebook_cells(path)
    assert len(text) < notebooks.LARGEST
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    # All but the one that installs have run.
    assert [bool(cell["execution_count"]) for cell in code] == [
        number > 0 for number in range(len(code))
    ]
    for cell in code:
        written = json.dumps(cell["outputs"])
        for of_the_machine in ("/tmp", "/home", "site-packages", "stderr"):
            assert of_the_machine not in written, cell["source"]


@logic
def test_cells_of_an_example(tmp_path, tool):
    path = tmp_path / "small.py"
    path.write_text(
        '"""\nTitle: Small\nDescription: It adds.\n"""\n\n'
        '"""\n## Sum\n"""\n\nx = 1\n\n\ndef f():\n    """Text."""\n\n'
        '"""\nOne more.\n"""\n\nprint(x + 1)\n'
    )
    notebooks = tool("make_notebooks")
    assert notebooks.header(path)["Description"] == "It adds."
    assert notebooks.example_cells(path) == [
        ("markdown", "## Sum"),
        ("code", 'x = 1\n\n\ndef f():\n    """Text."""'),
        ("markdown", "One more."),
        ("code", "print(x + 1)"),
    ]


@logic
def test_the_gallery_has_every_example(tool):
    gallery = tool("make_gallery")
    assert gallery.PAGE.read_text() == gallery.page()
    examples = [*NOTEBOOKS, *(ROOT / "examples").glob("*.py")]
    assert {card.path for card in gallery.CARDS} == set(map(name_of, examples))
    for card in gallery.CARDS:
        assert (gallery.PAGE.parent / "gallery" / f"{card.name}.png").exists()


@logic
def test_pages_of_notebooks(tool):
    output = {"data": {"image/png": "UE5H", "text/plain": ["<Figure>"]}}
    badge = "[![Colab](https://other/badge.svg)](https://colab/a.ipynb)"
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", badge]},
        {
            "cell_type": "code",
            "source": ["f()"],
            "outputs": [{"text": ["1\n"]}, output],
        },
    ]
    pages = tool("notebook_pages")
    page, pictures = pages.markdown({"cells": cells}, "small")
    assert page == (
        "# Title\n[Colab](https://colab/a.ipynb)\n\n```python\nf()\n```\n\n```text\n1\n```\n\n"
        "![Output of the cell above](small_1.png)\n"
    )
    assert pictures == {"small_1.png": b"PNG"}
    links = (
        "[a](gallery/a.ipynb) [b](../gallery/b.ipynb#c) [d](https://e.ipynb)"
    )
    assert pages.on_page_markdown(links) == (
        "[a](gallery/a.md) [b](../gallery/b.md#c) [d](https://e.ipynb)"
    )


@logic
def test_pages_that_docstrings_name_are_links(tool, caplog):
    target = types.SimpleNamespace(url_relative_to=lambda page: "../../a/")
    files = types.SimpleNamespace(get_file_from_path={"a.md": target}.get)
    change = tool("docstring_links").on_page_content
    html = "<p>docs/a.md, docs/b.md</p><pre>docs/a.md</pre>"
    page = types.SimpleNamespace(src_uri="api/lanton.md")
    found = change(html, types.SimpleNamespace(file=page), files)
    link = '<a href="../../a/">docs/a.md</a>'
    assert found == f"<p>{link}, docs/b.md</p><pre>docs/a.md</pre>"
    assert "no page docs/b.md" in caplog.text
    page = types.SimpleNamespace(src_uri="paper.md")
    assert change(html, types.SimpleNamespace(file=page), files) == html


@exhaustive
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_run(path, tmp_path):
    pytest.importorskip("matplotlib", reason="they draw their results")
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    pytest.importorskip(
        "keras_hub", reason="GPT-2 is KerasHub's", exc_type=ImportError
    )
    search = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "MPLBACKEND": "agg",
            "PYTHONPATH": os.pathsep.join(search),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]

"""What the documentation shows runs, and public names are documented.

The ```python blocks of a page run in order, in one namespace, on this process'
backend. A comment of Sybil before a block says where it does not; it knows
`backend` and `missing(MODULE)`:

    <!-- skip: next if(backend != "jax", reason="JAX alone") -->
    <!-- skip: next if(missing("keras_hub"), reason="no keras_hub") -->

One with a title quotes that file, and does not run.
"""

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
import types
import unittest

import keras
import numpy as np
import pytest

import keras_lanton
from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic
from keras_lanton import baselines

sybil = pytest.importorskip("sybil", reason="finds the blocks")
parsers = pytest.importorskip("sybil.parsers.markdown")

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages whose blocks differ between backends, and the first one.
ON_EACH = [
    ROOT / "README.md",
    ROOT / "docs" / "keras.md",
    ROOT / "docs" / "guides" / "several_machines.md",
]
NOTEBOOKS = sorted((ROOT / "examples" / "keras_io").glob("*.py"))
QUOTE = re.compile(
    r'^```python title="(?P<file>[^"\n]+)"\n(?P<code>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)


def name_of(path):
    return str(path.relative_to(ROOT))


def missing(module):
    try:
        importlib.import_module(module)
    except ImportError:
        return True
    return False


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
    found = {"backend": keras.backend.backend(), "missing": missing}
    if page.name != "README.md":
        return found
    x, y = small_data()
    return {**found, "model": small_model(), "x": x, "y": y}


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


# What a page says that the block before it prints.
PRINTED = re.compile(
    r"^```\n\n(?:[^\n`]* prints[^\n]*\n\n)?```text\n(.*?)^```", re.M | re.S
)


def examples_of(page):
    """Sybil's document of a page."""
    finder = sybil.Sybil(
        [parsers.PythonCodeBlockParser(), parsers.SkipParser()],
        path=str(ROOT),
    )
    return finder.parse(page)


# The pages are about Keras as it is; compiling them again takes minutes.
@pytest.mark.skipif(
    keras.__version__.startswith("3.10."), reason="run on the newest Keras"
)
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "page",
    keep([p for p in PAGES if "```python\n" in p.read_text()], ON_EACH),
    ids=name_of,
)
def test_blocks_run(page, capsys):
    document = examples_of(page)
    document.namespace.update(given(page))
    found = 0
    for example in document.examples():
        found += isinstance(example.region.parsed, str)
        try:
            example.evaluate()
        except unittest.SkipTest:
            continue
    assert found == page.read_text().count("```python\n")
    printed = capsys.readouterr().out
    for sample in PRINTED.findall(page.read_text()):
        for line in sample.splitlines():
            assert line in printed


def bare(code):
    """Without what a formatter may change."""
    return re.sub(r",([)\]}])", r"\1", "".join(code.split()))


@logic
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_quotes_are_the_code(page):
    """A quote is lines of its file, one after the other."""
    for quote in QUOTE.finditer(page.read_text()):
        file = ROOT / quote["file"]
        assert bare(quote["code"]) in bare(file.read_text()), quote["file"]


@logic
def test_every_page_is_in_the_site(tool):
    """`mkdocs build --strict` says so too, but is no part of the tests."""
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/]+\.md", menu.partition("\n\n")[0])
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES[1:]}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages | set(tool("root_pages").PAGES.values())


@logic
def test_the_first_page_is_the_readme(tool):
    text = "[a](docs/guides/a.md#b) [c](CHANGELOG.md) [d](https://e.org/docs/)"
    found = tool("root_pages").as_page(text)
    assert (
        found == "[a](guides/a.md#b) [c](changelog.md) [d](https://e.org/docs/)"
    )


@logic
def test_the_readme_is_short():
    """600 words and 25 numbers, which its code is no part of."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 600
    prose = re.sub(r"```.*?```|\]\(.*?\)", "", text, flags=re.DOTALL)
    assert len(re.findall(r"(?<![\w.-])\d[\d,.]*", prose)) <= 25


# -- The learning rates ------------------------------------------------------

RATES = ROOT / "docs" / "guides" / "learning_rate.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WITHOUT_SCHEDULE = re.compile(
    r"^\| any, \[without a schedule\].*?\| any \| (?P<rate>[\d.]+) \|", re.M
)
# A rate where Lanton gets one: its first argument, or the peak of a schedule.
GIVEN_RATE = re.compile(
    r"Lanton(?P<maker>\.\w+)?\(\s*(?:learning_rate=)?(?P<rate>\d[\d.e-]*)"
    r"|warmup_target=(?P<peak>\d[\d.e-]*)"
    r"|(?:Cosine|Polynomial)Decay\(\s*(?P<start>\d[\d.e-]*)"
)


def starting_rates():
    """The table's rates to start with, those of fine-tuning apart."""
    rows = re.findall(
        r"^\| (.+?) \| (.*?) \| (\d[\d.]*) \|", RATES.read_text(), re.M
    )
    tuned = {"fine-tuning, `Lanton.for_fine_tuning()`", "the same, LoRA"}
    tuning = [float(rate) for task, _, rate in rows if task in tuned]
    other = [float(rate) for task, _, rate in rows if task not in tuned]
    assert len(tuning) == 2
    assert len(other) >= 5
    return set(tuning), set(other)


def rates_of(code):
    """Each rate that code gives to Lanton, and whether it fine-tunes."""
    for found in GIVEN_RATE.finditer(code):
        rate = found["rate"] or found["peak"] or found["start"]
        yield float(rate), found["maker"] == ".for_fine_tuning"


@logic
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_rates_of_a_page_are_in_the_table(page):
    tuning, other = starting_rates()
    for code in BLOCK.findall(page.read_text()):
        for rate, tunes in rates_of(code):
            assert rate in (tuning if tunes else other), code


@logic
def test_rates_of_docstrings_are_in_the_table():
    tuning, other = starting_rates()
    sources = (ROOT / "keras_lanton").rglob("*.py")
    lines = [line for path in sources for line in path.read_text().split("\n")]
    shown = [line for line in lines if line.strip().startswith(">>>")]
    for line in shown:
        for rate, tunes in rates_of(line):
            assert rate in (tuning if tunes else other), line
    for maker in (keras_lanton.Lanton, keras_lanton.Lanton.for_fine_tuning):
        default = inspect.signature(maker).parameters["learning_rate"].default
        assert (
            WITHOUT_SCHEDULE.search(RATES.read_text())["rate"] == f"{default}"
        )


@logic
def test_rates_are_found():
    code = "Lanton(0.5)\nLanton.for_fine_tuning(\n    learning_rate=2e-3)"
    assert list(rates_of(code)) == [(0.5, False), (2e-3, True)]
    assert list(rates_of("CosineDecay(\n    warmup_target=3e-3")) == [
        (3e-3, False)
    ]


# -- The repository's address ------------------------------------------------

# Files that have it written out, and in how many lines.
WAITING = {
    "pyproject.toml": 1,
    "README.md": 1,
    "docs/examples/cnn_with_lanton.ipynb": 2,
    "docs/examples/gpt2_with_lanton.ipynb": 2,
    "docs/examples/lora_fine_tuning_with_lanton.ipynb": 2,
}


@logic
def test_what_waits_for_an_address(tool):
    """All of it has the address of pyproject.toml."""
    address = tool("make_notebooks").REPOSITORY
    folders = ("docs", "examples", "keras_lanton", "tools", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += ROOT.glob("*.*")
    found = {}
    for path in files:
        if path.suffix in (".py", ".md", ".ipynb", ".toml", ".yml", ".cff"):
            lines = [
                line
                for line in path.read_text().split("\n")
                if re.search(r"github(\.com)?/[\w-]*lanton", line)
            ]
            assert all(address in line for line in lines), path
            found[name_of(path)] = len(lines)
    assert {name: n for name, n in found.items() if n} == WAITING


@logic
def test_forms_of_issues():
    yaml = pytest.importorskip("yaml", reason="reads the forms")
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    forms = [path for path in folder.glob("*.yml") if path.stem != "config"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert form.keys() == {"name", "description", "body"}
        fields = [one for one in form["body"] if one["type"] != "markdown"]
        assert all(one["validations"]["required"] for one in fields)
        for named in re.findall(r"docs/[\w/]+\.md", path.read_text()):
            assert (ROOT / named).exists()


# -- Colors ------------------------------------------------------------------


def luminance(color):
    """The relative luminance of `#rrggbb`, by the WCAG."""
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(
        parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4
    )
    return linear @ (0.2126, 0.7152, 0.0722)


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@logic
@pytest.mark.parametrize(
    ("scheme", "background"), [("default", "#ffffff"), ("slate", "#1e2129")]
)
def test_links_can_be_read(scheme, background):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    css = (ROOT / "docs" / "stylesheets" / "extra.css").read_text()
    rule = css.split(f'scheme="{scheme}"')[1].partition("}")[0]
    colors = dict(re.findall(r"--md-([\w-]+): (#\w{6});", rule))
    for name in ("typeset-a-color", "accent-fg-color"):
        assert contrast(colors[name], background) >= 4.5
    assert contrast(colors["primary-fg-color"], "#ffffff") >= 4.5


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
    for module in modules():
        for test in finder.find(module, extraglobs=names):
            runner.run(test)
    found = runner.summarize()
    assert found.attempted >= 8
    assert not found.failed, capsys.readouterr().out


def public():
    """Public names and what they stand for, Lanton's own methods included."""
    for package in (keras_lanton, baselines):
        for name in package.__all__:
            member = getattr(package, name)
            if callable(member):
                yield f"{package.__name__}.{name}", member
    monitor = keras_lanton.callbacks.NoiseMonitor
    yield "callbacks.NoiseMonitor", monitor
    for name in dir(keras_lanton.Lanton):
        member = inspect.getattr_static(keras_lanton.Lanton, name)
        member = getattr(member, "fget", getattr(member, "__func__", member))
        home = getattr(member, "__module__", None) or ""
        if home.startswith("keras_lanton") and not name.startswith("_"):
            yield f"Lanton.{name}", member


PUBLIC = dict(public())


@logic
@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name):
    """Ruff sees that there are docstrings; here all arguments are in them."""
    member = PUBLIC[name]
    text = inspect.getdoc(member) or ""
    if name.startswith("Lanton."):
        # What Keras has too, Keras explains.
        own = name.removeprefix("Lanton.")
        keras_own = getattr(keras.optimizers.Optimizer, own, None)
        text += inspect.getdoc(keras_own) or ""
    assert text
    assert "Example:" not in text, "the site knows `Examples:` alone"
    marks = {"VAR_KEYWORD": "**", "VAR_POSITIONAL": "*"}
    for p in inspect.signature(member).parameters.values():
        # Keras' own `name` is explained where Keras explains it.
        if p.name not in ("self", "cls", "name"):
            argument = re.escape(marks.get(p.kind.name, "") + p.name)
            assert re.search(rf"^ +{argument}:", text, re.MULTILINE), p.name
    if not inspect.isclass(member) and "raise " in inspect.getsource(member):
        assert "Raises:" in text


@logic
def test_lantons_bases_are_looked_at():
    names = ("read_roles", "summary", "noise_report", "skipped_steps")
    assert {f"Lanton.{name}" for name in names} <= set(PUBLIC)


# -- Notebooks ---------------------------------------------------------------


@pytest.fixture
def tool(monkeypatch):
    """A function that imports a module of tools/."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module


@logic
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_are_those_of_the_examples(path, tool):
    """`make notebooks` was run after the last change, and ran all cells."""
    notebooks = tool("make_notebooks")
    fields = {"Title", "Author", "Date created", "Last modified"}
    fields |= {"Description", "Accelerator"}  # keras.io's
    assert notebooks.header(path).keys() == fields
    text = (notebooks.FOLDER / f"{path.stem}.ipynb").read_text()
    cells = json.loads(text)["cells"]
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert found == notebooks.cells_of(path)
    install, *code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not install["execution_count"]
    for cell in code:
        assert cell["execution_count"]
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
    title, install, *cells = tool("make_notebooks").cells_of(path)
    assert title[1].startswith("# Small\n\n[Open in Colab](https://")
    assert title[1].endswith("/small.ipynb)\n\nIt adds.")
    assert "%pip install" in install[1]
    assert cells == [
        ("markdown", "## Sum"),
        ("code", 'x = 1\n\n\ndef f():\n    """Text."""'),
        ("markdown", "One more."),
        ("code", "print(x + 1)"),
    ]


@logic
def test_pages_that_docstrings_name_are_links(tool, caplog):
    target = types.SimpleNamespace(url_relative_to=lambda page: "../a/")
    files = types.SimpleNamespace(get_file_from_path={"a.md": target}.get)
    change = tool("docstring_links").on_page_content
    html = "<p>docs/a.md, docs/b.md</p><pre>docs/a.md</pre>"
    page = types.SimpleNamespace(src_uri="api.md")
    found = change(html, types.SimpleNamespace(file=page), files)
    link = '<a href="../a/">docs/a.md</a>'
    assert found == f"<p>{link}, docs/b.md</p><pre>docs/a.md</pre>"
    assert "no page docs/b.md" in caplog.text


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

"""What describes the package in several places says the same in each."""

import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest

from helpers.tiers import logic
from keras_lanton.version import __version__

pytestmark = logic

yaml = pytest.importorskip("yaml", reason="reads workflows and CITATION.cff")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHON = PROJECT["project"]["requires-python"].removeprefix(">=")


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


def workflow(name):
    return load(f".github/workflows/{name}.yml")


def requirement(extra, name, sign="=="):
    """The version in an extra's requirement of a package."""
    extras = PROJECT["project"]["optional-dependencies"][extra]
    (found,) = (one for one in extras if one.startswith(name + sign))
    return found.partition(sign)[2]


def makes(variable):
    """The value of a variable of the Makefile."""
    found = re.search(rf"^{variable} := (.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    return found[1]


def assert_makes(commands):
    """The Makefile has the targets of some commands."""
    for target in re.findall(r"make ([\w-]+)", commands):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_only_reads_and_runs_the_makefile(path):
    loaded = load(path)
    assert loaded["permissions"] == {"contents": "read"}
    for job in loaded["jobs"].values():
        for step in job["steps"]:
            if "setup-python" in step.get("uses", ""):
                matrix = job.get("strategy", {}).get("matrix", {})
                pythons = ["${{ matrix.python }}"] if "python" in matrix else []
                assert step["with"]["python-version"] in (*pythons, PYTHON)
            for keras in ("oldest", "newest"):
                command = step.get("run", "")
                assert_makes(command.replace("${{ matrix.keras }}", keras))


def test_the_wheel_is_tried_on_every_python_that_is_named():
    matrix = workflow("tests")["jobs"]["package"]["strategy"]["matrix"]
    prefix = "Programming Language :: Python :: 3."
    named = [one for one in PROJECT["project"]["classifiers"] if prefix in one]
    assert matrix["python"] == [one.split()[-1] for one in named]
    assert PYTHON in matrix["python"]


def test_matrix_is_the_makefiles():
    matrix = workflow("tests")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["backend"] == makes("BACKENDS").split()
    assert matrix["keras"] == ["oldest", "newest"]


def test_oldest_keras_is_the_one_that_is_tested():
    oldest = makes("OLDEST_KERAS")
    bounds = PROJECT["project"]["dependencies"]
    (keras,) = (one for one in bounds if one.startswith("keras>="))
    bound = keras.removeprefix("keras>=")
    assert oldest == f"{bound}.0"
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"for Keras {bound} and later" in " ".join(changelog.split())


def test_oldest_jax_is_the_one_that_is_tested():
    assert requirement("jax", "jax", ">=") == makes("OLDEST_JAX")


def test_ci_times_its_stages():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    stages = [line for line in lines if line.startswith("stage make ")]
    made = [line.removeprefix("stage make ") for line in stages]
    assert made == ["environment", "test", "lint"]
    assert_makes(" ".join(f"make {target}" for target in made))


def test_only_publishing_may_publish_what_is_tested():
    jobs = workflow("release")["jobs"]
    assert "make test-all" in jobs["test"]["steps"][-1]["run"]
    assert jobs["build"]["needs"] == "test"
    for name in ("test", "build"):
        assert "permissions" not in jobs[name]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    assert workflow("release")[True] == {"push": {"tags": ["v*"]}}


def test_pre_commit_has_the_same_pins():
    ruff, local = load(".pre-commit-config.yaml")["repos"]
    assert ruff["rev"] == "v" + requirement("dev", "ruff")
    hooks = [hook["id"] for hook in ruff["hooks"]]
    assert hooks == ["ruff-check", "ruff-format"]
    # The environment's own, which pyproject.toml pins.
    (mypy,) = local["hooks"]
    assert requirement("dev", "mypy")
    assert mypy["entry"] == makes("VENV") + "/bin/mypy"


def test_version_and_date_agree():
    citation = load("CITATION.cff")
    assert citation["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    heading = re.search(r"^## \[(.+)\] - (.+)$", changelog, re.MULTILINE)
    assert heading is not None
    version, date = heading.groups()
    assert version == __version__
    found = citation.get("date-released")
    assert date == ("unreleased" if found is None else str(found))


def test_help_names_every_target():
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    listed = set(re.findall(r"^## ([\w-]+) ", MAKEFILE, re.MULTILINE))
    # Halves of `make test`.
    hidden = {"help", "test-newest", "test-oldest"}
    assert set(phony[1].replace("\\", "").split()) - hidden == listed


@pytest.mark.parametrize(
    ("tag", "heading", "refused"),
    [
        ("v1.2.3", "## [1.2.3] - 2030-01-31", ""),
        ("v1.2.4", "## [1.2.3] - 2030-01-31", "v1.2.4 is not the version"),
        ("v1.2.3", "## [1.2.3] - unreleased", "no date for v1.2.3"),
    ],
)
def test_tag_of_a_release_is_the_dated_version(tag, heading, refused, tmp_path):
    for folder in ("tools", "keras_lanton"):
        (tmp_path / folder).mkdir()
    script = tmp_path / "tools" / "check_release.sh"
    shutil.copy(ROOT / "tools" / "check_release.sh", script)
    version = tmp_path / "keras_lanton" / "version.py"
    version.write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"{heading}\n")
    done = subprocess.run(
        [script, tag], capture_output=True, text=True, check=False
    )
    assert bool(done.returncode) == bool(refused)
    assert refused in done.stdout

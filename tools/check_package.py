"""Builds the sdist and the wheel, and tries both outside the checkout.

`make package`. Every backend gets an environment with the wheel, Keras, NumPy
and itself alone, where `python -m keras_lanton` has to pass; then tests that
the sdist carries run there. The environments are removed.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BACKENDS = ("jax", "torch", "tensorflow")
# Seconds each; what else the tests import is skipped where it is missing.
TESTS = (
    "test_main.py",
    "project/test_package.py",
    "variables/test_matrix_view.py",
    "norms/test_norms.py",
    "noise/test_formulas.py",
    "orthogonalization/test_newton_schulz.py",
)
TEST_NEEDS = ("pytest", "hypothesis", "pyyaml")


def build() -> tuple[pathlib.Path, pathlib.Path]:
    """The new sdist, and the wheel that was built from it, in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    builder = (sys.executable, "-m", "build", "--quiet")
    _run(*builder, "--outdir", DIST, ROOT, cwd=ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def missing_files(sdist: pathlib.Path, wheel: pathlib.Path) -> list[str]:
    """Files that the sdist or the wheel should have and has not.

    Args:
        sdist: Has every tracked file but hidden ones.
        wheel: Has the package alone.
    """
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    tracked = {name for name in listed.splitlines() if name[0] != "."}
    package = {name for name in tracked if name.startswith("keras_lanton/")}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    return [
        *(f"{sdist.name}: {name}" for name in sorted(tracked - names)),
        *(f"{wheel.name}: {name}" for name in sorted(package - held)),
    ]


def try_backend(
    backend: str,
    sdist: pathlib.Path,
    wheel: pathlib.Path,
    *,
    requirements: list[str],
    tests: list[str],
) -> None:
    """Installs the wheel with one backend and runs it there.

    Args:
        backend: Its extra.
        sdist: Has the tests.
        wheel: What is installed.
        requirements: Installed beside the wheel.
        tests: Files in tests/.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        pip = (python, "-m", "pip", "install", "--quiet")
        _run(*pip, f"{wheel}[{backend}]", *requirements, cwd=folder)
        _run(python, "-m", "keras_lanton", cwd=folder, backend=backend)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = folder.glob("*/PKG-INFO")
        files = [source.parent / "tests" / one for one in tests]
        _run(*pip, *TEST_NEEDS, cwd=folder)
        _run(python, "-m", "pytest", *files, cwd=folder, backend=backend)


def check_release(tag: str) -> None:
    """Refuses a tag that is not the version's, or has no date.

    Args:
        tag: Such as `"v1.2.3"`.
    """
    version = (ROOT / "keras_lanton" / "version.py").read_text()
    if f'__version__ = "{tag.removeprefix("v")}"' not in version:
        sys.exit(f"{tag} is not the version of keras_lanton/version.py")
    heading = rf"## \[{re.escape(tag.removeprefix('v'))}\] - \d{{4}}-\d\d-\d\d"
    if not re.search(heading, (ROOT / "CHANGELOG.md").read_text()):
        sys.exit(f"CHANGELOG.md has no date for {tag}")


def _run(*command: object, cwd: pathlib.Path, backend: str = "") -> None:
    """In an environment without the paths of this one."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if backend:
        variables["KERAS_BACKEND"] = backend
    print("$", *command, flush=True)
    subprocess.run([*map(str, command)], cwd=cwd, env=variables, check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/check_package.py", description=__doc__
    )
    parser.add_argument(
        "--backends", nargs="+", choices=BACKENDS, default=BACKENDS
    )
    parser.add_argument(
        "--torch",
        default="torch",
        metavar="SPEC",
        help="requirement of the torch backend, such as one pinned version",
    )
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="FILE")
    parser.add_argument(
        "--release", metavar="TAG", help="the tag that this is to be"
    )
    args = parser.parse_args()
    if args.release:
        check_release(args.release)
    sdist, wheel = build()
    missing = missing_files(sdist, wheel)
    if missing:
        sys.exit("\n".join(["Missing:", *missing]))
    for backend in args.backends:
        try_backend(
            backend,
            sdist,
            wheel,
            requirements=[args.torch] if backend == "torch" else [],
            tests=args.tests,
        )
    print(f"{sdist.name} and {wheel.name} work with {', '.join(args.backends)}")


if __name__ == "__main__":
    main()

"""Prints what a bug report needs: versions, devices, fast paths, a self-check.

`python -m keras_lanton` does it in seconds. Exit status 0 where the
self-check passed, 1 where it did not.
"""

import argparse
import importlib.metadata
import platform
import sys
import traceback
from collections.abc import Mapping
from collections.abc import Sequence

from keras_lanton.tools import self_check
from keras_lanton.version import __version__

PACKAGES = (
    "keras",
    "numpy",
    "jax",
    "jaxlib",
    "torch",
    "triton",
    "tensorflow",
    "tensorflow-cpu",
    "keras-hub",
)


def versions() -> dict[str, str]:
    """Versions of this package, Python and the installed `PACKAGES`."""
    found = {
        "keras_lanton": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _print_table(rows: Mapping[str, str]) -> None:
    for name, value in rows.items():
        print(f"{name:<24}{value}")


def _report() -> int:
    """Prints fast paths and self-check; the exit status."""
    _print_table(self_check.fast_paths())
    checks = self_check.self_check()
    _print_table(
        {
            check.name: f"{check.error:.1e}, at most {check.allowed:.0e}"
            for check in checks
        }
    )
    failed = [check.name for check in checks if not check.passed]
    print("self-check:", f"failed: {', '.join(failed)}" if failed else "passed")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        argv: Arguments; defaults to those of the process.

    Returns:
        The exit status.
    """
    argparse.ArgumentParser(
        prog="python -m keras_lanton",
        description="Print versions, devices and fast paths, and hold a step "
        "of Lanton and a large matrix against NumPy: what a bug report needs. "
        "The environment variable KERAS_BACKEND chooses the backend.",
    ).parse_args(argv)
    _print_table(versions())
    try:
        return _report()
    except Exception as error:
        traceback.print_exc()
        print(f"self-check: failed: {type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())

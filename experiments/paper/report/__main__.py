"""docs/paper.md, with its pictures, from the results of the experiments.

    python -m experiments.paper.report

The paper's numbers are those that arXiv 2510.14009 prints; its figures print
none.
"""

import argparse
import os
import pathlib

from experiments.paper.report.page import SECTIONS
from experiments.paper.report.page import page
from experiments.token_files import read_json

ROOT = pathlib.Path(__file__).resolve().parents[3]


def main(argv=None):
    parser = argparse.ArgumentParser(description="Makes docs/paper.md.")
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=ROOT / "benchmarks" / "results" / "paper_cpu",
        help="folder of the results",
    )
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs")
    args = parser.parse_args(argv)
    results = {}
    for name in SECTIONS:
        found = read_json(args.results / f"{name}.json")
        if found:
            results[name] = found
    if not results:
        raise SystemExit(
            f"There are no results in {args.results}: run "
            "`python -m experiments.paper` first."
        )
    backend = next(iter(results.values()))["backend"]
    os.environ.setdefault("KERAS_BACKEND", backend)
    pictures = args.docs / "paper"
    pictures.mkdir(parents=True, exist_ok=True)
    text = page(results, pictures)
    (args.docs / "paper.md").write_text(text)
    print(args.docs / "paper.md")


if __name__ == "__main__":
    main()

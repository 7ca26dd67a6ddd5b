"""Print the tables of results: `python benchmarks/tables.py [NAME...]`.

A name is the beginning of a file in benchmarks/results, as `step_time_gpt2`;
without a name all are printed. Nothing is measured.
"""

import argparse
import json
import pathlib

import common


def describe(result):
    """Command, device, versions, commit and settings of a result."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    settings = ", ".join(
        f"{key} {common.cell(value)}"
        for key, value in result["settings"].items()
        if isinstance(value, (str, int, float))
    )
    return (
        f"`{result['command']}`: {result['device']}; {versions}; commit "
        f"{result['commit']}. Settings: {settings}."
    )


def main(argv=None):
    """Find the results and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("names", nargs="*", default=[""], metavar="NAME")
    add("--results", type=pathlib.Path, default=common.ROOT / common.RESULTS)
    args = parser.parse_args(argv)
    paths = [p for n in args.names for p in sorted(args.results.glob(f"{n}*"))]
    results = {
        path: json.loads(path.read_text())
        for path in paths
        if path.suffix == ".json"
    }
    # Those of experiments have tables of their own.
    results = {p: one for p, one in results.items() if "command" in one}
    if not results:
        known = sorted(path.stem for path in args.results.glob("*.json"))
        parser.error(f"no such result. There are: {', '.join(known)}")
    for path, result in results.items():
        print(f"## {path.stem}\n\n{describe(result)}\n")
        common.print_table(result["rows"])
        print()


if __name__ == "__main__":
    main()

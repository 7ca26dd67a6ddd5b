"""Write docs/benchmarks.md from the results' JSON, and from nothing else.

python benchmarks/tables.py
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import common


@dataclasses.dataclass(frozen=True)
class Asked:
    """A figure that was asked for, and where the results have it.

    Args:
        text: What the reader sees.
        limit: Largest value that will do.
        benchmark: Name of the results.
        figures: Keys, or their beginnings when they end in "*".
        gpu: Whether it is asked of a GPU or of the CPU.
        backend: The backend that it is asked of; None for all.
    """

    text: str
    limit: float
    benchmark: str
    figures: tuple
    gpu: bool = False
    backend: str | None = None


GPT2_TIME = "step_time_gpt2"
ASKED = (
    *(
        Asked(
            "as they come, on the model's variables: Lanton step / "
            "`keras.optimizers.Muon` step, GPT-2 small",
            limit,
            GPT2_TIME,
            ("default_over_keras_muon",),
            backend=backend,
        )
        for backend, limit in (
            ("jax", 0.8),
            ("torch", 0.5),
            ("tensorflow", 0.8),
        )
    ),
    Asked(
        "as they come: Lanton step / `torch.optim.Muon` + AdamW step, GPT-2 "
        "small",
        0.9,
        GPT2_TIME,
        ("default_over_torch_muon",),
    ),
    *(
        Asked(
            "Lanton step / equal-work `keras.optimizers.Muon` step, GPT-2 "
            "small",
            limit,
            GPT2_TIME,
            ("lanton_over_keras_muon",),
            backend=backend,
        )
        for backend, limit in (
            ("jax", 0.55),
            ("torch", 0.45),
            ("tensorflow", 0.5),
        )
    ),
    Asked(
        "Lanton step / `optax.contrib.muon` (JAX), equal work, GPT-2 small",
        0.8,
        GPT2_TIME,
        ("lanton_over_optax_muon",),
    ),
    Asked(
        "Lanton step / `torch.optim.Muon` (PyTorch), both float32, equal "
        "work, GPT-2 small",
        0.8,
        GPT2_TIME,
        ("lanton_over_torch_muon_float32",),
    ),
    Asked(
        "the same, both bfloat16 in Newton-Schulz",
        0.75,
        GPT2_TIME,
        ("lanton_over_torch_muon_bfloat16",),
    ),
    Asked(
        "amortized cost of noise measuring / the step without it",
        1.02,
        GPT2_TIME,
        ("noise_cost",),
    ),
    Asked(
        "worst single step / median step, staggered",
        1.3,
        GPT2_TIME,
        ("worst_over_median",),
    ),
    Asked(
        "state bytes / weight bytes with "
        '`reference="momentum"` and without AdamW',
        1.01,
        "memory",
        ("state_over_weights_momentum",),
    ),
    Asked(
        "peak temporaries / the cap, Llama 1.1B (computed from the buckets)",
        1.0,
        "memory",
        ("temporaries_over_cap",),
    ),
    Asked(
        "compile time of a GPT-2 small train step / the same with AdamW",
        1.3,
        "compile",
        ("compile_over_adamw",),
    ),
    Asked(
        "programs compiled or traced in the later steps",
        0,
        "compile",
        ("recompilations",),
    ),
    Asked(
        "fairness of `lanczos`: max/min of estimate/true over shapes, spectra",
        1.1,
        "noise",
        ("estimator_spread",),
    ),
    Asked(
        "GPU: Lanton step / equal-work `keras.optimizers.Muon` step",
        0.35,
        "step_time",
        ("lanton_over_keras_muon",),
        gpu=True,
    ),
    Asked(
        "GPU: Lanton step / `torch.optim.Muon` step",
        0.6,
        "step_time",
        ("lanton_over_torch_muon_bfloat16",),
        gpu=True,
    ),
    Asked(
        "GPU: symmetric product at 2048 and above / dense product",
        0.65,
        "polar",
        ("symmetric_over_dense_*",),
        gpu=True,
    ),
    Asked(
        "time within NoiseMonitor at every 10 steps / time of `fit` of a "
        "GPT-2 of width 192",
        0.01,
        "monitor",
        ("monitor_share",),
    ),
    Asked(
        "bytes moved between 8 devices / bytes of the matrices (counted in "
        "the compiled step)",
        2.0,
        "collectives",
        ("bytes_over_matrices_*",),
    ),
)

HEADINGS = {
    "step_time_gpt2": "Step time, GPT-2 small",
    "step_time_llama": "Step time, Llama",
    "step_time_gpt2_kernels": "Step time, GPT-2 small, GPU kernels",
    "step_time_llama_kernels": "Step time, Llama, GPU kernels",
    "dispatch": "Step time, GPT-2 small of width 24",
    "parts_gpt2": "Parts of a step, GPT-2 small",
    "parts_llama": "Parts of a step, Llama",
    "roofline": "Expected on an H100: calculated, not measured",
    "polar": "Polar factor",
    "noise": "Noise estimators",
    "memory": "Memory",
    "compile": "Compile time",
    "loss": "Loss with cheaper states",
    "collectives": "Bytes between devices",
    "monitor": "NoiseMonitor",
}
NAMES = {"jax": "JAX", "torch": "PyTorch", "tensorflow": "TensorFlow"}
# Rows of committed results, by the names that the benchmarks give them now.
ROW_NAMES = {
    'Lanton(ns_dtype="bfloat16"), equal work': (
        "Lanton, products in bfloat16, equal work"
    ),
    'noise_reference="momentum"': 'reference="momentum"',
    'noise_schedule="interval"': 'schedule="interval"',
}


def read_results(folder):
    """Every result of a folder, CPU first, in the order of the headings."""
    results = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if result["benchmark"] not in HEADINGS:
            raise SystemExit(f"{path}: unknown benchmark")
        results.append(result)
    order = list(HEADINGS)
    backends = list(NAMES)
    return sorted(
        results,
        key=lambda r: (
            r["gpu"],
            order.index(r["benchmark"]),
            backends.index(r["backend"]),
        ),
    )


def found_values(asked, results):
    """Pairs of a label and a measured value for one figure."""
    for result in results:
        benchmark = result["benchmark"]
        if result["gpu"] != asked.gpu or not benchmark.startswith(
            asked.benchmark
        ):
            continue
        if asked.backend not in (None, result["backend"]):
            continue
        for key, value in result["figures"].items():
            for wanted in asked.figures:
                if key != wanted and not (
                    wanted.endswith("*") and key.startswith(wanted[:-1])
                ):
                    continue
                label = NAMES[result["backend"]]
                if benchmark != asked.benchmark:
                    label += f" {benchmark.removeprefix('step_time_')}"
                if wanted.endswith("*"):
                    label += f" {key.removeprefix(wanted[:-1])}"
                if result["gpu"]:
                    label += f", {result['device']}"
                yield label, value


def asked_rows(results):
    """The table of what was asked and what was measured."""
    for asked in ASKED:
        values = list(found_values(asked, results))
        yield {
            "figure": asked.text,
            "asked": f"<= {asked.limit:g}",
            "measured": "; ".join(f"{n} {v:.3g}" for n, v in values)
            or "not measured",
            "reached": verdict([v <= asked.limit for _, v in values]),
        }


def verdict(reached):
    """Yes, no or in part; nothing where nothing was measured."""
    if not reached:
        return ""
    if all(reached):
        return "yes"
    return f"{sum(reached)} of {len(reached)}" if any(reached) else "no"


def markdown(rows):
    """Rows as a table in Markdown."""
    rows = [{k: ROW_NAMES.get(v, v) for k, v in row.items()} for row in rows]
    keys = common.columns(rows)
    numbers = {
        key
        for key in keys
        if any(isinstance(row.get(key), (int, float)) for row in rows)
    }
    lines = [
        keys,
        ["---:" if key in numbers else "---" for key in keys],
        *([common.cell(row.get(key)) for key in keys] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
        f"{result['commit']}. Settings: {settings}; "
        f"{result['seconds']:.0f} s in all."
    )


def write_document(results):
    """The whole document as a string."""
    parts = [
        "# Benchmarks",
        "<!-- Written by benchmarks/tables.py from benchmarks/results/*.json. "
        "-->",
        "`make bench` measures on the CPU, `make bench-gpu` on a GPU, and "
        "`python benchmarks/tables.py` writes this page from the results. All "
        "contestants of a table ran in one process and took turns; times are "
        "medians after a warm-up. `s/step` of Lanton is the mean over a noise "
        "interval. A `+` behind a commit means that the code was changed "
        "since.",
        "## Asked and measured",
        markdown(asked_rows(results)),
    ]
    if any(result["quick"] for result in results):
        parts.insert(1, "**Of `--quick` runs: the numbers mean nothing.**")
    last = None
    for result in results:
        heading = HEADINGS[result["benchmark"]]
        heading += ", GPU" if result["gpu"] else ""
        if heading != last:
            parts.append(f"## {heading}")
            last = heading
        parts += [
            f"### {heading}, {NAMES[result['backend']]}",
            describe(result),
            markdown(result["rows"]),
        ]
    return "\n\n".join(parts) + "\n"


def main(argv=None):
    """Read the results, write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--results", type=pathlib.Path, default=common.RESULTS)
    add(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("docs", "benchmarks.md"),
    )
    args = parser.parse_args(argv)
    results = read_results(args.results)
    if not results:
        parser.error(f"no results in {args.results}: run `make bench` first")
    args.output.write_text(write_document(results))
    print_asked(results)
    print(f"\n{args.output}")


def print_asked(results):
    """The first table on the terminal, one value per line."""
    rows = [
        {
            "figure": asked.text.replace("`", ""),
            "on": label,
            "measured": value,
            "asked": asked.limit,
            "reached": value <= asked.limit,
        }
        for asked in ASKED
        for label, value in found_values(asked, results)
    ]
    if not rows:
        sys.exit("none of the figures asked for is in the results")
    common.print_table(rows)


if __name__ == "__main__":
    main()

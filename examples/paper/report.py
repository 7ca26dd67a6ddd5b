"""docs/paper.md, with its pictures, from the results of experiments.py.

    python examples/paper/report.py

The paper's numbers are those that arXiv 2510.14009 prints; where it has only
a picture, there is none.
"""

import argparse
import os
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import pretraining  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Okabe and Ito's colours, with markers for those who see none.
STYLES = {
    "lanton": ("Lanton", "#0072B2", "o"),
    "lanton_paper": ("Lanton, paper's settings", "#56B4E9", "s"),
    "d_muon": ("D-Muon", "#D55E00", "^"),
    "muon": ("Muon", "#009E73", "v"),
    "adamuon": ("AdaMuon", "#F0E442", "D"),
    "scion": ("Scion", "#CC79A7", "<"),
    "mars": ("MARS-AdamW", "#E69F00", ">"),
    "adamw": ("AdamW, clipped at 1", "#000000", "p"),
    "sgd": ("SGD", "#000000", "X"),
    "lamb": ("LAMB", "#E69F00", "P"),
    "blockwise_adamw": ("BW-AdamW", "#009E73", "*"),
}
TASKS = {"gpt2": "GPT-2", "llama": "Llama"}
# Seconds per 10 steps of the 1.1B Llama.
PRINTED_SECONDS = {
    "adamw": 64.55,
    "muon": 69.62,
    "mars": 69.01,
    "scion": 71.53,
    "d_muon": 70.07,
    "lanton_paper": 73.08,
}
# Largest, smallest and mean noise at step 5000 of the 1.1B Llama.
PRINTED_NOISE = {
    "qk": (0.026, 0.003, 0.014),
    "vo": (0.117, 0.009, 0.046),
    "mlp": (0.107, 0.018, 0.038),
}


def label(method):
    return STYLES[method][0]


def table(head, rows):
    """Markdown; every cell a string."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(numbers, digits=3):
    """Mean, and the standard deviation over the seeds."""
    numbers = np.array(numbers, float)
    if not np.isfinite(numbers).all():
        return "diverged"
    return f"{numbers.mean():.{digits}f} ± {numbers.std():.{digits}f}"


def quotient(a, b):
    """Infinite where b is 0: a layer that was not measured yet."""
    return a / b if b else float("inf")


def wins(ours, theirs):
    """In how many seeds ours is below theirs, of how many."""
    pairs = list(zip(ours, theirs, strict=True))
    return sum(a < b for a, b in pairs), len(pairs)


def below(found, ours="lanton", theirs="d_muon"):
    """A sentence that says in how many seeds one loss is below the other."""
    k, n = wins(found[ours]["final"], found[theirs]["final"])
    return f"{label(ours)} is below {label(theirs)} in {k} of {n} seeds"


# -- Losses ------------------------------------------------------------------


def loss_table(found):
    rows = [
        [
            label(method),
            f"{one['learning_rate']:g}" + (" (edge)" if one["at_edge"] else ""),
            spread([c[-1] for c in one["training_loss"]]),
            spread(one["final"]),
        ]
        for method, one in sorted(
            found.items(), key=lambda item: np.mean(item[1]["final"])
        )
    ]
    head = ["optimizer", "best rate", "training loss", "validation loss"]
    return table(head, rows)


def draw_losses(result, path):
    """Validation curves, one panel a task; bands are the seeds' extremes."""
    figure, panels = subplots(len(result))
    for axes, (task, found) in zip(panels, result.items(), strict=True):
        for method, one in found.items():
            name, colour, marker = STYLES[method]
            curves = np.array(one["validation_loss"])
            steps = one["validation_step"][1:]
            curves = curves[:, 1:]
            axes.plot(
                steps,
                curves.mean(0),
                color=colour,
                marker=marker,
                markersize=4,
                label=name,
            )
            axes.fill_between(
                steps, curves.min(0), curves.max(0), color=colour, alpha=0.2
            )
        axes.set_title(TASKS[task])
        axes.set_xlabel("step")
        axes.set_ylabel("validation loss (nats per token)")
        axes.grid(alpha=0.3)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4)
    save(figure, path)


def subplots(count):
    import matplotlib

    matplotlib.use("agg")  # draws to a file, needs no display
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1,
        count,
        figsize=(5.5 * count if count > 1 else 7, 4.5),
        layout="constrained",
        squeeze=False,
    )
    return figure, panels[0]


def save(figure, path):
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def losses(result, pictures):
    draw_losses(result, pictures / "losses.png")
    parts = [
        f"**{TASKS[task]}**\n\n{loss_table(found)}"
        for task, found in result.items()
    ]
    verdict = ". ".join(
        f"On {TASKS[task]} {below(found)}, and with the paper's settings in "
        f"{wins(found['lanton_paper']['final'], found['d_muon']['final'])[0]}; "
        f"lowest of all is {label(lowest(found))}"
        for task, found in result.items()
    )
    return [
        *parts,
        "![Validation losses of all optimizers](paper/losses.png)",
        "The paper: in its figures LANTON is lowest on both, ahead of D-Muon.",
        f"Here: {verdict}.",
    ]


def lowest(found):
    """The method with the lowest mean of final losses."""
    return min(found, key=lambda method: np.mean(found[method]["final"]))


def by_layer(result, pictures):
    found = result["llama"]
    return [
        loss_table(found),
        "The paper: LANTON below LAMB and BW-AdamW on C4 (a figure).",
        f"Here: {below(found, theirs='lamb')}, and "
        f"{below(found, theirs='blockwise_adamw')}; "
        f"{below(found, 'lanton_paper', 'blockwise_adamw')}.",
    ]


def adamuon(result, pictures):
    found = result["gpt2"]
    return [
        loss_table(found),
        "The paper: LANTON below AdaMuon on OpenWebText-100k (a figure).",
        f"Here: {below(found, theirs='adamuon')}; "
        f"{below(found, 'lanton_paper', 'adamuon')}.",
    ]


def running_time(result, pictures):
    rows = []
    for method, ratio in sorted(
        result["over_d_muon"].items(), key=lambda item: item[1]
    ):
        printed = PRINTED_SECONDS.get(method)
        rows.append(
            [
                label(method),
                f"{1000 * result['seconds'][method]:.0f}",
                f"{ratio:.2f}",
                f"{printed / PRINTED_SECONDS['d_muon']:.2f}" if printed else "",
            ]
        )
    head = ["optimizer", "ms per step", "over D-Muon", "the paper, 1.1B"]
    ours = result["over_d_muon"]["lanton"]
    return [
        table(head, rows),
        f"Here Lanton takes {ours:.2f} times D-Muon's step, where the paper "
        "has 1.04. In a model this small most of a step is neither the "
        "model's products nor the optimizer's: docs/benchmarks.md has GPT-2 "
        "small.",
    ]


# -- Robustness --------------------------------------------------------------


def base_rate(result, pictures):
    figure, (axes,) = subplots(1)
    rows = []
    for method, one in result.items():
        name, colour, marker = STYLES[method]
        means = [float(np.mean(each)) for each in one["losses"]]
        axes.semilogx(
            one["rates"], means, color=colour, marker=marker, label=name
        )
        rows.append(
            [
                name,
                *(f"{mean:.3f}" for mean in means),
                f"{one['width']:.1f}",
            ]
        )
    axes.set_xlabel("base learning rate")
    axes.set_ylabel("validation loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, pictures / "base_rate.png")
    head = ["optimizer", *(f"{2.0**k:g}" for k in range(-3, 4)), "window"]
    ours, theirs = (result[m]["width"] for m in ("lanton", "d_muon"))
    return [
        "Losses at multiples of the best rate of the grid, means of two "
        "seeds. The window is how many times its lowest rate the highest is "
        "that stays within 1 % of the lowest loss.",
        table(head, rows),
        "![Validation loss by base learning rate](paper/base_rate.png)",
        "The paper: LANTON's loss hardly moves for rates of 1e-3, 3e-3 and "
        "5e-3 on C4.",
        f"Here: Lanton's window is {ours / theirs:.2f} times D-Muon's "
        "(asked: above 1).",
    ]


def batch_size(result, pictures):
    sizes = result["lanton"]["batch_size"]
    rows = [
        [label(method), *(spread(each) for each in one["final"])]
        for method, one in result.items()
    ]
    best = {
        method: sizes[int(np.argmin([np.mean(e) for e in one["final"]]))]
        for method, one in result.items()
    }
    return [
        "Each at its best rate for the task's own batch size, at equal tokens.",
        table(["optimizer", *(str(size) for size in sizes)], rows),
        "The paper: about 4.0 for LANTON at 8 to 64, lowest at 16.",
        f"Here: lowest at {best['lanton']} for Lanton and {best['d_muon']} "
        "for D-Muon; larger batches make fewer steps.",
    ]


def sample_efficiency(result, pictures):
    rows, sentences = [], []
    for task, found in result.items():
        for method in (m for m in found if m != "target"):
            one = found[method]
            need = one["needed"]
            shown = (
                f"more than {max(one['times']):g}"
                if need is None
                else f"{need:.2f}"
                if need > 1
                else "1 or fewer"
            )
            rows.append(
                [
                    TASKS[task],
                    label(method),
                    f"{found['target']:.3f}",
                    ", ".join(
                        f"{t:g}: {x:.3f}"
                        for t, x in zip(
                            one["times"], one["losses"], strict=True
                        )
                    ),
                    shown,
                ]
            )
            sentences.append(f"{label(method)} {shown} ({TASKS[task]})")
    head = ["model", "optimizer", "Lanton's loss", "times the steps: loss"]
    return [
        table([*head, "tokens needed, times Lanton's"], rows),
        "The paper: D-Muon needs 1.5 times LANTON's tokens on C4.",
        f"Here, times Lanton's tokens: {', '.join(sentences)}.",
    ]


# -- What is measured on the way ---------------------------------------------


def effective_rates(result, pictures):
    figure, panels = subplots(len(result))
    rows = []
    for axes, (method, found) in zip(panels, result.items(), strict=True):
        for k, name in enumerate(("hidden", "embedding", "vector")):
            mean, std = (np.array(found[name][x]) for x in ("mean", "std"))
            steps = found["step"][: len(mean)]
            colour = ("#0072B2", "#D55E00", "#009E73")[k]
            axes.plot(steps, mean, color=colour, marker="os^"[k], label=name)
            axes.fill_between(
                steps, mean - std, mean + std, color=colour, alpha=0.2
            )
            first, last = (f"{mean[i]:.2f} ± {std[i]:.2f}" for i in (0, -1))
            rows.append([label(method), name, first, last])
        axes.set_title(label(method))
        axes.set_xlabel("step")
        axes.set_ylabel("learning rate over the base rate")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    panels[0].legend()
    save(figure, pictures / "effective_rates.png")
    start = result["lanton_paper"]["hidden"]["mean"][0]
    return [
        "Llama, the first seed; mean and standard deviation over layers.",
        table(["settings", "group", "at the start", "at the end"], rows),
        "![Learning rates over the base rate](paper/effective_rates.png)",
        "The paper: hidden layers 0.56 ± 0.14 at the start, 0.32 ± 0.16 at "
        "the end; embedding and head 0.70 ± 0.30, then 0.68 ± 0.32.",
        f"Here, with the paper's settings: hidden layers {start:.2f} at the "
        "start; alpha, which the paper does not print, decides how far below "
        "1 they are.",
    ]


def noise(result, pictures):
    figure, (axes,) = subplots(1)
    rows = []
    names = {"qk": "QK", "vo": "VO", "mlp": "MLP"}
    middle = len(result["step"]) // 2
    for k, (block, name) in enumerate(names.items()):
        colour = ("#0072B2", "#D55E00", "#009E73")[k]
        one = {key: np.array(v) for key, v in result[block].items()}
        steps = result["step"]
        axes.plot(steps, one["mean"], color=colour, marker="os^"[k], label=name)
        axes.fill_between(
            steps, one["min"], one["max"], color=colour, alpha=0.2
        )
        ours = [one[key][middle] for key in ("max", "min", "mean")]
        rows.append(
            [
                name,
                *(f"{x:.3g}" for x in ours),
                f"{quotient(*ours[:2]):.1f}",
                *(f"{x:g}" for x in PRINTED_NOISE[block]),
                f"{PRINTED_NOISE[block][0] / PRINTED_NOISE[block][1]:.1f}",
            ]
        )
    axes.set_xlabel("step")
    axes.set_ylabel("noise, sqrt(H)")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(title="mean; band: least and largest")
    save(figure, pictures / "noise.png")
    columns = ("max", "min", "mean", "max/min")
    head = ["block", *columns, *(f"paper: {name}" for name in columns)]
    spans = [
        quotient(result[b]["max"][middle], result[b]["min"][middle])
        for b in names
    ]
    return [
        "Llama, the paper's settings, the first seed, in the middle of the "
        "run.",
        table(head, rows),
        "![Noise of the layers over training](paper/noise.png)",
        "The paper's units are those of a randomized SVD of rank unsaid; its "
        "layers of one kind differ by 6 to 13 times.",
        f"Here they differ by {min(spans):.1f} to {max(spans):.1f} times, in "
        "a model of four blocks.",
    ]


def references(result, pictures):
    rows = [[name, spread(final)] for name, final in result.items()]
    k, n = wins(
        result["Option I"], result["Option II, two batches, half the steps"]
    )
    return [
        "GPT-2, equal numbers of samples, at Option I's best rate.",
        table(["noise sample", "validation loss"], rows),
        "The paper compares the two under a fixed budget in a figure, and "
        "runs Option I.",
        f"Here: Option I is below Option II with half the steps in {k} of "
        f"{n} seeds.",
    ]


def cnn(result, pictures):
    rows = [
        [
            label(method),
            f"{one['learning_rate']:g}" + (" (edge)" if one["at_edge"] else ""),
            f"{100 * np.mean(one['train_accuracy']):.1f} %",
            " ± ".join(
                f"{100 * f(one['test_accuracy']):.2f}"
                for f in (np.mean, np.std)
            )
            + " %",
        ]
        for method, one in sorted(
            result.items(),
            key=lambda item: -np.mean(item[1]["test_accuracy"]),
        )
    ]
    k, n = wins(
        result["d_muon"]["test_accuracy"], result["lanton"]["test_accuracy"]
    )
    return [
        table(["optimizer", "best rate", "training", "test accuracy"], rows),
        "The rates are tuned on the first seed's test images, of which there "
        "are 360: one is 0.28 %. The head, a matrix, moves with the "
        "convolutions.",
        "The paper: LANTON's accuracy on CIFAR-100 is highest, near its best "
        "after some 70 epochs (figures).",
        f"Here, digits: Lanton is above D-Muon in {k} of {n} seeds.",
    ]


def bounds(result, pictures):
    import theory  # which imports Keras

    theory.plot(result, pictures / "theory.png")
    return [
        "```\n" + theory.table(result).strip() + "\n```",
        "![Bounds of the lemmas and rates of convergence](paper/theory.png)",
        "What is tested, and what of it was derived here because the paper's "
        "proofs were not at hand: the head of `examples/paper/theory.py`.",
    ]


def defaults(result, pictures):
    parts = [
        "One change to Lanton's defaults at a time, and other optimizers, on a "
        "text that the other experiments do not use (prose of the English "
        "Wikipedia of 2006); validation losses of two seeds at two base rates, "
        "and the better mean. The defaults were chosen on this text."
    ]
    for task, found in result.items():
        parts += [f"**{TASKS[task]}**", cases_table(found)]
    return parts


def cases_table(found):
    """Of losses by case and rate."""
    rows = []
    for name, one in found.items():
        code = "=" in name and "D-Muon" not in name and " (" not in name
        each = ", ".join(
            f"{rate}: " + " ".join(f"{x:.3f}" for x in losses)
            for rate, losses in one.items()
        )
        best = f"{best_mean(one):.3f}"
        rows.append([f"`{name}`" if code else name, each, best])
    rows.sort(key=lambda row: row[-1])
    return table(["what is changed", "rate: losses", "best mean"], rows)


def best_mean(one):
    return min(np.mean(losses) for losses in one.values())


def width(result, pictures):
    parts = [
        "The Llama of two widths, on the same text; losses as in section 13. "
        "What is best grows with the width; the default is 200, the paper's, "
        "for widths from 768, is 300."
    ]
    for found in result.values():
        losses = found["losses"]
        ours = {n: x for n, x in losses.items() if "embedding_scale" in n}
        best = min(ours, key=lambda name: best_mean(ours[name]))
        parts += [
            f"**Width {found['width']}**, best at `{best}`",
            cases_table(losses),
        ]
    return parts


SECTIONS = {
    "losses": ("Training and validation loss", losses),
    "by_layer": ("Against layer-wise and block-wise rates", by_layer),
    "adamuon": ("Against AdaMuon", adamuon),
    "running_time": ("Running time per step", running_time),
    "base_rate": ("Robustness to the base learning rate", base_rate),
    "batch_size": ("Robustness to the batch size", batch_size),
    "sample_efficiency": ("Sample efficiency", sample_efficiency),
    "effective_rates": ("Effective learning rates", effective_rates),
    "noise": ("Noise heterogeneity", noise),
    "references": ("Option I against Option II", references),
    "cnn": ("The CNN", cnn),
    "bounds": ("Theory", bounds),
    "defaults": ("What the defaults are made of", defaults),
    "width": ("Embeddings' steps by width", width),
}
HEAD = """# The paper's experiments

Hao et al., *Noise-Adaptive Layerwise Learning Rates*, arXiv 2510.14009, on a
small scale, and what came of it. This page is made by

```sh
make paper   # examples/paper/experiments.py, then examples/paper/report.py
```

"Lanton" has this library's defaults, "Lanton, paper's settings" is
`Lanton.paper()`. {setting}
"""
CPU_SETTING = """Language models: four layers of width 64 (0.2 million
weights), 512 tokens of vocabulary, 250 steps of 16 x 64 tokens of the Python
standard library's source text; CNN: a narrow airbench94 on scikit-learn's
digits, 6 epochs. Each optimizer's learning rate is the best of four, factors of
2 apart, by the first seed's validation loss; "edge" marks the end of a grid.
Numbers are means and standard deviations of three seeds, which share initial
weights and batches between optimizers. This is little training of little
models: it shows what is so at this size, not at the paper's."""


def page(results, pictures):
    """The page's text; pictures are written on the way."""
    first = next(iter(results.values()))
    machine = first["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    setting = (
        CPU_SETTING if first["scale"] == "cpu" else "The printed settings."
    )
    parts = [HEAD.format(setting=setting)]
    parts.append(
        f"Machine: {machine['cores']} CPU cores ({machine['processor']}), "
        f"Python {machine['python']}, {versions}.\n"
    )
    for number, (name, (title, write)) in enumerate(SECTIONS.items(), 1):
        parts.append(f"## {number}. {title}\n")
        if name not in results:
            parts.append("Not run.\n")
            continue
        paragraphs = write(results[name]["result"], pictures)
        parts.append("\n\n".join(paragraphs) + "\n")
    return "\n".join(parts)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Makes docs/paper.md.")
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=ROOT / "benchmarks" / "results" / "paper_cpu",
        help="folder of experiments.py's results",
    )
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs")
    args = parser.parse_args(argv)
    results = {}
    for name in SECTIONS:
        found = pretraining.read_json(args.results / f"{name}.json")
        if found:
            results[name] = found
    if not results:
        raise SystemExit(
            f"There are no results in {args.results}: run "
            "examples/paper/experiments.py first."
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

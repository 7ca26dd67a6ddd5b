"""The sections on rates, batch sizes and numbers of tokens."""

import numpy as np

from experiments.paper.report.parts import TASKS
from experiments.paper.report.parts import label
from experiments.paper.report.parts import save
from experiments.paper.report.parts import spread
from experiments.paper.report.parts import subplots
from experiments.paper.report.parts import table
from experiments.styles import STYLES


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

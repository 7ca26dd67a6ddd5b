"""The sections that compare the optimizers."""

import numpy as np

from experiments.paper.report.parts import TASKS
from experiments.paper.report.parts import below
from experiments.paper.report.parts import label
from experiments.paper.report.parts import save
from experiments.paper.report.parts import spread
from experiments.paper.report.parts import subplots
from experiments.paper.report.parts import table
from experiments.paper.report.parts import wins
from experiments.styles import STYLES

# Seconds per 10 steps of the 1.1B Llama.
PRINTED_SECONDS = {
    "adamw": 64.55,
    "muon": 69.62,
    "mars": 69.01,
    "scion": 71.53,
    "d_muon": 70.07,
    "lanton_paper": 73.08,
}


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
        axes.legend()
    save(figure, path)


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

"""The sections on Lanton's defaults."""

import numpy as np

from experiments.paper.report.parts import TASKS
from experiments.paper.report.parts import table

# Today's arguments for the words in committed results.
PRESENT_NAMES = {
    "alpha=0.3": "NoiseAdaptiveRate(alpha=0.3)",
    'group_reduction="max"': 'NoiseAdaptiveRate(group_reduction="max")',
    'noise_reference="momentum"': 'NoiseAdaptiveRate(reference="momentum")',
    "adam_lr_ratio=0.5": "AuxiliaryAdamW(lr_ratio=0.5)",
    "adamw_roles=()": "auxiliary_adamw=None",
    'adamw_roles=("embedding", "vector")': (
        'AuxiliaryAdamW(roles=("embedding", "vector"))'
    ),
}


def defaults(result, pictures):
    parts = [
        "One change to Lanton's defaults at a time, and other optimizers, on a "
        "text that the other experiments do not use: prose of the English "
        "Wikipedia of 2006. The tables have validation losses of two seeds at "
        "two base rates, and the better mean. The defaults were chosen on this "
        "text."
    ]
    for task, found in result.items():
        parts += [f"**{TASKS[task]}**", cases_table(found)]
    return parts


def cases_table(found):
    """A table of losses by case and rate."""
    rows = []
    for name, one in found.items():
        name = PRESENT_NAMES.get(name, name)
        code = "=" in name and "D-Muon" not in name and " (no" not in name
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
        "The best scale grows with the width where hidden updates have one "
        "RMS, as here. The default `step_scale` makes them smaller as the "
        "width grows; the default of 300 goes with that."
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

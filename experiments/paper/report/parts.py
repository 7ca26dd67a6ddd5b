"""Tables, pictures and sentences that the sections share."""

import numpy as np

from experiments.styles import STYLES

TASKS = {"gpt2": "GPT-2", "llama": "Llama"}


def label(method):
    return STYLES[method][0]


def table(head, rows):
    """A table in Markdown; every cell is a string."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(numbers, digits=3):
    """Mean, and the standard deviation over the seeds."""
    numbers = np.array(numbers, float)
    if not np.isfinite(numbers).all():
        return "diverged"
    return f"{numbers.mean():.{digits}f} ± {numbers.std():.{digits}f}"


def quotient(a, b):
    """A / b; infinite if b is 0, as before the first measurement."""
    return a / b if b else float("inf")


def wins(ours, theirs):
    """(k, n): ours is below theirs in k of n seeds."""
    pairs = list(zip(ours, theirs, strict=True))
    return sum(a < b for a, b in pairs), len(pairs)


def below(found, ours="lanton", theirs="d_muon"):
    """A sentence that says in how many seeds one loss is below the other."""
    k, n = wins(found[ours]["final"], found[theirs]["final"])
    return f"{label(ours)} is below {label(theirs)} in {k} of {n} seeds"


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

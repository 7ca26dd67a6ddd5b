"""What earlier settings decided, in lines: from results that stay in the table.

Nothing here asks for runs. Some of these runs were of code that has gone:
constant noise in the place of measured noise (`kind="frozen"`), noise within
matrices by entries, inputs and outputs (arguments "inside."), other measures
of it ("noise.measure") and weight decay that falls with the steps ("horizon").
"""

import math

import numpy as np

from experiments.contestants import NUCLEAR
from experiments.search import Grid
from experiments.search import label_of
from experiments.search import run_for
from experiments.tables import best_rate
from experiments.tables import by_value
from experiments.tables import with_interval
from experiments.tasks import BATCH_SIZES
from experiments.tasks import TASKS
from experiments.tasks import advice_of
from experiments.tasks import to_loss

TITLE = "What did earlier settings decide?"
ANCHOR = "what-did-earlier-settings-decide"
TEXT = """Before the defaults were what they are, most arguments were chosen
with `beta_1=0.9`, `bias_correction=False`, `embedding_scale=100`,
`step_scale="rms_matched"`, `weight_decay=0.03`, Muon's coefficients of
Newton-Schulz and nuclear norms of the noise, at the rate 0.02: GPT-2, S,
batches of 1,024 tokens. A line has the loss above that of these settings,
unless it says otherwise. Measures of noise by entry, by input or output, by
alignment and by kind of block ended no lower than rows and columns in short
runs; their runs are in the results."""

LITTLE_DECAY = {"weight_decay": 0.03}
OURS = {**NUCLEAR, **LITTLE_DECAY}
FAN_IN = {**NUCLEAR, "step_scale": "fan_in", "embedding_scale": 300.0}
SMALL = {"beta_1": 0.97, "weight_decay": 0.03}
BEST = run_for("earlier", 2e-2, OURS)
OF_256 = run_for("earlier", 5e-3, {**NUCLEAR, **SMALL}, batch_size=4)
BETWEEN = {
    "noise.alpha_unit": "group_noise",
    "noise.group_reduction": "mean",
    "noise.within_matrices": False,
}
FINAL = {"text": "sotu"}
TUNED = run_for("earlier", 2e-2, {**OURS, "embedding_scale": 200.0}, **FINAL)
CONTROL = run_for(
    "earlier_without_noise",
    1e-2,
    {**LITTLE_DECAY, "embedding_scale": 50.0},
    **FINAL,
)
LOW = (1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2)
HIGH = (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2, 8e-2)
SEEDS, REPORTING = (1, 2, 3), (11, 12, 13, 14, 15)


def without_rates(run):
    """The run without noise between matrices."""
    changed = run.with_options(**{"noise.alpha": None})
    unit = "noise.alpha_unit"
    options = tuple(pair for pair in changed.options if pair[0] != unit)
    return changed.replace(options=options)


# A text, a run, the run that it is compared with, and their seeds.
LINES = (
    (
        "`noise=None`",
        run_for("earlier_without_noise", 2e-2, LITTLE_DECAY),
        BEST,
        SEEDS,
    ),
    (
        "batches of 256 tokens, rate 0.005, `beta_1=0.97`: `noise=None`, above "
        "the same with noise",
        run_for("earlier_without_noise", 5e-3, SMALL, batch_size=4),
        OF_256,
        SEEDS,
    ),
    (
        "constant noise, the mean over another run of the same seed",
        BEST.replace(kind="frozen", other_seed=False),
        BEST,
        SEEDS,
    ),
    (
        "constant noise, the mean over a run of another seed",
        BEST.replace(kind="frozen", other_seed=True),
        BEST,
        SEEDS,
    ),
    (
        "noise within matrices alone, `alpha=None`",
        without_rates(BEST),
        BEST,
        SEEDS,
    ),
    (
        "the same, batches of 256 tokens",
        without_rates(OF_256),
        OF_256,
        SEEDS,
    ),
    (
        '`estimator="frobenius"`',
        BEST.with_options(**{"noise.estimator": "frobenius"}),
        BEST,
        SEEDS,
    ),
    (
        "noise of each matrix every 20 steps in place of 10",
        BEST.with_options(**{"noise.interval": 20}),
        BEST,
        (1,),
    ),
    (
        "every 40 steps",
        BEST.with_options(**{"noise.interval": 40}),
        BEST,
        (1,),
    ),
    (
        '`NewtonSchulz(coefficients="cubic")`',
        BEST.with_options(**{"newton_schulz.coefficients": "cubic"}),
        BEST,
        (1, 2, 3, 4, 5),
    ),
    (
        '`NewtonSchulz(dtype="bfloat16")`',
        BEST.with_options(**{"newton_schulz.dtype": "bfloat16"}),
        BEST,
        SEEDS,
    ),
    (
        '`momentum_dtype="int8"`',
        BEST.with_options(momentum_dtype="int8"),
        BEST,
        SEEDS,
    ),
    *(
        (
            f'weights in bfloat16, `rounding="{rounding}"`',
            BEST.with_options(rounding=rounding).replace(dtype="bfloat16"),
            BEST,
            SEEDS,
        )
        for rounding in ("stochastic", "nearest")
    ),
    *(
        (
            f"`cautious_weight_decay=True`, `weight_decay={decay:g}`",
            BEST.with_options(cautious_weight_decay=True, weight_decay=decay),
            BEST,
            SEEDS,
        )
        for decay in (0.03, 0.06)
    ),
    *(
        (
            f"`embedding_scale={scale:g}`, `weight_decay=0.1`, above 100",
            run_for("earlier", 2e-2, {**NUCLEAR, "embedding_scale": scale}),
            run_for("earlier", 2e-2, NUCLEAR),
            (1,),
        )
        for scale in (50.0, 200.0)
    ),
    (
        '`step_scale="fan_in"`, `embedding_scale=300`, `weight_decay=0.1`, '
        "rate 0.005",
        run_for("earlier", 5e-3, FAN_IN),
        BEST,
        SEEDS,
    ),
    (
        "on `sotu`, tuned: noise between matrices alone, as in the paper, "
        "above `noise=None`",
        run_for("earlier", 1e-2, {**OURS, **BETWEEN}, **FINAL),
        CONTROL,
        REPORTING,
    ),
    (
        "on `sotu`, tuned: these settings, `embedding_scale=200`, above "
        f"{label_of('lanton')}",
        TUNED,
        run_for("lanton", 5e-3, **FINAL),
        REPORTING,
    ),
)


def lines(results):
    """All lines, as a list in Markdown."""
    found = [
        *(compared(*line, results) for line in LINES),
        by_momentum(results),
        by_width('`step_scale="fan_in"`', FAN_IN, LOW, results),
        by_width('`step_scale="rms_matched"`', OURS, HIGH, results),
        rate_finder(results),
        *(batch_sizes(task, results) for task in TASKS),
    ]
    return "\n".join(f"- {line}" for line in found if line)


def compared(text, run, reference, seeds, results):
    """One line; None without any seed that both have."""
    pairs = [
        [results.loss(one.replace(seed=seed)) for one in (run, reference)]
        for seed in seeds
    ]
    above = [a - b for a, b in pairs if None not in (a, b)]
    if not above:
        return None
    return f"{text}: {with_interval(above)} ({told(len(above))})"


def told(count):
    """A number of seeds in words."""
    return "1 seed" if count == 1 else f"{count} seeds"


def by_momentum(results):
    """Losses at batches of 256 tokens by momentum, and with less decay."""
    losses = [
        (beta, results.loss(OF_256.with_options(beta_1=beta, weight_decay=0.1)))
        for beta in (0.9, 0.95, 0.97, 0.98)
    ]
    shown = ", ".join(f"{loss:.4f} with {b:g}" for b, loss in losses if loss)
    if not shown:
        return None
    seeds = [results.loss(OF_256.replace(seed=seed)) for seed in SEEDS]
    ended = [loss for loss in seeds if loss is not None]
    return (
        "batches of 256 tokens, rate 0.005, `weight_decay=0.1`, losses by "
        f"`beta_1`: {shown} (1 seed); `weight_decay=0.03`: "
        f"{with_interval(ended)} with 0.97 ({told(len(ended))})"
    )


def by_width(scale, changes, rates, results):
    """The best rate of 400 steps by width."""
    rows = [
        (size, run_for("earlier", rate, changes, size=size, steps=400))
        for size in ("XS", "S", "M", "L", "XL")
        for rate in rates
    ]
    losses = by_value(Grid(caption="", rows=tuple(rows)), results)
    best = {
        size: best_rate(row.dropna())
        for size, row in losses.iterrows()
        if row.count() > 2
    }
    shown = ", ".join(f"{size} {x:.2g}" for size, x in best.items() if x)
    if not shown:
        return None
    return f"best rates of 400 steps by width, {scale}: {shown} (1 seed)"


def rate_finder(results):
    """Rates that `find_learning_rate` suggests over the best of a sweep."""
    ratios = []
    for fields in ({}, {"size": "M"}, {"model": "llama"}):
        rows = [
            ("", run_for("earlier", rate, FAN_IN, steps=400, **fields))
            for rate in LOW
        ]
        losses = by_value(Grid(caption="", rows=tuple(rows)), results)
        best = best_rate(losses.iloc[0]) if len(losses) else None
        for seed in SEEDS:
            asked = rows[2][1].replace(kind="rate_search", steps=100, seed=seed)
            line = results.get(asked)
            if line and best:
                ratios.append(line["learning_rate"] / best)
    if not ratios:
        return None
    return (
        "`find_learning_rate`, runs of 100 steps, over the best rate of runs "
        'of 400 steps, `step_scale="fan_in"`: '
        f"{min(ratios):.2f} to {max(ratios):.2f} ({len(ratios)} searches on "
        "GPT-2, S and M, and Llama, S)"
    )


def batch_sizes(task, results):
    """Steps to a loss by batch size, their knee, and what is advised."""
    steps = {}
    for batch_size in BATCH_SIZES:
        runs = to_loss(task, batch_size)
        found = [x for x in map(results.loss, runs) if x and math.isfinite(x)]
        if not found:
            return None
        steps[batch_size] = min(found)
    advice = results.get(advice_of(task))
    told = ", ".join(f"{n:,.0f} of {b} blocks" for b, n in steps.items())
    target = TASKS[task]["target"]
    text = (
        f"{task}, steps to a loss of {target:g} at a constant rate, the best "
        f"of three: {told}; twice the fewest steps are taken at "
        f"{knee(steps):.0f} blocks of 64 tokens"
    )
    if advice:
        size = advice["advice"]["batch_size"]
        text += f", `advise_batch_size` says {size}"
    return text


def knee(steps):
    """The batch size B of S(b) = S_min (1 + B / b), by least squares.

    Of the logarithms, so that every batch size counts alike.

    Args:
        steps: Steps by batch size.
    """
    sizes = np.array(list(steps), float)
    logs = np.log(list(steps.values()))
    knees = np.geomspace(sizes[0] / 16, sizes[-1] * 16, 2000)
    left = logs - np.log1p(knees[:, None] / sizes)
    # log S_min is the mean of what is left.
    return float(knees[np.argmin(np.var(left, axis=1))])

"""What is compared, too: fine-tuning, and AdamW's handicaps."""

from experiments.search import Grid
from experiments.search import Table
from experiments.search import all_of
from experiments.search import fixed
from experiments.search import run_for
from experiments.search import searched
from experiments.search import tune_rate

MIDDLE = (2.5e-3, 5e-3, 1e-2)
BASES = {"adamw": run_for("adamw", 8e-3, initial="keras_hub")}
LORA = {"rank": 8}
LORA_RATES = (5e-3, 1e-2, 2e-2)
# By label: contestant, rates, fields of the run.
METHODS = {
    "AdamW": ("adamw", (5e-4, 1e-3, 2e-3), {}),
    "D-Muon": ("d_muon", MIDDLE, {}),
    "`Lanton.for_fine_tuning()`": ("lanton_fine_tuning", MIDDLE, {}),
    "LoRA, AdamW": ("adamw", (4e-3, 8e-3, 1.6e-2), LORA),
    "LoRA, `Lanton.for_fine_tuning()`": (
        "lanton_fine_tuning",
        LORA_RATES,
        LORA,
    ),
}


def fine_tune(method, base):
    """A function of results: the runs of a method, sorted.

    Args:
        method: A key of `METHODS`.
        base: A key of `BASES`: what the weights are of.
    """
    name, rates, fields = METHODS[method]
    runs = [fine_tuned(name, rate, base, **fields) for rate in rates]
    return lambda results: tune_rate(runs, results)


def fine_tuned(name, rate, base, rank=0):
    """A run of a contestant at a rate, from a base; with LoRA of a rank."""
    return run_for(
        name,
        rate,
        {"weight_decay": 0.0},  # which pulls to 0
        kind="fine_tuning",
        text="sotu",
        base=base,
        initial=None,
        steps=1000,
        rank=rank,
    )


def base_of(run):
    """The pretraining run of one that fine-tunes."""
    return BASES[run.base].replace(seed=run.seed)


FINE_TUNING = tuple(
    Table(
        caption=f"Pretrained with {name}, GPT-2, S",
        decide=all_of(
            fixed(
                (
                    "`Lanton.for_fine_tuning()` at a low rate",
                    fine_tuned("lanton_fine_tuning", 2.5e-3, base),
                )
            ),
            searched({m: fine_tune(m, base) for m in METHODS}),
        ),
        reference="AdamW",
    )
    for base, name in (("adamw", "AdamW"),)
)
# Without a schedule, one seed.
FINE_TUNED_AT_ONE_RATE = Grid(
    caption="fine-tuning, GPT-2, S",
    rows=tuple(
        (label, fine_tuned(name, rate, "adamw").replace(schedule="constant"))
        for label, name, rates in (
            (
                "`Lanton.for_fine_tuning()`",
                "lanton_fine_tuning",
                (6.25e-4, 1.25e-3, 2.5e-3),
            ),
            ("AdamW", "adamw", (1e-3, 4e-3)),
        )
        for rate in rates
    ),
)


def adamws():
    """Pairs of a label and a run of AdamW, with handicaps or without."""
    for initial, start in (("keras_hub", "0.02"), ("scaled", "by width")):
        label = f"kernels start {start}"
        for rate in (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2):
            if (initial, rate) == ("scaled", 3.2e-2):
                continue  # its best is far below
            yield label, run_for("adamw", rate, initial=initial)
        for rate in (4e-3, 8e-3):
            run = run_for("adamw", rate, initial=initial)
            clip = ("global_clipnorm", 1.0)
            free = tuple(pair for pair in run.options if pair != clip)
            yield f"{label}, not clipped", run.replace(options=free)
    for initial, start, pairs in (
        ("keras_hub", "0.02", ((4e-3, 0.25), (4e-3, 4.0), (2e-3, 8.0))),
        ("scaled", "by width", ((4e-3, 0.25), (2e-3, 4.0), (1e-3, 8.0))),
    ):
        for rate, factor in pairs:
            factors = {"table_factor": factor}
            label = f"kernels start {start}, embeddings at {factor:g} times"
            yield label, run_for("adamw_tables", rate, factors, initial=initial)


ADAMW = Grid(
    caption="AdamW, GPT-2, S, 1,024 tokens", rows=tuple(adamws()), of="AdamW"
)

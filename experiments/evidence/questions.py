"""What the page asks, each question with the tables that answer it.

`python -m experiments.evidence` trains the runs of these tables in this
order; the page shows those that there are.
"""

import dataclasses
import functools
from collections.abc import Callable

from experiments.evidence import batch_sizes
from experiments.evidence import fine_tuning
from experiments.evidence import sizes
from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.search import IMAGE_SPACES
from experiments.evidence.search import SPACES
from experiments.evidence.search import needed_by
from experiments.evidence.search import trial_of
from experiments.evidence.search import tune
from experiments.evidence.search import tune_rate
from experiments.evidence.trials import ColdTrial
from experiments.evidence.trials import FrozenTrial
from experiments.evidence.trials import HalfTrial
from experiments.evidence.trials import RateSearchTrial
from experiments.evidence.trials import ShortTrial
from experiments.evidence.trials import loss_of

CHOOSING = (1, 2, 3)  # seeds of what is tried
REPORTING = (11, 12, 13, 14, 15)  # seeds of the finals, none of them tunes
QUICK = 5.0  # tokens per weight
FULL = 20.0
CURVE = (0.7, 1.0, 1.4)  # lengths of the reference, in budgets
REFERENCE = "`Lanton(noise=None)`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Optimizers beside each other, on the same weights and batches.

    Args:
        caption: A line above it.
        rows: Function of `read`: pairs of a label and a trial, as far as they
            are decided.
        seeds: Of each row.
        reference: Label of the row that the others are compared with.
        curve: Whether the reference is trained to other lengths too, so that
            differences in loss can be told in tokens.
        undecided: Function of `read`: runs that decide the rows.
    """

    caption: str
    rows: Callable
    seeds: tuple = CHOOSING
    reference: str | None = None
    curve: bool = False
    undecided: Callable = lambda read: []

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        rows = self.rows(read)
        needed = [
            dataclasses.replace(trial, seed=seed)
            for seed in self.seeds
            for _, trial in rows
        ]
        if self.curve:
            needed += [t for _, t in self.curve_of(read)]
        return [
            *(trial for trial in needed if read(trial) is None),
            *self.undecided(read),
        ]

    def curve_of(self, read):
        """Pairs of a seed and the reference's trials of other lengths."""
        reference = dict(self.rows(read)).get(self.reference)
        if reference is None:
            return []
        return [
            (seed, scaled(dataclasses.replace(reference, seed=seed), factor))
            for seed in self.seeds
            for factor in CURVE
            if factor != 1.0
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageTable(Table):
    """Optimizers of the CNN beside each other.

    Args:
        targets: Accuracies; the table has the epochs until each.
        **kwargs: As `Table`.
    """

    targets: tuple = (0.92, 0.93)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateTable:
    """Losses by learning rate, with the best rate and the window of good ones.

    Args:
        caption: A line above it.
        rows: Pairs of a label and a trial, whatever its rate.
        rates: By label: the rates of the row.
        seed: Of all runs.
        of: What the rows are, at the head of their column.
    """

    caption: str
    rows: tuple
    rates: dict
    seed: int = 1
    of: str = ""

    def trials(self, label, trial):
        """The runs of a row."""
        return [
            dataclasses.replace(trial, learning_rate=rate, seed=self.seed)
            for rate in self.rates[label]
        ]

    def losses(self, read):
        """By label: losses by rate, as far as there are results.

        Args:
            read: Function of a trial: its result, or None.
        """
        found = {
            label: {
                one.learning_rate: loss_of(result)
                for one in self.trials(label, trial)
                if (result := read(one))
            }
            for label, trial in self.rows
        }
        return {label: by_rate for label, by_rate in found.items() if by_rate}

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        needed = [t for row in self.rows for t in self.trials(*row)]
        return [t for t in dict.fromkeys(needed) if read(t) is None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateSearchTable(RateTable):
    """What `find_learning_rate` suggests, beside the best of a sweep.

    Args:
        search_seeds: Seeds of the searches.
        **kwargs: As `RateTable`; the rows are `ShortTrial`s.
    """

    search_seeds: tuple = CHOOSING

    def searches(self, trial):
        """The searches of a row."""
        fields = {**vars(trial), "steps": RateSearchTrial.steps}
        like = RateSearchTrial(**fields)
        return [
            dataclasses.replace(like, seed=seed) for seed in self.search_seeds
        ]

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        needed = [one for _, trial in self.rows for one in self.searches(trial)]
        missing = [trial for trial in needed if read(trial) is None]
        return [*missing, *super().wanted(read)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningTable:
    """Methods of fine-tuning beside each other, each at its best rate.

    Args:
        caption: A line above it.
        base: A name of `fine_tuning.BASES`.
        seeds: Of each row; the first one decides the rates.
    """

    caption: str
    base: str
    seeds: tuple = CHOOSING

    def searches(self, read):
        """By method: a `Tuned`, or the trials that its rate still needs."""
        return {
            method: tune_rate(fine_tuning.trials_of(method, self.base), read)
            for method in fine_tuning.METHODS
        }

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        wanted = []
        for found in self.searches(read).values():
            wanted += found if isinstance(found, list) else self.of_seeds(found)
        return [trial for trial in wanted if read(trial) is None]

    def of_seeds(self, found):
        """The best trial of a search, once per seed."""
        return [dataclasses.replace(found.best, seed=s) for s in self.seeds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSizeTable:
    """Steps to a loss by batch size, and the knee of that curve.

    Args:
        task: A key of `batch_sizes.TASKS`.
    """

    task: str

    def wanted(self, read):
        """The trials of the table that have no result yet."""
        needed = [
            trial
            for batch_size in batch_sizes.BATCH_SIZES
            for trial in batch_sizes.trials_of(self.task, batch_size)
        ]
        needed.append(batch_sizes.advice_of(self.task))
        return [trial for trial in needed if read(trial) is None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A section of the page.

    Args:
        title: Its heading.
        text: Paragraphs above the tables.
        tables: `Table`s, or others with their `wanted`.
    """

    title: str
    text: str
    tables: tuple

    def train(self, run, read):
        """Train what is missing, until nothing is."""
        for table in self.tables:
            while wanted := table.wanted(read):
                run(wanted)


def scaled(trial, factor):
    """The same run with another budget."""
    budget = round(trial.tokens_per_weight * factor, 6)
    return dataclasses.replace(trial, tokens_per_weight=budget)


def fixed(*rows):
    """Rows that no result decides."""
    return lambda read: list(rows)


# What may be measured, and where: options on top of those of line 8 for noise
# between matrices, and of `Lanton(noise=None)` for noise inside them.
UNITLESS = {
    "noise.measure": "signal",
    "noise.alpha_unit": "absolute",
    "noise.groups": "role",
}
ALIGNMENT = {
    "noise.measure": "alignment",
    "noise.beta_2": 0.99,
    "noise.groups": "role",
    "noise.power": 0.5,
}
BETWEEN = {
    "line 8": {},
    "line 8, groups by kind of block": {
        "noise.measure": "noise",
        "noise.groups": "block",
    },
    "line 8, `a` to the power of 1": {
        "noise.measure": "noise",
        "noise.power": 1.0,
    },
    "in units of the signal": {"noise.alpha_unit": "signal"},
    "in units of the signal, groups by role": UNITLESS,
    "in units of the signal, power 1": {**UNITLESS, "noise.power": 1.0},
    "alignment": ALIGNMENT,
    "alignment, one group": {**ALIGNMENT, "noise.groups": "all"},
    "alignment, power 1": {**ALIGNMENT, "noise.power": 1.0},
}
# On top of noise inside matrices: noise between them too.
BOTH = {
    "line 8": {"noise.alpha": 1.0},
    "signal, `alpha=0.3`": {"noise.alpha_unit": "signal", "noise.alpha": 0.3},
    "signal, `alpha=1`": {"noise.alpha_unit": "signal", "noise.alpha": 1.0},
    "signal, `alpha=3`": {"noise.alpha_unit": "signal", "noise.alpha": 3.0},
    "alignment": ALIGNMENT,
    "alignment, one group": {**ALIGNMENT, "noise.groups": "all"},
}
ROWS_COLUMNS = ("factored", "before", 0.5)
SOFT = ("factored", "soft", 0.1)
INSIDE = {
    "hidden: rows and columns": {"inside.hidden": ROWS_COLUMNS},
    "hidden: fourth roots of rows and columns": {
        "inside.hidden": ("factored", "before", 0.25)
    },
    "hidden: inputs": {"inside.hidden": ("inputs", "before", 0.5)},
    "hidden: outputs": {"inside.hidden": ("outputs", "before", 0.5)},
    "hidden: outputs, after the LMO": {
        "inside.hidden": ("outputs", "after", 0.5)
    },
    "hidden: updates of outputs, as in NorMuon": {
        "inside.hidden": ("outputs", "after", 0.5, "update")
    },
    "hidden: entries": {"inside.hidden": ("entries", "before", 0.5)},
    "tables: rows and columns": {"inside.embedding": SOFT},
    "tables: entries": {"inside.embedding": ("entries", "soft", 0.1)},
    "rows and columns": {
        "inside.hidden": ROWS_COLUMNS,
        "inside.embedding": SOFT,
    },
    "rows and columns, every tenth step": {
        "inside.hidden": ROWS_COLUMNS,
        "inside.embedding": SOFT,
        "inside.interval": 10,
        "inside.beta": 0.9,
    },
    "rows and columns; hidden: of gradients, not of noise": {
        "inside.hidden": (*ROWS_COLUMNS, "gradient"),
        "inside.embedding": SOFT,
    },
}
RATE = 2e-2


def measures(names=None, **fields):
    """Rows of `Lanton(noise=None)` and of every measure of noise.

    Args:
        names: Of `BETWEEN`, `INSIDE` and `BOTH`; None for all.
        **fields: Of the trials.
    """
    rows = [
        (REFERENCE, trial_of("lanton_control", RATE, **fields)),
        (CONTESTANTS["lanton"][0], trial_of("lanton", RATE, **fields)),
    ]
    for options, contestant, where in (
        (BETWEEN, "lanton_rates", "between matrices: "),
        (INSIDE, "lanton_control", "inside matrices: "),
        (BOTH, "lanton", "`within_matrices=True`, and between matrices: "),
    ):
        rows += [
            (where + name, trial_of(contestant, RATE, changes, **fields))
            for name, changes in options.items()
            if names is None or name in names
        ]
    return fixed(*rows)


WITH = CONTESTANTS["lanton_signal"][0]


def with_and_without(rate=RATE, changes=(), where="", **fields):
    """Rows of Lanton with the noise and without it.

    Args:
        rate: The learning rate.
        changes: Options on top of both.
        where: Behind both labels.
        **fields: Of the trials.
    """
    return [
        (label + where, trial_of(name, rate, changes, **fields))
        for label, name in (
            (WITH, "lanton_signal"),
            (REFERENCE, "lanton_control"),
        )
    ]


def changed_by(changes, **fields):
    """Rows of both for each of some changes.

    Args:
        changes: Pairs of a rate and options.
        **fields: Of the trials.
    """
    rows = []
    for rate, options in changes:
        where = f", {rate:g}{told(options)}"
        rows += with_and_without(rate, options, where, **fields)
    return fixed(*rows)


def told(options):
    """Options in words, to go on with."""
    return "".join(f", `{name}={value:g}`" for name, value in options.items())


# By batch size: a rate, and options other than those at the start.
AT_THEIR_BEST = {
    16: (2e-2, {"weight_decay": 0.03}),
    4: (5e-3, {"beta_1": 0.97}),
}
LESS_DECAY = (5e-3, {"beta_1": 0.97, "weight_decay": 0.03})  # of 4 blocks
TRIED = {
    16: (
        (2e-2, {}),
        (1e-2, {}),
        (2e-2, {"beta_1": 0.85}),
        (2e-2, {"beta_1": 0.95}),
        (2e-2, {"beta_1": 0.97}),
        (2e-2, {"weight_decay": 0.3}),
        (2e-2, {"weight_decay": 0.03}),
        (4e-2, {"weight_decay": 0.03}),
        (2e-2, {"weight_decay": 0.01}),
        (2e-2, {"weight_decay": 0.03, "beta_1": 0.95}),
        (2e-2, {"embedding_scale": 50.0}),
        (2e-2, {"embedding_scale": 200.0}),
        (2e-2, {"auxiliary_adamw.lr_ratio": 0.25}),
    ),
    4: (
        (2e-2, {}),
        (1e-2, {}),
        (5e-3, {}),
        (1e-2, {"beta_1": 0.95}),
        (5e-3, {"beta_1": 0.95}),
        (2.5e-3, {"beta_1": 0.95}),
        (1e-2, {"beta_1": 0.97}),
        (5e-3, {"beta_1": 0.97}),
        (5e-3, {"beta_1": 0.98}),
        (5e-3, {"beta_1": 0.97, "weight_decay": 0.03}),
        (5e-3, {"beta_1": 0.97, "weight_decay": 0.01}),
    ),
}
PRODUCTS = {
    "five quintic rows, float32": {},
    "five cubic rows, float32": {"newton_schulz.coefficients": "cubic"},
    "five quintic rows, bfloat16": {"newton_schulz.dtype": "bfloat16"},
}


BY_INITIAL = {
    "keras_hub": "initial weights of 0.02",
    "scaled": "initial weights by width",
}


def adamws():
    """Rows of AdamW without one or another possible handicap."""
    rows = [
        (f"{rate:g}, {told}", trial_of("adamw", rate, initial=initial))
        for initial, told in BY_INITIAL.items()
        for rate in (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
        if (initial, rate) != ("scaled", 3.2e-2)
    ]
    rows += [
        (
            f"{rate:g}, {told}, not clipped",
            trial_of("adamw_unclipped", rate, initial=initial),
        )
        for initial, told in BY_INITIAL.items()
        for rate in (4e-3, 8e-3)
    ]
    rows += [
        (
            f"{rate:g}, tables at {factor:g} times that, {BY_INITIAL[initial]}",
            trial_of(
                "adamw_tables",
                rate,
                {"table_factor": factor},
                initial=initial,
            ),
        )
        for initial, rate, factor in (
            ("keras_hub", 4e-3, 4.0),
            ("keras_hub", 2e-3, 8.0),
            ("keras_hub", 4e-3, 0.25),
            ("scaled", 2e-3, 4.0),
            ("scaled", 1e-3, 8.0),
            ("scaled", 4e-3, 0.25),
        )
    ]
    rate, options = AT_THEIR_BEST[16]
    control = trial_of("lanton_control", rate, options)
    return fixed(*rows, (REFERENCE, control))


def others():
    """Rows of D-Muon around its best rates."""
    rows = [
        (
            f"D-Muon, {rate:g}, `weight_decay={decay:g}`",
            trial_of("d_muon", rate, {"weight_decay": decay}),
        )
        for rate, decay in (
            (1e-2, 0.1),
            (1e-2, 0.03),
            (2e-2, 0.03),
            (4e-2, 0.03),
        )
    ]
    return fixed(*rows, *with_and_without(*AT_THEIR_BEST[16]))


def by_products():
    """Rows of Lanton with other products in Newton-Schulz."""
    rate, options = AT_THEIR_BEST[16]
    return fixed(
        *(
            (label, trial_of("lanton_signal", rate, {**options, **more}))
            for label, more in PRODUCTS.items()
        )
    )


LITTLE_DECAY = {"weight_decay": 0.03}
# Sizes of hidden updates, with what fits them.
FAN_IN = {
    "step_scale": "fan_in",
    "embedding_scale": 300.0,
    "weight_decay": 0.1,
}
BY_FAN_IN = f'{WITH}, `step_scale="fan_in"`'
RMS_MATCHED = f'{WITH}, `step_scale="rms_matched"`'
RATES = (0.00125, 0.0025, 0.005, 0.01, 0.02)
SIZES = ("XS", "S", "M", "L", "XL")


def by_width(name, rates, options=(), names=SIZES):
    """Rows and rates of a `RateTable` by width.

    Args:
        name: Of `CONTESTANTS`.
        rates: Of all widths but XL, whose runs are long: without the lowest
            and the highest.
        options: Of the optimizer, besides its own; or a function of the width.
        names: Of the sizes.
    """
    rows, by_label = [], {}
    for size in names:
        width = sizes.WIDTHS[size]
        given = options(width) if callable(options) else options
        trial = trial_of(
            name, rates[0], given, kind=ShortTrial, size=size, text="wiki"
        )
        rows.append((str(width), trial))
        by_label[str(width)] = rates[1:-1] if size == "XL" else rates
    return {"rows": tuple(rows), "rates": by_label, "of": "width"}


def of_models(models, rates, options):
    """Rows and rates of a `RateSearchTable`.

    Args:
        models: By label: fields of the trials.
        rates: Of all rows.
        options: Of the optimizer, besides its own.
    """
    rows = tuple(
        (
            label,
            trial_of(
                "lanton_signal",
                5e-3,
                options,
                kind=ShortTrial,
                text="wiki",
                **fields,
            ),
        )
        for label, fields in models.items()
    )
    return {
        "rows": rows,
        "rates": dict.fromkeys(models, rates),
        "of": "model",
    }


def frozen():
    """Rows of Lanton with measured and with constant noise."""
    rate, options = AT_THEIR_BEST[16]
    measured = trial_of("lanton_signal", rate, options)
    return fixed(
        ("noise as measured", measured),
        *(
            (
                f"constant: the mean of {run}",
                trial_of(
                    "lanton_signal",
                    rate,
                    options,
                    kind=FrozenTrial,
                    other_seed=other,
                ),
            )
            for run, other in (
                ("the same run", False),
                ("a run of another seed", True),
            )
        ),
        (REFERENCE, trial_of("lanton_control", rate, options)),
    )


def by_caution():
    """Rows of Lanton with cautious weight decay and without."""
    rate, options = AT_THEIR_BEST[16]
    return fixed(
        *(
            (
                f"`cautious_weight_decay={cautious}`, {decay:g}",
                trial_of(
                    "lanton_signal",
                    rate,
                    {
                        **options,
                        "weight_decay": decay,
                        **({"cautious_weight_decay": True} if cautious else {}),
                    },
                ),
            )
            for cautious, decay in (
                (False, 0.03),
                (True, 0.03),
                (True, 0.06),
            )
        )
    )


# Where rates alone are compared: the other options, found by the searches at S.
FOUND = {
    "lanton_defaults": {},
    "lanton_defaults_control": {},
    "lanton_signal": FAN_IN,
    "d_muon": LITTLE_DECAY,
    "adamw_tables": {"beta_1": 0.8, "weight_decay": 0.03},
}
# The rates of `Lanton()` by size, tokens per batch and tokens per weight.
LOW_RATES = (0.00125, 0.0025, 0.005)
PLACES = {
    "S, 1,024, 20": ({}, (*LOW_RATES, 0.01)),
    "S, 256, 20": ({"batch_size": 4}, (0.000625, *LOW_RATES)),
    "S, 1,024, 80": ({"tokens_per_weight": 4 * FULL}, LOW_RATES),
    "M, 1,024, 20": ({"size": "M"}, LOW_RATES),
}
# The rates of contestants: for windows, and at other sizes and lengths.
WINDOWS = {
    "lanton_defaults": (0.000625, *RATES[:-1]),
    "lanton_defaults_control": (0.000625, *RATES[:-1]),
    "lanton_signal": RATES,
    "d_muon": (*RATES[1:], 0.04),
}
ELSEWHERE = {
    ("M", FULL): {
        "lanton_defaults": (5e-3,),
        "lanton_defaults_control": (2.5e-3, 5e-3),
        "d_muon": (5e-3, 1e-2, 2e-2),
        "adamw_tables": (2e-3, 4e-3, 8e-3),
    },
    ("S", 4 * FULL): {
        "lanton_defaults": (5e-3,),
        "lanton_defaults_control": (2.5e-3, 5e-3),
        "d_muon": (2.5e-3, 5e-3, 1e-2),
        "adamw_tables": (1e-3, 2e-3, 4e-3),
    },
}


def by_rate(caption, rates, **fields):
    """A table of losses by rate, one seed.

    Args:
        caption: As `Table`.
        rates: By name of `FOUND`.
        **fields: Of the trials.
    """
    return RateTable(
        caption=f"{caption}, by rate",
        rows=tuple(
            (
                CONTESTANTS[name][0],
                trial_of(name, tried[0], FOUND[name], **fields),
            )
            for name, tried in rates.items()
        ),
        rates={CONTESTANTS[name][0]: tried for name, tried in rates.items()},
    )


def at_best(table):
    """Rows of a `RateTable` at the best rate so far."""

    def rows(read):
        losses = table.losses(read)
        return [
            (
                label,
                dataclasses.replace(
                    trial, learning_rate=min(found, key=found.get)
                ),
            )
            for label, trial in table.rows
            if (found := losses.get(label))
        ]

    return rows


def default_by_rate():
    """A table of `Lanton()` by rate: a row for each size, length and batch."""
    rows = [
        (label, trial_of("lanton_defaults", 5e-3, **fields))
        for label, (fields, _) in PLACES.items()
    ]
    return RateTable(
        caption=CONTESTANTS["lanton_defaults"][0],
        rows=tuple(rows),
        rates={label: rates for label, (_, rates) in PLACES.items()},
        of="size, tokens per batch, tokens per weight",
    )


def by_rate_and_at_best(rates, reference, *, size, length, curve=False):
    """Two tables: losses by rate of one seed, and of all at the best rate.

    Args:
        rates: By name of `FOUND`.
        reference: One of these names.
        size: As `Trial`.
        length: In tokens per weight.
        curve: As `Table`.
    """
    caption = captioned(size, length=length)
    tried = by_rate(caption, rates, size=size, tokens_per_weight=length)
    best = Table(
        caption=f"{caption}, each at its best rate",
        rows=at_best(tried),
        reference=CONTESTANTS[reference][0],
        curve=curve,
    )
    return tried, best


NUCLEAR = '`estimator="lanczos"`'
ESTIMATORS = {
    NUCLEAR: {},
    '`estimator="frobenius"`': {"noise.estimator": "frobenius"},
}
STATE = {
    "weights and momentum in float32": {},
    "momentum in int8": {"momentum_dtype": "int8"},
}
ROUNDING = ("stochastic", "nearest")


def by_state():
    """Rows of Lanton with less memory for momentum, or for weights."""
    rate, options = AT_THEIR_BEST[16]
    rows = [
        (label, trial_of("lanton_signal", rate, {**options, **more}))
        for label, more in STATE.items()
    ]
    for rounding in ROUNDING:
        changes = {**options, "rounding": rounding}
        like = trial_of("lanton_signal", rate, changes)
        label = f'weights in bfloat16, `rounding="{rounding}"`'
        rows.append((label, HalfTrial(**vars(like))))
    return fixed(*rows)


def by_step_scale(**fields):
    """Rows of Lanton whose hidden updates have one size or another.

    Args:
        **fields: Of the trials.
    """
    return fixed(
        (
            f"{BY_FAN_IN}, `embedding_scale=300`, `weight_decay=0.1`",
            trial_of("lanton_signal", 5e-3, FAN_IN, **fields),
        ),
        (
            f"{RMS_MATCHED}, `weight_decay=0.03`",
            trial_of("lanton_signal", 2e-2, LITTLE_DECAY, **fields),
        ),
    )


CORRECTED = "`bias_correction=True`"
SHORT = {"beta_1": 0.9}


def by_start(trial):
    """Rows of a trial of Lanton whose momentum starts one way or another."""
    others = {n: x for n, x in trial.options if n != "bias_correction"}
    return [
        (CORRECTED, trial.with_options(bias_correction=True)),
        (  # of `UNNAMED`
            "`bias_correction=False`",
            dataclasses.replace(trial, options=tuple(others.items())),
        ),
    ]


def by_start_of_cnn(read):
    """The same of the CNN, at the best of Lanton's search."""
    found = tune("cnn_lanton", read, judged_by="held_out")
    if isinstance(found, list):
        return []
    return by_start(dataclasses.replace(found.best, judged_by="test"))


def by_momentum(momenta, d_muon_rate, others=lambda trial: [], **fields):
    """Rows of `Lanton()` by momentum, beside D-Muon.

    Args:
        momenta: Of Lanton.
        d_muon_rate: The rate of D-Muon.
        others: Function of Lanton's trial with its defaults: further rows.
        **fields: Of the trials.
    """
    ours = trial_of("lanton_defaults", 5e-3, **fields)
    d_muon = trial_of("d_muon", d_muon_rate, LITTLE_DECAY, **fields)
    return fixed(
        *((f"`beta_1={b}`", ours.with_options(beta_1=b)) for b in momenta),
        *others(ours),
        (CONTESTANTS["d_muon"][0], d_muon),
    )


def with_tables_of_adamw(trial):
    """A row of Lanton, but tables have AdamW's updates."""
    options = {
        **fine_tuning.TABLES_BY_ADAMW,
        "auxiliary_adamw.lr_ratio": 2.0,
        "beta_1": 0.9,
    }
    label = "`beta_1=0.9`, AdamW of tables, at twice the rate"
    return [(label, trial.with_options(**options))]


def with_first_start(trial):
    """A row of Lanton whose momentum starts as in the paper."""
    _, (label, other) = by_start(trial.with_options(beta_1=0.9))
    return [(f"`beta_1=0.9`, {label}", other)]


def by_interval(batch_size):
    """Rows of Lanton that measures its noise more or less often.

    Args:
        batch_size: A key of `AT_THEIR_BEST`.
    """
    rate, options = AT_THEIR_BEST[batch_size]
    return fixed(
        *(
            (
                f"every {interval} steps",
                trial_of(
                    "lanton_signal",
                    rate,
                    {**options, "noise.interval": interval},
                    batch_size=batch_size,
                ),
            )
            for interval in (10, 20, 40)
        )
    )


def by_estimator(rate, options, **fields):
    """Rows of Lanton with other dual norms of hidden matrices, or without.

    Args:
        rate: The learning rate.
        options: Of all rows.
        **fields: Of the trials.
    """
    rows = [
        (
            label,
            trial_of("lanton_signal", rate, {**options, **more}, **fields),
        )
        for label, more in ESTIMATORS.items()
    ]
    rows.append(("`alpha=None`", trial_of("lanton", rate, options, **fields)))
    return fixed(*rows)


def tuned(names, read, **fields):
    """Rows of contestants at the best that their searches found.

    Args:
        names: Of `CONTESTANTS`.
        read: Function of a trial: its result, or None.
        **fields: Of the trials that are searched.
    """
    rows = []
    for name in names:
        found = tune(name, read, **fields)
        if not isinstance(found, list):
            rows.append((CONTESTANTS[name][0], found.best))
    return rows


def undecided(names, read, **fields):
    """Runs that the searches of these contestants need next."""
    return needed_by([tune(name, read, **fields) for name in names])


DEFAULTS = (("lanton_defaults", 5e-3),)


def searched_rates(read, rates, **fields):
    """Searches of the rate of `Lanton()`, and of it without its noise.

    Args:
        read: Function of a trial: its result, or None.
        rates: To start from.
        **fields: Of the trials.

    Returns:
        Pairs of a label and what `tune_rate` says.
    """
    return [
        (
            CONTESTANTS[name][0],
            tune_rate([trial_of(name, r, **fields) for r in rates], read),
        )
        for name in ("lanton_defaults", "lanton_defaults_control")
    ]


def by_noise(caption, rates, *, seeds=CHOOSING, text="wiki", **fields):
    """A table of the noise alone, each row at its best rate.

    Args:
        caption: As `Table`.
        rates: To start from, on the first seed of `wiki`.
        seeds: As `Table`.
        text: Of the rows.
        **fields: Of all trials.
    """

    def rows(read):
        return [
            (label, dataclasses.replace(found.best, text=text))
            for label, found in searched_rates(read, rates, **fields)
            if not isinstance(found, list)
        ]

    def undecided(read):
        searched = searched_rates(read, rates, **fields)
        return needed_by([found for _, found in searched])

    return Table(
        caption=caption,
        rows=rows,
        undecided=undecided,
        seeds=seeds,
        reference=CONTESTANTS["lanton_defaults_control"][0],
        curve=True,
    )


def finals(names, fields=None, untuned=(), **changes):
    """Rows of the tuned contestants on data that tune nothing.

    Args:
        names: Of `CONTESTANTS`.
        fields: Of the trials that are searched.
        untuned: Pairs of a name and a rate: rows without a search.
        **changes: Fields of the finals.
    """

    def rows(read):
        found = [
            (CONTESTANTS[name][0], trial_of(name, rate))
            for name, rate in untuned
        ]
        found += tuned(names, read, **(fields or {}))
        return [
            (label, dataclasses.replace(trial, **changes))
            for label, trial in found
        ]

    return rows


def captioned(size="S", batch_size=16, length=FULL):
    """The caption of a table: model, batches and length of the runs."""
    return (
        f"GPT-2, {size}, batches of {64 * batch_size:,} tokens, {length:g} "
        "tokens per weight"
    )


QUESTIONS = (
    Question(
        title="Which noise is worth measuring?",
        text=(
            "Quick runs of one seed, a quarter of the budget, everything else "
            "as in the reference: they choose what the next question asks."
        ),
        tables=(
            Table(
                caption=captioned(length=QUICK),
                rows=measures(tokens_per_weight=QUICK),
                seeds=(1,),
                reference=REFERENCE,
            ),
        ),
    ),
    Question(
        title="Which noise pays in full runs?",
        text=(
            "Against `Lanton(noise=None)`, all with the same rate, momentum, "
            "scales and decay, before any of them was tuned."
        ),
        tables=tuple(
            Table(
                caption=captioned(batch_size=batch_size),
                rows=measures(
                    names=(
                        "line 8",
                        "signal, `alpha=1`",
                        "rows and columns, every tenth step",
                    ),
                    tokens_per_weight=FULL,
                    batch_size=batch_size,
                ),
                reference=REFERENCE,
                curve=True,
            )
            for batch_size in (16,)
        ),
    ),
    Question(
        title="Which rate, momentum and decay?",
        text=(
            "One seed, with the noise and without it. Small batches want a "
            "lower rate and a longer momentum."
        ),
        tables=tuple(
            Table(
                caption=captioned(batch_size=batch_size),
                rows=changed_by(TRIED[batch_size], batch_size=batch_size),
                seeds=(1,),
            )
            for batch_size in (16, 4)
        ),
    ),
    Question(
        title="Does the noise pay, at the best rate, momentum and decay?",
        text=(
            "The best of what the question before tried, which is the same "
            "with the noise and without it."
        ),
        tables=(
            *(
                Table(
                    caption=captioned(batch_size=batch_size) + told(options),
                    rows=fixed(
                        *with_and_without(rate, options, batch_size=batch_size)
                    ),
                    reference=REFERENCE,
                    curve=True,
                )
                for batch_size, (rate, options) in AT_THEIR_BEST.items()
            ),
            Table(
                caption=captioned(batch_size=4) + told(LESS_DECAY[1]),
                rows=fixed(*with_and_without(*LESS_DECAY, batch_size=4)),
                reference=REFERENCE,
            ),
            *(
                Table(
                    caption=captioned("M", length=length)
                    + told(AT_THEIR_BEST[16][1]),
                    rows=fixed(
                        *with_and_without(
                            *AT_THEIR_BEST[16],
                            size="M",
                            tokens_per_weight=length,
                        )
                    ),
                    seeds=(1,),
                    reference=REFERENCE,
                )
                for length in (QUICK, FULL)
            ),
        ),
    ),
    Question(
        title="Does the noise pay, with the defaults?",
        text=(
            "`Lanton()` with its defaults beside `Lanton(noise=None)` with "
            "all the same defaults, each at the best of its rates, which "
            "differ by a factor of 2 and are compared on the first seed of "
            "`wiki`."
        ),
        tables=(
            by_noise(
                f"{captioned()}, `sotu`",
                (2.5e-3, 5e-3, 1e-2),
                seeds=REPORTING,
                text="sotu",
            ),
            by_noise(
                captioned(batch_size=4),
                (1.25e-3, 2.5e-3, 5e-3),
                batch_size=4,
            ),
            *by_rate_and_at_best(
                dict.fromkeys(
                    ("lanton_defaults", "lanton_defaults_control"),
                    (2.5e-3, 5e-3),
                ),
                "lanton_defaults_control",
                size="M",
                length=FULL,
                curve=True,
            ),
        ),
    ),
    Question(
        title="What holds AdamW back?",
        text=(
            "One seed. KerasHub starts every kernel at a standard deviation "
            "of 0.02, which is a sixth of `1 / sqrt(width)` at width 64; by "
            "width it is 0.07. Gradients are clipped to a global norm of 1, "
            "unless a row says otherwise. Tables need a higher rate than "
            "kernels, and clipping helps: AdamW has both in the other tables "
            "that tune it."
        ),
        tables=(
            Table(
                caption="AdamW, " + captioned(),
                rows=adamws(),
                seeds=(1,),
                reference=REFERENCE,
                curve=True,
            ),
        ),
    ),
    Question(
        title="How far behind is D-Muon?",
        text="One seed, around the best rates.",
        tables=(
            Table(
                caption=captioned(),
                rows=others(),
                seeds=(1,),
                reference=REFERENCE,
            ),
        ),
    ),
    Question(
        title="How often must noise be measured?",
        text=(
            "Each matrix once in so many steps, at the rates and momenta of "
            "the question on whether noise pays; one seed."
        ),
        tables=tuple(
            Table(
                caption=captioned(batch_size=batch_size),
                rows=by_interval(batch_size),
                seeds=(1,),
                reference="every 10 steps",
            )
            for batch_size in (16, 4)
        ),
    ),
    Question(
        title="How exact must the dual norm be?",
        text=(
            "The noise between matrices, in units of the momentum, with "
            "nuclear norms or with Frobenius norms of hidden matrices, or "
            "without any (`alpha=None`). Noise is measured within matrices "
            "in all rows."
        ),
        tables=(
            *(
                Table(
                    caption=captioned(batch_size=batch_size) + told(options),
                    rows=by_estimator(rate, options, batch_size=batch_size),
                    reference=NUCLEAR,
                )
                for batch_size, (rate, options) in (
                    (16, AT_THEIR_BEST[16]),
                    (4, LESS_DECAY),
                )
            ),
            Table(
                caption=captioned("M", length=QUICK)
                + told(AT_THEIR_BEST[16][1]),
                rows=by_estimator(
                    *AT_THEIR_BEST[16], size="M", tokens_per_weight=QUICK
                ),
                seeds=(1,),
                reference=NUCLEAR,
            ),
        ),
    ),
    Question(
        title="Do cheaper products cost loss?",
        text=(
            "Ten products of Newton-Schulz in place of fifteen, or products "
            "of bfloat16 matrices."
        ),
        tables=(
            Table(
                caption=captioned(),
                rows=by_products(),
                reference="five quintic rows, float32",
                seeds=(1, 2, 3, 4, 5),
            ),
        ),
    ),
    Question(
        title="Do int8 momentum and bfloat16 weights cost loss?",
        text=(
            "`momentum_dtype` and `rounding` of `Lanton()`. Weights in "
            "bfloat16 are those of the policy of that name."
        ),
        tables=(
            Table(
                caption=captioned(),
                rows=by_state(),
                reference="weights and momentum in float32",
            ),
        ),
    ),
    Question(
        title="At which batch size do steps stop paying?",
        text=(
            "Steps to a loss at a constant rate, the best of three rates by "
            "factors of 2; one seed. The knee B is the least-squares fit of "
            "steps = fewest (1 + B / batch size) in logarithms: there a run "
            "takes twice the fewest steps. The advice is that of "
            "`keras_lanton.advise_batch_size` at the end of a run of 16 "
            "blocks, from the gradients of 64 batches."
        ),
        tables=tuple(BatchSizeTable(task=task) for task in batch_sizes.TASKS),
    ),
    Question(
        title="Which optimizer for fine-tuning?",
        text=(
            "1,000 steps on `sotu`, in batches of 1,024 tokens, all without "
            "weight decay, from weights that were trained on `wiki` to 20 "
            "tokens per weight. Learned: the fall of the loss on the new "
            "text. Forgotten: the rise of the loss on the old one. LoRA has "
            "rank 8, on queries and values. The rates are chosen by the new "
            "loss of the first seed."
        ),
        tables=tuple(
            FineTuningTable(
                caption=f"Pretrained with {name}, GPT-2, S", base=base
            )
            for base, name in (("adamw", "AdamW"), ("lanton", "`Lanton()`"))
        ),
    ),
    Question(
        title="Would constants do as well as measured noise?",
        text=(
            "The same runs with noise that is constant from the first step to "
            "the last: the mean over time of what a run measured, for every "
            "matrix, row and column."
        ),
        tables=(
            Table(
                caption=captioned() + told(AT_THEIR_BEST[16][1]),
                rows=frozen(),
                reference="noise as measured",
            ),
        ),
    ),
    Question(
        title="Does cautious weight decay pay?",
        text="`cautious_weight_decay` of `Lanton()`.",
        tables=(
            Table(
                caption=captioned(),
                rows=by_caution(),
                reference="`cautious_weight_decay=False`, 0.03",
            ),
        ),
    ),
    Question(
        title="How wide is the window of good rates?",
        text=(
            "One seed. The best rate is the lowest point of a parabola "
            "through the best three. The window is the highest rate over the "
            "lowest whose loss is within 1 % of the best, by interpolation. "
            "`Lanton()` without its defaults has `beta_1=0.9` and "
            "`bias_correction=False`, D-Muon a decay of 0.03."
        ),
        tables=(by_rate(captioned(), WINDOWS),),
    ),
    Question(
        title="Which optimizer ends lowest?",
        text=(
            "Each contestant at the best of its search, and `Lanton()` with "
            "its defaults too, on a text that none was tuned on."
        ),
        tables=(
            Table(
                caption=captioned(),
                rows=finals(SPACES, untuned=DEFAULTS, text="sotu"),
                undecided=functools.partial(undecided, tuple(SPACES)),
                seeds=REPORTING,
                reference=REFERENCE,
                curve=True,
            ),
        ),
    ),
    Question(
        title="Which optimizer trains a CNN best?",
        text=(
            "A narrow airbench network on Fashion-MNIST: 8 epochs of batches "
            "of 500 images. Each contestant is tuned on 10,000 training "
            "images that are held out, then trained on all training images "
            "and tested on the test images."
        ),
        tables=(
            ImageTable(
                caption="Fashion-MNIST, 8 epochs",
                rows=finals(
                    IMAGE_SPACES, {"judged_by": "held_out"}, judged_by="test"
                ),
                undecided=functools.partial(
                    undecided, tuple(IMAGE_SPACES), judged_by="held_out"
                ),
                seeds=REPORTING,
                reference=REFERENCE,
            ),
        ),
    ),
    Question(
        title="How large should hidden updates be?",
        text=(
            "`step_scale` of `Lanton()`, with the rate and the decay of each: "
            "the default, and updates of one RMS at any width, at the best "
            "of their search."
        ),
        tables=(
            Table(
                caption=captioned(),
                rows=by_step_scale(),
                reference=f"{RMS_MATCHED}, `weight_decay=0.03`",
            ),
            Table(
                caption=captioned("M", length=QUICK),
                rows=by_step_scale(size="M", tokens_per_weight=QUICK),
                seeds=(1,),
                reference=f"{RMS_MATCHED}, `weight_decay=0.03`",
            ),
        ),
    ),
    Question(
        title="How should the momentum start?",
        text=(
            "`bias_correction` of `Lanton()`. Without it, as in the paper, "
            "the first gradient is most of the momentum for the first steps. "
            "GPT-2 has the defaults but `beta_1=0.9`, the CNN the best of its "
            "search."
        ),
        tables=(
            Table(
                caption="GPT-2, S, 400 steps without a warm-up",
                rows=fixed(
                    *by_start(
                        trial_of("lanton_defaults", 5e-3, SHORT, kind=ColdTrial)
                    )
                ),
                seeds=(1, 2, 3, 4, 5, 6),
                reference=CORRECTED,
            ),
            Table(
                caption=captioned(),
                rows=fixed(
                    *by_start(
                        trial_of("lanton_defaults", 5e-3, SHORT, text="sotu")
                    )
                ),
                seeds=REPORTING,
                reference=CORRECTED,
            ),
            ImageTable(
                caption="Fashion-MNIST, 8 epochs without a warm-up",
                rows=by_start_of_cnn,
                seeds=REPORTING,
                reference=CORRECTED,
            ),
        ),
    ),
    Question(
        title="Which momentum for which length?",
        text=(
            "`Lanton()` with its defaults, but for what a row names, beside "
            "D-Muon at one rate, which was not searched again where the runs "
            "have more than 20 tokens per weight or the model is larger."
        ),
        tables=(
            Table(
                caption=captioned(),
                rows=by_momentum((0.9, 0.95), 1e-2, text="sotu"),
                seeds=REPORTING,
                reference=CONTESTANTS["d_muon"][0],
            ),
            Table(
                caption=captioned(length=4 * FULL),
                rows=by_momentum(
                    (0.9, 0.95, 0.97),
                    5e-3,
                    others=with_tables_of_adamw,
                    tokens_per_weight=4 * FULL,
                ),
                seeds=(1,),
                reference=CONTESTANTS["d_muon"][0],
            ),
            Table(
                caption=captioned("M"),
                rows=by_momentum(
                    (0.95,),
                    1e-2,
                    others=with_first_start,
                    size="M",
                    tokens_per_weight=FULL,
                ),
                seeds=(1,),
                reference=CONTESTANTS["d_muon"][0],
            ),
        ),
    ),
    Question(
        title="Does the best rate change with the width?",
        text=(
            "400 steps of batches of 1,024 tokens at every width, one seed. "
            "The best rate is the lowest point of a parabola through the "
            "best three."
        ),
        tables=tuple(
            RateTable(
                caption=f"{label}, GPT-2, 400 steps",
                **by_width(name, rates, options, names),
            )
            for label, name, rates, options, names in (
                (
                    BY_FAN_IN,
                    "lanton_signal",
                    RATES,
                    FAN_IN,
                    SIZES,
                ),
                (
                    RMS_MATCHED,
                    "lanton_signal",
                    (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08),
                    LITTLE_DECAY,
                    SIZES[:-1],
                ),
                (
                    CONTESTANTS["d_muon"][0],
                    "d_muon",
                    (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08),
                    LITTLE_DECAY,
                    SIZES[:-1],
                ),
                (
                    CONTESTANTS["adamw_tables"][0],
                    "adamw_tables",
                    (0.0005, 0.001, 0.002, 0.004, 0.008),
                    {},
                    SIZES[:-1],
                ),
            )
        ),
    ),
    Question(
        title="Does find_learning_rate find the best rate?",
        text=(
            "`keras_lanton.find_learning_rate` with its defaults, runs of 100 "
            "steps, beside the best rate of runs of 400 steps: the lowest "
            "point of a parabola through the best three. The model, its "
            "initial weights and batches of 1,024 tokens are the same."
        ),
        tables=(
            RateSearchTable(
                caption="`Lanton()`",
                **of_models(
                    {
                        "GPT-2, width 64": {"size": "S"},
                        "GPT-2, width 128": {"size": "M"},
                        "Llama, width 64": {"model": "llama"},
                    },
                    RATES,
                    FAN_IN,
                ),
            ),
        ),
    ),
    Question(
        title="Does the default rate suit other sizes, lengths and batches?",
        text=(
            "GPT-2. The default rate is 0.005. The table by rate has one seed."
        ),
        tables=(
            default_by_rate(),
            Table(
                caption=f"{captioned()}, `sotu`",
                rows=fixed(
                    *(
                        (
                            f"`Lanton({rate:g})`",
                            trial_of("lanton_defaults", rate, text="sotu"),
                        )
                        for rate in LOW_RATES[1:]
                    )
                ),
                seeds=REPORTING,
                reference="`Lanton(0.005)`",
            ),
        ),
    ),
    Question(
        title="Does it hold at other sizes and lengths?",
        text=(
            "`Lanton()` has its defaults, its rate too. Others have the "
            "arguments that were best for S at 20 tokens per weight, and "
            "their own best rate of those that ran on the first seed. A "
            "table of one seed comes first; it has no best rate where that "
            "is the lowest or the highest that ran."
        ),
        tables=tuple(
            table
            for (size, length), rates in ELSEWHERE.items()
            for table in by_rate_and_at_best(
                rates, "d_muon", size=size, length=length
            )
        ),
    ),
)

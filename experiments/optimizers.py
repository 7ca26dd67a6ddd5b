"""The optimizers by name, with their schedule."""

import dataclasses

import keras

import keras_lanton
from experiments import hyperparameters
from experiments.baselines import BlockwiseAdamW
from experiments.baselines import Lamb
from experiments.baselines import Mars
from experiments.contestants import REVISION
from keras_lanton import baselines

LANTONS = ("lanton", "lanton_paper")  # which measure noise


def warmup_steps(preset, steps):
    """A short run warms up for a tenth of its own steps."""
    return max(2, min(preset.warmup, steps // 10))


def make_schedule(learning_rate, steps, warmup, minimum_ratio=0.0):
    """Linear over `warmup` steps, then a cosine over the rest of `steps`.

    It ends at `minimum_ratio` of the peak rate.
    """
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=learning_rate / warmup,
        warmup_steps=warmup - 1,
        warmup_target=learning_rate,
        decay_steps=steps - warmup,
        alpha=minimum_ratio,
    )


def make_optimizer(name, learning_rate, experiment="gpt2_small", **kwargs):
    """An optimizer by name, with the paper's options of an experiment."""
    if name == "keras_muon":
        decay = hyperparameters.DECAY["weight_decay"]
        kwargs |= {"adam_beta_2": 0.95, "adam_weight_decay": decay}
        return construct(name, learning_rate, weight_decay=decay, **kwargs)
    if name in ("adamw", "mars"):
        # GPT-2's and MARS' usual clipping, which AdamW needs here: without it
        # the demo's loss jumps at the end of the warm-up, and ends higher.
        kwargs["global_clipnorm"] = 1.0
    options = hyperparameters.options(name, experiment)
    return construct(name, learning_rate, options=options, **kwargs)


@keras.saving.register_keras_serializable(package="experiments")
class AdamWOfTables(keras.optimizers.AdamW):
    """AdamW whose rate for embeddings is `table_factor` times the others'."""

    def __init__(self, *args, table_factor=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.table_factor = table_factor

    def update_step(self, gradient, variable, learning_rate):
        if "embedding" in variable.path:
            learning_rate = self.table_factor * learning_rate
        super().update_step(gradient, variable, learning_rate)


def construct(method, learning_rate, *, options=(), **kwargs):
    """The optimizer of a method below, with these options.

    The learning rate is a float or a schedule. Options are pairs of arguments
    and values: "noise.alpha" is the argument `alpha` of the part `noise`.
    """
    classes = {
        "sgd": keras.optimizers.SGD,
        "adamw": keras.optimizers.AdamW,
        "adamw_tables": AdamWOfTables,
        "keras_muon": keras.optimizers.Muon,
        "lanton": keras_lanton.Lanton,
        "lanton_paper": keras_lanton.Lanton.paper,
        "muon": baselines.Muon,
        "d_muon": baselines.DMuon,
        "adamuon": baselines.AdaMuon,
        "normuon": baselines.NorMuon,
        "scion": baselines.Scion,
        "mars": Mars,
        "lamb": Lamb,
        "blockwise_adamw": BlockwiseAdamW,
    }
    make = classes[method]
    given = with_parts(make, {**dict(options), **kwargs})
    # As records of earlier commits have it; False is the same.
    earlier = given.pop("bias_correction", False)
    if given.pop("revision", REVISION) != REVISION or earlier:
        raise ValueError(
            "An earlier commit trained this: `revision` has to be "
            f"{REVISION}, without `bias_correction`. Received: "
            f"options={options!r}"
        )
    return make(learning_rate, **given)


def with_parts(make, options):
    """Options in which a part replaces its arguments, as "noise.alpha".

    The part's other arguments are those that `make` has.
    """
    given, parts = {}, {}
    for name, value in options.items():
        part, dot, argument = name.partition(".")
        if dot:
            parts.setdefault(part, {})[argument] = value
        else:
            given[name] = value
    default = make() if parts else None
    for name, changes in parts.items():
        given[name] = dataclasses.replace(getattr(default, name), **changes)
    return given

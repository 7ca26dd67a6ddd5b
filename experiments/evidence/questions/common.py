"""What several questions share: lengths, settings and captions."""

from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.search import CLOSE
from experiments.evidence.search import trial_of

REPORTING = (11, 12, 13, 14, 15)  # seeds of the finals, none of them tunes
CHOICE_OF_RATE = (
    "Rates are compared on the first seed of `wiki`. One seed does not tell "
    f"apart what ends within {CLOSE:g} of the lowest: there the mean over the "
    "seeds 1 to 3 decides. Until all of these have run, a rate with more "
    "seeds stands before one with fewer."
)
QUICK = 5.0  # tokens per weight
FULL = 20.0
MODELS = {"gpt2": "GPT-2", "llama": "Llama"}
WITH = CONTESTANTS["lanton_signal"][0]
REFERENCE = CONTESTANTS["lanton_control"][0]
RATE = 2e-2
# By batch size: a rate, and options other than those at the start.
AT_THEIR_BEST = {
    16: (2e-2, {"weight_decay": 0.03}),
    4: (5e-3, {"beta_1": 0.97}),
}
LESS_DECAY = (5e-3, {"beta_1": 0.97, "weight_decay": 0.03})  # of 4 blocks
LITTLE_DECAY = {"weight_decay": 0.03}
# Sizes of hidden updates, with what fits them.
FAN_IN = {
    "step_scale": "fan_in",
    "embedding_scale": 300.0,
    "weight_decay": 0.1,
}
BY_FAN_IN = f'{WITH}, `step_scale="fan_in"`'
RMS_MATCHED = f'{WITH}, `step_scale="rms_matched"`'


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


def told(options):
    """Options in words, to go on with."""
    return "".join(f", `{name}={value:g}`" for name, value in options.items())


def captioned(size="S", batch_size=16, tokens_per_weight=FULL, model="gpt2"):
    """The caption of a table: fields of a `Trial` that all rows share."""
    return (
        f"{MODELS[model]}, {size}, batches of {64 * batch_size:,} tokens, "
        f"{tokens_per_weight:g} tokens per weight"
    )

"""Steps to a loss by batch size, and the batch size that the noise advises.

The rate of each batch size is tuned. The steps S(b) then follow
S(b) = S_min (1 + B / b): B is the knee, where twice the fewest steps are taken.
"""

import math

import numpy as np

from experiments.evidence.contestants import CONTESTANTS
from experiments.evidence.trials import BatchSizeAdviceTrial
from experiments.evidence.trials import RunToLoss

BATCH_SIZES = (4, 16, 64, 256)
# By label: fields of `RunToLoss`. The losses are reached after some 15 % of a
# run of 20 tokens per weight.
TASKS = {
    "GPT-2, `wiki`": {"target": 4.2},
    "Llama, `wiki`": {"model": "llama", "target": 4.2},
    "GPT-2, `stdlib`": {"text": "stdlib", "target": 3.4},
}
OPTIMIZER = "lanton_signal"
RATE = 1e-2  # at a batch size of 16


def trials_of(task, batch_size):
    """The runs of one batch size, at rates by factors of 2.

    Args:
        task: A key of `TASKS`.
        batch_size: Blocks.
    """
    _, optimizer, options = CONTESTANTS[OPTIMIZER]
    rate = RATE * math.sqrt(batch_size / 16)
    return [
        RunToLoss(
            optimizer=optimizer,
            learning_rate=rate * factor,
            options=tuple(sorted({**options, "weight_decay": 0.03}.items())),
            batch_size=batch_size,
            **TASKS[task],
        )
        for factor in (0.5, 1.0, 2.0)
    ]


def advice_of(task):
    """The run that asks `advise_batch_size`, of 16 blocks.

    Args:
        task: A key of `TASKS`.
    """
    middle = trials_of(task, 16)[1]
    return BatchSizeAdviceTrial(**vars(middle))


def knee(steps):
    """The batch size B of S(b) = S_min (1 + B / b), by least squares.

    Of the logarithms, so that every batch size counts alike.

    Args:
        steps: Steps by batch size.
    """
    batch_sizes = np.array(list(steps), float)
    logs = np.log(list(steps.values()))
    knees = np.geomspace(batch_sizes[0] / 16, batch_sizes[-1] * 16, 2000)
    curves = np.log1p(knees[:, None] / batch_sizes)
    left = logs - curves
    errors = np.var(left, axis=1)  # log S_min is the mean of what is left
    return float(knees[np.argmin(errors)])

"""What the page asks, each question with the tables that answer it.

`python -m experiments.evidence` trains the runs of these tables in this
order; the page shows those that there are.
"""

from experiments.evidence.questions import measures
from experiments.evidence.questions import noise
from experiments.evidence.questions import options
from experiments.evidence.questions import others
from experiments.evidence.questions import rates
from experiments.evidence.questions import tasks

QUESTIONS = (
    measures.WORTH_MEASURING,
    measures.IN_FULL_RUNS,
    noise.SETTINGS,
    noise.AT_THE_BEST,
    noise.WITH_THE_DEFAULTS,
    others.ADAMW,
    others.D_MUON,
    measures.HOW_OFTEN,
    measures.HOW_EXACT,
    options.CHEAPER_PRODUCTS,
    options.LESS_MEMORY,
    tasks.BATCH_SIZES,
    tasks.FINE_TUNING,
    measures.CONSTANTS,
    options.CAUTION,
    options.DECAY,
    rates.WINDOW,
    others.LOWEST,
    others.CNN,
    options.STEP_SCALE,
    options.START,
    options.MOMENTUM,
    rates.WIDTHS,
    rates.DEPTHS,
    rates.RATE_FINDER,
    rates.DEFAULT_RATE,
    others.OTHER_SIZES,
    others.LLAMA,
)

"""Batch sizes, and fine-tuning."""

from experiments.evidence import batch_sizes
from experiments.evidence.tables import BatchSizeTable
from experiments.evidence.tables import FineTuningTable
from experiments.evidence.tables import Question

BATCH_SIZES = Question(
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
)


FINE_TUNING = Question(
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
        FineTuningTable(caption=f"Pretrained with {name}, GPT-2, S", base=base)
        for base, name in (("adamw", "AdamW"), ("lanton", "Lanton (base)"))
    ),
)

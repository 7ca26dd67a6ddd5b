"""The models by size, and how long a budget of tokens trains them."""

import dataclasses

from experiments.presets import PRESETS

CONTEXT = 64  # tokens
LAYERS = 4
CHUNK = 100  # steps that are compiled as one: a run has a multiple of them
WARMUP = 0.05  # of the steps
WIDTHS = {"XS": 32, "S": 64, "M": 128, "L": 256, "XL": 512}
# Initial standard deviations of hidden kernels. KerasHub's is 0.02 whatever
# the width; "scaled" has GPT-2 small's 0.02 sqrt(768) over sqrt(width).
INITIAL = ("keras_hub", "scaled")


def preset(model, size, dtype=None, layers=None):
    """The model of a size: KerasHub's blocks, heads of 32.

    Args:
        model: "gpt2" or "llama".
        size: A key of `WIDTHS`.
        dtype: Keras' dtype policy; None for "float32".
        layers: The number of blocks; None for `LAYERS`.
    """
    width = WIDTHS[size]
    changes = {
        "layers": layers or LAYERS,
        "width": width,
        "head_width": 32,
        "vocabulary": 1024,
        "context": CONTEXT,
        "feed_forward": 4 * width,
        "dtype_policy": dtype or "float32",
    }
    if model == "llama":
        # Gated: three matrices, of as many weights as GPT-2's two.
        changes["feed_forward"] = round(8 / 3 * width / 16) * 16
        changes["key_value_heads"] = max(1, width // 64)
    return dataclasses.replace(PRESETS[f"{model}_demo"], **changes)


def count_steps(weights, tokens_per_weight, batch_size):
    """Steps of a budget, a multiple of `CHUNK`.

    Args:
        weights: Trained weights of the model, all of them.
        tokens_per_weight: The budget.
        batch_size: Blocks of `CONTEXT` tokens.
    """
    steps = tokens_per_weight * weights / (batch_size * CONTEXT)
    return max(1, round(steps / CHUNK)) * CHUNK

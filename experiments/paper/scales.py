"""The models that the paper's experiments train at each scale."""

import dataclasses

from experiments import images
from experiments.image_data import load_cifar100
from experiments.image_data import load_digits
from experiments.presets import PRESETS

# The paper's main comparison, and Lanton with the paper's settings.
MAIN = ("lanton", "lanton_paper", "d_muon", "muon", "scion", "mars", "adamw")
CNN = ("lanton", "lanton_paper", "d_muon", "muon", "scion", "mars", "sgd")

# Noise between matrices alone, as in the paper; the defaults have more.
BETWEEN = {"noise.within_matrices": False, "noise.alpha_unit": "group_noise"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Tasks by name, and how their optimizers are tuned."""

    tasks: dict  # presets
    grids: dict  # learning rates by task, then by method
    seeds: tuple  # the first one tunes
    batch_sizes: tuple  # of the experiment on batch sizes
    longer: dict  # by method: how many times the steps, to reach Lanton's loss
    options: dict  # of language models' optimizers, added to the paper's
    cnn_options: dict  # the same of the CNN's
    load_images: object  # function of a seed
    workers: int  # runs at once


def around(rate, count=4):
    """A grid by factors of 2; the rate is the second of them."""
    return tuple(float(f"{rate * 2.0 ** (i - 1):.3g}") for i in range(count))


SMALL = {
    "layers": 4,
    "width": 64,
    "head_width": 32,
    "vocabulary": 512,
    "context": 64,
    "batch_size": 16,
    "steps": 250,
    "warmup": 25,
    "validation_blocks": 256,
    "scaled_kernels": False,  # the paper does not say
}
CPU_GRID = {
    "lanton": around(2e-2),
    "lanton_paper": around(1e-2),
    "d_muon": around(2e-2),
    "muon": around(4e-2),
    "adamuon": around(2e-2),
    "scion": around(1e-3),
    "mars": around(4e-3),
    "adamw": around(4e-3),
    "lamb": around(2e-2),
    "blockwise_adamw": around(1e-3),
}
SMALL_LLAMA = dataclasses.replace(
    PRESETS["llama_demo"],
    **SMALL,
    feed_forward=176,
    key_value_heads=1,
)
CPU = Scale(
    tasks={
        "gpt2": dataclasses.replace(PRESETS["gpt2_demo"], **SMALL),
        "llama": SMALL_LLAMA,
        "llama_wide": dataclasses.replace(
            SMALL_LLAMA, width=128, feed_forward=352, key_value_heads=2
        ),
        "cnn": dataclasses.replace(images.PRESETS["digits"], epochs=6),
    },
    grids={
        "gpt2": CPU_GRID,
        "llama": CPU_GRID,
        "llama_wide": CPU_GRID,
        "cnn": {
            "lanton": around(5e-2),
            "lanton_paper": around(5e-2),
            "d_muon": around(5e-2),
            "muon": around(5e-2),
            "scion": around(5e-2),
            "mars": around(1e-2),
            "sgd": around(1e-1),
            "adamw": around(1e-2),
        },
    },
    seeds=(1, 2, 3),
    batch_sizes=(8, 16, 32, 64),
    longer={"d_muon": (1.25, 1.5, 2.0), "adamw": (2.0,)},
    # Muon's second rate is not tuned by itself: half of the first gives AdamW
    # what it has under D-Muon at hidden steps of equal size.
    options={"muon": {"auxiliary_adamw.lr_ratio": 0.5}, "lanton": BETWEEN},
    cnn_options={"lanton": BETWEEN},
    load_images=load_digits,
    workers=2,
)
# The paper's grids: GPT-2's has seven rates from 1e-4 to 5e-3, as Llama's.
PAPER_GRID = (1e-4, 3e-4, 5e-4, 8e-4, 1e-3, 3e-3, 5e-3)
PAPER = Scale(
    tasks={
        "gpt2": PRESETS["gpt2_small"],
        "llama": PRESETS["llama_500m"],
        "llama_wide": PRESETS["llama_1b"],
        "cnn": images.PRESETS["cifar100"],
    },
    grids={
        "gpt2": dict.fromkeys(CPU_GRID, PAPER_GRID),
        "llama": dict.fromkeys(CPU_GRID, PAPER_GRID),
        "llama_wide": dict.fromkeys(CPU_GRID, PAPER_GRID),
        "cnn": {
            name: around(rate)
            for name, rate in {
                **images.PRESETS["cifar100"].learning_rates,
                "lanton_paper": 0.1,
            }.items()
        },
    },
    seeds=(42, 43, 44),
    batch_sizes=(8, 16, 32, 48, 64),
    longer={"d_muon": (1.25, 1.5, 2.0), "adamw": (2.0, 3.0)},
    options={"lanton": BETWEEN},
    cnn_options={"lanton": BETWEEN},
    load_images=load_cifar100,
    workers=1,
)
SCALES = {"cpu": CPU, "paper": PAPER}

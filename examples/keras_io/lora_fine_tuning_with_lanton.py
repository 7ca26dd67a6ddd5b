"""
Title: Fine-tuning a GPT-2 with Lanton, all weights or LoRA
Author: keras_lanton
Date created: 2026/11/24
Last modified: 2026/11/28
Description: Fine-tune on a new text: what is learned, what is forgotten.
Accelerator: None
"""

"""
## Introduction

`Lanton` orthogonalizes the update of every hidden matrix, as Muon does. It
gives noisy matrices a lower learning rate, as LANTON of Hao et al. does
([arXiv 2510.14009](https://arxiv.org/abs/2510.14009)), and noisy rows and
columns smaller updates.

This example pretrains a small GPT-2 on one text and fine-tunes it on another,
in two ways: all weights, and low-rank adapters (LoRA,
[arXiv 2106.09685](https://arxiv.org/abs/2106.09685)) with the weights
frozen. It measures two numbers, in nats per byte:

- *learned*: the fall of the loss on the new text;
- *forgotten*: the rise of the loss on the old text.

It needs no download and no GPU.

## Setup
"""

import argparse
import inspect
import pydoc_data.topics
import tarfile
import typing

import keras
import keras_hub
import matplotlib.pyplot as plt
import numpy as np

from keras_lanton import Lanton

CONTEXT, BATCH_SIZE = 64, 16
PRETRAINING, FINE_TUNING, MEASUREMENTS = 500, 200, 10
plt.rc("axes.spines", top=False, right=False)

"""
## Two texts

The old text is Python's reference manual, which is English. The new text is
source code of Python's standard library. A token is a byte. The last tenth of
each text is for validation.
"""

OLD = "\n".join(pydoc_data.topics.topics.values())
NEW = "\n".join(map(inspect.getsource, (argparse, tarfile, typing)))


def blocks(text):
    """Bytes and the bytes that follow, as (training, validation)."""
    tokens = np.frombuffer(text.encode(), "uint8").astype("int32")
    count = (len(tokens) - 1) // CONTEXT
    x = tokens[: count * CONTEXT].reshape(count, CONTEXT)
    y = tokens[1 : count * CONTEXT + 1].reshape(count, CONTEXT)
    cut = count - count // 10
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


old, old_held_out = blocks(OLD)
new, new_held_out = blocks(NEW)
for name, text, (x, _) in (("old", OLD, old), ("new", NEW, new)):
    print(f"The {name} text has {len(x):,} blocks for training, such as\n")
    print("    " + "\n    ".join(text.splitlines()[400:404]) + "\n")

"""
## The model
"""


def make_model():
    """The backbone, and the model from tokens to logits."""
    keras.utils.set_random_seed(42)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=256,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        intermediate_dim=256,
        dropout=0.0,
        max_sequence_length=CONTEXT,
    )
    gpt2 = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    return backbone, keras.Model(gpt2.input, gpt2.output)


def inputs(x):
    return {"token_ids": x, "padding_mask": np.ones_like(x)}


"""
## Training

`fit` runs between two measurements. The peak rate comes after 5 % of the
steps; then the rate falls along a cosine to zero.
"""


def schedule(peak_rate, steps):
    warmup = steps // 20
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=peak_rate / warmup,
        warmup_steps=warmup - 1,
        warmup_target=peak_rate,
        decay_steps=steps - warmup,
    )


def loss_of(model, held_out, count=256):
    """The loss in nats per byte, on blocks from all over the text."""
    rows = np.linspace(0, len(held_out[0]) - 1, count).astype(int)
    x, y = held_out[0][rows], held_out[1][rows]
    return model.evaluate(inputs(x), y, batch_size=BATCH_SIZE * 4, verbose=0)


def train(model, optimizer, text, steps):
    """The losses on the old and the new text, `(measurements + 1, 2)`."""
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = text
    random = np.random.default_rng(42)
    losses = []
    for measurement in range(MEASUREMENTS + 1):
        if measurement:
            rows = random.integers(
                0, len(x), BATCH_SIZE * steps // MEASUREMENTS
            )
            model.fit(
                inputs(x[rows]), y[rows], batch_size=BATCH_SIZE, verbose=0
            )
        losses.append(
            [loss_of(model, old_held_out), loss_of(model, new_held_out)]
        )
    return np.array(losses)


"""
## Pretraining
"""

_, pretrained = make_model()
optimizer = Lanton(schedule(5e-3, PRETRAINING))
losses = train(pretrained, optimizer, old, PRETRAINING)
print("old text {:.3f}, new text {:.3f} nats per byte".format(*losses[-1]))

"""
## Fine-tuning of all weights

`Lanton.for_fine_tuning` is `Lanton` with three changes: AdamW updates the
embeddings, no weight decays, and `beta_1` is 0.9.
"""

_, model = make_model()
model.set_weights(pretrained.get_weights())
optimizer = Lanton.for_fine_tuning(schedule(2.5e-3, FINE_TUNING))
found = {"all weights": train(model, optimizer, new, FINE_TUNING)}
print(f"{model.count_params():,} weights are trained")

"""
## LoRA

`enable_lora(rank)` freezes all weights but the biases of queries and values,
and adds two factors A and B to each of their kernels. Both are matrices, and
Lanton orthogonalizes the update of both. The rate is four times that of all
weights.
"""

backbone, model = make_model()
model.set_weights(pretrained.get_weights())
backbone.enable_lora(rank=4)
optimizer = Lanton.for_fine_tuning(schedule(1e-2, FINE_TUNING))
found["LoRA"] = train(model, optimizer, new, FINE_TUNING)
optimizer.summary()

"""
## Results

Fine-tuning of all weights learns more than LoRA, and forgets more. LoRA trains
4 % of the weights.
"""

print(f"{'':<14}{'learned':>10}{'forgotten':>12}")
for name, losses in found.items():
    old_change, new_change = losses[-1] - losses[0]
    print(f"{name:<14}{-new_change:>10.3f}{old_change:>12.3f}")

figure, panels = plt.subplots(
    1, 2, figsize=(9, 4), sharey=True, layout="constrained"
)
steps = np.linspace(0, FINE_TUNING, MEASUREMENTS + 1)
for axes, column, title in zip(
    panels, (1, 0), ("New text: learned", "Old text: forgotten"), strict=True
):
    for (name, losses), style in zip(found.items(), ("-", "--"), strict=True):
        axes.plot(steps, losses[:, column], style, color="#0072B2")
        axes.text(steps[-1], losses[-1, column], f"  {name}")
    axes.set_title(title)
    axes.set_xlabel("step of fine-tuning")
panels[0].set_ylabel("validation loss (nats per byte)")
plt.show()

"""
## Where to go on

A lower rate forgets less, with both. `docs/guides/training.md` has both as
recipes.
"""

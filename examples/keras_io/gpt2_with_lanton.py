"""
Title: Pretraining a small GPT-2 with Lanton
Author: keras_lanton
Date created: 2026/11/22
Last modified: 2026/11/28
Description: Train KerasHub's GPT-2, and see which of its matrices are noisy.
Accelerator: None
"""

"""
## Introduction

Like Muon, `Lanton` orthogonalizes the update of every hidden matrix; embeddings
get sign updates. It also measures how noisy each gradient is, and gives noisy
matrices a lower learning rate, as LANTON of Hao et al. does
([arXiv 2510.14009](https://arxiv.org/abs/2510.14009)), and noisy rows and
columns smaller updates.

This example trains a GPT-2 of two layers on bytes of text, with `Lanton` and
with AdamW, and compares their loss curves. It needs no download and no GPU.

## Setup
"""

import inspect

import keras
import keras_hub
import matplotlib.pyplot as plt
import numpy as np

from keras_lanton import Lanton
from keras_lanton.callbacks import NoiseMonitor

CONTEXT, BATCH_SIZE = 64, 16
EPOCHS, STEPS_PER_EPOCH = 8, 20
STEPS = EPOCHS * STEPS_PER_EPOCH
COLORS = {"Lanton": "#0072B2", "AdamW": "#D55E00"}
plt.rc("axes.spines", top=False, right=False)

"""
## The text

The text is source code of Python's standard library. A token is a byte: at each
place of a block of 64 bytes the model predicts the next byte. A tenth of the
blocks, chosen at random, is for validation.
"""

text = inspect.getsource(inspect).encode()
tokens = np.frombuffer(text, "uint8").astype("int32")
starts = np.arange(0, len(tokens) - CONTEXT, CONTEXT)
np.random.default_rng(42).shuffle(starts)
x = np.stack([tokens[i : i + CONTEXT] for i in starts])
y = np.stack([tokens[i + 1 : i + CONTEXT + 1] for i in starts])
held_out = len(x) // 10
print(f"{len(tokens):,} bytes, {len(x):,} blocks, {held_out} for validation")


def inputs(x):
    return {"token_ids": x, "padding_mask": np.ones_like(x)}


def batches():
    random = np.random.default_rng(42)
    while True:
        rows = random.integers(held_out, len(x), BATCH_SIZE)
        yield inputs(x[rows]), y[rows]


"""
## The model

The head of a GPT-2 is its embedding, transposed.
"""


def make_model():
    keras.utils.set_random_seed(42)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=256,
        num_layers=2,
        num_heads=2,
        hidden_dim=64,
        intermediate_dim=256,
        dropout=0.0,
        max_sequence_length=CONTEXT,
    )
    gpt2 = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    return keras.Model(gpt2.input, gpt2.output)


"""
## Training

The learning rate rises linearly over 5 % of the steps, then falls along a
cosine to zero. `CosineDecay` of Keras has both.
"""


def schedule(peak_rate, warmup=STEPS // 20):
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=peak_rate / warmup,
        warmup_steps=warmup - 1,
        warmup_target=peak_rate,
        decay_steps=STEPS - warmup,
    )


def train(model, optimizer, callbacks=None):
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(
        batches(),
        steps_per_epoch=STEPS_PER_EPOCH,
        epochs=EPOCHS,
        validation_data=(inputs(x[:held_out]), y[:held_out]),
        validation_batch_size=BATCH_SIZE,
        callbacks=callbacks,
        verbose=0,
    )
    return history.history["val_loss"]


"""
`NoiseMonitor` records the noise every five steps.
"""

model = make_model()
optimizer = Lanton(schedule(1e-2))
monitor = NoiseMonitor(every=5)
losses = {"Lanton": train(model, optimizer, [monitor])}

"""
AdamW gets the same initial weights and the same batches. Its gradients are
clipped, as is usual for it. Each peak rate is the best of several, factors of
two apart, for its optimizer and this number of steps.
"""

adamw = keras.optimizers.AdamW(
    schedule(2e-3), beta_2=0.95, weight_decay=0.1, global_clipnorm=1.0
)
losses["AdamW"] = train(make_model(), adamw)

"""
## Results

Lanton's validation loss falls faster, and ends lower. In long runs the
difference is smaller: `docs/results.md` has them.
"""

for name, loss in losses.items():
    print(f"{name:<8} validation loss {loss[-1]:.3f} after {STEPS} steps")

steps = STEPS_PER_EPOCH * np.arange(1, EPOCHS + 1)
plt.figure(figsize=(5, 3.5), layout="constrained")
for name, loss in losses.items():
    plt.plot(steps, loss, "o-", color=COLORS[name])
    plt.text(steps[-1], loss[-1], f"  {name}", color=COLORS[name])
plt.xlabel("step")
plt.ylabel("validation loss (nats per byte)")
plt.show()

"""
## How each variable is updated

`summary` has one line per variable. An attention kernel `(width, heads, head)`
is one matrix, from the width to all heads. Gains and biases are vectors, which
AdamW updates.
"""

optimizer.summary()

"""
## What was noisy

The left panel has the noise of hidden matrices and embeddings, the middle one
that of attention (QK: query and key, VO: value and output) and of the MLP.
Noise is the size of the difference of a gradient and the one before, signal the
size of the momentum. The right panel has the learning rates: the noisier of two
matrices has the lower rate.
"""

monitor.plot()

"""
## Where to go on

`examples/gpt2_pretraining.py` trains a larger GPT-2, saves checkpoints and
resumes. `python -m experiments.pretraining` takes your own text.
"""

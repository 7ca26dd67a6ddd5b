"""
Title: Pretraining a small GPT-2 with LANTON
Author: keras_lanton
Date created: 2026/11/22
Last modified: 2026/11/22
Description: KerasHub's GPT-2 from random weights, at noise-adaptive rates.
Accelerator: None
"""

"""
## Introduction

LANTON (Hao et al., [arXiv 2510.14009](https://arxiv.org/abs/2510.14009)) is an
optimizer. Like Muon, it orthogonalizes the update of every weight matrix.
Embeddings get sign updates. It also measures how noisy the gradient of each
matrix is, and gives noisy matrices a lower learning rate.

This example trains a GPT-2 of two layers on bytes of text for a few seconds,
with LANTON and with AdamW. It needs no download and no GPU.

## Setup
"""

import inspect

import keras
import keras_hub
import numpy as np

from keras_lanton import Lanton

keras.utils.set_random_seed(42)

"""
## The text

Source text of Python's standard library, byte by byte: at each place of a block
of 64 bytes the model predicts the byte that follows. A tenth of the blocks,
chosen at random, is kept for validation.
"""

CONTEXT, BATCH_SIZE, STEPS = 64, 16, 60

text = inspect.getsource(inspect).encode()
tokens = np.frombuffer(text, "uint8").astype("int32")
starts = np.arange(0, len(tokens) - CONTEXT, CONTEXT)
np.random.default_rng(42).shuffle(starts)
x = np.stack([tokens[i : i + CONTEXT] for i in starts])
y = np.stack([tokens[i + 1 : i + CONTEXT + 1] for i in starts])
held_out = len(x) // 10


def inputs(x):
    return {"token_ids": x, "padding_mask": np.ones_like(x)}


print(f"{len(tokens)} bytes, {len(x)} blocks")

"""
## The model

The head is the embedding, transposed, as in GPT-2.
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
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)


"""
## Training

The paper's schedule, linear over N steps and a cosine over the rest of T, is
Keras' `CosineDecay`. A small width needs smaller updates of embeddings:
`embedding_scale=100`.
"""


def schedule(learning_rate, N=6, T=STEPS):
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=learning_rate / N,
        warmup_steps=N - 1,
        warmup_target=learning_rate,
        decay_steps=T - N,
    )


def train(model, optimizer):
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
    )
    rows = np.random.default_rng(42).integers(
        held_out, len(x), STEPS * BATCH_SIZE
    )
    model.fit(
        inputs(x[rows]),
        y[rows],
        batch_size=BATCH_SIZE,
        shuffle=False,
        verbose=0,
    )
    loss = model.evaluate(
        inputs(x[:held_out]), y[:held_out], batch_size=BATCH_SIZE, verbose=0
    )
    print(f"{optimizer.name}: validation loss {loss:.3f} after {STEPS} steps")


model = make_model()
optimizer = Lanton(schedule(0.02), embedding_scale=100.0)
train(model, optimizer)

"""
## What was decided

One line per variable. An attention kernel `(model, heads, head)` is one matrix
from the model's width to all heads.
"""

optimizer.summary()

"""
## What was measured

The noise of each matrix, in the units of its role's dual norm, and its rate
over the base rate. The noisier of two matrices has the lower ratio.
"""

for path, found in optimizer.noise_report().items():
    if "kernel" in path or "embedding" in path:
        noise, ratio = found["noise"][0], found["ratio"][0]
        print(f"{path:<58} noise {noise:9.3f}   ratio {ratio:.3f}")

"""
## AdamW, for comparison

The same initial weights and batches. Its gradients are clipped, as is usual.
"""

train(
    make_model(),
    keras.optimizers.AdamW(
        schedule(4e-3), beta_2=0.95, weight_decay=0.1, global_clipnorm=1.0
    ),
)

"""
Sixty steps of a small model say little about long runs. Longer ones, with each
optimizer's rate chosen from several, are in `docs/paper.md`.

## Where to go on

`examples/gpt2_pretraining.py` trains longer, saves checkpoints and resumes;
`python -m experiments.pretraining` takes your own text or OpenWebText-100k.
`Lanton.paper()` has the paper's settings.
"""

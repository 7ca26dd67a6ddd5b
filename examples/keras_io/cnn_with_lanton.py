"""
Title: Image classification with LANTON
Author: keras_lanton
Date created: 2026/11/22
Last modified: 2026/11/22
Description: A small convolutional network with noise-adaptive rates.
Accelerator: None
"""

"""
## Introduction

LANTON (Hao et al., [arXiv 2510.14009](https://arxiv.org/abs/2510.14009)) is an
optimizer. Like Muon, it orthogonalizes the update of every weight matrix. It
also measures how noisy the gradient of each matrix is, and gives noisy matrices
a lower learning rate.

This example trains a small convolutional network on the handwritten digits of
scikit-learn, with LANTON and with SGD. It needs no download and no GPU.

## Setup
"""

import keras
import numpy as np
import sklearn.datasets
import sklearn.model_selection
from keras import layers

from keras_lanton import Lanton

keras.utils.set_random_seed(42)

"""
## The digits

1797 grey images of 8 x 8 pixels, in ten classes. A fifth is kept for testing.
"""

x, y = sklearn.datasets.load_digits(return_X_y=True)
x = (x / 16.0).reshape(-1, 8, 8, 1).astype("float32")
x_train, x_test, y_train, y_test = sklearn.model_selection.train_test_split(
    x, y, test_size=0.2, stratify=y, random_state=42
)
print(x_train.shape, x_test.shape)

"""
## The network

Three convolutions with batch normalization, and a linear head.
"""


def make_model():
    keras.utils.set_random_seed(42)
    stack = [keras.Input((8, 8, 1))]
    for width, strides in ((16, 1), (32, 2), (64, 2)):
        stack += [
            layers.Conv2D(
                width, 3, strides=strides, padding="same", use_bias=False
            ),
            layers.BatchNormalization(momentum=0.6),
            layers.Activation("relu"),
        ]
    stack += [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return keras.Sequential(stack)


"""
## Training

The learning rate of each optimizer falls linearly to zero. `read_roles` reads
from the layers how each kernel is a matrix. It is optional here: paths and
shapes say the same.
"""

EPOCHS, BATCH_SIZE = 4, 64


def falling(learning_rate):
    steps = EPOCHS * -(-len(x_train) // BATCH_SIZE)
    return keras.optimizers.schedules.PolynomialDecay(
        learning_rate, decay_steps=steps, end_learning_rate=0.0
    )


def train(model, optimizer):
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train,
        y_train,
        validation_data=(x_test, y_test),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        verbose=0,
    )
    for name in ("loss", "val_loss", "val_accuracy"):
        print(name, np.round(history.history[name], 3))
    return history


model = make_model()
optimizer = Lanton(falling(0.05), weight_decay=None).read_roles(model)
train(model, optimizer)

"""
## What was decided

One line per variable. A kernel `(3, 3, inputs, outputs)` is one matrix of
`9 * inputs` rows. Gains and biases are vectors, which AdamW updates.
"""

optimizer.summary()

"""
## What was measured

The noise of each matrix and its rate over the base rate. The noisier of two
matrices has the lower ratio.
"""

for path, found in optimizer.noise_report().items():
    if path.endswith("kernel"):
        noise, ratio = found["noise"][0], found["ratio"][0]
        print(f"{path:<28} noise {noise:9.4f}   ratio {ratio:.3f}")

"""
## SGD, for comparison

The same initial weights and batches, with momentum. Neither rate was tuned.
"""

train(
    make_model(),
    keras.optimizers.SGD(falling(0.1), momentum=0.9, nesterov=True),
)

"""
## Where to go on

`examples/cnn_images.py` trains the paper's network on these digits,
`python -m experiments.images --dataset cifar100` with the paper's settings on
CIFAR-100.
"""

"""
Title: Image classification with Lanton
Author: keras_lanton
Date created: 2026/11/22
Last modified: 2026/11/29
Description: Train a small convolutional network on digits, next to SGD.
Accelerator: None
"""

"""
## Introduction

Like Muon, `Lanton` orthogonalizes the update of every hidden matrix. It also
measures how noisy each gradient is, and gives noisy matrices a lower learning
rate, as LANTON of Hao et al. does
([arXiv 2510.14009](https://arxiv.org/abs/2510.14009)), and noisy rows and
columns smaller updates.

This example trains a small convolutional network on the handwritten digits of
scikit-learn, with `Lanton` and with SGD. It needs no download and no GPU.

## Setup
"""

import keras
import matplotlib.pyplot as plt
import numpy as np
import sklearn.datasets
import sklearn.model_selection
from keras import layers

from keras_lanton import Lanton

EPOCHS, BATCH_SIZE = 8, 64
COLORS = {"Lanton": "#0072B2", "SGD": "#666666"}
plt.rc("axes.spines", top=False, right=False)

"""
## The digits

There are 1797 grey images of 8 x 8 pixels, in ten classes. A fifth is for
testing.
"""

x, y = sklearn.datasets.load_digits(return_X_y=True)
x = (x / 16.0).reshape(-1, 8, 8, 1).astype("float32")
x_train, x_test, y_train, y_test = sklearn.model_selection.train_test_split(
    x, y, test_size=0.2, stratify=y, random_state=42
)
print(f"{len(x_train)} images for training, {len(x_test)} for testing")

figure, panels = plt.subplots(1, 10, figsize=(10, 1.3), layout="constrained")
for digit, axes in enumerate(panels):
    axes.imshow(x_train[y_train == digit][0, ..., 0], cmap="gray_r")
    axes.set_title(digit)
    axes.axis("off")
plt.show()

"""
## The network

It has three convolutions with batch normalization, and a linear head.
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

The learning rate of each optimizer falls linearly to zero.
"""


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
    return history.history


"""
The arguments are those of the recipe in `docs/guides/training.md`. `read_roles`
reads from the layers which axes of a kernel are inputs and which are outputs.
It is optional here: paths and shapes say the same.
"""

model = make_model()
optimizer = Lanton(falling(5e-3), weight_decay=None)
optimizer.read_roles(model)
histories = {"Lanton": train(model, optimizer)}

"""
SGD with momentum gets the same initial weights and the same batches.
"""

sgd = keras.optimizers.SGD(falling(0.1), momentum=0.9, nesterov=True)
histories["SGD"] = train(make_model(), sgd)

"""
## Results

Both networks classify some 99 % of the test images. Of 360 images one is
0.28 %: the difference is chance.
"""

for name, history in histories.items():
    loss, accuracy = history["loss"][-1], history["val_accuracy"][-1]
    print(f"{name:<8} training loss {loss:.3f}   test accuracy {accuracy:.1%}")

epochs = np.arange(1, EPOCHS + 1)
plt.figure(figsize=(5, 3.5), layout="constrained")
for name, history in histories.items():
    accuracies = 100 * np.array(history["val_accuracy"])
    plt.plot(epochs, accuracies, "o-", color=COLORS[name])
    plt.text(epochs[-1], accuracies[-1], f"  {name}", color=COLORS[name])
plt.xlabel("epoch")
plt.ylabel("test accuracy (%)")
plt.show()

"""
## How each variable is updated

`summary` has one line per variable. Lanton reads a kernel
`(3, 3, inputs, outputs)` as one matrix of `9 * inputs` rows. Gains and biases
are vectors, which AdamW updates.
"""

optimizer.summary()

"""
## What was noisy

`noise_report` has the noise of each matrix and its learning rate over the base
rate. Noise is the size of the difference of a gradient and the one before, over
the size of the momentum. The noisier of two matrices has the lower rate.
"""

for path, found in optimizer.noise_report().items():
    if path.endswith("kernel"):
        noise, ratio = found["noise"][0], found["ratio"][0]
        print(f"{path:<28} noise {noise:7.4f}   rate / base rate {ratio:.3f}")

"""
## Where to go on

`docs/guides/training.md` has a recipe with grouped convolutions.
`examples/cnn_images.py` trains the paper's network on these digits,
`python -m experiments.images --dataset cifar100` with the paper's settings on
CIFAR-100.
"""

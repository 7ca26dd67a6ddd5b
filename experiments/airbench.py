"""Keller Jordan's airbench94, a CNN of 8 layers and 2 million weights.

A frozen whitening convolution with a trained bias, three groups of two 3x3
convolutions that start as the identity, batch norm with trained biases only,
GELU, and a linear head without bias whose logits are divided by 9.
"""

import keras
import numpy as np
from keras import layers
from keras import ops


def whitening_kernel(x):
    """Filters that decorrelate the 2x2 patches of `x`, and their negatives.

    Shape (2, 2, channels, 8 * channels): one filter per principal direction,
    divided by its standard deviation.
    """
    channels = x.shape[-1]
    patches = np.lib.stride_tricks.sliding_window_view(
        x[:5000], (2, 2), axis=(1, 2)
    )  # (count, 31, 31, channels, 2, 2)
    patches = np.moveaxis(patches, 3, -1).reshape(-1, 4 * channels)
    covariance = patches.T @ patches / len(patches)
    variances, directions = np.linalg.eigh(covariance)
    filters = directions / np.sqrt(variances + 5e-4)  # one per column
    filters = np.concatenate([filters, -filters], axis=1)
    return filters.reshape(2, 2, channels, 8 * channels)


def identity_start(shape, dtype=None):
    """A 3x3 kernel whose first output channels copy the input channels.

    The other output channels start uniform, as PyTorch's convolutions do.
    """
    uniform = keras.initializers.VarianceScaling(
        scale=1 / 3, mode="fan_in", distribution="uniform"
    )
    kernel = ops.convert_to_numpy(uniform(shape)).copy()
    copied = min(shape[2], shape[3])
    kernel[..., :copied] = 0.0
    kernel[1, 1, range(copied), range(copied)] = 1.0
    return ops.convert_to_tensor(kernel, dtype=dtype)


def normalize_and_activate(x):
    """Batch norm with a trained bias but no trained scale, then GELU."""
    x = layers.BatchNormalization(momentum=0.6, epsilon=1e-12, scale=False)(x)
    return layers.Activation(exact_gelu)(x)


def exact_gelu(x):
    return ops.gelu(x, approximate=False)


def make_model(images, widths):
    """airbench94; the shapes in the comments are for 32x32 images."""
    shape = images.x_train.shape[1:]
    whitening = layers.Conv2D(8 * shape[-1], 2, name="whitening")
    inputs = keras.Input(shape)
    x = exact_gelu(whitening(inputs))  # (31, 31, 8 * channels)
    for width in widths:  # (15, 15, width), (7, 7, width), (3, 3, width)
        for pool in (True, False):
            x = layers.Conv2D(
                width,
                3,
                padding="same",
                use_bias=False,
                kernel_initializer=identity_start,
            )(x)
            if pool:
                x = layers.MaxPooling2D(2)(x)
            x = normalize_and_activate(x)
    x = layers.GlobalMaxPooling2D()(x)  # (width,)
    x = layers.Dense(images.classes, use_bias=False, name="head")(x)
    outputs = layers.Rescaling(1 / 9)(x)
    whitening.kernel.assign(whitening_kernel(images.x_train))
    whitening.kernel.trainable = False  # its bias learns
    return keras.Model(inputs, outputs)


def linear_decay(learning_rate, steps):
    """The learning rate falls linearly to 0 over `steps`."""
    return keras.optimizers.schedules.PolynomialDecay(
        learning_rate, decay_steps=steps, end_learning_rate=0.0
    )


def compile_model(model, optimizer, jit_compile):
    """Compile with airbench's loss, of smoothed labels."""
    model.compile(
        optimizer,
        loss=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=0.2
        ),
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )

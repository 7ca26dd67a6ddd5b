"""Small models as in Keras' guides, trained by `fit`: at one rate, or not."""

import dataclasses
import math
import time

import keras
import keras_hub
import numpy as np
from keras import layers
from keras import ops

from experiments import image_data
from experiments.optimizers import construct
from experiments.optimizers import make_schedule

HELD_OUT = 5_000  # images
WARMUP = 0.05  # share of the steps, where there is a schedule


@dataclasses.dataclass(frozen=True)
class Task:
    """A model that is not compiled, its loss, and what it learns.

    Pairs of inputs and targets, for training and for validation.
    """

    model: keras.Model
    loss: keras.losses.Loss
    training: tuple
    validation: tuple


def dense(units, depth, activation="relu"):
    """Hidden layers of one size."""
    return [layers.Dense(units, activation=activation) for _ in range(depth)]


def split(inputs, targets, count):
    """The first `count` examples for training, the rest for validation."""
    inputs = inputs if isinstance(inputs, list) else [inputs]

    def some(part):
        found = [x[part] for x in inputs]
        return found if len(found) > 1 else found[0]

    first, rest = slice(count), slice(count, None)
    return (some(first), targets[first]), (some(rest), targets[rest])


def of_images(images, count):
    """The first training images of a data set and test images."""
    x = images.x_train[:count], images.x_test[:HELD_OUT]
    y = images.y_train[:count], images.y_test[:HELD_OUT]
    return (x[0], y[0].astype("int32")), (x[1], y[1].astype("int32"))


CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CHANCE = keras.losses.BinaryCrossentropy(from_logits=True)


def mlp(images):
    """Two hidden layers: which of ten kinds of clothes an image shows."""
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),
            *dense(128, 2),
            layers.Dense(10),
        ]
    )
    return Task(model, CLASSES, *of_images(images, 20_000))


def cnn(images):
    """Two convolutions and dropout: the same, fewer images."""
    convolutions = [
        (layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D())
        for filters in (16, 32)
    ]
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            *(layer for pair in convolutions for layer in pair),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )
    return Task(model, CLASSES, *of_images(images, 6_000))


def vit(images):
    """A vision transformer on 16 patches of an image: the same."""
    width, side = 64, 7
    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(width, side, strides=side)(inputs)
    x = layers.Reshape((-1, width))(x)
    x = layers.Add()([x, keras_hub.layers.PositionEmbedding(x.shape[1])(x)])
    for _ in range(3):
        x = keras_hub.layers.TransformerEncoder(
            4 * width, num_heads=4, activation="gelu", normalize_first=True
        )(x)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    return Task(model, CLASSES, *of_images(images, 10_000))


def autoencoder(images):
    """An image through 16 numbers."""
    flat = [
        x.reshape(len(x), -1) for x in (images.x_train[:15_000], images.x_test)
    ]
    size = flat[0].shape[-1]
    model = keras.Sequential(
        [
            keras.Input((size,)),
            *dense(128, 1),
            layers.Dense(16),
            *dense(128, 1),
            layers.Dense(size),
        ]
    )
    loss = keras.losses.MeanSquaredError()
    return Task(model, loss, *((x, x) for x in flat))


def lstm(random):
    """The next value of a noisy series, from thirty."""
    t = np.arange(12_000)
    series = np.sin(t / 7) + 0.5 * np.sin(t / 31)
    series += 0.3 * random.standard_normal(len(t))
    windows = np.lib.stride_tricks.sliding_window_view(series, 31)
    windows = windows.astype("float32")[..., None]
    model = keras.Sequential(
        [keras.Input((30, 1)), layers.LSTM(32), layers.Dense(1)]
    )
    pairs = split(windows[:, :30], windows[:, 30], 9_000)
    return Task(model, keras.losses.MeanSquaredError(), *pairs)


def regression(random):
    """A smooth function of two numbers."""
    x = random.uniform(-1, 1, (8_000, 2)).astype("float32")
    y = np.sin(6 * x[:, :1]) * np.cos(4 * x[:, 1:])
    model = keras.Sequential(
        [keras.Input((2,)), *dense(64, 3, "tanh"), layers.Dense(1)]
    )
    pairs = split(x, y, 7_000)
    return Task(model, keras.losses.MeanSquaredError(), *pairs)


def table(random):
    """Yes or no, from eight numbers and three categories of 200."""
    count = 30_000
    numbers = random.standard_normal((count, 8)).astype("float32")
    categories = random.integers(0, 200, (count, 3)) + [0, 200, 400]
    logits = (
        numbers @ random.standard_normal(8) / 2
        + np.sin(2 * numbers[:, 0])
        + numbers[:, 1] * numbers[:, 2]
        + random.standard_normal(600)[categories].sum(-1)
    ) * 2
    inputs = keras.Input((8,)), keras.Input((3,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(600, 8)(inputs[1]))
    x = layers.Concatenate()([inputs[0], x])
    for layer in [*dense(64, 2), layers.Dense(1)]:
        x = layer(x)
    answers = random.random(count) < 1 / (1 + np.exp(-logits))
    pairs = split(
        [numbers, categories.astype("int32")],
        answers.astype("float32")[:, None],
        25_000,
    )
    return Task(keras.Model(inputs, x), CHANCE, *pairs)


def recommender(random):
    """How a user rates an item: products of two embeddings."""
    users, items, count, rank = 1_000, 1_500, 100_000, 3
    popularity = 1 / np.arange(1, items + 1) ** 0.7
    user = random.integers(0, users, count)
    item = random.choice(items, count, p=popularity / popularity.sum())
    tastes, traits = (random.standard_normal((n, rank)) for n in (users, items))
    ratings = (tastes[user] * traits[item]).sum(-1) / rank**0.5
    ratings += 0.5 * random.standard_normal(count)
    inputs = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")

    def looked_up(width):
        pairs = zip(inputs, (users, items), strict=True)
        return [layers.Embedding(n, width)(x) for x, n in pairs]

    x = ops.sum(ops.multiply(*looked_up(32)), axis=-1, keepdims=True)
    x = layers.Add()([x, *looked_up(1)])
    ids = [user.astype("int32"), item.astype("int32")]
    pairs = split(ids, ratings.astype("float32")[:, None], 90_000)
    loss = keras.losses.MeanSquaredError()
    return Task(keras.Model(inputs, x), loss, *pairs)


TASKS = {
    task.__name__: task
    for task in (
        mlp,
        cnn,
        vit,
        autoencoder,
        lstm,
        regression,
        table,
        recommender,
    )
}


def rate_of(run, examples):
    """Its rate, or with a schedule of "cosine" one that falls to zero."""
    if run.schedule != "cosine":
        return run.learning_rate
    steps = run.epochs * math.ceil(examples / run.batch_size)
    return make_schedule(run.learning_rate, steps, round(WARMUP * steps))


def train(run, cache):
    """The result of a run, as JSON has it; `cache` may have the images."""
    started = time.perf_counter()
    data = (
        image_data.load(run.images, cache)
        if run.images
        else np.random.default_rng(0)
    )
    keras.utils.set_random_seed(run.seed)
    task = TASKS[run.model](data)
    task.model.compile(
        construct(
            run.optimizer,
            rate_of(run, len(task.training[1])),
            options=run.options,
        ),
        task.loss,
    )
    history = task.model.fit(
        *task.training,
        batch_size=run.batch_size,
        epochs=run.epochs,
        validation_data=task.validation,
        verbose=0,
    ).history
    losses = history["val_loss"]
    return {
        "weights": task.model.count_params(),
        # As `EarlyStopping` would have it.
        "loss": min(losses) if all(map(math.isfinite, losses)) else None,
        "losses": losses,
        "training_loss": history["loss"][-1],
        "seconds": round(time.perf_counter() - started, 1),
    }

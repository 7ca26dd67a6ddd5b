"""Train the airbench CNN with LANTON and, beside it, SGD with momentum.

    python examples/cnn_images.py

trains a narrow version on scikit-learn's handwritten digits (no download):

    hardware       CPU, 2 cores, JAX
    time           57 s for both, 16 epochs each
    test accuracy  LANTON 99.4 %, SGD 98.9 %, of 360 images; rates not swept

    python examples/cnn_images.py --dataset cifar100

is the paper's task: CIFAR-100 (Keras downloads it), full width; use a GPU.

The network is Keller Jordan's airbench94 (8 weight layers, 2 million
weights): a frozen whitening convolution with a trained bias, three groups of
two 3x3 convolutions that start as the identity, batch norm with trained
biases only, GELU, and a linear head without bias whose logits are divided
by 9. The augmentation is airbench's: reflected shifts of up to 2 pixels,
alternating flips (not for digits) and label smoothing 0.2.

LANTON's recipe is the paper's (`lanton_paper`): learning rate 0.1, beta_1 0.6,
beta_2 0.85, sign momentum on biases (`vector_norm="sign"`); `lanton` moves
biases by AdamW, as the package does unless told otherwise. The paper leaves
open, and here is chosen: convolutions are flattened to (height * width *
input, output) matrices; the head, a matrix, moves with the convolutions; the
rate falls linearly to 0 without warm-up and there is no weight decay, as in
airbench with Muon; batch 2000 (128 for the digits); the whitening bias is
trained throughout. Test accuracy is that of the plain image, with no test-time
augmentation.

`--optimizer` takes the others of the paper's CIFAR-100 table too, at its
rates. Where the paper moves biases by SGD under Muon and D-Muon, theirs here
is AdamW; Muon's 0.24 belongs to weights that are renormalized on every step,
which is not done here.

`pip install ".[jax,examples]"` brings what it needs.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import time

import hyperparameters
import numpy as np
import pretraining

# Keras reads KERAS_BACKEND when it is first imported, and `--backend` sets
# it: the functions below therefore import Keras themselves.

# Those of the paper's CIFAR-100 table, LANTON without its sign steps, AdamW and
# Keras' own Muon.
OPTIMIZERS = (
    "lanton",
    "lanton_paper",
    "sgd",
    "adamw",
    "keras_muon",
    "muon",
    "d_muon",
    "scion",
    "mars",
)
LABEL_SMOOTHING = 0.2
MAX_SHIFT = 2  # pixels


@dataclasses.dataclass(frozen=True)
class Preset:
    """How a dataset is trained on."""

    widths: tuple  # output channels of the three groups
    batch_size: int
    epochs: int
    flip: bool
    learning_rates: dict


PRESETS = {
    # A quarter of airbench94's widths.
    "digits": Preset(
        widths=(16, 64, 64),
        batch_size=128,
        epochs=16,
        flip=False,
        learning_rates={
            "lanton": 0.05,
            "lanton_paper": 0.1,
            "sgd": 0.1,
            "adamw": 0.01,
            "keras_muon": 0.01,
            "muon": 0.02,
            "d_muon": 0.05,
            "scion": 0.05,
            "mars": 0.01,
        },
    ),
    # The paper shows LANTON near its best after some 70 epochs.
    "cifar100": Preset(
        widths=(64, 256, 256),
        batch_size=2000,
        epochs=100,
        flip=True,
        learning_rates={
            **{
                row.method: row.learning_rate
                for row in hyperparameters.ROWS
                if row.experiment == "cnn_cifar100"
            },
            "lanton": 0.1,
            "adamw": 0.01,
            "keras_muon": 0.01,
        },
    ),
}


# -- The images --------------------------------------------------------------


@dataclasses.dataclass
class Images:
    """Images are float32 (count, 32, 32, channels); labels are integers."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    @property
    def classes(self):
        """Number of labels."""
        return int(self.y_train.max()) + 1


def load_digits(seed):
    """1797 grey 8x8 digits, enlarged fourfold; a fifth is for testing."""
    import sklearn.datasets
    import sklearn.model_selection

    x, y = sklearn.datasets.load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1).repeat(4, axis=1).repeat(4, axis=2)
    x_train, x_test, y_train, y_test = sklearn.model_selection.train_test_split(
        x, y, test_size=0.2, stratify=y, random_state=seed
    )
    return normalize(x_train, y_train, x_test, y_test)


def load_cifar100(seed):
    """50,000 training and 10,000 test images; the split is CIFAR's own."""
    import keras

    (x_train, y_train), (x_test, y_test) = keras.datasets.cifar100.load_data()
    return normalize(x_train, y_train.ravel(), x_test, y_test.ravel())


def normalize(x_train, y_train, x_test, y_test):
    """Give each channel mean 0 and variance 1 over the training images."""
    mean = x_train.mean((0, 1, 2), dtype="float64")
    std = x_train.std((0, 1, 2), dtype="float64")
    x_train, x_test = (
        ((x - mean) / std).astype("float32") for x in (x_train, x_test)
    )
    return Images(x_train, y_train, x_test, y_test)


def training_batches(images, preset, epochs, seed):
    """Shuffled, shifted, flipped batches; an incomplete last one is dropped."""
    random = np.random.default_rng(seed)
    x, y = images.x_train, images.y_train
    targets = np.eye(images.classes, dtype="float32")[y]  # one-hot
    height, width = x.shape[1:3]
    margin = ((0, 0), (MAX_SHIFT, MAX_SHIFT), (MAX_SHIFT, MAX_SHIFT), (0, 0))
    # (count, shift, shift, channels, height, width), a view: no copies.
    crops = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, margin, mode="reflect"), (height, width), axis=(1, 2)
    )
    # Each image is flipped in every second epoch, half of them in the first.
    flipped = random.random(len(x)) < 0.5
    for epoch in range(epochs):
        order = random.permutation(len(x))
        shifts = random.integers(0, 2 * MAX_SHIFT + 1, (len(x), 2))
        for start in range(
            0, len(x) - preset.batch_size + 1, preset.batch_size
        ):
            rows = order[start : start + preset.batch_size]
            batch = crops[rows, shifts[rows, 0], shifts[rows, 1]]
            batch = np.moveaxis(batch, 1, -1)  # channels last
            if preset.flip:
                mirror = flipped[rows] ^ (epoch % 2 == 1)
                batch = np.where(
                    mirror[:, None, None, None], batch[:, :, ::-1], batch
                )
            yield np.ascontiguousarray(batch), targets[rows]


# -- The network -------------------------------------------------------------


def whitening_kernel(x):
    """Filters that decorrelate the 2x2 patches of `x`, and their negatives.

    Shape (2, 2, channels, 8 * channels): one filter a principal direction,
    divided by its standard deviation.
    """
    channels = x.shape[-1]
    patches = np.lib.stride_tricks.sliding_window_view(
        x[:5000], (2, 2), axis=(1, 2)
    )  # (count, 31, 31, channels, 2, 2)
    patches = np.moveaxis(patches, 3, -1).reshape(-1, 4 * channels)
    covariance = patches.T @ patches / len(patches)
    variances, directions = np.linalg.eigh(covariance)
    filters = directions / np.sqrt(variances + 5e-4)  # one a column
    filters = np.concatenate([filters, -filters], axis=1)
    return filters.reshape(2, 2, channels, 8 * channels)


def identity_start(shape, dtype=None):
    """A 3x3 kernel whose first output channels copy the input channels.

    The other output channels start uniform, as PyTorch's convolutions do.
    """
    import keras

    uniform = keras.initializers.VarianceScaling(
        scale=1 / 3, mode="fan_in", distribution="uniform"
    )
    kernel = keras.ops.convert_to_numpy(uniform(shape)).copy()
    copied = min(shape[2], shape[3])
    kernel[..., :copied] = 0.0
    kernel[1, 1, range(copied), range(copied)] = 1.0
    return keras.ops.convert_to_tensor(kernel, dtype=dtype)


def normalize_and_activate(x):
    """Batch norm with a trained bias but no trained scale, then GELU."""
    from keras import layers

    x = layers.BatchNormalization(momentum=0.6, epsilon=1e-12, scale=False)(x)
    return layers.Activation(exact_gelu)(x)


def exact_gelu(x):
    from keras import ops

    return ops.gelu(x, approximate=False)


def make_model(images, widths):
    """airbench94; the shapes in the comments are for 32x32 images."""
    import keras
    from keras import layers

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


# -- Training ----------------------------------------------------------------


def make_schedule(learning_rate, steps):
    """The learning rate falls linearly to 0 over `steps`."""
    import keras

    return keras.optimizers.schedules.PolynomialDecay(
        learning_rate, decay_steps=steps, end_learning_rate=0.0
    )


def make_optimizer(name, learning_rate):
    """`learning_rate` is a schedule or a number."""
    import keras

    if name == "sgd":
        return keras.optimizers.SGD(learning_rate, momentum=0.85, nesterov=True)
    if name == "adamw":
        return keras.optimizers.AdamW(learning_rate, weight_decay=0.0)
    if name == "keras_muon":
        # Keras' Muon takes matrices alone: here that is the head, all other
        # weights go to its Adam.
        return keras.optimizers.Muon(
            learning_rate, weight_decay=0.0, adam_weight_decay=0.0
        )
    paper = "lanton_paper" if name == "lanton" else name
    options = dict(hyperparameters.find(paper, "cnn_cifar100").options)
    if name == "lanton":
        del options["vector_norm"]  # AdamW moves vectors
    return hyperparameters.make_optimizer(
        name, learning_rate, options=options, weight_decay=None
    )


def make_stopwatch(seconds):
    """A callback that appends the seconds of every epoch to `seconds`."""
    import keras

    class Stopwatch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.started = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.perf_counter() - self.started)

    return Stopwatch()


def accuracy(model, x, y):
    logits = model.predict(x, batch_size=500, verbose=0)
    return float((logits.argmax(-1) == y).mean())


def train(name, learning_rate, images, args):
    """Train one model from the seed's weights; return what came of it."""
    import keras

    keras.utils.set_random_seed(args.seed)
    preset = args.preset
    model = make_model(images, preset.widths)
    steps_per_epoch = len(images.x_train) // preset.batch_size
    model.compile(
        optimizer=make_optimizer(
            name, make_schedule(learning_rate, args.epochs * steps_per_epoch)
        ),
        loss=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=LABEL_SMOOTHING
        ),
        metrics=["accuracy"],
        # torch.compile would take longer than the digits' training.
        jit_compile=False if keras.backend.backend() == "torch" else "auto",
    )
    print(f"{name}, learning rate {learning_rate:g}")
    seconds = []
    monitors = pretraining.make_monitors(name)
    logs = model.fit(
        training_batches(images, preset, args.epochs, args.seed),
        steps_per_epoch=steps_per_epoch,
        epochs=args.epochs,
        shuffle=False,  # the batches are shuffled already
        callbacks=[make_stopwatch(seconds), *monitors],
    )
    args.output.mkdir(parents=True, exist_ok=True)
    pretraining.draw_monitors(monitors, args.output / f"{name}_noise.png")
    model.save_weights(args.output / f"{name}.weights.h5")
    return {
        "optimizer": name,
        "learning_rate": learning_rate,
        "loss": logs.history["loss"],
        "train_accuracy": accuracy(model, images.x_train, images.y_train),
        "test_accuracy": accuracy(model, images.x_test, images.y_test),
        # The first epoch compiles and does not count, if there are others.
        "seconds_per_epoch": statistics.mean(seconds[1:] or seconds),
    }


def print_table(results):
    row = "{:<10}{:>15}{:>8}{:>16}{:>15}{:>15}".format
    print()
    print(
        row(
            "optimizer",
            "learning rate",
            "loss",
            "train accuracy",
            "test accuracy",
            "seconds/epoch",
        )
    )
    for result in results:
        print(
            row(
                result["optimizer"],
                f"{result['learning_rate']:g}",
                f"{result['loss'][-1]:.3f}",
                f"{result['train_accuracy']:.1%}",
                f"{result['test_accuracy']:.1%}",
                f"{result['seconds_per_epoch']:.2f}",
            )
        )


# -- The command line --------------------------------------------------------


def parse(argv):
    parser = argparse.ArgumentParser(
        description="Train the airbench CNN with LANTON and SGD."
    )
    add = parser.add_argument
    add("--dataset", choices=PRESETS, default="digits")
    add(
        "--optimizer",
        nargs="+",
        choices=OPTIMIZERS,
        default=["lanton_paper", "sgd"],
        help="one or more, trained one after the other",
    )
    add(
        "--learning-rate",
        nargs="+",
        type=pretraining.positive(float),
        metavar="RATE",
        help="one for each optimizer",
    )
    add("--epochs", type=pretraining.positive(int))
    add("--seed", type=pretraining.positive(int), default=42)
    add("--output", type=pathlib.Path, help="default: runs/cnn_DATASET")
    add("--backend", choices=("jax", "torch", "tensorflow"))
    args = parser.parse_args(argv)
    if args.learning_rate and len(args.learning_rate) != len(args.optimizer):
        parser.error(
            f"--learning-rate has {len(args.learning_rate)} values for "
            f"{len(args.optimizer)} optimizers: give one for each"
        )
    if args.backend and "keras" in sys.modules:
        import keras

        if keras.backend.backend() != args.backend:
            parser.error("--backend comes too late, Keras is imported already")
    args.preset = PRESETS[args.dataset]
    args.epochs = args.epochs or args.preset.epochs
    args.output = args.output or pathlib.Path("runs", f"cnn_{args.dataset}")
    return args


def main(argv=None):
    args = parse(argv)
    if args.backend:
        os.environ["KERAS_BACKEND"] = args.backend
    load = {"digits": load_digits, "cifar100": load_cifar100}[args.dataset]
    images = load(args.seed)
    rates = args.learning_rate or [
        args.preset.learning_rates[name] for name in args.optimizer
    ]
    results = [
        train(name, rate, images, args)
        for name, rate in zip(args.optimizer, rates, strict=True)
    ]
    print_table(results)
    path = args.output / "results.json"
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

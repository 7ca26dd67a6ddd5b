"""Images, and their augmentation."""

import dataclasses
import functools

import keras
import numpy as np

MAX_SHIFT = 2  # pixels
HELD_OUT = 10_000  # images


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
    """1797 gray 8x8 digits, enlarged fourfold; a fifth is for testing."""
    import sklearn.datasets
    import sklearn.model_selection

    x, y = sklearn.datasets.load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1).repeat(4, axis=1).repeat(4, axis=2)
    x_train, x_test, y_train, y_test = sklearn.model_selection.train_test_split(
        x, y, test_size=0.2, stratify=y, random_state=seed
    )
    return normalize(x_train, y_train, x_test, y_test)


def load_cifar100(seed=None):
    """50,000 training and 10,000 test images; the split is CIFAR's own."""
    return of_keras(keras.datasets.cifar100.load_data())


def of_keras(data):
    """From ((x, y), (x, y)), for training and testing."""
    (x_train, y_train), (x_test, y_test) = data
    return normalize(x_train, y_train.ravel(), x_test, y_test.ravel())


def normalize(x_train, y_train, x_test, y_test):
    """Give each channel mean 0 and variance 1 over the training images."""
    mean = x_train.mean((0, 1, 2), dtype="float64")
    std = x_train.std((0, 1, 2), dtype="float64")
    x_train, x_test = (
        ((x - mean) / std).astype("float32") for x in (x_train, x_test)
    )
    return Images(x_train, y_train, x_test, y_test)


LOADERS = {"digits": load_digits, "cifar100": load_cifar100}


@functools.cache
def load(name, folder):
    """The images of a run: a key of `LOADERS`, or Fashion-MNIST.

    That is from the folder if it has it, or else as Keras downloads it.
    """
    if name != "fashion_mnist":
        return LOADERS[name](seed=1)  # of the split
    path = folder / "fashion_mnist.npz"
    if path.exists():
        with np.load(path) as file:
            data = [
                (file[f"x_{part}"], file[f"y_{part}"])
                for part in ("train", "test")
            ]
    else:
        data = keras.datasets.fashion_mnist.load_data()
    return of_keras([(x[..., None], y) for x, y in data])


def held_out(images):
    """The same, but the last training images take the place of test images."""
    x, y = images.x_train, images.y_train
    return Images(x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:])


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

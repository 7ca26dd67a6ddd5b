"""Train the airbench CNN with LANTON and, alongside, other optimizers.

    KERAS_BACKEND=jax python -m experiments.images
    KERAS_BACKEND=jax python -m experiments.images --dataset cifar100

The first trains a narrow network on scikit-learn's handwritten digits, without
a download. The second is the paper's task: CIFAR-100 (Keras downloads it), full
width; use a GPU. The augmentation is airbench's: reflected shifts of up to 2
pixels, alternating flips (not for digits) and label smoothing 0.2.

LANTON's recipe is the paper's (`lanton_paper`): learning rate 0.1, beta_1 0.6,
beta_2 0.85, sign momentum on biases (`vector_norm="sign"`); `lanton` updates
biases with AdamW, the package's default. The paper leaves open, and here is
chosen: convolutions are flattened to (height * width * input, output) matrices;
the head, a matrix, is trained like the convolutions; the rate falls linearly to
0 without warm-up and there is no weight decay, as in airbench with Muon; batch
2000 (128 for the digits); the whitening bias is trained throughout. Test
accuracy is that of the plain image, without test-time augmentation.

`--optimizer` also takes the others of the paper's CIFAR-100 table, at its
rates. The paper updates biases with SGD under Muon and D-Muon, here AdamW does;
Muon's 0.24 belongs to weights that are renormalized on every step, which is not
done here.
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import statistics
import time

import keras

from experiments import hyperparameters
from experiments.airbench import compile_model
from experiments.airbench import linear_decay
from experiments.airbench import make_model
from experiments.arguments import positive
from experiments.arguments import print_table
from experiments.image_data import LOADERS
from experiments.image_data import held_out
from experiments.image_data import load
from experiments.image_data import training_batches
from experiments.optimizers import construct
from experiments.training import draw_monitors
from experiments.training import make_monitors

# The optimizers of the paper's CIFAR-100 table, LANTON without its sign steps,
# AdamW and Keras' own Muon.
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


@dataclasses.dataclass(frozen=True)
class Preset:
    """The settings of a dataset."""

    widths: tuple  # output channels of the three groups
    batch_size: int
    epochs: int
    flip: bool
    learning_rates: dict = dataclasses.field(default_factory=dict)


PRESETS = {
    # A quarter of airbench94's widths.
    "digits": Preset(
        widths=(16, 64, 64),
        batch_size=128,
        epochs=16,
        flip=False,
        learning_rates={
            "lanton": 0.02,
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
            **hyperparameters.IMAGE_RATES,
            "lanton": 0.05,
            "adamw": 0.01,
            "keras_muon": 0.01,
        },
    ),
}


def make_optimizer(name, learning_rate):
    """An optimizer by name; the learning rate may be a schedule."""
    options = hyperparameters.image_options(name)
    return construct(name, learning_rate, options=options)


def make_stopwatch(seconds):
    """A callback that appends the seconds of every epoch to `seconds`."""

    class Stopwatch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.started = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.perf_counter() - self.started)

    return Stopwatch()


def fit(images, preset, make, learning_rate, seed, **options):
    """The CNN, trained from a seed's weights, and its history.

    `make` makes the optimizer of a schedule, which starts at the learning
    rate; `options` are those of `Model.fit`.
    """
    keras.utils.set_random_seed(seed)
    model = make_model(images, preset.widths)
    steps = len(images.x_train) // preset.batch_size
    optimizer = make(linear_decay(learning_rate, preset.epochs * steps))
    # XLA's convolutions are slow on a CPU, and torch.compile takes longer than
    # the digits' training.
    on_jax = keras.backend.backend() == "jax"
    compile_model(model, optimizer, "auto" if on_jax else False)
    history = model.fit(
        training_batches(images, preset, preset.epochs, seed),
        steps_per_epoch=steps,
        epochs=preset.epochs,
        shuffle=False,  # the batches are shuffled already
        **options,
    )
    return model, history.history


def train_preset(name, learning_rate, images, args):
    """Train one model of the command line; return its results."""
    print(f"{name}, learning rate {learning_rate:g}")
    seconds = []
    monitors = make_monitors(name)
    model, history = fit(
        images,
        args.preset,
        functools.partial(make_optimizer, name),
        learning_rate,
        args.seed,
        callbacks=[make_stopwatch(seconds), *monitors],
    )
    args.output.mkdir(parents=True, exist_ok=True)
    draw_monitors(monitors, args.output / f"{name}_noise.png")
    model.save_weights(args.output / f"{name}.weights.h5")
    return {
        "optimizer": name,
        "learning_rate": learning_rate,
        "loss": history["loss"],
        "train_accuracy": accuracy(model, images.x_train, images.y_train),
        "test_accuracy": accuracy(model, images.x_test, images.y_test),
        # The first epoch compiles and does not count, if there are others.
        "seconds_per_epoch": statistics.mean(seconds[1:] or seconds),
    }


def accuracy(model, x, y):
    logits = model.predict(x, batch_size=500, verbose=0)
    return float((logits.argmax(-1) == y).mean())


def train(run, cache):
    """The result of a run, as JSON has it; `cache` may have the images."""
    images = load(run.images, cache)
    if run.judged_by == "held_out":
        images = held_out(images)
    started = time.perf_counter()
    flip = run.images != "digits"
    model, history = fit(
        images,
        Preset(run.widths, run.batch_size, run.epochs, flip),
        functools.partial(construct, run.optimizer, options=run.options),
        run.learning_rate,
        run.seed,
        validation_data=(
            images.x_test,
            keras.utils.to_categorical(images.y_test, images.classes),
        ),
        validation_batch_size=1000,
        callbacks=[keras.callbacks.TerminateOnNaN()],
        verbose=0,
    )
    ended = all(math.isfinite(loss) for loss in history["loss"])
    return {
        "weights": model.count_params(),
        "steps": len(images.x_train) // run.batch_size * run.epochs,
        # Lower is better, as of language models.
        "loss": 1 - history["val_accuracy"][-1] if ended else None,
        "accuracies": history["val_accuracy"],
        "training_loss": history["loss"][-1],
        "seconds": round(time.perf_counter() - started, 1),
    }


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
        type=positive(float),
        metavar="RATE",
        help="one for each optimizer",
    )
    add("--epochs", type=positive(int))
    add("--seed", type=positive(int), default=42)
    add("--output", type=pathlib.Path, help="default: runs/cnn_DATASET")
    args = parser.parse_args(argv)
    if args.learning_rate and len(args.learning_rate) != len(args.optimizer):
        parser.error(
            f"--learning-rate has {len(args.learning_rate)} values for "
            f"{len(args.optimizer)} optimizers: give one for each"
        )
    preset = PRESETS[args.dataset]
    epochs = args.epochs or preset.epochs
    args.preset = dataclasses.replace(preset, epochs=epochs)
    args.output = args.output or pathlib.Path("runs", f"cnn_{args.dataset}")
    return args


def main(argv=None):
    args = parse(argv)
    images = LOADERS[args.dataset](seed=args.seed)
    rates = args.learning_rate or [
        args.preset.learning_rates[name] for name in args.optimizer
    ]
    results = [
        train_preset(name, rate, images, args)
        for name, rate in zip(args.optimizer, rates, strict=True)
    ]
    print_table(
        [
            {
                "optimizer": result["optimizer"],
                "learning rate": f"{result['learning_rate']:g}",
                "loss": f"{result['loss'][-1]:.3f}",
                "train accuracy": f"{result['train_accuracy']:.1%}",
                "test accuracy": f"{result['test_accuracy']:.1%}",
                "seconds/epoch": f"{result['seconds_per_epoch']:.2f}",
            }
            for result in results
        ]
    )
    path = args.output / "results.json"
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

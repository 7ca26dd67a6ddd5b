"""What NoiseMonitor costs on a small GPT-2, a record every 10 steps.

    KERAS_BACKEND=jax python benchmarks/monitor.py

Calls of `fit` with and without the monitor take turns. Two figures: the
seconds within the monitor's own methods, once the device has done the step that
they follow, over those of the whole `fit`; and the ratio of the medians of both
kinds of `fit`, which also has the machine's noise of some percent.
"""

import pathlib
import tempfile
import time

import common
import numpy as np
from loss import MODEL
from loss import import_experiments


def make_trainer(steps):
    """The compiled model, and its preset."""
    wanted = import_experiments()
    from experiments import training

    run = training.Run(
        folder=pathlib.Path(),
        preset=wanted.preset,
        optimizer="lanton",
        learning_rate=wanted.preset.learning_rates["lanton"],
        steps=steps,
        seed=0,
        source="random",
    )
    _, trainer = training.compile_model(run, wanted.preset.vocabulary)
    return trainer, wanted.preset


def timed(monitor_class):
    """The monitor, with a sum of the seconds within it."""

    class Timed(monitor_class):
        seconds = 0.0

        def on_train_batch_end(self, batch, logs=None):
            self.clock(super().on_train_batch_end, batch, logs)

        def on_epoch_end(self, epoch, logs=None):
            self.clock(super().on_epoch_end, epoch, logs)

        def clock(self, method, *arguments):
            # The step runs on where the backend is asynchronous: that is no
            # time of the monitor's, even if it waits for a part of it.
            float(arguments[1]["loss"])
            started = time.perf_counter()
            method(*arguments)
            self.seconds += time.perf_counter() - started

    return Timed


def main(argv=None):
    """Run the benchmark."""
    parser = common.make_parser(__doc__)
    parser.add_argument(
        "--rounds", type=common.positive, help="default: 8, quick: 2"
    )
    args = common.parse(parser, argv)
    rounds = args.rounds or (2 if args.quick else 8)
    steps = 10 if args.quick else 20
    from keras_lanton.callbacks import NoiseMonitor

    trainer, preset = make_trainer(2 * (rounds + 1) * steps)
    rng = np.random.default_rng(0)
    shape = (steps * preset.batch_size, preset.context + 1)
    tokens = rng.integers(0, preset.vocabulary, shape).astype("int32")
    x = {"token_ids": tokens[:, :-1]}
    x["padding_mask"] = np.ones_like(x["token_ids"])
    with tempfile.TemporaryDirectory() as folder:
        monitor = timed(NoiseMonitor)(
            every=10, csv=pathlib.Path(folder, "noise.csv")
        )

        def fit(*callbacks):
            started = time.perf_counter()
            trainer.fit(
                x,
                tokens[:, 1:],
                batch_size=preset.batch_size,
                callbacks=list(callbacks),
                shuffle=False,
                verbose=0,
            )
            return time.perf_counter() - started

        fit()  # compiles
        fit(monitor)
        monitor.seconds = 0.0
        bare, watched = [], []
        for _ in range(rounds):
            bare.append(fit())
            watched.append(fit(monitor))
    own = monitor.seconds / sum(watched)
    ratio = common.median(watched) / common.median(bare)
    common.write(
        args,
        "monitor",
        [
            {
                "records": rounds * steps // 10,
                "ms per record": 1e3 * monitor.seconds / (rounds * steps / 10),
                "ms per step without": 1e3 * common.median(bare) / steps,
                "ms per step with": 1e3 * common.median(watched) / steps,
            }
        ],
        {"monitor_share": own, "monitor_over_bare": ratio},
        model=MODEL,
        matrices=len(monitor.paths),
    )


if __name__ == "__main__":
    main()

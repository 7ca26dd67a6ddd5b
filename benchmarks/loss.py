"""Train a small GPT-2 with Lanton's cheaper states and compare losses.

    KERAS_BACKEND=jax python benchmarks/loss.py

The same text, weights and batches for every setting, at the default learning
rate; validation loss after the last step. The spread between two seeds of one
setting says how much a difference means.
"""

import dataclasses
import pathlib
import sys

import common

MODEL = "GPT-2, 4 layers, width 192"
SIZES = {  # what differs from the demo's
    "width": 192,
    "head_width": 64,
    "scaled_kernels": False,
    "vocabulary": 4096,
    "context": 128,
    "warmup": 20,
    "validation_blocks": 256,
}


def make_settings():
    """Arguments of Lanton by the words of the table."""
    from keras_lanton import NoiseAdaptiveRate

    half = NoiseAdaptiveRate(previous_gradient_dtype="bfloat16")
    momentum = NoiseAdaptiveRate(reference="momentum")
    at_once = NoiseAdaptiveRate(schedule="interval")
    return {
        "Lanton": {},
        'momentum_dtype="bfloat16"': {"momentum_dtype": "bfloat16"},
        'previous_gradient_dtype="bfloat16"': {"noise": half},
        "both": {"momentum_dtype": "bfloat16", "noise": half},
        'reference="momentum"': {"noise": momentum},
        'schedule="interval"': {"noise": at_once},
    }


def import_experiments():
    """Make `experiments` importable; return its command line's arguments."""
    sys.path.insert(0, str(common.ROOT))
    from experiments import pretraining

    args = pretraining.parse(["--preset", "gpt2_demo"])
    args.preset = dataclasses.replace(args.preset, **SIZES)
    return args


def final_loss(args, data, source, seed, options):
    """Validation loss at the end of a run that differs in `options` alone."""
    import keras

    from experiments import batches
    from experiments import optimizers
    from experiments import training
    from keras_lanton import Lanton

    run = training.Run(
        folder=pathlib.Path(),
        preset=args.preset,
        optimizer="lanton",
        learning_rate=args.preset.learning_rates["lanton"],
        steps=args.steps,
        seed=seed,
        source=source,
    )

    def make_scheduled_optimizer(run):
        learning_rate = optimizers.make_schedule(
            run.learning_rate, run.steps, run.warmup
        )
        return Lanton(learning_rate, **options)

    # Everything but the optimizer is that of `experiments.pretraining`.
    training.make_scheduled_optimizer = make_scheduled_optimizer
    _, trainer = training.compile_model(run, data.tokenizer.get_vocab_size())
    preset = run.preset
    blocks = batches.count_blocks(data.training, preset.context)
    rows = batches.training_rows(0, run.steps, blocks, preset.batch_size, seed)
    trainer.fit(
        *batches.cut_blocks(data.training, rows, preset.context),
        batch_size=preset.batch_size,
        shuffle=False,
        verbose=0,
    )
    held_out = batches.validation_rows(data.validation, preset)
    loss = trainer.evaluate(
        *batches.cut_blocks(data.validation, held_out, preset.context),
        batch_size=preset.batch_size,
        verbose=0,
    )
    keras.backend.clear_session()
    return float(loss)


def make_parser():
    """The command line."""
    parser = common.make_parser(__doc__)
    parser.add_argument(
        "--steps", type=common.positive, help="default: 100, quick: 4"
    )
    parser.add_argument(
        "--seeds", type=common.positive, help="default: 2, quick: 1"
    )
    return parser


def main(argv=None):
    """Run the benchmark."""
    args = common.parse(make_parser(), argv)
    wanted = import_experiments()
    from experiments import tokens

    args.preset = wanted.preset
    args.steps = args.steps or (4 if args.quick else 100)
    args.seeds = args.seeds or (1 if args.quick else 2)
    data = tokens.load_data(wanted)
    source = tokens.describe_source(wanted)
    rows = []
    for name, options in make_settings().items():
        losses = [
            final_loss(args, data, source, 42 + seed, options)
            for seed in range(args.seeds)
        ]
        rows.append(
            {
                "setting": name,
                **{f"loss, seed {42 + i}": x for i, x in enumerate(losses)},
                "mean": sum(losses) / len(losses),
                "mean - Lanton's": sum(losses) / len(losses)
                - (rows[0]["mean"] if rows else sum(losses) / len(losses)),
            }
        )
    differences = [abs(row["mean - Lanton's"]) for row in rows[1:5]]
    common.write(
        args,
        "loss",
        rows,
        {"largest_difference_of_states": max(differences)},
        steps=args.steps,
        model=MODEL,
    )


if __name__ == "__main__":
    main()

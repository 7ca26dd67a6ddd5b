"""Pretrain a GPT-2 or a Llama with LANTON and, alongside, other optimizers.

    KERAS_BACKEND=jax python -m experiments.pretraining --preset gpt2_small
    KERAS_BACKEND=jax python -m experiments.pretraining --preset llama_1b
    KERAS_BACKEND=jax python -m experiments.pretraining --sweep
    KERAS_BACKEND=jax python -m experiments.pretraining --text FILE ...

Presets: gpt2_demo, which is examples/gpt2_pretraining.py, needs no download;
gpt2_small and gpt2_medium read OpenWebText-100k, llama_500m MiniPile, llama_1b
and llama_2b C4. These are the paper's runs: they need a GPU and a network.

MiniPile and C4 are read as streams, once: as many tokens as the steps need go
to memory-mapped files, 2 bytes each, 3 GB and 5.2 GB; `--data FOLDER` shares
them between runs. `--text` takes files of text, also .gz and .xz.
`--accumulate K` cuts the batches of 300 and 1024 sequences into K that fit
into memory, `--dtype-policy mixed_bfloat16` computes in bfloat16:

    KERAS_BACKEND=jax python -m experiments.pretraining --preset llama_1b
        --accumulate 16 --dtype-policy mixed_bfloat16 --data runs/data --resume

After an interruption, also of the tokenizing, the same command with `--resume`
continues, and ends with the same weights.
"""

import argparse
import dataclasses
import os
import pathlib
import statistics
import time

from experiments import batches
from experiments.arguments import existing_file
from experiments.arguments import positive
from experiments.corpora import DATASETS
from experiments.corpora import STREAMS
from experiments.devices import devices_scope
from experiments.presets import PRESETS
from experiments.results import plot
from experiments.results import print_runs
from experiments.results import print_sample
from experiments.styles import OPTIMIZERS
from experiments.token_files import write_json
from experiments.tokens import describe_source
from experiments.tokens import load_data
from experiments.tokens import planned_steps
from experiments.tokens import token_limits
from experiments.training import Run
from experiments.training import train


def train_each(args, data, source):
    """Train with each optimizer and rate; pairs of a run and its history."""
    steps = planned_steps(args) or steps_of_an_epoch(args, data)
    trained = []
    for name, rate in args.rates:
        folder = f"sweep/{name}-{rate:g}" if args.sweep else name
        folder = args.output / folder
        run = Run(folder, args.preset, name, rate, steps, args.seed, source)
        verbose = 0 if args.sweep else "auto"
        with devices_scope(args.distribution):
            trained.append((run, train(run, data, args.resume, verbose)))
        if args.sweep:
            loss = trained[-1][1]["validation_loss"][-1]
            print(
                f"{name}, learning rate {rate:g}: validation loss {loss:.3f}",
                flush=True,
            )
    return trained


def finish_sweep(args, trained):
    """Write the losses by rate, and name the best rates."""
    results = [
        {
            "optimizer": run.optimizer,
            "learning_rate": run.learning_rate,
            "steps": run.steps,
            "validation_loss": history["validation_loss"][-1],
            "seconds_per_step": statistics.median(history["seconds"]),
        }
        for run, history in trained
    ]
    write_json(args.output / "sweep.json", results)
    best = {}
    for result in sorted(results, key=lambda one: one["validation_loss"]):
        best.setdefault(result["optimizer"], result["learning_rate"])
    for name in dict.fromkeys(name for name, _ in args.rates):
        print(f"Best for {name}: learning rate {best[name]:g}")


def add_text_options(parser):
    """What the text is, and its tokens."""
    add = parser.add_argument
    text = parser.add_mutually_exclusive_group()
    text.add_argument(
        "--dataset",
        choices=DATASETS,
        help="Python's standard library (the demo's default) or, from "
        "Hugging Face, Elriggs/openwebtext-100k, allenai/c4 or "
        "JeanKaddour/minipile",
    )
    text.add_argument(
        "--text",
        nargs="+",
        type=existing_file,
        default=[],
        metavar="FILE",
        help="train on these files instead",
    )
    add(
        "--vocab",
        type=existing_file,
        metavar="FILE",
        help="GPT-2's vocab.json, with --merges",
    )
    add("--merges", type=existing_file, metavar="FILE", help="its merges.txt")
    add(
        "--tokens",
        type=positive(int),
        help="tokenize no more than this for training; default: of C4 and "
        "MiniPile what the steps need, of other texts all",
    )
    add("--data", type=pathlib.Path, help="token files, default: OUTPUT/data")


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="gpt2_demo")
    add(
        "--optimizer",
        nargs="+",
        choices=OPTIMIZERS,
        default=["lanton", "adamw"],
        help="one or more, trained one after the other",
    )
    add(
        "--learning-rate",
        nargs="+",
        type=positive(float),
        metavar="RATE",
        help="one for each optimizer; with --sweep and a single optimizer, "
        "the rates to try",
    )
    add_text_options(parser)
    add("--steps", type=positive(int), help="default: see the presets")
    add("--batch-size", type=positive(int))
    add(
        "--accumulate",
        type=positive(int),
        default=1,
        metavar="K",
        help="cut every batch into K that fit into memory",
    )
    add(
        "--dtype-policy",
        choices=("float32", "mixed_bfloat16"),
        default="float32",
    )
    add("--seed", type=int, default=42)
    add("--output", type=pathlib.Path, help="default: runs/PRESET")
    add("--resume", action="store_true", help="continue interrupted runs")
    add("--sweep", action="store_true", help="try several learning rates")
    add(
        "--distribution",
        choices=("none", "data", "model"),
        default="none",
        help="over all devices: parts of each batch (JAX, TensorFlow), or "
        "parts of each matrix (JAX)",
    )
    return parser


def choose_rates(parser, args):
    """Pairs of optimizer and learning rate, in the order of the runs."""
    names = list(dict.fromkeys(args.optimizer))
    given = args.learning_rate
    if given and args.sweep and len(names) == 1:
        return [(names[0], rate) for rate in given]
    if given and args.sweep:
        parser.error("--sweep takes --learning-rate for a single --optimizer")
    if given and len(given) != len(names):
        parser.error(
            f"--learning-rate has {len(given)} values for the {len(names)} "
            f"optimizers {' '.join(names)}: give one for each"
        )
    if given:
        return list(zip(names, given, strict=True))
    if args.sweep:
        return [(name, r) for name in names for r in args.preset.sweep[name]]
    without = [n for n in names if n not in args.preset.learning_rates]
    if without:
        parser.error(
            f"the paper prints no learning rate for {' '.join(without)}: give "
            "--learning-rate, one for each optimizer"
        )
    return [(name, args.preset.learning_rates[name]) for name in names]


def refuse(parser, args):
    """Refuse arguments that contradict each other."""
    if bool(args.vocab) != bool(args.merges):
        parser.error("--vocab and --merges go together")
    if args.steps and args.steps < 4:
        parser.error("--steps must be at least 4: warm-up and decay need two")
    if args.seed < 0:
        parser.error("--seed must not be negative")
    if args.preset.batch_size % args.accumulate:
        parser.error(
            f"--accumulate must divide the batch size of "
            f"{args.preset.batch_size}"
        )
    endless = not args.text and args.dataset in STREAMS
    if endless and not (args.tokens or planned_steps(args)):
        parser.error(f"--dataset {args.dataset} takes --steps or --tokens")


def parse(argv=None):
    parser = make_parser()
    args = parser.parse_args(argv)
    args.output = args.output or pathlib.Path("runs", args.preset)
    args.data = args.data or args.output / "data"
    preset = PRESETS[args.preset]
    args.preset = dataclasses.replace(
        preset,
        batch_size=args.batch_size or preset.batch_size,
        accumulate=args.accumulate,
        dtype_policy=args.dtype_policy,
    )
    args.dataset = args.dataset or preset.dataset
    refuse(parser, args)
    args.rates = choose_rates(parser, args)
    return args


def steps_of_an_epoch(args, data):
    blocks = batches.count_blocks(data.training, args.preset.context)
    return blocks // args.preset.batch_size


def check_length(args, data):
    """Refuse a text that is too short for one batch."""
    context, batch = args.preset.context, args.preset.batch_size
    needed = batch * context + 1
    if len(data.training) < needed or len(data.validation) <= context:
        raise SystemExit(
            f"The text is too short: {len(data.training)} training and "
            f"{len(data.validation)} held-out tokens; at least {needed} and "
            f"{context + 1} are needed."
        )


def main(argv=None):
    args = parse(argv)
    # KerasHub imports TensorFlow where it is installed: no notes on the CPU.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    started = time.perf_counter()
    # A resumed run must share this with its start.
    source = {**describe_source(args), "tokens": token_limits(args)[0]}
    try:
        data = load_data(args)
        check_length(args, data)
        trained = train_each(args, data, source)
        histories = [history for _, history in trained]
        print_runs(histories)
        if args.sweep:
            finish_sweep(args, trained)
        else:
            plot(histories, args.output / "loss.png")
            print_sample(trained[0][0], data)
    except KeyboardInterrupt:
        raise SystemExit(
            "\nInterrupted. The same command with --resume continues."
        ) from None
    print(f"\n{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()

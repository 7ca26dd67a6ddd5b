"""The learning-rate sweep: shorter runs of each optimizer."""

import statistics

from experiments.devices import devices_scope
from experiments.results import print_table
from experiments.token_files import write_json
from experiments.tokens import planned_steps
from experiments.training import Run
from experiments.training import train


def sweep(args, data, source):
    """Try each optimizer's learning rates in shorter runs."""
    histories = []
    for name, rate in args.rates:
        run = Run(
            folder=args.output / "sweep" / f"{name}-{rate:g}",
            preset=args.preset,
            optimizer=name,
            learning_rate=rate,
            steps=planned_steps(args),
            seed=args.seed,
            source=source,
        )
        with devices_scope(args.distribution):
            histories.append(train(run, data, args.resume, verbose=0))
        print(
            f"{name}, learning rate {rate:g}: validation loss "
            f"{histories[-1]['validation_loss'][-1]:.3f}",
            flush=True,
        )
    print_table(histories)
    results = [
        {
            "optimizer": history["settings"]["optimizer"],
            "learning_rate": history["settings"]["learning_rate"],
            "steps": history["settings"]["steps"],
            "validation_loss": history["validation_loss"][-1],
            "seconds_per_step": statistics.median(history["seconds"]),
        }
        for history in histories
    ]
    write_json(args.output / "sweep.json", results)
    for name in dict.fromkeys(name for name, _ in args.rates):
        best = min(
            (result for result in results if result["optimizer"] == name),
            key=lambda result: result["validation_loss"],
        )
        print(f"Best for {name}: learning rate {best['learning_rate']:g}")

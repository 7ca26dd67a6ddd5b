"""Time the first train step of GPT-2 small, and look for recompilations.

    KERAS_BACKEND=jax python benchmarks/compile.py

The step is `train_on_batch`, that is the train function of Keras' `fit`, on
one batch of 1 x 32 tokens. Each optimizer has its own process, so that none
finds another's compiled code. On JAX the compile time is the sum of what
JAX reports for tracing, lowering and XLA; on TensorFlow it is the first call
less the median of the later ones.
"""

import json
import os
import subprocess
import sys
import time

import common
import models
import numpy as np

OPTIMIZERS = ("lanton", "adamw", "muon")
PARTS = ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
LENGTH = 32
CALLS = 4


class JaxCounter:
    """Adds up the durations of JAX's compile events."""

    def __init__(self):
        import jax

        self.traces, self.programs = 0, 0
        self.parts = dict.fromkeys(PARTS, 0.0)
        jax.monitoring.register_event_duration_secs_listener(self.listen)

    def listen(self, event, duration, **kwargs):
        """Called by JAX after each event."""
        part = event.rpartition("/")[2].removesuffix("_duration")
        if part in self.parts:
            self.parts[part] += duration
            self.traces += part == "jaxpr_trace"
            self.programs += part == "backend_compile"


class TensorFlowCounter:
    """Counts how often the train step is traced."""

    def __init__(self, model):
        self.traces, self.programs, self.parts = 0, 0, {}
        step = model.train_step

        def train_step(data):
            self.traces += 1
            return step(data)

        model.train_step = train_step


def make_model(args):
    """KerasHub's GPT-2 with a language-model loss."""
    import keras
    import keras_hub

    from keras_lanton import Lanton

    backbone = models.make_backbone("gpt2_base_en", quick=args.quick)
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    classes = {
        "lanton": Lanton,
        "adamw": keras.optimizers.AdamW,
        "muon": keras.optimizers.Muon,
    }
    model.compile(
        optimizer=classes[args.worker](1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def make_batch(vocabulary):
    """One batch of random tokens, and the tokens that follow."""
    tokens = np.random.default_rng(0).integers(0, vocabulary, (1, LENGTH + 1))
    tokens = tokens.astype("int32")
    inputs = {
        "token_ids": tokens[:, :-1],
        "padding_mask": np.ones((1, LENGTH), "int32"),
    }
    return inputs, tokens[:, 1:]


def run_worker(args):
    """Measure one optimizer in this process and print it as JSON."""
    model = make_model(args)
    x, y = make_batch(model.backbone.vocabulary_size)
    # State is the optimizer's own business, and made before `fit` traces.
    model.optimizer.build(model.trainable_variables)
    jax = args.backend == "jax"
    counter = JaxCounter() if jax else TensorFlowCounter(model)
    calls = []
    for _ in range(CALLS):
        parts = dict(counter.parts)
        traces, programs = counter.traces, counter.programs
        started = time.perf_counter()
        model.train_on_batch(x, y)
        call = {"seconds": time.perf_counter() - started}
        call["traces"] = counter.traces - traces
        call["programs"] = counter.programs - programs if jax else None
        call["parts"] = {k: counter.parts[k] - v for k, v in parts.items()}
        calls.append(call)
    print(json.dumps(calls))


def start_worker(args, optimizer):
    """Run this file in a new process for one optimizer."""
    options = ["--quick"] * args.quick + ["--gpu"] * args.gpu
    options += ["--pretend"] * args.pretend
    command = [sys.executable, __file__, "--worker", optimizer, *options]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{optimizer} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def make_row(optimizer, calls):
    """One line of the table."""
    first, *later = calls
    usual = common.median([call["seconds"] for call in later])
    parts = first["parts"].values()
    return {
        "optimizer": optimizer,
        "first call s": first["seconds"],
        "later calls s": usual,
        "compile s": sum(parts) if parts else first["seconds"] - usual,
        **{f"{k} s": v for k, v in first["parts"].items()},
        "traces in calls 2 to 4": sum(call["traces"] for call in later),
        "compiled in calls 2 to 4": (
            sum(call["programs"] for call in later) if parts else None
        ),
    }


def main(argv=None):
    """Run the benchmark, or be one of its workers."""
    parser = common.make_parser(__doc__)
    add = parser.add_argument
    add(
        "--optimizers",
        nargs="+",
        choices=OPTIMIZERS,
        default=("lanton", "adamw"),
    )
    add("--worker", choices=OPTIMIZERS, help="used by the benchmark itself")
    # PyTorch compiles nothing.
    args = common.parse(parser, argv, backends=("jax", "tensorflow"))
    if args.worker:
        run_worker(args)
        return
    rows = [make_row(one, start_worker(args, one)) for one in args.optimizers]
    common.write(
        args,
        "compile",
        rows,
        batch=[1, LENGTH],
        compile_time=(
            "tracing, lowering and XLA as reported by jax.monitoring"
            if args.backend == "jax"
            else "first call less the median of the later ones"
        ),
    )


if __name__ == "__main__":
    main()

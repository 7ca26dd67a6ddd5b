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
PARTS = (
    "jaxpr_trace_duration",
    "jaxpr_to_mlir_module_duration",
    "backend_compile_duration",
)
LENGTH = 32
CALLS = 4


def listen(model, backend):
    """A list that grows by the seconds of each trace and compilation.

    TensorFlow tells no seconds: there it grows by a 0 for each trace.
    """
    found = []
    if backend == "jax":
        import jax

        def add(event, duration, **kwargs):
            if event.endswith(PARTS):
                found.append(duration)

        jax.monitoring.register_event_duration_secs_listener(add)
        return found
    step = model.train_step

    def train_step(data):
        found.append(0.0)
        return step(data)

    model.train_step = train_step
    return found


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
    heard = listen(model, args.backend)
    calls = []
    for _ in range(CALLS):
        before, started = len(heard), time.perf_counter()
        model.train_on_batch(x, y)
        seconds = time.perf_counter() - started
        calls.append({"seconds": seconds, "heard": heard[before:]})
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
    return {
        "optimizer": optimizer,
        "first call s": first["seconds"],
        "later calls s": usual,
        "compile s": sum(first["heard"]) or first["seconds"] - usual,
        "traced or compiled later": sum(len(call["heard"]) for call in later),
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

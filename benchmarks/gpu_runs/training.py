"""Time whole training steps of GPT-2 small on a GPU, and their peak memory.

    KERAS_BACKEND=torch python benchmarks/gpu_runs/training.py
    KERAS_BACKEND=torch python benchmarks/gpu_runs/training.py --cpu

The second command is for a CPU: a GPT-2 of width 256 in float32, in batches of
4,096 and 16,384 tokens.

Forward, backward and update by Keras' own `fit`, with the policy
"mixed_bfloat16", sequences of 1,024 tokens, without dropout. Batches above
16,384 tokens are accumulated by `gradient_accumulation_steps`.
`torch.optim.Muon` has no place in `fit`: it has a loop of PyTorch's. The
contestants of a batch size take turns.
"""

import dataclasses
import math
import statistics
import time

import journal  # first: it puts the modules below on the path

# isort: split

import common
import models
import numpy as np
import profiles

LENGTH = 1024  # tokens of a sequence


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch of an update, and how much of it is timed.

    Args:
        sequences: Of a forward pass.
        accumulated: Forward passes of an update.
        updates: Timed together.
        rounds: Times that each contestant's turn comes.
    """

    sequences: int
    accumulated: int
    updates: int
    rounds: int


BATCHES = {
    "65k": Batch(sequences=16, accumulated=4, updates=4, rounds=3),
    "8k": Batch(sequences=8, accumulated=1, updates=16, rounds=3),
    "524k": Batch(sequences=16, accumulated=32, updates=1, rounds=2),
}
PRETENDED = {
    "65k": Batch(sequences=2, accumulated=2, updates=1, rounds=1),
    "8k": Batch(sequences=2, accumulated=1, updates=1, rounds=1),
}


ON_CPU = {
    "4k": Batch(sequences=16, accumulated=1, updates=1, rounds=7),
    "16k": Batch(sequences=64, accumulated=1, updates=1, rounds=3),
}


def length_of(args):
    """Tokens of a sequence."""
    if args.pretend:
        return 16
    return LENGTH if args.gpu else 256


def batches_of(args):
    """The batches by name."""
    if args.pretend:
        return PRETENDED
    return BATCHES if args.gpu else ON_CPU


def make_model(args):
    """KerasHub's GPT-2 small; on a CPU narrow, tiny where it is pretended."""
    import keras
    import keras_hub

    keras.config.set_dtype_policy(policy_of(args))
    backbone = models.make_backbone("gpt2_base_en", quick=args.pretend)
    if not args.gpu:
        backbone = keras_hub.models.GPT2Backbone(
            vocabulary_size=8192,
            num_layers=6,
            num_heads=4,
            hidden_dim=256,
            intermediate_dim=1024,
            max_sequence_length=length_of(args),
            dropout=0.0,
        )
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    # KerasHub's own `fit` needs grain or TensorFlow for its preprocessing.
    return keras.Model(model.input, model.output)


def policy_of(args):
    """The dtype policy of the model."""
    return "mixed_bfloat16" if args.gpu else "float32"


def make_data(model, sequences, length):
    """Random tokens as `fit` takes them: `(inputs, targets)`."""
    random = np.random.default_rng(0)
    vocabulary = model.output.shape[-1]
    shape = (sequences, length)
    tokens = random.integers(0, vocabulary, shape, "int32")
    inputs = {"token_ids": tokens, "padding_mask": np.ones(shape, "int32")}
    return inputs, np.roll(tokens, -1, axis=1)


def bytes_now(backend):
    """(bytes in use on the GPU, their peak); zeros on a CPU.

    PyTorch's peak is that since `forget_peak`, JAX's that of the process.
    """
    if backend == "tensorflow":
        return 0, 0
    if backend == "torch":
        import torch

        cuda = torch.cuda
        return cuda.memory_allocated(), cuda.max_memory_allocated()
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_in_use", 0), stats.get("peak_bytes_in_use", 0)


def forget_peak(backend):
    """Begin a new peak, where the backend can."""
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()


class Fit:
    """Updates by Keras' `fit`.

    Args:
        batch: A `Batch`.
        args: Of the command line.
        make: Function of `gradient_accumulation_steps`: the optimizer.
    """

    def __init__(self, batch, args, make):
        import keras

        self.batch = batch
        self.length = length_of(args)
        self.model = make_model(args)
        many = batch.accumulated > 1
        self.model.compile(
            optimizer=make(batch.accumulated if many else None),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[],
            weighted_metrics=[],
            jit_compile=keras.backend.backend() != "torch",
        )

    def __call__(self, updates):
        """Seconds of an update, the mean of so many."""
        count = self.batch.sequences * self.batch.accumulated * updates
        inputs, targets = make_data(self.model, count, self.length)
        common.synchronize()
        started = time.perf_counter()
        self.model.fit(
            inputs,
            targets,
            batch_size=self.batch.sequences,
            shuffle=False,
            verbose=0,
        )
        common.synchronize([v.value for v in self.model.variables])
        return (time.perf_counter() - started) / updates


class TorchLoop:
    """Updates by `torch.optim.Muon` and AdamW, in a loop of PyTorch's.

    Hidden kernels are views of two axes, which is what Muon takes.

    Args:
        batch: A `Batch`.
        args: Of the command line.
    """

    def __init__(self, batch, args):
        import torch

        self.batch = batch
        self.length = length_of(args)
        self.model = make_model(args)
        self.pairs = [
            (variable.value, self.view(variable))
            for variable in self.model.trainable_variables
        ]
        hidden = [v for x, v in self.pairs if v is not x]
        others = [v for x, v in self.pairs if v is x]
        self.optimizers = (
            torch.optim.Muon(hidden, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others),
        )
        self.loss = torch.nn.CrossEntropyLoss()

    def view(self, variable):
        """A parameter over the same memory, as a matrix where it is one."""
        import torch

        value = variable.value
        if variable.name != "kernel":
            return value
        outputs = "attention_output" in variable.path or value.ndim == 2
        rows = math.prod(value.shape[: -1 if outputs else 1])
        return torch.nn.Parameter(value.data.view(rows, -1))

    def __call__(self, updates):
        """Seconds of an update, the mean of so many."""
        import torch

        size, parts = self.batch.sequences, self.batch.accumulated
        inputs, targets = make_data(
            self.model, size * parts * updates, self.length
        )
        device = self.pairs[0][0].device
        common.synchronize()
        started = time.perf_counter()
        for step in range(parts * updates):
            some = slice(step * size, (step + 1) * size)
            given = {
                name: torch.as_tensor(x[some], device=device)
                for name, x in inputs.items()
            }
            wanted = torch.as_tensor(targets[some], device=device).long()
            logits = self.model(given, training=True)
            loss = self.loss(
                logits.float().view(-1, logits.shape[-1]), wanted.view(-1)
            )
            (loss / parts).backward()
            if (step + 1) % parts == 0:
                self.update()
        common.synchronize()
        return (time.perf_counter() - started) / updates

    def update(self):
        """One step of both optimizers."""
        for value, view in self.pairs:
            if view is not value:
                view.grad = value.grad.view(view.shape)
        for optimizer in self.optimizers:
            optimizer.step()
        for value, view in self.pairs:
            value.grad = view.grad = None


def make_contestants(args, batch):
    """Dict of functions that make what trains."""
    import keras

    from keras_lanton import Lanton

    def of_keras(make):
        return lambda: Fit(
            batch,
            args,
            lambda k: make(1e-3, gradient_accumulation_steps=k),
        )

    found = {
        "keras.optimizers.AdamW": of_keras(keras.optimizers.AdamW),
        "Lanton()": of_keras(Lanton),
        "keras.optimizers.Muon": of_keras(keras.optimizers.Muon),
    }
    if args.backend == "torch":
        found["torch.optim.Muon + AdamW"] = lambda: TorchLoop(batch, args)
    return journal.chosen("--only", args.only, found)


def first_updates(args, make):
    """What trains, seconds of its first updates, and bytes of its own.

    The peak is what it needs alone: without what others hold.
    """
    common.release()
    before, _ = bytes_now(args.backend)
    forget_peak(args.backend)
    started = time.perf_counter()
    trainer = make()
    trainer(2)
    seconds = time.perf_counter() - started
    common.release()
    after, peak = bytes_now(args.backend)
    return trainer, {
        "first_updates_s": seconds,
        "state_MB": (after - before) / 1e6,
        "peak_MB": (peak - before) / 1e6,
    }


def time_batch(log, args, name, batch):
    """One row for each contestant of a batch size."""
    ready, known = {}, {}
    for contestant, make in make_contestants(args, batch).items():
        what = f"{contestant}, {name}"
        found = log.attempt(what, first_updates, args, make)
        if found is not None:
            ready[contestant], known[contestant] = found
            print(what, known[contestant], flush=True)
    seconds = {contestant: [] for contestant in ready}
    for _ in range(batch.rounds):
        for contestant, trainer in ready.items():
            if log.left > 0 or not seconds[contestant]:
                seconds[contestant].append(trainer(batch.updates))
    length = length_of(args)
    tokens = length * batch.sequences * batch.accumulated
    for contestant, values in seconds.items():
        middle = statistics.median(values)
        log.add(
            batch=name,
            contestant=contestant,
            tokens=tokens,
            tokens_of_a_pass=length * batch.sequences,
            ms=1e3 * middle,
            tokens_per_second=tokens / middle,
            all_ms=[round(1e3 * s, 2) for s in values],
            **known[contestant],
        )
    if args.backend == "jax" and args.gpu:
        for contestant, trainer in ready.items():
            what = f"{contestant}, {name}"
            log.attempt(what, profiles.profile_jax, log, what, trainer, 2)


def main(argv=None):
    """Run the benchmark."""
    parser = journal.make_parser(__doc__, seconds=200)
    parser.add_argument(
        "--batches",
        nargs="+",
        help=f"of {', '.join(BATCHES)}; on a CPU of {', '.join(ON_CPU)}",
    )
    parser.add_argument("--only", nargs="+", help="contestants; default: all")
    parser.add_argument(
        "--cpu", dest="gpu", action="store_false", help="with a narrow model"
    )
    args = journal.parse(parser, argv)
    name = f"training_{args.backend}" + "_cpu" * (not args.gpu)
    log = journal.Journal(args, name, policy=policy_of(args))
    batches = journal.chosen("--batches", args.batches, batches_of(args))
    for name, batch in batches.items():
        time_batch(log, args, name, batch)
        common.release()


if __name__ == "__main__":
    main()

"""What gpt2_pretraining.py and llama_pretraining.py share.

From the text to the table: settings, tokens, schedule and optimizers, one run
that can be interrupted, the sweep of learning rates, the picture and the
command line. An `Example` is what each of them adds.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import shutil
import statistics
import sys
import sysconfig
import time

import hyperparameters
import numpy as np
import token_files
from token_files import read_json
from token_files import write_json

# Keras reads KERAS_BACKEND when it is first imported, and `--backend` sets
# it: the functions below therefore import Keras themselves.

END_OF_TEXT = "<|endoftext|>"
PARTS = ("training", "validation")
# By name: label, and a colour of Okabe and Ito or, the second, of Tol: distinct
# for colour-blind readers.
OPTIMIZERS = {
    "lanton": ("LANTON", "#0072B2"),
    "lanton_paper": ("LANTON, paper", "#882255"),
    "adamw": ("AdamW", "#D55E00"),
    "keras_muon": ("Keras' Muon", "#009E73"),
    "muon": ("Muon", "#009E73"),
    "d_muon": ("D-Muon", "#56B4E9"),
    "adamuon": ("AdaMuon", "#F0E442"),
    "scion": ("Scion", "#CC79A7"),
    "gluon": ("Gluon", "#CC79A7"),
    "mars": ("MARS-AdamW", "#E69F00"),
    "blockwise_adamw": ("BW-AdamW", "#000000"),
    "lamb": ("LAMB", "#000000"),
}
LANTONS = ("lanton", "lanton_paper")  # which measure noise
# Those of Hugging Face that are read as a stream: repository, configuration.
STREAMS = {
    "c4": ("allenai/c4", "en"),
    "minipile": ("JeanKaddour/minipile", None),
}
DATASETS = ("stdlib", "openwebtext-100k", *STREAMS)
VOCABULARY_DOCUMENTS = 100_000  # at most, to learn a vocabulary on


# -- The settings ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """What is trained, on what, and for how long."""

    experiment: str  # of hyperparameters.py, for the optimizers' options
    layers: int
    width: int
    dataset: str
    vocabulary: int | None  # None: GPT-2's own 50257 tokens
    context: int  # tokens
    batch_size: int  # blocks of `context` tokens
    steps: int | None  # None: one epoch
    warmup: int  # steps
    minimum_ratio: float  # the last learning rate over the highest
    dropout: float
    save_every: int  # steps between two checkpoints and validations
    validation_blocks: int
    learning_rates: dict  # of each optimizer
    sweep_steps: int
    sweep: dict  # the learning rates that --sweep tries
    head_width: int = 64  # features of an attention head
    accumulate: int = 1  # micro-batches that make up a batch
    dtype_policy: str = "float32"

    @property
    def heads(self):
        """Attention heads."""
        return self.width // self.head_width


@dataclasses.dataclass(frozen=True)
class Example:
    """What one example adds to this module."""

    name: str  # runs/NAME_PRESET is where its runs go
    description: str
    presets: dict
    make_model: object  # function of a preset and the number of tokens


def paper_settings(experiment):
    """The paper's settings.

    Lanton with its defaults has the rate of the paper's, Keras' Muon D-Muon's.
    """
    names = ("context", "batch_size", "warmup", "minimum_ratio")
    settings = hyperparameters.EXPERIMENTS[experiment]
    rates = {
        row.method: row.learning_rate
        for row in hyperparameters.ROWS
        if row.experiment == experiment
    }
    return {
        "experiment": experiment,
        **{name: settings[name] for name in names},
        "learning_rates": {
            **rates,
            "lanton": rates["lanton_paper"],
            "keras_muon": rates["d_muon"],
        },
    }


# 16 x 128 = 2048 tokens a step.
DEMO = {
    "layers": 4,
    "width": 192,
    "dataset": "stdlib",
    "vocabulary": 4096,
    "context": 128,
    "batch_size": 16,
    "steps": 200,
    "warmup": 20,
    "minimum_ratio": 0.0,
    "dropout": 0.0,
    "save_every": 25,
    "validation_blocks": 256,
    # On the GPT-2: those of both Lantons and AdamW are the best of `--sweep`,
    # the others' are not swept yet.
    "learning_rates": {
        "lanton": 1e-2,
        "lanton_paper": 2e-2,
        "adamw": 2e-3,
        "keras_muon": 1e-2,
        "muon": 2e-2,
        "d_muon": 1e-2,
        "adamuon": 5e-3,
        "scion": 1e-3,
        "gluon": 5e-2,
        "mars": 4e-3,
        "blockwise_adamw": 5e-4,
        "lamb": 1e-2,
    },
    "sweep_steps": 100,
    "sweep": {
        "lanton": (5e-3, 1e-2, 2e-2, 4e-2),
        "lanton_paper": (5e-3, 1e-2, 2e-2, 4e-2),
        "adamw": (1e-3, 2e-3, 4e-3, 8e-3),
        "keras_muon": (2.5e-3, 5e-3, 1e-2, 2e-2),
        "muon": (1e-2, 2e-2, 4e-2, 8e-2),
        "d_muon": (2.5e-3, 5e-3, 1e-2, 2e-2),
        "adamuon": (1e-3, 2.5e-3, 5e-3, 1e-2),
        "scion": (2.5e-4, 5e-4, 1e-3, 2e-3),
        "gluon": (1e-2, 2.5e-2, 5e-2, 1e-1),
        "mars": (1e-3, 2e-3, 4e-3, 8e-3),
        "blockwise_adamw": (2.5e-4, 5e-4, 1e-3, 2e-3),
        "lamb": (2.5e-3, 5e-3, 1e-2, 2e-2),
    },
}


# -- The text ----------------------------------------------------------------


def stdlib_documents():
    """The sources of Python's standard library: (training, validation).

    Every tenth file is held out. The test suite, more than half of the text,
    and installed packages stay out where more than 10 MB remain without.
    """
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.rglob("*.py"))
    unwanted = {"test", "tests", "idle_test", "site-packages"}
    kept = [f for f in files if not unwanted & set(f.relative_to(folder).parts)]
    if sum(f.stat().st_size for f in kept) > 10e6:
        files = kept
    texts = [f.read_text(encoding="utf-8", errors="replace") for f in files]
    size = sum(map(len, texts)) / 1e6
    print(f"Text: {len(files)} files, {size:.1f} MB, from {folder}")
    if size < 10:
        print(
            "This is less than the 10 MB of a complete standard library: the "
            "losses will differ from those printed in this example."
        )
    held_out = texts[9::10]
    del texts[9::10]
    return texts, held_out


def openwebtext_documents(seed):
    """OpenWebText-100k: 90,000 documents to train on, 10,000 to validate."""
    import datasets

    dataset = datasets.load_dataset("Elriggs/openwebtext-100k", split="train")
    halves = dataset.train_test_split(test_size=0.1, seed=seed)
    return halves["train"], halves["test"]


def stream_documents(name):
    """C4 or MiniPile, read over the network as far as it is wanted."""
    import datasets

    return tuple(
        datasets.load_dataset(*STREAMS[name], split=split, streaming=True)
        for split in ("train", "validation")
    )


def file_documents(files):
    """The user's own text. The last tenth of each file is held out."""
    texts = [f.read_text(encoding="utf-8", errors="replace") for f in files]
    cuts = [len(text) * 9 // 10 for text in texts]
    training = [text[:cut] for text, cut in zip(texts, cuts, strict=True)]
    held_out = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
    return training, held_out


def texts_behind(documents, first):
    """The texts of a list or a Hugging Face dataset, but for the first."""
    if isinstance(documents, list):
        return documents[first:]
    return (row["text"] for row in documents.skip(first))


def make_tokenizer(args, texts):
    """GPT-2's byte-level byte pairs, its own or learned on `texts`."""
    import tokenizers

    if args.vocab:
        tokenizer = tokenizers.ByteLevelBPETokenizer(
            str(args.vocab), str(args.merges)
        )
        tokenizer.add_special_tokens([END_OF_TEXT])
        return tokenizer
    if args.preset.vocabulary is None:
        return tokenizers.Tokenizer.from_pretrained("gpt2")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        itertools.islice(texts, VOCABULARY_DOCUMENTS),
        vocab_size=args.preset.vocabulary,
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    return tokenizer


def tokenize(tokenizer, documents):
    """All documents end to end, each closed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    # 16 bits hold both vocabularies, GPT-2's 50257 tokens being the larger.
    dtype = np.uint16 if tokenizer.get_vocab_size() < 2**16 else np.uint32
    pieces = []
    for start in range(0, len(documents), 1000):  # bounds the memory
        for encoding in tokenizer.encode_batch(
            list(documents[start : start + 1000])
        ):
            pieces.append(np.asarray([*encoding.ids, end], dtype))
    return np.concatenate(pieces)


def load_documents(args):
    if args.text:
        return file_documents(args.text)
    if args.dataset == "openwebtext-100k":
        return openwebtext_documents(args.seed)
    if args.dataset in STREAMS:
        return stream_documents(args.dataset)
    return stdlib_documents()


def describe_source(args):
    """What the cached tokens depend on: a change makes them anew."""
    files = [*args.text, *filter(None, (args.vocab, args.merges))]
    source = {
        "dataset": None if args.text else args.dataset,
        "files": [[str(f.resolve()), f.stat().st_size] for f in files],
        "vocabulary": args.preset.vocabulary,
    }
    if source["dataset"] == "stdlib":
        source["python"] = sysconfig.get_path("stdlib")
    if source["dataset"] == "openwebtext-100k":
        source["seed"] = args.seed  # of its split
    return source


def planned_steps(args):
    """The steps of every run; None: one epoch."""
    preset = args.preset
    return args.steps or (preset.sweep_steps if args.sweep else preset.steps)


def token_limits(args):
    """How much of a text to tokenize, for training and held out."""
    preset = args.preset
    if args.text or args.dataset not in STREAMS:
        return args.tokens, None
    # One more, since the targets are one token later.
    held_out = preset.validation_blocks * preset.context + 1
    if args.tokens:
        return args.tokens, held_out
    blocks = planned_steps(args) * preset.batch_size
    return blocks * preset.context + 1, held_out


@dataclasses.dataclass
class Data:
    """A tokenizer and both texts as its tokens."""

    tokenizer: object
    training: token_files.Tokens
    validation: token_files.Tokens


def prepare_folder(args, source, open_documents):
    """Make the folder of the tokens, with the tokenizer."""
    folder = args.data / ("text" if args.text else args.dataset)
    found = read_json(folder / "source.json")
    if found == source:
        return folder
    if found:
        print(f"Another text or vocabulary than before: {folder} is made anew")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(args, texts_behind(open_documents()[0], 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "source.json", source)  # last: it vouches for it
    return folder


def load_data(args):
    """Tokenize the text, once: the tokens are kept."""
    import tokenizers

    @functools.cache  # opened only if tokens are missing
    def open_documents():
        return load_documents(args)

    source = describe_source(args)
    folder = prepare_folder(args, source, open_documents)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = []
    for part, limit in enumerate(token_limits(args)):
        token_files.write(
            folder / PARTS[part],
            lambda first, part=part: texts_behind(
                open_documents()[part], first
            ),
            functools.partial(tokenize, tokenizer),
            source,
            limit,
        )
        tokens.append(token_files.read(folder / PARTS[part], limit))
    print(
        f"Tokens: {len(tokens[0]):,} for training, {len(tokens[1]):,} held "
        f"out, vocabulary {tokenizer.get_vocab_size():,}"
    )
    return Data(tokenizer, *tokens)


def count_blocks(tokens, context):
    return (len(tokens) - 1) // context


def cut_blocks(tokens, rows, context):
    """Blocks `rows` of a text: inputs and, one token later, targets."""
    starts = np.asarray(rows)[:, None] * context
    windows = starts + np.arange(context + 1)  # (blocks, context + 1)
    blocks = tokens[windows].astype("int32")
    inputs, targets = blocks[:, :-1], blocks[:, 1:]
    # Packed blocks have no padding, but KerasHub asks for the mask.
    return {"token_ids": inputs, "padding_mask": np.ones_like(inputs)}, targets


def make_batches(tokens, rows, preset):
    """The blocks `rows` in micro-batches, each cut when `fit` wants it."""
    import keras

    size = preset.batch_size // preset.accumulate

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(rows) // size

        def __getitem__(self, index):
            chosen = rows[index * size : (index + 1) * size]
            return cut_blocks(tokens, chosen, preset.context)

    return Batches()


def training_rows(first, last, blocks, batch_size, seed):
    """The blocks of steps `first` to `last`.

    They depend on the seed and the step alone, so that a resumed run sees
    what the undisturbed run would have seen.
    """
    steps_per_epoch = blocks // batch_size
    rows = []
    for epoch in range(first // steps_per_epoch, last // steps_per_epoch + 1):
        order = np.random.default_rng([seed, epoch]).permutation(blocks)
        start = max(first - epoch * steps_per_epoch, 0)
        stop = min(last - epoch * steps_per_epoch, steps_per_epoch)
        rows.append(order[start * batch_size : stop * batch_size])
    return np.concatenate(rows)


def validation_rows(tokens, preset):
    """The same blocks at every validation, spread over the held-out text."""
    blocks = count_blocks(tokens, preset.context)
    wanted = min(preset.validation_blocks, blocks)
    return np.linspace(0, blocks - 1, wanted).astype(int)


# -- The optimizers ----------------------------------------------------------


def warmup_steps(preset, steps):
    """A short run warms up for a tenth of its own steps."""
    return max(2, min(preset.warmup, steps // 10))


def make_schedule(learning_rate, steps, warmup, minimum_ratio=0.0):
    """Linear over `warmup` steps, then a cosine over the rest of `steps`.

    It ends at `minimum_ratio` of the highest rate.
    """
    import keras

    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=learning_rate / warmup,
        warmup_steps=warmup - 1,
        warmup_target=learning_rate,
        decay_steps=steps - warmup,
        alpha=minimum_ratio,
    )


def make_optimizer(name, learning_rate, experiment="gpt2_small", **kwargs):
    """`learning_rate` is a schedule or a number."""
    import keras

    if name == "keras_muon":
        decay = hyperparameters.DECAY["weight_decay"]
        return keras.optimizers.Muon(
            learning_rate,
            adam_beta_2=0.95,
            adam_weight_decay=decay,
            weight_decay=decay,
            **kwargs,
        )
    if name in ("adamw", "mars"):
        # GPT-2's and MARS' usual clipping, which AdamW needs here: without it
        # the demo's loss jumps at the end of the warm-up, and ends higher.
        kwargs["global_clipnorm"] = 1.0
    options = hyperparameters.options(name, experiment)
    return hyperparameters.make_optimizer(
        name, learning_rate, options=options, **kwargs
    )


def make_scheduled_optimizer(run):
    """Keras counts micro-batches: so does the schedule.

    The learning rate of each update is that of a run without accumulation.
    """
    preset, count = run.preset, run.preset.accumulate
    schedule = make_schedule(
        run.learning_rate,
        run.steps * count,
        run.warmup * count,
        preset.minimum_ratio,
    )
    return make_optimizer(
        run.optimizer,
        schedule,
        preset.experiment,
        gradient_accumulation_steps=count if count > 1 else None,
    )


def compile_model(run, vocabulary):
    """Build model and optimizer; the seed fixes the initial weights.

    Returns the language model, which generates text and is saved, and a
    plain Keras model of the same layers, for `fit`: KerasHub's own `fit`
    needs TensorFlow or Grain on every backend.
    """
    import keras
    import keras_hub

    keras.utils.set_random_seed(run.seed)
    model = run.make_model(run.preset, vocabulary)
    trainer = keras.Model(model.input, model.output)
    optimizer = make_scheduled_optimizer(run)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sampler = keras_hub.samplers.TopKSampler(k=10, seed=run.seed)
    model.compile(optimizer, loss, weighted_metrics=[], sampler=sampler)
    # torch.compile would take longer than the demo.
    eager = keras.backend.backend() == "torch"
    trainer.compile(optimizer, loss, jit_compile=False if eager else "auto")
    return model, trainer


def set_dropout_state(model, seed, step):
    """Give dropout a random state that depends on seed and step alone.

    Keras leaves this state out of checkpoints.
    """
    import keras

    # PyTorch's dropout draws from the global generator, ...
    keras.utils.set_random_seed(seed + step)
    for variable in model.variables:
        if variable.name == "seed_generator_state":
            # ... the others' from the layer's seed and its count of draws.
            state = keras.ops.convert_to_numpy(variable).copy()
            state[1] = step
            variable.assign(state)


# -- Devices -----------------------------------------------------------------

# Over the devices' "model" axis: the width, which every kernel has.
LAYOUT = {
    ".*(query|key|value)/kernel": ("model", None, None),
    ".*attention_output/kernel": (None, None, "model"),
    ".*(intermediate|gate)_dense/kernel": ("model", None),
    ".*output_dense/kernel": (None, "model"),
    ".*embeddings": (None, "model"),
}


def devices_scope(distribution):
    """A scope in which models are made and trained on all devices.

    Args:
        distribution: `"none"`; `"data"`: each device takes a part of every
            batch; `"model"`: each has a part of every matrix, JAX only.
    """
    import keras

    if distribution == "none":
        return contextlib.nullcontext()
    backend = keras.backend.backend()
    if distribution == "data" and backend == "tensorflow":
        import tensorflow as tf

        return tf.distribute.MirroredStrategy().scope()
    if backend != "jax":
        raise SystemExit(
            "--distribution data needs the jax or the tensorflow backend, "
            f"model the jax backend. Received: --distribution {distribution} "
            f"with {backend}"
        )
    devices = keras.distribution.list_devices()
    if distribution == "data":
        return keras.distribution.DataParallel(devices=devices).scope()
    mesh = keras.distribution.DeviceMesh(
        (1, len(devices)), ["batch", "model"], devices=devices
    )
    layout = keras.distribution.LayoutMap(mesh)
    for path, axes in LAYOUT.items():
        layout[path] = axes
    return keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch"
    ).scope()


# -- One run -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """One optimizer at one learning rate, in a folder of its own."""

    folder: pathlib.Path
    preset: Preset
    optimizer: str
    learning_rate: float
    steps: int
    seed: int
    source: dict
    make_model: object

    @property
    def warmup(self):
        """Steps."""
        return warmup_steps(self.preset, self.steps)

    @property
    def checkpoint(self):
        """Model, weights and optimizer state after the last `fit`."""
        return self.folder / "model.keras"

    @property
    def history(self):
        """Losses and timings so far."""
        return self.folder / "history.json"

    def settings(self):
        """What an interrupted run must have in common with its resumption."""
        preset = dataclasses.asdict(self.preset)
        for other in ("learning_rates", "steps", "sweep", "sweep_steps"):
            del preset[other]
        return {
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "steps": self.steps,
            "seed": self.seed,
            "preset": preset,
            "source": self.source,
        }


def new_history(run):
    return {
        "settings": run.settings(),
        "finished": False,
        "loss": [],  # of every step's batch, before the step
        "seconds": [],  # of every step
        "validation_step": [],
        "validation_loss": [],
    }


def make_recorder(run, model, history):
    """A callback that appends every step's loss and seconds to `history`."""
    import keras

    count = run.preset.accumulate  # batches of `fit` to a step

    class Recorder(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            # Here, since building the model in `fit` draws random numbers.
            set_dropout_state(model, run.seed, len(history["loss"]) * count)

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0:
                self.total = 0.0
            if batch % count == 0:
                self.started = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            if (batch + 1) % count:
                return
            # Keras reports the mean since the start of `fit`.
            total = float(logs["loss"]) * ((batch + 1) // count)
            history["loss"].append(total - self.total)
            history["seconds"].append(time.perf_counter() - self.started)
            self.total = total

    return Recorder()


def make_monitors(optimizer, every=10, csv=None):
    """A NoiseMonitor where the optimizer, by name, is one of `LANTONS`."""
    from keras_lanton.callbacks import NoiseMonitor

    if optimizer not in LANTONS:
        return []
    return [NoiseMonitor(every=every, csv=csv)]


def draw_monitors(monitors, path):
    """The picture of each that has a record: short runs have none."""
    for monitor in monitors:
        if len(monitor.steps):
            monitor.plot(path)
            print(f"Noise and learning rates: {path}")


def save(run, model, history):
    """Write history and checkpoint; each replaces its old file at once.

    A kill between the two leaves a history that is ahead of the checkpoint:
    `resume` cuts it back.
    """
    write_json(run.history, history)
    new = run.folder / "new.keras"
    model.save(new)
    os.replace(new, run.checkpoint)


def resume(run, model, history):
    """Go back to the checkpoint; return the steps it has behind it."""
    import keras

    from keras_lanton import load_checkpoint

    # (`keras.saving.load_model` loads no optimizer for KerasHub's models.)
    load_checkpoint(model, run.checkpoint)
    step = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    for key in ("loss", "seconds"):
        del history[key][step:]
    done = sum(s <= step for s in history["validation_step"])
    for key in ("validation_step", "validation_loss"):
        del history[key][done:]
    return step


def start(run, data, resuming):
    """Model, trainer, history and the number of steps behind them."""
    models = compile_model(run, data.tokenizer.get_vocab_size())
    if resuming and run.checkpoint.exists():
        history = read_json(run.history)
        step = resume(run, models[0], history)
        print(f"Resuming {run.folder} at step {step}")
        return *models, history, step
    if run.folder.exists():
        print(f"Starting {run.folder} anew")
        shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True)
    return *models, new_history(run), 0


def train(run, data, resuming=False, verbose="auto"):
    """Train one model and return its history.

    Each call of `fit` covers the steps from one checkpoint to the next.
    """
    if resuming and run.history.exists():
        history = read_json(run.history)
        if history["settings"] != run.settings():
            raise SystemExit(
                f"{run.folder} was started with other settings: give the "
                "same arguments again, or leave out --resume."
            )
        if history["finished"]:
            print(f"{run.folder} is finished")
            return history
    model, trainer, history, step = start(run, data, resuming)
    monitors = make_monitors(
        run.optimizer, 10 * run.preset.accumulate, run.folder / "noise.csv"
    )
    preset = run.preset
    blocks = count_blocks(data.training, preset.context)
    held_out = cut_blocks(
        data.validation,
        validation_rows(data.validation, preset),
        preset.context,
    )
    while step < run.steps:
        stop = min(step + preset.save_every, run.steps)
        rows = training_rows(step, stop, blocks, preset.batch_size, run.seed)
        if verbose:
            print(
                f"{run.optimizer}, learning rate {run.learning_rate:g}: "
                f"steps {step + 1} to {stop} of {run.steps}"
            )
        logs = trainer.fit(
            make_batches(data.training, rows, preset),
            validation_data=held_out,
            validation_batch_size=preset.batch_size // preset.accumulate,
            callbacks=[make_recorder(run, model, history), *monitors],
            shuffle=False,  # the rows are in order already
            verbose=verbose,
        )
        step = stop
        history["validation_step"].append(step)
        history["validation_loss"].append(logs.history["val_loss"][-1])
        history["finished"] = step == run.steps
        save(run, model, history)
    draw_monitors(monitors, run.folder / "noise.png")
    return history


# -- What comes out ----------------------------------------------------------


def print_table(histories):
    """One line a run. The training loss is the mean of the last 20 steps."""
    row = "{:<15}{:>15}{:>8}{:>10}{:>17}{:>14}".format
    print()
    print(
        row(
            "optimizer",
            "learning rate",
            "steps",
            "loss",
            "validation loss",
            "seconds/step",
        )
    )
    for history in histories:
        settings = history["settings"]
        print(
            row(
                settings["optimizer"],
                f"{settings['learning_rate']:g}",
                settings["steps"],
                f"{statistics.mean(history['loss'][-20:]):.3f}",
                f"{history['validation_loss'][-1]:.3f}",
                f"{statistics.median(history['seconds']):.2f}",
            )
        )
    print(flush=True)


def smooth(values, window):
    """Mean over the last `window` values, fewer at the start."""
    sums = np.cumsum([0.0, *values])
    stops = np.arange(1, len(values) + 1)
    starts = np.maximum(stops - window, 0)
    return (sums[stops] - sums[starts]) / (stops - starts)


def plot(histories, path):
    """Draw all loss curves; dotted is training, solid is validation."""
    import matplotlib

    matplotlib.use("agg")  # draws to a file, needs no display
    from matplotlib import pyplot

    markers = dict(zip(OPTIMIZERS, "ohs^vD<>pXP*", strict=True))
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for history in histories:
        name = history["settings"]["optimizer"]
        rate = history["settings"]["learning_rate"]
        label, colour = OPTIMIZERS[name]
        label = f"{label} (learning rate {rate:g})"
        losses = smooth(history["loss"], 10)
        steps = np.arange(1, len(losses) + 1)
        axes.plot(steps, losses, ":", color=colour, label=f"{label}, training")
        axes.plot(
            history["validation_step"],
            history["validation_loss"],
            color=colour,
            marker=markers[name],
            label=f"{label}, validation",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title("Training: mean of 10 steps. Validation: held-out text.")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"Loss curves: {path}")


def print_sample(run, data):
    """Let the trained model go on from the first held-out tokens."""
    model, _ = compile_model(run, data.tokenizer.get_vocab_size())
    model.load_weights(run.checkpoint)
    context = run.preset.context
    prompt = min(16, context // 2)
    tokens = np.zeros((1, context), "int32")
    tokens[0, :prompt] = data.validation[:prompt]
    known = (np.arange(context) < prompt).astype("int32")[None]
    output = model.generate(
        {"token_ids": tokens, "padding_mask": known}, stop_token_ids=None
    )
    text = data.tokenizer.decode(
        output["token_ids"][0].tolist(), skip_special_tokens=False
    )
    print(f"\nText from {run.checkpoint} (the first {prompt} tokens given):\n")
    print("\n".join(f"    {line}" for line in text.splitlines()))


def train_all(args, data, source):
    """Train with every chosen optimizer; table, curves, a text sample."""
    runs = [
        Run(
            folder=args.output / name,
            preset=args.preset,
            optimizer=name,
            learning_rate=rate,
            steps=planned_steps(args) or steps_of_an_epoch(args, data),
            seed=args.seed,
            source=source,
            make_model=args.make_model,
        )
        for name, rate in args.rates
    ]
    with devices_scope(args.distribution):
        histories = [train(run, data, args.resume) for run in runs]
    print_table(histories)
    plot(histories, args.output / "loss.png")
    print_sample(runs[0], data)


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
            make_model=args.make_model,
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


# -- The command line --------------------------------------------------------


def positive(kind):
    def convert(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    convert.__name__ = kind.__name__  # argparse prints it
    return convert


def existing_file(text):
    path = pathlib.Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def make_parser(example):
    parser = argparse.ArgumentParser(description=example.description)
    add = parser.add_argument
    add("--preset", choices=example.presets, default="demo")
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
    output = f"runs/{example.name}_PRESET"
    add("--output", type=pathlib.Path, help=f"default: {output}")
    add("--resume", action="store_true", help="go on with interrupted runs")
    add("--sweep", action="store_true", help="try several learning rates")
    add("--backend", choices=("jax", "torch", "tensorflow"))
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
    """Refuse what the parser cannot see in one argument alone."""
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
    if args.backend and "keras" in sys.modules:
        import keras

        if keras.backend.backend() != args.backend:
            parser.error("--backend comes too late, Keras is imported already")


def parse(example, argv=None):
    parser = make_parser(example)
    args = parser.parse_args(argv)
    default = pathlib.Path("runs", f"{example.name}_{args.preset}")
    args.output = args.output or default
    args.data = args.data or args.output / "data"
    args.make_model = example.make_model
    preset = example.presets[args.preset]
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
    blocks = count_blocks(data.training, args.preset.context)
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


def main(example, argv=None):
    args = parse(example, argv)
    if args.backend:
        os.environ["KERAS_BACKEND"] = args.backend
    # KerasHub imports TensorFlow on every backend: no notes on the CPU.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    started = time.perf_counter()
    # What the runs must have in common with their resumption.
    source = {**describe_source(args), "tokens": token_limits(args)[0]}
    try:
        data = load_data(args)
        check_length(args, data)
        (sweep if args.sweep else train_all)(args, data, source)
    except KeyboardInterrupt:
        raise SystemExit(
            "\nInterrupted. The same command with --resume goes on."
        ) from None
    print(f"\n{time.perf_counter() - started:.0f} s in all")

"""Pretrain a Llama from random weights with LANTON and, alongside, AdamW.

Claim: LANTON trains a Llama as it trains a GPT-2, at the same learning rate.

    KERAS_BACKEND=jax python examples/llama_pretraining.py

needs no download: it learns a byte-pair vocabulary on the source code of
Python's standard library (12 MB), and trains four layers for 1500 steps.

    hardware     2 CPU cores, JAX: 2 minutes
    validation   LANTON 2.796, AdamW 3.171 after 6 tokens per weight

It needs `pip install ".[jax,examples]"`. `--resume` continues an
interrupted run. `python -m experiments.pretraining` has the paper's llama_1b.
"""

import argparse
import itertools
import json
import os
import pathlib
import sysconfig

import keras
import keras_hub
import matplotlib.pyplot as plt
import numpy as np
import tokenizers
import tqdm

from keras_lanton import Lanton
from keras_lanton import load_checkpoint
from keras_lanton.callbacks import NoiseMonitor

SEED = 42
END_OF_TEXT = "<|endoftext|>"
VOCABULARY, CONTEXT, BATCH_SIZE = 1024, 64, 16
LAYERS, HEADS, KEY_VALUE_HEADS, WIDTH, FEED_FORWARD = 4, 2, 1, 64, 176
STEPS_PER_EPOCH = 100  # an epoch ends with a validation and a checkpoint
LEARNING_RATES = {"lanton": 5e-3, "adamw": 8e-3}
STYLES = {"lanton": ("LANTON", "#0072B2"), "adamw": ("AdamW", "#D55E00")}

# -- Text and tokens ---------------------------------------------------------


def read_standard_library():
    """Source files as (training, validation), every tenth for validation."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    unwanted = {"test", "tests", "idle_test", "site-packages"}
    files = sorted(folder.rglob("*.py"))
    kept = [f for f in files if not unwanted & set(f.relative_to(folder).parts)]
    if sum(f.stat().st_size for f in kept) > 10e6:
        files = kept
    texts = [f.read_text(encoding="utf-8", errors="replace") for f in files]
    print(f"Text: {len(files)} files, {sum(map(len, texts)) / 1e6:.1f} MB")
    held_out = texts[9::10]
    del texts[9::10]
    return texts, held_out


def train_tokenizer(documents):
    """GPT-2's byte-level byte-pair encoding, learned on the documents."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        documents, VOCABULARY, special_tokens=[END_OF_TEXT], show_progress=False
    )
    return tokenizer


def tokenize(tokenizer, documents):
    """All documents in one row, each followed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    rows = []
    for i in tqdm.trange(0, len(documents), 100, desc="Tokenizing"):
        for encoding in tokenizer.encode_batch(documents[i : i + 100]):
            rows.append(np.array([*encoding.ids, end], "uint16"))
    return np.concatenate(rows)


def cut_blocks(tokens, rows):
    """Blocks of CONTEXT tokens; the targets are one token later."""
    starts = np.asarray(rows)[:, None] * CONTEXT
    blocks = tokens[starts + np.arange(CONTEXT + 1)].astype("int32")
    x, y = blocks[:, :-1], blocks[:, 1:]
    return {"token_ids": x, "padding_mask": np.ones_like(x)}, y


def training_batches(tokens, first_step):
    """The batches from a step on; they depend on seed and step alone."""
    blocks = (len(tokens) - 1) // CONTEXT
    for step in itertools.count(first_step):
        epoch, i = divmod(step, blocks // BATCH_SIZE)
        rows = np.random.default_rng([SEED, epoch]).permutation(blocks)
        yield cut_blocks(tokens, rows[i * BATCH_SIZE : (i + 1) * BATCH_SIZE])


def validation_blocks(tokens):
    """1024 blocks, spread over the held-out text."""
    last = (len(tokens) - 1) // CONTEXT - 1
    return cut_blocks(tokens, np.linspace(0, last, 1024).astype(int))


# -- Model and optimizers ----------------------------------------------------


def make_model(vocabulary):
    """The head of this Llama is not its embedding."""
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=vocabulary,
        num_layers=LAYERS,
        num_query_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        hidden_dim=WIDTH,
        intermediate_dim=FEED_FORWARD,
        tie_word_embeddings=False,
    )
    # KerasHub's initial weights, 0.02, suit a width of 768.
    kernels = [v for v in backbone.trainable_variables if v.name == "kernel"]
    for kernel in kernels:
        kernel.assign(kernel * (768 / WIDTH) ** 0.5)
    return keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)


def make_optimizer(name, steps):
    """The learning rate rises linearly, then falls along a cosine to 0."""
    warmup = min(75, steps // 10)
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=LEARNING_RATES[name] / warmup,
        warmup_steps=warmup - 1,
        warmup_target=LEARNING_RATES[name],
        decay_steps=steps - warmup,
    )
    if name == "lanton":
        return Lanton(schedule)
    # Without clipping AdamW's loss jumps at the end of the warm-up.
    return keras.optimizers.AdamW(
        schedule, beta_2=0.95, weight_decay=0.1, global_clipnorm=1.0
    )


# -- Training ----------------------------------------------------------------


def train(name, training, held_out, vocabulary, args):
    """Train one model; return it and the losses of each epoch."""
    keras.utils.set_random_seed(SEED)
    language_model = make_model(vocabulary)
    # KerasHub's own `fit` needs TensorFlow: a plain model of the same layers.
    model = keras.Model(language_model.input, language_model.output)
    model.compile(
        make_optimizer(name, args.steps),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # On PyTorch compiling takes longer than this training.
        jit_compile=keras.backend.backend() != "torch",
    )
    folder = args.output / name
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.weights.h5"
    losses, done = [], 0
    if args.resume and checkpoint.exists():
        load_checkpoint(model, checkpoint)  # with the optimizer's state
        done = int(model.optimizer.iterations) // STEPS_PER_EPOCH
        losses = json.loads((folder / "losses.json").read_text())[:done]

    def save(epoch, logs):
        losses.append(dict(logs))
        (folder / "losses.json").write_text(json.dumps(losses, indent=1))
        model.save_weights(folder / "new.weights.h5")
        os.replace(folder / "new.weights.h5", checkpoint)  # all or nothing

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=save)]
    if name == "lanton":
        callbacks.append(NoiseMonitor(csv=folder / "noise.csv"))
    print(f"{name}, from step {done * STEPS_PER_EPOCH} of {args.steps}")
    model.fit(
        training_batches(training, done * STEPS_PER_EPOCH),
        steps_per_epoch=STEPS_PER_EPOCH,
        initial_epoch=done,
        epochs=args.steps // STEPS_PER_EPOCH,
        shuffle=False,
        validation_data=validation_blocks(held_out),
        validation_batch_size=BATCH_SIZE,
        callbacks=callbacks,
    )
    if name == "lanton":
        callbacks[1].plot(folder / "noise.png")
    return language_model, losses


# -- Results -----------------------------------------------------------------


def print_table(runs):
    row = "{:<11}{:>8}{:>7}{:>8}{:>17}".format
    print("\n" + row("optimizer", "rate", "steps", "loss", "validation loss"))
    for name, losses in runs.items():
        found = [f"{losses[-1][key]:.3f}" for key in ("loss", "val_loss")]
        steps = len(losses) * STEPS_PER_EPOCH
        print(row(name, LEARNING_RATES[name], steps, *found))


def plot_losses(runs, path):
    figure, axes = plt.subplots(layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    for name, losses in runs.items():
        label, color = STYLES[name]
        steps = STEPS_PER_EPOCH * np.arange(1, len(losses) + 1)
        axes.plot(steps, [e["loss"] for e in losses], ":", color=color)
        axes.plot(steps, [e["val_loss"] for e in losses], "o-", color=color)
        axes.text(steps[-1], losses[-1]["val_loss"], f"  {label}", color=color)
    axes.set(xlabel="step", ylabel="loss (nats per token; dotted: training)")
    figure.savefig(path, dpi=150)


def print_sample(model, tokenizer, held_out, prompt=16):
    """The model continues the first held-out tokens."""
    tokens = np.zeros((1, CONTEXT), "int32")
    tokens[0, :prompt] = held_out[:prompt]
    known = (np.arange(CONTEXT) < prompt).astype("int32")[None]
    model.compile(sampler=keras_hub.samplers.TopKSampler(k=10, seed=SEED))
    found = model.generate(
        {"token_ids": tokens, "padding_mask": known}, stop_token_ids=None
    )
    print(f"\nLANTON's model continues {prompt} tokens:\n")
    print(tokenizer.decode(found["token_ids"][0].tolist()))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--resume", action="store_true")
    default = "runs/llama_demo"
    parser.add_argument("--output", type=pathlib.Path, default=default)
    args = parser.parse_args(argv)
    if args.steps <= 0 or args.steps % STEPS_PER_EPOCH:
        parser.error(f"--steps must be a multiple of {STEPS_PER_EPOCH}")
    texts = read_standard_library()
    tokenizer = train_tokenizer(texts[0])
    training, held_out = (tokenize(tokenizer, text) for text in texts)
    print(f"Tokens: {len(training):,} training, {len(held_out):,} validation")
    vocabulary = tokenizer.get_vocab_size()
    model, lanton = train("lanton", training, held_out, vocabulary, args)
    _, adamw = train("adamw", training, held_out, vocabulary, args)
    print_table({"lanton": lanton, "adamw": adamw})
    plot_losses({"lanton": lanton, "adamw": adamw}, args.output / "loss.png")
    print_sample(model, tokenizer, held_out)


if __name__ == "__main__":
    main()

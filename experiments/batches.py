"""Blocks of a text, and their order."""

import keras
import numpy as np


def count_blocks(tokens, context):
    return (len(tokens) - 1) // context


def blocks_of(tokens, rows, context):
    """Blocks with the token that follows, `(blocks, context + 1)`."""
    starts = np.asarray(rows)[:, None] * context
    return tokens[starts + np.arange(context + 1)]


def inputs_and_targets(blocks):
    """Inputs, and targets one token later."""
    blocks = blocks.astype("int32")
    inputs, targets = blocks[:, :-1], blocks[:, 1:]
    # Packed blocks have no padding, but KerasHub asks for the mask.
    return {"token_ids": inputs, "padding_mask": np.ones_like(inputs)}, targets


def cut_blocks(tokens, rows, context):
    """Blocks `rows` of a text: inputs, and targets one token later."""
    return inputs_and_targets(blocks_of(tokens, rows, context))


def make_batches(tokens, rows, preset):
    """The blocks `rows` in micro-batches, each cut when `fit` asks for it."""
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

    They depend on the seed and the step alone: a resumed run trains on the
    same blocks as an undisturbed one.
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

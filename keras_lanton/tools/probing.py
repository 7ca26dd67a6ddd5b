"""Short trials of a compiled model, which is then as it was."""

import contextlib
import itertools
import operator
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.validation import shown


def loss_of_step(model: Any, batch: Any) -> float:
    """Trains one step.

    Args:
        model: A compiled model.
        batch: Inputs, or `(x, y)` or `(x, y, weights)`.

    Returns:
        The loss of this batch alone, before the step.
    """
    model.reset_metrics()
    x, *rest = batch if isinstance(batch, (tuple, list)) else (batch,)
    logs = model.train_on_batch(x, *rest, return_dict=True)
    return float(logs["loss"])


def endless_batches(
    x: Any, y: Any, batch_size: int, seed: int
) -> Iterator[Any]:
    """Batches without end.

    Args:
        x: Arrays, or a dict or list of them, with `y`; or batches.
        y: Targets of arrays, or None.
        batch_size: Batch size of arrays.
        seed: Seed of the order of arrays.

    Raises:
        ValueError: For data without a batch, also later.
    """
    if y is not None:
        return _batches_of_arrays(x, y, batch_size, seed)
    if not isinstance(x, Iterable):
        raise ValueError(
            f"Without `y`, `x` must be batches (x, y). Received: x={shown(x)}"
        )
    return _endless(x)


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    for turn in itertools.count():
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError(
                "`x` must have batches, and begin again for every loop over "
                f"it. Received: none in loop {turn + 1}"
            )


def _batches_of_arrays(
    x: Any, y: Any, batch_size: int, seed: int
) -> Iterator[Any]:
    data = keras.tree.map_structure(np.asarray, (x, y))
    lengths = [len(a) if a.ndim else 0 for a in keras.tree.flatten(data)]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise ValueError(
            "The arrays of `x` and `y` must be of one length above 0. "
            f"Received: lengths {', '.join(map(str, lengths))}"
        )
    count = lengths[0]
    rng = np.random.default_rng(seed)
    size = min(batch_size, count)
    while True:
        order = rng.permutation(count)
        for start in range(0, count - size + 1, size):
            rows = order[start : start + size]
            yield keras.tree.map_structure(operator.itemgetter(rows), data)


def scope_of(model: Any) -> Any:
    """The scope of the model's `tf.distribute` strategy; none elsewhere."""
    strategy = getattr(model, "distribute_strategy", None)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def optimizer_within(model: Any) -> Any:
    """The model's optimizer, out of Keras' loss scaling; None without one."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


def _loss_scale(optimizer: keras.optimizers.LossScaleOptimizer) -> float:
    """The scale of the next step."""
    if not optimizer.built:
        return float(optimizer.initial_scale)
    return float(ops.convert_to_numpy(optimizer.dynamic_scale))


@contextlib.contextmanager
def optimizer_in_place(model: Any, trial: Any) -> Iterator[None]:
    """The model with another optimizer; then it and its weights as they were.

    Args:
        model: A compiled model.
        trial: The other optimizer; Keras' loss scaling stays around it, at
            the scale that it has reached.
    """
    original = model.optimizer
    weights = [ops.convert_to_numpy(v).copy() for v in model.variables]
    model.optimizer = (
        trial
        if optimizer_within(model) is original
        else keras.optimizers.LossScaleOptimizer(
            trial,
            initial_scale=_loss_scale(original),
            dynamic_growth_steps=original.dynamic_growth_steps,
        )
    )
    model.train_function = None  # which has the optimizer in it
    try:
        with scope_of(model):
            yield
    finally:
        model.optimizer, model.train_function = original, None
        for variable, value in zip(model.variables, weights, strict=True):
            variable.assign(value)

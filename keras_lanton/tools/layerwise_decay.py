"""Learning rates that fall from the last layer to the first."""

import re
from typing import Any

import keras

from keras_lanton.roles.spec import variable_path
from keras_lanton.validation import check_numbers
from keras_lanton.validation import shown

NUMBERED = re.compile(r"^(.*?)_?(\d+)$")
UNNUMBERED = -1  # before all numbers


def layerwise_decay(model: keras.Model, factor: float) -> dict[str, float]:
    """Rate multipliers that fall by a factor from block to block.

    This is usual for fine-tuning BERT. The last block has `factor` times the
    rate, the block before it `factor` squared, and so on. Layers before the
    first block, such as embeddings, have one factor more than that block.
    Layers after the last block have the rate itself. Blocks are layers whose
    names differ by a number at the end, as `transformer_layer_0` and
    `transformer_layer_1`, or Keras' `dense` and `dense_1`.

    Args:
        model: A built model.
        factor: Above 0, at most 1; 0.8 to 0.95 are usual.

    Returns:
        `rate_multipliers` of `Lanton`, and of the other optimizers here.

    Raises:
        ValueError: For another factor, or a model without blocks.

    Examples:
        >>> blocks = [keras.layers.Dense(4, name=f"block_{i}") for i in (0, 1)]
        >>> model = keras.Sequential([keras.Input((4,)), *blocks])
        >>> factors = layerwise_decay(model, 0.9)
        >>> Lanton.for_fine_tuning(rate_multipliers=factors)

    References:
        Clark et al. 2020, ELECTRA, arXiv 2003.10555; Bao et al. 2021, BEiT,
        arXiv 2106.08254, counted as there.
    """
    allowed = "a number above 0 and at most 1"
    check_numbers(
        {"factor": (allowed, lambda x: 0 < x <= 1, False)}, factor=factor
    )
    variables = getattr(model, "trainable_variables", ())
    paths = [variable_path(v) for v in variables]
    stem, numbers = _blocks(paths, model)
    first = min(i for i, path in enumerate(paths) if stem in _stems(path))
    found: dict[str, float] = {}
    for path in paths[:first]:
        found[f"{_beginning(path, model)}$"] = factor ** (len(numbers) + 1)
    before, name = stem
    start = _beginning("/".join([*before, name]), model)
    for depth, number in enumerate(numbers):
        end = "/" if number == UNNUMBERED else f"_?{number}/"
        found[f"{start}{end}"] = factor ** (len(numbers) - depth)
    return found


def _beginning(path: str, model: Any) -> str:
    """The pattern of paths that begin so, also in the model when it is loaded.

    A `Sequential` has its name in its variables' paths; loaded, it has not.
    """
    own = f"{model.name}/"
    if not path.startswith(own):
        return f"^{re.escape(path)}"
    return f"^(?:{re.escape(own)})?{re.escape(path.removeprefix(own))}"


Stem = tuple[tuple[str, ...], str]


def _stems(path: str) -> dict[Stem, int]:
    """Numbers at the end of a path's layers, by the names before them."""
    parts = path.split("/")[:-1]
    found = {}
    for i, part in enumerate(parts):
        match = NUMBERED.match(part)
        name, number = match.groups() if match else (part, UNNUMBERED)
        found[(tuple(parts[:i]), name)] = int(number)
    return found


def _blocks(paths: list[str], model: Any) -> tuple[Stem, list[int]]:
    """The stem with the most numbers, the outermost first; its numbers.

    Keras names the first of several equal layers without a number.
    """
    numbers: dict[Stem, set[int]] = {}
    for path in paths:
        for stem, number in _stems(path).items():
            numbers.setdefault(stem, set()).add(number)
    for found in numbers.values():
        if 1 not in found or 0 in found:
            found.discard(UNNUMBERED)
    best = max(
        numbers,
        key=lambda stem: (len(numbers[stem]), -len(stem[0])),
        default=None,
    )
    if best is None or len(numbers[best]) < 2:
        raise ValueError(
            "`layerwise_decay` needs a built model with two blocks or more: "
            "layers whose names differ by a number at the end. "
            f"Received: model={shown(model)} with {len(paths)} trainable "
            "variables"
        )
    return best, sorted(numbers[best])

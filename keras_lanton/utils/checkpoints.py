"""Weights and optimizer state from a file: all of them or none."""

import os
import zipfile
from typing import Any

import keras
import numpy as np
from keras import ops


def load_checkpoint(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """`model.load_weights`, but a file that does not fit changes nothing.

    Keras loads one layer after the other and the optimizer last: where that
    raises, the layers before it have their new weights. Here the checksums of
    a `.keras` archive come first, and after an error everything is as it was:
    until then a copy of weights and state is in memory. The optimizer is built
    if it was not.

    A `.weights.h5` file has no checksums: numbers that are damaged, but still
    numbers, go unnoticed.

    Args:
        model: Built, compiled with the optimizer whose state is loaded.
        path: A `.keras` or `.weights.h5` file.

    Raises:
        ValueError: If the file is damaged, or of another model or optimizer.
    """
    path = os.fspath(path)
    if path.endswith(".keras"):
        _check_archive(path)
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = _variables(model)
    before = [np.array(ops.convert_to_numpy(v.value)) for v in variables]
    try:
        model.load_weights(path)
    except BaseException as error:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        if isinstance(error, FileNotFoundError) or not isinstance(
            error, Exception
        ):
            raise
        raise ValueError(
            f"The checkpoint does not fit, nothing was loaded: {error} "
            f"Received: path={path!r}"
        ) from error


def _check_archive(path: str) -> None:
    """ValueError unless the archive can be read and its checksums hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"The checkpoint is no readable archive, it may be cut off: "
            f"{error}. Nothing was loaded. Received: path={path!r}"
        ) from error
    if damaged is not None:
        raise ValueError(
            f"The checkpoint's member {damaged!r} is damaged: its checksum "
            f"is wrong. Nothing was loaded. Received: path={path!r}"
        )


def _variables(model: keras.Model) -> list[Any]:
    """All that a file may set, each once."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    found = [*model.variables, *model.metrics_variables]
    for one in (optimizer, inner):
        found += one.variables if one is not None else []
    return list({id(variable): variable for variable in found}.values())

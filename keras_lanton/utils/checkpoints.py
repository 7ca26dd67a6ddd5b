"""Weights and optimizer state from a file: all of them or none."""

import os
import zipfile
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_lanton.optimizers.state import all_or_nothing
from keras_lanton.utils.probing import scope_of
from keras_lanton.validation import shown


def load_checkpoint(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Loads weights and optimizer state; after an error, nothing has changed.

    `model.load_weights` loads one layer after the other and the optimizer
    last. If it raises an error, the layers before have new weights already.
    This function checks the checksums of a `.keras` archive first. It keeps a
    copy of weights and state in memory, and restores it after an error. It
    builds the optimizer if needed.

    A `.weights.h5` file has no checksums: damaged digits go unnoticed.

    Args:
        model: A built model; if it is compiled, its optimizer gets the state.
        path: A `.keras` or `.weights.h5` file.

    Raises:
        ValueError: If the file is damaged, or of another model or optimizer.
            Also for what is no model or no path.
    """
    if not isinstance(model, keras.Model) or not isinstance(
        path, (str, os.PathLike)
    ):
        raise ValueError(
            "`load_checkpoint` needs a Keras model and the path of a file. "
            f"Received: model={shown(model)}, path={shown(path)}"
        )
    path = os.fspath(path)
    if path.endswith(".keras"):
        _check_archive(path)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        with scope_of(model):
            optimizer.build(model.trainable_variables)
    variables = _variables(model)
    before = [np.array(ops.convert_to_numpy(v)) for v in variables]
    try:
        with all_or_nothing():
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
    """All variables that a file sets, each once."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    found = [*model.variables]
    for one in (optimizer, inner):
        found += one.variables if one is not None else []
    return list({id(variable): variable for variable in found}.values())

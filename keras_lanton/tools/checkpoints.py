"""Weights and optimizer state from a file: all of them or none."""

import contextlib
import os
import warnings
import zipfile
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import h5py
import keras
import numpy as np
from keras import ops

from keras_lanton.optimizer.state import all_or_nothing
from keras_lanton.tools.probing import scope_of
from keras_lanton.validation import shown


def load_checkpoint(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Loads weights and optimizer state; after an error, nothing has changed.

    `model.load_weights` loads one layer after the other and the optimizer
    last. If it raises an error, the layers before have new weights already.
    This function checks the checksums of a `.keras` archive first. It keeps a
    copy of weights and state in memory, and restores it after an error. It
    builds the optimizer if needed.

    A `.weights.h5` file has no checksums: damaged digits go unnoticed.

    Compile the model with the optimizer of the run first. `load_model` gives
    tasks of KerasHub Adam in its place.

    Args:
        model: A built model; if it is compiled, its optimizer gets the state.
        path: A `.keras` or `.weights.h5` file.

    Raises:
        ValueError: If the file is damaged or of another model, or if the
            model's optimizer or the file's is of this package and the two do
            not fit. Also for what is no model or no path.
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
        _check_optimizer(model, path)
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


def _check_optimizer(model: keras.Model, path: str) -> None:
    """ValueError if the state is of an optimizer here, the model's of Keras.

    Keras' optimizers only warn of a state that is not theirs, and leave it out.
    A model without an optimizer may take the weights alone: a warning.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and _is_ours(optimizer.variables):
        return
    with _weights_of(path) as weights:
        saved = weights.get("optimizer/vars", {})
        if not _is_ours([saved[str(i)] for i in range(len(saved))]):
            return
        if optimizer is None:
            warnings.warn(
                "The file has the state of the optimizer "
                f"{saved.attrs['name']!r}, which is left out: the model is not "
                f"compiled. Received: path={path!r}",
                stacklevel=3,
            )
        else:
            raise ValueError(
                f"it has the state of the optimizer {saved.attrs['name']!r}. "
                "Compile the model with that optimizer first: a task of "
                "KerasHub has Adam until then. `load_weights` loads the "
                f"weights alone. Received: optimizer={shown(optimizer)}."
            )


@contextlib.contextmanager
def _weights_of(path: str) -> Iterator[Any]:
    """The HDF5 file that is a file of weights, or within an archive."""
    with contextlib.ExitStack() as stack:
        file: Any = path
        if path.endswith(".keras"):
            archive = stack.enter_context(zipfile.ZipFile(path))
            file = stack.enter_context(archive.open("model.weights.h5"))
        elif not h5py.is_hdf5(path):  # `load_weights` knows other formats
            yield {}
            return
        yield stack.enter_context(h5py.File(file, "r"))


def _is_ours(state: Sequence[Any]) -> bool:
    """Returns whether a state ends in `last_step` and two counts.

    By shape and dtype, since a file has no names of variables.
    """
    last = [(len(one.shape), str(one.dtype)[:3]) for one in state[-3:]]
    return last == [(1, "int"), (0, "int"), (0, "int")]


def _variables(model: keras.Model) -> list[Any]:
    """All variables that a file sets, each once."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    found = [*model.variables]
    for one in (optimizer, inner):
        found += one.variables if one is not None else []
    return list({id(variable): variable for variable in found}.values())

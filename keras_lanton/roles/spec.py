"""The spec of one variable: its path, its role and its matrix view."""

import dataclasses
import functools
import numbers
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keras_lanton.roles.matrix_view import MatrixView
from keras_lanton.types import ROLES
from keras_lanton.types import Variable


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableSpec:
    """Path, role and matrix view of a variable: a record of `optimizer.layers`.

    Args:
        path: The variable's path (its name for a bare `tf.Variable`).
        role: `"hidden"`, `"embedding"` or `"vector"`.
        view: How the tensor is a stack of matrices.
        guessed: Whether nothing explains the role and the view.
        cut_axis: Axis along which the tensor is cut into pieces; None for one
            piece.
        cut_sizes: Their sizes along that axis.
    """

    path: str
    role: str
    view: MatrixView
    guessed: bool = dataclasses.field(default=False, compare=False)
    cut_axis: int | None = None
    cut_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        axis = self.cut_axis
        if axis is not None and sum(self.cut_sizes) != self.shape[axis]:
            raise ValueError(
                f"`cut_sizes` must sum to axis {axis} of {self.shape}. "
                f"Received: cut_sizes={self.cut_sizes}"
            )

    @functools.cached_property
    def pieces(self) -> tuple["VariableSpec", ...]:
        """A spec for each piece of the tensor, in order; most have one."""
        axis = self.cut_axis
        if axis is None:
            return (self,)
        shapes = [
            (*self.shape[:axis], size, *self.shape[axis + 1 :])
            for size in self.cut_sizes
        ]
        return tuple(
            VariableSpec(
                path=f"{self.path}[{i}]",
                role=self.role,
                view=dataclasses.replace(self.view, shape=shape),
            )
            for i, shape in enumerate(shapes)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The variable's shape."""
        return self.view.shape

    @property
    def batch_axes(self) -> tuple[int, ...]:
        """Axes that number the matrices."""
        return self.view.batch_axes

    @property
    def input_axes(self) -> tuple[int, ...]:
        """Axes that are contracted with the layer's input."""
        return self.view.input_axes

    @property
    def output_axes(self) -> tuple[int, ...]:
        """Axes of the layer's output."""
        return self.view.output_axes

    @property
    def output_blocks(self) -> int:
        """Number of blocks that the last output axis is cut into."""
        return self.view.output_blocks

    @property
    def d_in(self) -> int:
        """Rows of each matrix."""
        return self.view.d_in

    @property
    def d_out(self) -> int:
        """Columns of each matrix."""
        return self.view.d_out

    @functools.cached_property
    def batch(self) -> int:
        """Number of matrices."""
        return sum(piece.view.batch for piece in self.pieces)


def variable_path(variable: Variable) -> str:
    """The path of a variable, or the name of a bare `tf.Variable`.

    Args:
        variable: A `keras.Variable` or a `tf.Variable`.

    Returns:
        The path, such as `"dense/kernel"`. It need not be unique.
    """
    path = getattr(variable, "path", None) or variable.name
    return re.sub(r":\d+$", "", path)


def in_words(spec: VariableSpec) -> str:
    """Describes the matrices that a variable is taken as.

    Returns:
        Such as `"2 hidden matrices (3 x 4), output axis 2"`.
    """
    matrices = "matrices" if spec.batch > 1 else "matrix"
    axes = ", ".join(map(str, spec.output_axes))
    return (
        f"{spec.batch} {spec.role} {matrices} ({spec.d_in} x {spec.d_out}), "
        f"output {'axes' if len(spec.output_axes) > 1 else 'axis'} {axes}"
    )


# Common specs.


def make_spec(
    path: str,
    shape: tuple[int, ...],
    role: str = "hidden",
    *,
    outputs: tuple[int, ...],
    inputs: tuple[int, ...] | None = None,
    batch: tuple[int, ...] = (),
    blocks: int = 1,
) -> VariableSpec:
    """A spec by its axes.

    Args:
        path: The variable's path.
        shape: The variable's shape.
        role: `"hidden"`, `"embedding"` or `"vector"`.
        outputs: Axes of the layer's output.
        inputs: Axes of the layer's input. Defaults to all that are left.
        batch: Axes that number the matrices.
        blocks: Number of blocks that the last output axis is cut into.

    Raises:
        ValueError: If the axes do not name every axis once.
    """
    if inputs is None:
        inputs = _other_axes(len(shape), batch + outputs)
    view = MatrixView(
        shape=shape,
        batch_axes=batch,
        input_axes=inputs,
        output_axes=outputs,
        output_blocks=blocks,
    )
    return VariableSpec(path=path, role=role, view=view)


def vector_spec(path: str, shape: tuple[int, ...]) -> VariableSpec:
    """A vector: all axes are output axes."""
    return make_spec(path, shape, "vector", outputs=tuple(range(len(shape))))


def _other_axes(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if axis not in axes)


# By hand.


def assigned_spec(
    path: str,
    shape: Sequence[int],
    role: str,
    input_axes: int | Sequence[int] | None = None,
    output_axes: int | Sequence[int] | None = None,
    *,
    input_parts: int | Sequence[int] | None = None,
    output_parts: int | Sequence[int] | None = None,
) -> VariableSpec:
    """The spec of a variable whose role is set by hand.

    Axes that neither argument names are batch axes: each of their entries is
    a matrix of its own. Given one of the two arguments, the other takes all
    remaining axes. Given neither, the last axis is the output of a
    `"hidden"` kernel `(..., out)` and the input of an `"embedding"` table
    `(vocab, width)`; a head `(width, vocab)` needs `input_axes=0`.

    Args:
        path: The variable's path.
        shape: The variable's shape.
        role: `"hidden"`, `"embedding"` or `"vector"`.
        input_axes: Axes contracted with the layer's input. An integer or a
            sequence, negative numbers counting from the end.
        output_axes: Axes of the layer's output, likewise.
        input_parts: Number of equal parts of the last input axis, or their
            sizes. Each is a matrix of its own. The role must be `"hidden"`.
        output_parts: The same of the last output axis.

    Raises:
        ValueError: If the role is unknown, an axis is out of range or named
            twice, a vector is given axes, a matrix has rank below 2, or the
            parts do not make up their axis.
    """
    check_role(role)
    shape = tuple(int(size) for size in shape)
    given = {"input_parts": input_parts, "output_parts": output_parts}
    parts = {name: part for name, part in given.items() if part is not None}
    if len(parts) > 1 or (parts and role != "hidden"):
        raise ValueError(
            "One of `input_parts` and `output_parts` may be given, for the "
            f"role 'hidden' (variable {path}). Received: {role=}, "
            f"{input_parts=}, {output_parts=}"
        )
    if role == "vector":
        if input_axes is not None or output_axes is not None:
            raise ValueError(
                f"A vector has no axes to choose (variable {path}). "
                f"Received: {input_axes=}, {output_axes=}"
            )
        return vector_spec(path, shape)
    if len(shape) < 2:
        raise ValueError(
            f"A variable of rank below 2 is always a vector (variable {path}). "
            f"Received: {role=}, shape={shape}"
        )
    inputs = _checked_axes("input_axes", input_axes, path, shape)
    outputs = _checked_axes("output_axes", output_axes, path, shape)
    inputs, outputs = _complete_axes(role, len(shape), inputs, outputs)
    if set(inputs) & set(outputs):
        raise ValueError(
            f"`input_axes` and `output_axes` must not overlap (variable "
            f"{path}). Received: {input_axes=}, {output_axes=}"
        )
    batch = _other_axes(len(shape), inputs + outputs)
    spec = make_spec(
        path, shape, role, inputs=inputs, outputs=outputs, batch=batch
    )
    for name, part in parts.items():
        axes = inputs if name == "input_parts" else outputs
        spec = _with_parts(spec, name, part, axes[-1])
    return spec


def _with_parts(
    spec: VariableSpec, name: str, parts: Any, axis: int
) -> VariableSpec:
    """The spec of the same tensor, cut along an axis."""
    whole = spec.shape[axis]
    sizes: Any = parts
    if _is_integer(parts) and parts > 0:
        sizes = (whole // parts,) * int(parts)
    good = isinstance(sizes, (list, tuple)) and all(
        _is_integer(size) and size > 0 for size in sizes
    )
    if not good or len(sizes) < 2 or sum(sizes) != whole:
        raise ValueError(
            f"`{name}` must be the number of equal parts of axis {axis} of "
            f"the shape {spec.shape} (variable {spec.path}), at least 2, or "
            f"sizes that sum to {whole}. Received: {name}={parts}"
        )
    if name == "output_parts" and len(set(sizes)) == 1:
        view = dataclasses.replace(spec.view, output_blocks=len(sizes))
        return dataclasses.replace(spec, view=view)
    sizes = tuple(int(size) for size in sizes)
    return dataclasses.replace(spec, cut_axis=axis, cut_sizes=sizes)


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_role(role: str) -> None:
    """ValueError for a role that does not exist."""
    if role not in ROLES:
        raise ValueError(f"`role` must be one of {ROLES}. Received: {role=}")


def _complete_axes(
    role: str,
    rank: int,
    inputs: tuple[int, ...] | None,
    outputs: tuple[int, ...] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Input and output axes, where one or both were not given."""
    last = (rank - 1,)
    if inputs is None and outputs is None:
        inputs, outputs = (None, last) if role == "hidden" else (last, None)
    if inputs is None:
        inputs = _other_axes(rank, outputs or ())
    if outputs is None:
        outputs = _other_axes(rank, inputs)
    return inputs, outputs


def _checked_axes(
    name: str,
    axes: int | Sequence[int] | None,
    path: str,
    shape: tuple[int, ...],
) -> tuple[int, ...] | None:
    if axes is None:
        return None
    rank = len(shape)
    given = tuple(axes) if isinstance(axes, Iterable) else (axes,)
    within = all(
        isinstance(axis, numbers.Integral) and -rank <= axis < rank
        for axis in given
    )
    positive = tuple(int(axis) % rank for axis in given) if within else ()
    if not within or len(set(positive)) != len(positive):
        raise ValueError(
            f"`{name}` must hold different axes in [{-rank}, {rank - 1}] for "
            f"the shape {shape} (variable {path}). Received: {name}={axes}"
        )
    return positive


# To JSON and back.


def spec_to_config(spec: VariableSpec) -> dict[str, Any]:
    """The spec as a dictionary that JSON can hold.

    Returns:
        Path, role and the view's fields, tuples as lists; `guessed` and where
        the tensor is cut, if it is so.
    """
    view = {
        field.name: getattr(spec.view, field.name)
        for field in dataclasses.fields(MatrixView)
    }
    config = {
        "path": spec.path,
        "role": spec.role,
        **{k: list(v) if isinstance(v, tuple) else v for k, v in view.items()},
    }
    if spec.guessed:
        config["guessed"] = True
    if spec.cut_axis is not None:
        config |= {"cut_axis": spec.cut_axis, "cut_sizes": [*spec.cut_sizes]}
    return config


def spec_from_config(config: Mapping[str, Any]) -> VariableSpec:
    """The spec that `spec_to_config` wrote.

    Raises:
        ValueError: If the role is unknown or the axes do not fit the shape.
    """
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, (list, tuple)) else value
        for key, value in config.items()
    }
    path, role = fields.pop("path"), fields.pop("role")
    names = ("guessed", "cut_axis", "cut_sizes")
    own = {name: fields.pop(name) for name in names if name in fields}
    check_role(role)
    return VariableSpec(path=path, role=role, view=MatrixView(**fields), **own)

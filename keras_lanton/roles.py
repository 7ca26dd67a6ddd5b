"""Which role and which matrix view every trainable variable has.

Two ways to know. `read_model` asks the layers themselves: their classes, the
equations of `EinsumDense`, the groups of a convolution. `infer_roles` has
only what an optimizer is given, that is paths, shapes and siblings (the bias
next to a kernel, the output projection next to a query). Where a variable's
layer is unknown, `read_model` falls back on `infer_roles`; where nothing
explains a tensor of rank 3 or more, both guess and warn.
"""

# Private names of Keras used here, and nowhere else in this module:
# `Layer._flatten_layers()` (all sublayers, which `Model.layers` does not
# reach) and `Layer._trainable_variables` (a layer's own weights, without
# those of its sublayers, also while the layer is frozen).

import collections
import dataclasses
import itertools
import os
import re
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keras import layers as keras_layers

from keras_lanton.views import MatrixView

Variable = Any

ROLES = ("hidden", "embedding", "vector")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer(MatrixView):
    """What was decided for one variable: one record of `optimizer.layers`.

    Args:
        path: The variable's path (its name for a bare `tf.Variable`).
        role: `"hidden"`, `"embedding"` or `"vector"`.
        guessed: Whether nothing explains the view: the last axis was taken as
            the output.
    """

    path: str
    role: str
    guessed: bool = dataclasses.field(default=False, compare=False)


def variable_path(variable: Variable) -> str:
    """The path of a variable, or the name of a bare `tf.Variable`.

    Args:
        variable: A `keras.Variable` or a `tf.Variable`.

    Returns:
        The path, such as `"dense/kernel"`. It need not be unique.
    """
    path = getattr(variable, "path", None) or variable.name
    return re.sub(r":\d+$", "", path)


# By hand, and to JSON and back.


def make_layer(
    path: str,
    shape: Sequence[int],
    role: str,
    input_axes: int | Sequence[int] | None = None,
    output_axes: int | Sequence[int] | None = None,
) -> Layer:
    """The record of a variable whose role is set by hand.

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

    Returns:
        The record.

    Raises:
        ValueError: If the role is unknown, an axis is out of range or named
            twice, a vector is given axes, or a matrix has rank below 2.
    """
    if role not in ROLES:
        raise ValueError(f"`role` must be one of {ROLES}. Received: {role=}")
    variable = _Variable(path, tuple(int(size) for size in shape), 0)
    if role == "vector":
        if input_axes is not None or output_axes is not None:
            raise ValueError(
                f"A vector has no axes to choose (variable {path}). "
                f"Received: {input_axes=}, {output_axes=}"
            )
        return _vector(variable)
    if variable.rank < 2:
        raise ValueError(
            f"A variable of rank below 2 is always a vector (variable {path}). "
            f"Received: {role=}, shape={variable.shape}"
        )
    inputs = _checked_axes("input_axes", input_axes, variable)
    outputs = _checked_axes("output_axes", output_axes, variable)
    last = (variable.rank - 1,)
    if inputs is None and outputs is None:
        inputs, outputs = (None, last) if role == "hidden" else (last, None)
    if inputs is None:
        inputs = _other_axes(variable, outputs or ())
    if outputs is None:
        outputs = _other_axes(variable, inputs)
    if set(inputs) & set(outputs):
        raise ValueError(
            f"`input_axes` and `output_axes` must not overlap (variable "
            f"{path}). Received: {input_axes=}, {output_axes=}"
        )
    batch = _other_axes(variable, inputs + outputs)
    return _layer(variable, role, inputs=inputs, outputs=outputs, batch=batch)


def layer_to_config(layer: Layer) -> dict[str, Any]:
    """The record as a dictionary that JSON can hold.

    Args:
        layer: The record.

    Returns:
        One entry per field, tuples as lists; `guessed` where it is so.
    """
    fields = dataclasses.asdict(layer)
    if not layer.guessed:
        del fields["guessed"]
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in fields.items()
    }


def layer_from_config(config: Mapping[str, Any]) -> Layer:
    """The record that `layer_to_config` wrote.

    Args:
        config: One entry per field.

    Returns:
        The record.

    Raises:
        ValueError: If the role is unknown or the axes do not fit the shape.
    """
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, (list, tuple)) else value
        for key, value in config.items()
    }
    if fields["role"] not in ROLES:
        raise ValueError(
            f"`role` must be one of {ROLES}. Received: role={fields['role']!r}"
        )
    return Layer(**fields)


def _checked_axes(
    name: str, axes: int | Sequence[int] | None, variable: "_Variable"
) -> tuple[int, ...] | None:
    if axes is None:
        return None
    rank = variable.rank
    given = tuple(axes) if isinstance(axes, Iterable) else (axes,)
    within = all(-rank <= axis < rank for axis in given)
    positive = tuple(axis % rank for axis in given)
    if not within or len(set(positive)) != len(positive):
        raise ValueError(
            f"`{name}` must hold different axes in [{-rank}, {rank - 1}] for "
            f"the shape {variable.shape} (variable {variable.path}). "
            f"Received: {name}={axes}"
        )
    return positive


# Variables and their siblings.

_KERNEL_NAMES = ("kernel", "weight", "weights", "w", "lora_kernel_a")


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable as an optimizer sees it, and its place among the others."""

    path: str
    shape: tuple[int, ...]
    index: int

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def owner(self) -> str:
        """Name of the layer that holds it."""
        return self.parent.rpartition("/")[2]

    @property
    def subject(self) -> str:
        """The name that says what it is: the layer's for a mere `kernel`."""
        return self.owner if self.name in _KERNEL_NAMES else self.name

    @property
    def block(self) -> str:
        """The path above the subject."""
        if self.name in _KERNEL_NAMES:
            return self.parent.rpartition("/")[0]
        return self.parent


class _Family:
    """All variables of an optimizer, to look up siblings.

    Paths may repeat (two layers of one name, bare `tf.Variable`s): of several
    candidates the nearest in order is the sibling, the later one of two.
    """

    def __init__(self, variables: Iterable[Variable]) -> None:
        self.members = [
            _Variable(variable_path(variable), tuple(variable.shape), index)
            for index, variable in enumerate(variables)
        ]
        self._parents = collections.defaultdict(list)
        self._blocks = collections.defaultdict(list)
        for member in self.members:
            self._parents[member.parent].append(member)
            self._blocks[member.block].append(member)

    def sibling(self, variable: _Variable, name: str) -> _Variable | None:
        """The variable of that name in the same layer."""
        found = [m for m in self._parents[variable.parent] if m.name == name]
        return _nearest(variable, found)

    def in_block(
        self, variable: _Variable, subject: re.Pattern[str]
    ) -> _Variable | None:
        """The same variable of the neighbour layer with such a name."""
        found = [
            member
            for member in self._blocks[variable.block]
            if subject.fullmatch(member.subject)
            and member.rank == variable.rank
        ]
        return _nearest(variable, found)

    def channels(self, variable: _Variable) -> tuple[int, ...] | None:
        """Shape of the layer's output axes: its bias's, or the next norm's."""
        if variable.name.startswith("lora"):
            return None
        bias = self.sibling(variable, "bias")
        if bias is not None:
            return bias.shape
        following = self.members[variable.index + 1 : variable.index + 2]
        for gain in following:
            named = _CONVOLUTION.search(variable.subject)
            if variable.rank > 3 and gain.name == "gamma" and not named:
                return gain.shape
        return None


def _nearest(
    variable: _Variable, found: Sequence[_Variable]
) -> _Variable | None:
    def distance(member: _Variable) -> tuple[int, bool]:
        ahead = member.index - variable.index
        return abs(ahead), ahead < 0

    return min(found, key=distance, default=None)


def _other_axes(variable: _Variable, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(variable.rank) if axis not in axes)


def _layer(
    variable: _Variable,
    role: str = "hidden",
    *,
    outputs: tuple[int, ...],
    inputs: tuple[int, ...] | None = None,
    batch: tuple[int, ...] = (),
    blocks: int = 1,
) -> Layer:
    if inputs is None:
        inputs = _other_axes(variable, batch + outputs)
    return Layer(
        path=variable.path,
        role=role,
        shape=variable.shape,
        batch_axes=batch,
        input_axes=inputs,
        output_axes=outputs,
        output_blocks=blocks,
    )


def _vector(variable: _Variable) -> Layer:
    return _layer(variable, "vector", outputs=tuple(range(variable.rank)))


def _last_output(variable: _Variable, blocks: int = 1) -> Layer:
    return _layer(variable, outputs=(variable.rank - 1,), blocks=blocks)


def _transposed(variable: _Variable) -> Layer:
    return _layer(variable, outputs=(variable.rank - 2,))


def _table(variable: _Variable) -> Layer:
    return _layer(
        variable, "embedding", outputs=tuple(range(variable.rank - 1))
    )


def _head(variable: _Variable) -> Layer:
    return _layer(variable, "embedding", outputs=(1,))


# From paths, shapes and siblings: each rule answers or passes.

_Rule = Callable[[_Variable, _Family], Layer | None]


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_VECTOR = _pattern(
    r"(.*_)?(bias|beta|gamma|alpha|gain|scales?|scalar|lambda|sinks?)_?\d*",
    r"b\d*",
    r"(cls|class|mask|register|dist\w*|query|latent)_tokens?",
    r"depthwise_kernel",
)
_TABLE = _pattern(
    r"(.*_)?(embeddings?|embeds?|emb|table|wte|wpe)",
    r"lora_embeddings_a",
    r"rel_pos_\w+",
)
_HEAD_TABLE = _pattern(r"reverse_embeddings?")
_DEPTHWISE = _pattern(r"depthwise", r"(^|_)dw")
_TRANSPOSED = _pattern(r"transpose", r"deconv")
_CONVOLUTION = _pattern(r"conv", r"patch", r"stem", r"shortcut", r"downsample")
_UPSAMPLING = _pattern(r"(^|_)(up|upsampl\w*|dec|decoder|gen\w*)(\d|_|$)")
_EXPERT = _pattern(r"expert", r"(^|[/_])moe([/_]|$)", r"mixture")
_PROJECTION = r"_?(dense|proj|projection|layer|kernel)?"
_QUERY = _pattern(rf"(w_?|to_)?(query|q){_PROJECTION}")
_ATTENTION_CORE = _pattern(rf"(w_?|to_)?(query|key|value|q|k|v){_PROJECTION}")
_ATTENTION_INPUT = _pattern(_ATTENTION_CORE.pattern, r"gate", r"encoding")
_ATTENTION_OUTPUT = _pattern(
    rf"(attention_output|(w_?|to_)?(output|out|o)){_PROJECTION}"
)
_FUSED_QKV = _pattern(rf"(to_|w)?(query_key_value|qkv){_PROJECTION}")


def _by_rank_or_name(variable: _Variable, family: _Family) -> Layer | None:
    if variable.rank < 2 or _VECTOR.fullmatch(variable.name):
        return _vector(variable)
    if variable.rank == 2 and _HEAD_TABLE.fullmatch(variable.name):
        return _head(variable)
    single = sum(size != 1 for size in variable.shape) < 2
    if single and variable.rank > 2 and variable.name not in _KERNEL_NAMES:
        return _vector(variable)
    if _TABLE.fullmatch(variable.name):
        return _table(variable)
    if variable.rank > 2 and variable.name == "pointwise_kernel":
        return _last_output(variable)
    if variable.rank == 2 and re.fullmatch(r"conv\dd_kernel", variable.name):
        return _vector(variable)
    return None


def _by_recurrence(variable: _Variable, family: _Family) -> Layer | None:
    """The gates: what the recurrent kernel has more columns than rows."""
    recurrent = family.sibling(variable, "recurrent_kernel")
    if recurrent is None or recurrent.rank < 2:
        return _by_cell_name(variable)
    *_, units, columns = recurrent.shape
    gates, rest = divmod(columns, units)
    fits = rest == 0 and variable.shape[-1] == columns
    known = fits and "kernel" in variable.name
    return _last_output(variable, blocks=gates) if known else None


def _by_cell_name(variable: _Variable) -> Layer | None:
    """The gates of a kernel whose recurrent kernel is frozen."""
    cell = re.search(r"(lstm|gru)_cell(_\d+)?/kernel$", variable.path)
    if cell is None:
        return None
    gates = {"lstm": 4, "gru": 3}[cell[1]]
    fits = variable.shape[-1] % gates == 0
    return _last_output(variable, blocks=gates) if fits else None


def _by_rank_two(variable: _Variable, family: _Family) -> Layer | None:
    return _last_output(variable) if variable.rank == 2 else None


def _by_expert(variable: _Variable, family: _Family) -> Layer | None:
    """Kernels of shape (experts, in, out)."""
    names = "/".join(variable.path.split("/")[-3:])
    if variable.rank != 3 or not _EXPERT.search(names):
        return None
    attention = family.in_block(variable, _QUERY) is not None
    if attention or _CONVOLUTION.search(names):
        return None
    return _experts(variable, family)


def _experts(variable: _Variable, family: _Family) -> Layer:
    # Qwen's gate holds gate and up as two halves: its width is twice what the
    # output kernel takes in. GPT-OSS interleaves the two (`gate_up_proj`), so
    # no contiguous block is a matrix of its own and it stays one.
    name = variable.name.replace("gate", "output")
    output = family.sibling(variable, name) if name != variable.name else None
    halves = output is not None and variable.shape[2] == 2 * output.shape[1]
    return _layer(variable, batch=(0,), outputs=(2,), blocks=2 if halves else 1)


def _by_depthwise_name(variable: _Variable, family: _Family) -> Layer | None:
    named = _DEPTHWISE.search(variable.subject)
    return _vector(variable) if named and variable.name == "kernel" else None


def _by_channels(variable: _Variable, family: _Family) -> Layer | None:
    """A bias has the shape of the output axes, trailing ones first."""
    channels = family.channels(variable)
    if channels is None:
        return None
    *_, before, last = variable.shape
    upwards = _TRANSPOSED.search(variable.subject) is not None
    if channels == (before,) and (upwards or before != last):
        depthwise = last == 1 and not upwards
        return _vector(variable) if depthwise else _transposed(variable)
    if channels == (before * last,) and last != 1 and before != 1:
        return _vector(variable)
    axes = itertools.combinations(range(variable.rank), len(channels))
    for outputs in reversed(list(axes)):
        if channels == tuple(variable.shape[axis] for axis in outputs):
            return _layer(variable, outputs=outputs)
    return None


def _by_attention(variable: _Variable, family: _Family) -> Layer | None:
    """Query, key, value (model, heads, head), Gemma's (heads, model, head).

    The heads axis of the query is where the first axis of the output
    projection (heads, head, model) is found again. XLNet's output kernel has
    the shape of its query, (model, heads, head).
    """
    if variable.rank < 3:
        return None
    if _FUSED_QKV.fullmatch(variable.subject):
        return _layer(variable, outputs=tuple(range(1, variable.rank)))
    if variable.rank != 3:
        return None
    query = family.in_block(variable, _QUERY)
    output = family.in_block(variable, _ATTENTION_OUTPUT)
    reverse = (
        query is not None
        and output is not None
        and query.shape == output.shape
        and query.shape[0] > query.shape[1]
    )
    if _ATTENTION_OUTPUT.fullmatch(variable.subject):
        return _layer(variable, outputs=(0,) if reverse else (2,))
    known = query or _ATTENTION_CORE.fullmatch(variable.subject)
    if not known or not _ATTENTION_INPUT.fullmatch(variable.subject):
        return None
    model, heads = (query or variable).shape[:2]
    heads_first = heads > model
    if output is not None and model != heads and not reverse:
        if output.shape[0] in (model, heads):
            heads_first = output.shape[0] == model
    return _layer(variable, outputs=(0, 2) if heads_first else (1, 2))


def _by_convolution(variable: _Variable, family: _Family) -> Layer | None:
    if variable.name not in _KERNEL_NAMES:
        return None
    if _TRANSPOSED.search(variable.subject):
        return _transposed(variable)
    if _CONVOLUTION.search(variable.subject):
        return _last_output(variable)
    # Without a telling name or bias, rank 4 and 5 are almost always plain
    # convolutions; a single last channel may be a depthwise kernel, and a
    # decoder's a transposed one.
    doubtful = variable.shape[-1] == 1 or _UPSAMPLING.search(variable.subject)
    if variable.rank in (4, 5) and not doubtful:
        return _last_output(variable)
    return None


_RULES: tuple[_Rule, ...] = (
    _by_rank_or_name,
    _by_recurrence,
    _by_rank_two,
    _by_expert,
    _by_depthwise_name,
    _by_channels,
    _by_attention,
    _by_convolution,
)


def _infer(family: _Family) -> tuple[list[Layer], set[int]]:
    """Per variable the first rule's answer, and which ones are guesses."""
    found = []
    guesses = set()
    for variable in family.members:
        answers = (rule(variable, family) for rule in _RULES)
        layer = next((answer for answer in answers if answer), None)
        if layer is None:
            guesses.add(variable.index)
            layer = dataclasses.replace(_last_output(variable), guessed=True)
        found.append(layer)
    return found, guesses


# Heads: the Dense that maps back to the vocabulary.

_NO_VOCABULARY = _pattern(r"pos", r"wpe", r"segment", r"type", r"(^|[/_])rel")
_HEAD_NAME = _pattern(
    r"(^|_)(head|lm|logits?|unembed(ding)?s?|vocab(ulary)?)(\d|_|$)"
)


def _find_heads(
    family: _Family, tables: Iterable[int], kernels: Iterable[int]
) -> set[int]:
    """Indices of the kernels (width, vocab) with a table (vocab, width).

    A telling name decides. Without one, a head is a kernel whose output no
    other kernel takes in: it comes after all kernels of `vocab` rows, and
    none of them is in its own block (a feedforward layer may be as wide as
    the vocabulary).
    """
    dense = [family.members[index] for index in kernels]
    paths = [member.parent.split("/") for member in family.members]
    root = "/".join(os.path.commonprefix(paths))
    heads: set[int] = set()
    for table in (family.members[index] for index in tables):
        if _NO_VOCABULARY.search(f"{table.owner}/{table.name}"):
            continue
        vocab, width = table.shape
        back = [kernel for kernel in dense if kernel.shape == (width, vocab)]
        named = [k for k in back if _HEAD_NAME.search(k.subject)]
        takers = [kernel for kernel in dense if kernel.shape[0] == vocab]
        end = max((kernel.index for kernel in takers), default=-1)
        inner = {kernel.block for kernel in takers} - {root}
        if named:
            heads.update(kernel.index for kernel in named)
        elif vocab != width:
            heads.update(
                kernel.index
                for kernel in back
                if kernel.index > end and kernel.block not in inner
            )
    return heads


def _tables(family: _Family, found: Sequence[Layer]) -> list[int]:
    return [
        variable.index
        for variable, layer in zip(family.members, found, strict=True)
        if variable.rank == 2
        and layer.role == "embedding"
        and variable.name == "embeddings"
    ]


def _dense_kernels(family: _Family, found: Sequence[Layer]) -> list[int]:
    return [
        variable.index
        for variable, layer in zip(family.members, found, strict=True)
        if layer.role == "hidden"
        and variable.rank == 2
        and variable.name in ("kernel", "output_kernel")
        and family.sibling(variable, "recurrent_kernel") is None
    ]


def infer_roles(
    variables: Sequence[Variable],
    given: Sequence[Layer | None] | None = None,
) -> tuple[Layer, ...]:
    """Roles and views from paths, names, shapes and siblings alone.

    Where the names leave a tensor of rank 3 or more open, its last axis is
    taken as the output, and one warning names all such paths.

    Args:
        variables: Trainable variables, in the optimizer's order.
        given: Per variable the record that is already known, or `None`.
            Known records are returned as they are and never warned about.

    Returns:
        One record per variable, in the same order.
    """
    family = _Family(variables)
    found, guesses = _infer(family)
    heads = _find_heads(
        family, _tables(family, found), _dense_kernels(family, found)
    )
    for index in heads:
        found[index] = _head(family.members[index])
    for index, layer in enumerate(given or ()):
        if layer is not None:
            found[index] = layer
            guesses.discard(index)
    _warn_of_guesses(
        [found[index] for index in sorted(guesses)],
        "neither their names nor their siblings explain them. Before the "
        "first step, call `optimizer.read_roles(model)` to read them from the "
        "model's layers, or `optimizer.assign_role(role, variables, "
        "input_axes, output_axes)` to set them by hand.",
    )
    return tuple(found)


def _warn_of_guesses(guesses: Sequence[Layer], reason: str) -> None:
    if not guesses:
        return
    listed = ", ".join(f"{layer.path} {layer.shape}" for layer in guesses)
    warnings.warn(
        "The matrix views of these variables are guesses (the last axis as "
        f"output, all others as input): {listed}; {reason}",
        stacklevel=3,
    )


# From the layers themselves: each reader answers for the weights it knows.

_Reader = Callable[[Any, _Variable], Layer | None]


def _read_dense(layer: Any, variable: _Variable) -> Layer | None:
    return _last_output(variable) if "kernel" in variable.name else None


def _read_einsum_dense(layer: Any, variable: _Variable) -> Layer | None:
    """Axes of the kernel's letters.

    In the input and the output: batch. In the output alone: output. Else the
    letter is summed over: input. The LoRA pair (..., r) (r, last) stands for
    the kernel with r in the place of its last letter.
    """
    if "kernel" not in variable.name:
        return None
    equation = re.sub(r"[.\s]", "", layer.equation)
    inputs, kernel, output = re.split(r",|->", equation)
    if variable.name == "lora_kernel_b":
        return _layer(variable, outputs=(int(kernel[-1] in output),))
    kept = [axis for axis, letter in enumerate(kernel) if letter in output]
    batch = tuple(axis for axis in kept if kernel[axis] in inputs)
    outputs = tuple(axis for axis in kept if kernel[axis] not in inputs)
    if len(batch) + len(outputs) == len(kernel):
        return _vector(variable)
    return _layer(variable, batch=batch, outputs=outputs)


def _read_convolution(layer: Any, variable: _Variable) -> Layer | None:
    if variable.name != "kernel":
        return _read_dense(layer, variable)
    # One channel in per group is a depthwise convolution by another name.
    if layer.groups > 1 and variable.shape[-2] == 1:
        return _vector(variable)
    return _last_output(variable, blocks=layer.groups)


def _read_transposed(layer: Any, variable: _Variable) -> Layer | None:
    return _transposed(variable) if variable.name == "kernel" else None


def _read_depthwise(layer: Any, variable: _Variable) -> Layer | None:
    if variable.name == "pointwise_kernel":
        return _last_output(variable)
    return _vector(variable)


def _read_gates(gates: int) -> _Reader:
    def read(layer: Any, variable: _Variable) -> Layer | None:
        known = variable.name in ("kernel", "recurrent_kernel")
        return _last_output(variable, blocks=gates) if known else None

    return read


def _read_vector(layer: Any, variable: _Variable) -> Layer | None:
    return _vector(variable)


def _public(*names: str) -> tuple[type, ...]:
    """The classes of these names that this Keras has."""
    found = (getattr(keras_layers, name, None) for name in names)
    return tuple(cls for cls in found if cls is not None)


# Embeddings are not here: their names say all there is to know. Neither are
# ConvLSTM cells (not public), whose recurrent kernel says it.
_READERS: tuple[tuple[tuple[type, ...], _Reader], ...] = (
    (_public("Dense"), _read_dense),
    (_public("EinsumDense"), _read_einsum_dense),
    (
        _public("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        _read_transposed,
    ),
    (
        _public(
            "DepthwiseConv1D",
            "DepthwiseConv2D",
            "SeparableConv1D",
            "SeparableConv2D",
        ),
        _read_depthwise,
    ),
    (_public("Conv1D", "Conv2D", "Conv3D"), _read_convolution),
    (_public("SimpleRNNCell"), _read_gates(1)),
    (_public("GRUCell"), _read_gates(3)),
    (_public("LSTMCell"), _read_gates(4)),
    (
        _public(
            "BatchNormalization",
            "GroupNormalization",
            "LayerNormalization",
            "RMSNormalization",
            "PReLU",
            "Attention",
            "AdditiveAttention",
        ),
        _read_vector,
    ),
)


def _read(layer: Any, variable: _Variable, family: _Family) -> Layer | None:
    """What a layer says of one of its own weights, if it is a known layer."""
    if variable.rank < 2 or _VECTOR.fullmatch(variable.name):
        return _vector(variable)
    for classes, reader in _READERS:
        if isinstance(layer, classes):
            return reader(layer, variable)
    names = (cls.__name__ for cls in type(layer).__mro__)
    if variable.rank == 3 and any(name.endswith("Experts") for name in names):
        return _experts(variable, family)
    return None


def _may_be_head(layer: Any) -> bool:
    """A Dense whose outputs are logits or probabilities."""
    activation = getattr(layer, "activation", None)
    name = getattr(activation, "__name__", "linear")
    plain = name in ("linear", "softmax", "log_softmax")
    return plain and isinstance(layer, _public("Dense", "EinsumDense"))


def _owners(model: Any) -> tuple[list[Variable], list[list[Any]]]:
    """Every trainable variable, frozen ones too, and the layers holding it."""
    holders = collections.defaultdict(list)
    for layer in model._flatten_layers():
        for variable in layer._trainable_variables:
            holders[id(variable)].append(layer)
    variables = [v for v in model.variables if v.trainable or id(v) in holders]
    return variables, [holders[id(variable)] for variable in variables]


def read_model(model: Any) -> list[tuple[Variable, Layer]]:
    """Roles and views from the model's layers.

    Args:
        model: A built `keras.Model` or `keras.Layer`.

    Returns:
        Pairs of a variable and its record, one per trainable variable (also
        of layers that are frozen now), shared variables once.

    Raises:
        ValueError: If the model has no variables yet.
    """
    variables, owners = _owners(model)
    if not variables:
        raise ValueError(
            "The model must be built (call it once, or `model.build`) before "
            f"its layers can be read. Received: model={model}"
        )
    family = _Family(variables)
    found, guesses = _infer(family)
    for variable, layers in zip(family.members, owners, strict=True):
        answers = (_read(layer, variable, family) for layer in layers)
        known = next((answer for answer in answers if answer), None)
        if known is not None:
            found[variable.index] = known
            guesses.discard(variable.index)
    kernels = _dense_kernels(family, found)
    for index in _find_heads(family, _tables(family, found), kernels):
        named = family.members[index].name == "output_kernel"
        if named or any(_may_be_head(layer) for layer in owners[index]):
            found[index] = _head(family.members[index])
    _warn_of_guesses(
        [found[index] for index in sorted(guesses)],
        "`optimizer.read_roles(model)` does not know their layers. Before "
        "the first step, call `optimizer.assign_role(role, variables, "
        "input_axes, output_axes)` to set them by hand.",
    )
    return list(zip(variables, found, strict=True))

"""Roles and matrix views from paths, names, shapes and siblings alone.

An optimizer is given no more than that: the bias next to a kernel, the output
projection next to a query. Where nothing explains a tensor of rank 2 or more,
`infer_roles` guesses and warns.
"""

import dataclasses
import itertools
import re
import warnings
from collections.abc import Callable
from collections.abc import Sequence

from keras_lanton.roles.names import KERNEL_NAMES
from keras_lanton.roles.names import MATRIX
from keras_lanton.roles.names import NORM
from keras_lanton.roles.names import TABLE
from keras_lanton.roles.names import TRANSPOSED
from keras_lanton.roles.names import VECTOR
from keras_lanton.roles.names import pattern
from keras_lanton.roles.siblings import CONVOLUTION
from keras_lanton.roles.siblings import NamedVariable
from keras_lanton.roles.siblings import Siblings
from keras_lanton.roles.siblings import find_heads
from keras_lanton.roles.siblings import guess
from keras_lanton.roles.siblings import head
from keras_lanton.roles.siblings import last_output
from keras_lanton.roles.siblings import spec_of
from keras_lanton.roles.siblings import table
from keras_lanton.roles.siblings import transposed
from keras_lanton.roles.siblings import vector
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import in_words
from keras_lanton.types import Variable

# From paths, shapes and siblings: each rule answers or passes.

_Rule = Callable[[NamedVariable, Siblings], VariableSpec | None]

_HEAD_TABLE = pattern(r"reverse_embeddings?")
_DEPTHWISE = pattern(r"depthwise", r"(^|_)dw")
_UPSAMPLING = pattern(r"(^|_)(up|upsampl\w*|dec|decoder|gen\w*)(\d|_|$)")
_EXPERT = pattern(r"expert", r"(^|[/_])moe([/_]|$)", r"mixture")
_PROJECTION = r"_?(dense|proj|projection|layer|kernel)?"
_QUERY = pattern(rf"(w_?|to_)?(query|q){_PROJECTION}")
_KEY = pattern(rf"(w_?|to_)?(key|k){_PROJECTION}")
_ATTENTION_CORE = pattern(rf"(w_?|to_)?(query|key|value|q|k|v){_PROJECTION}")
_ATTENTION_INPUT = pattern(_ATTENTION_CORE.pattern, r"gate", r"encoding")
_ATTENTION_OUTPUT = pattern(
    rf"(attention_output|(w_?|to_)?(output|out|o)){_PROJECTION}"
)
_FUSED_QKV = pattern(rf"(to_|w)?(query_key_value|qkv){_PROJECTION}")


def by_rank_or_name(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """Vectors and tables, by their own names."""
    if variable.rank < 2 or VECTOR.fullmatch(variable.name):
        return vector(variable)
    if variable.name == "weight" and NORM.fullmatch(variable.owner):
        return vector(variable)
    if variable.rank == 2 and _HEAD_TABLE.fullmatch(variable.name):
        return head(variable)
    single = sum(size != 1 for size in variable.shape) < 2
    if single and variable.rank > 2 and variable.name not in KERNEL_NAMES:
        return vector(variable)
    if TABLE.fullmatch(variable.name):
        return table(variable)
    if variable.rank > 2 and variable.name == "pointwise_kernel":
        return last_output(variable)
    if variable.rank == 2 and re.fullmatch(r"conv\dd_kernel", variable.name):
        return vector(variable)
    return None


def _by_recurrence(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """The gates: what the recurrent kernel has more columns than rows."""
    recurrent = siblings.sibling(variable, "recurrent_kernel")
    if recurrent is None or recurrent.rank < 2:
        return _by_cell_name(variable)
    *_, units, columns = recurrent.shape
    gates, rest = divmod(columns, units)
    fits = rest == 0 and variable.shape[-1] == columns
    known = fits and "kernel" in variable.name
    return last_output(variable, blocks=gates) if known else None


def _by_cell_name(variable: NamedVariable) -> VariableSpec | None:
    """The gates of a kernel whose recurrent kernel is frozen."""
    cell = re.search(r"(lstm|gru)_cell(_\d+)?/kernel$", variable.path)
    if cell is None:
        return None
    gates = {"lstm": 4, "gru": 3}[cell[1]]
    fits = variable.shape[-1] % gates == 0
    return last_output(variable, blocks=gates) if fits else None


def _by_rank_two(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """(in, out), by its name; (out, in) may be, by the length of its bias."""
    if variable.rank != 2:
        return None
    rows, columns = variable.shape
    named = variable.name in KERNEL_NAMES and rows != columns
    if named and siblings.channels(variable) == (rows,):
        return guess(transposed(variable))
    known = MATRIX.fullmatch(variable.name)
    return last_output(variable) if known else guess(last_output(variable))


def _by_expert(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """Kernels of shape (experts, in, out)."""
    names = "/".join(variable.path.split("/")[-3:])
    if variable.rank != 3 or not _EXPERT.search(names):
        return None
    attention = siblings.in_block(variable, _QUERY) is not None
    if attention or CONVOLUTION.search(names):
        return None
    return experts(variable, siblings)


def experts(variable: NamedVariable, siblings: Siblings) -> VariableSpec:
    """The spec of a mixture-of-experts kernel (experts, in, out)."""
    # Qwen's gate holds gate and up as two halves: its width is twice what the
    # output kernel takes in. GPT-OSS interleaves the two (`gate_up_proj`), so
    # no contiguous block is a matrix of its own and it stays one.
    name = variable.name.replace("gate", "output")
    output = siblings.sibling(variable, name) if name != variable.name else None
    halves = output is not None and variable.shape[2] == 2 * output.shape[1]
    return spec_of(
        variable, batch=(0,), outputs=(2,), blocks=2 if halves else 1
    )


def _by_depthwise_name(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    named = _DEPTHWISE.search(variable.subject)
    return vector(variable) if named and variable.name == "kernel" else None


def _by_channels(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """A bias has the shape of the output axes, trailing ones first."""
    channels = siblings.channels(variable)
    if channels is None:
        return None
    *_, before, last = variable.shape
    upwards = TRANSPOSED.search(variable.subject) is not None
    if channels == (before,) == (last,) and _is_doubtful(variable):
        return None
    if channels == (before,) and (upwards or before != last):
        depthwise = last == 1 and not upwards
        return vector(variable) if depthwise else transposed(variable)
    if channels == (before * last,) and last != 1 and before != 1:
        return vector(variable)
    found = _matching_axes(channels, variable.shape)
    return _by_output_axes(variable, siblings, found) if found else None


def _by_output_axes(
    variable: NamedVariable,
    siblings: Siblings,
    found: Sequence[tuple[int, ...]],
) -> VariableSpec:
    """A view by the axes that may be the bias's.

    The last ones alone are proof, or one that is alone. Others are of Gemma's
    attention, (heads, model, head) beside (heads, head), or more likely of a
    stack of matrices.
    """
    count = len(found[0])
    last = tuple(range(variable.rank - count, variable.rank))
    if count == 1 or found == [last]:
        return spec_of(variable, outputs=found[-1])
    if all(siblings.in_block(variable, name) for name in (_QUERY, _KEY)):
        attention = _by_attention(variable, siblings)
        if attention is not None and attention.output_axes in found:
            return attention
    return guess(_stack(variable, found))


def _matching_axes(
    channels: Sequence[int], shape: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """All axes of a shape that have the sizes of a bias, in order.

    A bias of equal rank is broadcast: (n, 1, out) beside (n, in, out).
    """
    axes = [*range(len(shape))]
    if len(channels) == len(shape):
        axes = [axis for axis in axes if channels[axis] != 1]
        channels = [channels[axis] for axis in axes]
    return [
        chosen
        for chosen in itertools.combinations(axes, len(channels))
        if 0 < len(chosen) < len(shape)
        and all(shape[i] == k for i, k in zip(chosen, channels, strict=True))
    ]


def _stack(
    variable: NamedVariable, found: Sequence[tuple[int, ...]]
) -> VariableSpec:
    """A stack of matrices: outputs are what follows the last input axis."""
    last = variable.rank - 1
    axes = next((axes for axes in found if axes[-1] == last), found[0])
    inputs = [axis for axis in range(variable.rank) if axis not in axes]
    outputs = tuple(axis for axis in axes if axis > inputs[-1]) or axes[-1:]
    batch = tuple(axis for axis in axes if axis not in outputs)
    return spec_of(variable, batch=batch, outputs=outputs)


def _by_attention(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    """Query, key, value (model, heads, head), Gemma's (heads, model, head).

    The heads axis of the query is where the first axis of the output
    projection (heads, head, model) is found again. XLNet's output kernel has
    the shape of its query, (model, heads, head).
    """
    if variable.rank < 3:
        return None
    if _FUSED_QKV.fullmatch(variable.subject):
        return spec_of(variable, outputs=tuple(range(1, variable.rank)))
    if variable.rank != 3:
        return None
    query = siblings.in_block(variable, _QUERY)
    output = siblings.in_block(variable, _ATTENTION_OUTPUT)
    reverse = (
        query is not None
        and output is not None
        and query.shape == output.shape
        and query.shape[0] > query.shape[1]
    )
    if _ATTENTION_OUTPUT.fullmatch(variable.subject):
        return spec_of(variable, outputs=(0,) if reverse else (2,))
    known = query or _ATTENTION_CORE.fullmatch(variable.subject)
    if not known or not _ATTENTION_INPUT.fullmatch(variable.subject):
        return None
    model, heads = (query or variable).shape[:2]
    heads_first = heads > model
    if output is not None and model != heads and not reverse:
        if output.shape[0] in (model, heads):
            heads_first = output.shape[0] == model
    return spec_of(variable, outputs=(0, 2) if heads_first else (1, 2))


def _by_convolution(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    if variable.name not in KERNEL_NAMES:
        return None
    if TRANSPOSED.search(variable.subject):
        return transposed(variable)
    if CONVOLUTION.search(variable.subject):
        return last_output(variable)
    # Without a telling name or bias, rank 4 and 5 are almost always plain
    # convolutions; a single last channel may be a depthwise kernel.
    doubtful = variable.shape[-1] == 1 or _is_doubtful(variable)
    if variable.rank in (4, 5) and not doubtful:
        return last_output(variable)
    return None


def _is_doubtful(variable: NamedVariable) -> bool:
    """Returns whether it may be a transposed convolution, as of a decoder."""
    told = CONVOLUTION.search(variable.subject)
    told = told or TRANSPOSED.search(variable.subject)
    return not told and _UPSAMPLING.search(variable.subject) is not None


_RULES: tuple[_Rule, ...] = (
    by_rank_or_name,
    _by_recurrence,
    _by_rank_two,
    _by_expert,
    _by_depthwise_name,
    _by_channels,
    _by_attention,
    _by_convolution,
)


def apply_rules(siblings: Siblings) -> list[VariableSpec]:
    """Per variable the first rule's answer, or else a guess."""
    found = []
    for variable in siblings.members:
        answers = (rule(variable, siblings) for rule in _RULES)
        spec = next((answer for answer in answers if answer), None)
        found.append(spec or guess(last_output(variable)))
    return found


def infer_roles(
    variables: Sequence[Variable],
    given: Sequence[VariableSpec | None] | None = None,
) -> tuple[VariableSpec, ...]:
    """Roles and views from paths, names, shapes and siblings alone.

    Where these leave a tensor of rank 2 or more open, it is taken as hidden,
    and one warning names all such paths.

    Args:
        variables: Trainable variables, in the optimizer's order.
        given: Per variable the record that is already known, or `None`.
            Known records are returned as they are and never warned about.

    Returns:
        One record per variable, in the same order.
    """
    siblings = Siblings(variables)
    found = apply_rules(siblings)
    for index in find_heads(siblings, found):
        found[index] = dataclasses.replace(found[index], role="embedding")
    known = given or [None] * len(found)
    warn_of_guesses(
        [new for new, old in zip(found, known, strict=True) if old is None],
        "neither their names nor their siblings explain them. Before the "
        "first step, call `optimizer.read_roles(model)` to read what the "
        "model's layers tell, or `optimizer.assign_role(role, variables, "
        "input_axes, output_axes)` to set them by hand.",
    )
    return tuple(old or new for new, old in zip(found, known, strict=True))


def warn_of_guesses(specs: Sequence[VariableSpec], reason: str) -> None:
    """One warning that names all variables whose roles and views are guesses.

    Args:
        specs: Of the variables, guesses and others.
        reason: Why they are guesses, and what helps.
    """
    guesses = [
        f"{spec.path} {spec.shape} as {in_words(spec)}"
        for spec in specs
        if spec.guessed
    ]
    if guesses:
        warnings.warn(
            "The roles and matrix views of these variables are guesses: "
            f"{'; '.join(guesses)}; {reason}",
            stacklevel=3,
        )

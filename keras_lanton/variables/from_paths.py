"""Roles and matrix views from paths, names, shapes and siblings alone.

An optimizer is given no more than that: the bias next to a kernel, the output
projection next to a query. Where nothing explains a tensor of rank 3 or more,
`infer_roles` guesses and warns.
"""

import dataclasses
import itertools
import os
import re
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from keras_lanton.types import Variable
from keras_lanton.variables.siblings import CONVOLUTION
from keras_lanton.variables.siblings import KERNEL_NAMES
from keras_lanton.variables.siblings import NamedVariable
from keras_lanton.variables.siblings import Siblings
from keras_lanton.variables.siblings import head
from keras_lanton.variables.siblings import last_output
from keras_lanton.variables.siblings import pattern
from keras_lanton.variables.siblings import spec_of
from keras_lanton.variables.siblings import table
from keras_lanton.variables.siblings import transposed
from keras_lanton.variables.siblings import vector
from keras_lanton.variables.spec import VariableSpec

# From paths, shapes and siblings: each rule answers or passes.

_Rule = Callable[[NamedVariable, Siblings], VariableSpec | None]


VECTOR = pattern(
    r"(.*_)?(bias|beta|gamma|alpha|gain|scales?|scalar|lambda|sinks?)_?\d*",
    r"b\d*",
    r"(cls|class|mask|register|dist\w*|query|latent)_tokens?",
    r"depthwise_kernel",
)
_TABLE = pattern(
    r"(.*_)?(embeddings?|embeds?|emb|table|wte|wpe)",
    r"lora_embeddings_a",
    r"rel_pos_\w+",
)
_HEAD_TABLE = pattern(r"reverse_embeddings?")
_DEPTHWISE = pattern(r"depthwise", r"(^|_)dw")
_TRANSPOSED = pattern(r"transpose", r"deconv")
_UPSAMPLING = pattern(r"(^|_)(up|upsampl\w*|dec|decoder|gen\w*)(\d|_|$)")
_EXPERT = pattern(r"expert", r"(^|[/_])moe([/_]|$)", r"mixture")
_PROJECTION = r"_?(dense|proj|projection|layer|kernel)?"
_QUERY = pattern(rf"(w_?|to_)?(query|q){_PROJECTION}")
_ATTENTION_CORE = pattern(rf"(w_?|to_)?(query|key|value|q|k|v){_PROJECTION}")
_ATTENTION_INPUT = pattern(_ATTENTION_CORE.pattern, r"gate", r"encoding")
_ATTENTION_OUTPUT = pattern(
    rf"(attention_output|(w_?|to_)?(output|out|o)){_PROJECTION}"
)
_FUSED_QKV = pattern(rf"(to_|w)?(query_key_value|qkv){_PROJECTION}")


def _by_rank_or_name(
    variable: NamedVariable, siblings: Siblings
) -> VariableSpec | None:
    if variable.rank < 2 or VECTOR.fullmatch(variable.name):
        return vector(variable)
    if variable.rank == 2 and _HEAD_TABLE.fullmatch(variable.name):
        return head(variable)
    single = sum(size != 1 for size in variable.shape) < 2
    if single and variable.rank > 2 and variable.name not in KERNEL_NAMES:
        return vector(variable)
    if _TABLE.fullmatch(variable.name):
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
    return last_output(variable) if variable.rank == 2 else None


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
    """The spec of a mixture-of-experts kernel (experts, in, out).

    Args:
        variable: The kernel.
        siblings: All variables.
    """
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
    upwards = _TRANSPOSED.search(variable.subject) is not None
    if channels == (before,) and (upwards or before != last):
        depthwise = last == 1 and not upwards
        return vector(variable) if depthwise else transposed(variable)
    if channels == (before * last,) and last != 1 and before != 1:
        return vector(variable)
    axes = itertools.combinations(range(variable.rank), len(channels))
    for outputs in reversed(list(axes)):
        if channels == tuple(variable.shape[axis] for axis in outputs):
            return spec_of(variable, outputs=outputs)
    return None


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
    if _TRANSPOSED.search(variable.subject):
        return transposed(variable)
    if CONVOLUTION.search(variable.subject):
        return last_output(variable)
    # Without a telling name or bias, rank 4 and 5 are almost always plain
    # convolutions; a single last channel may be a depthwise kernel, and a
    # decoder's a transposed one.
    doubtful = variable.shape[-1] == 1 or _UPSAMPLING.search(variable.subject)
    if variable.rank in (4, 5) and not doubtful:
        return last_output(variable)
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


def apply_rules(siblings: Siblings) -> tuple[list[VariableSpec], set[int]]:
    """Per variable the first rule's answer, and which ones are guesses."""
    found = []
    guesses = set()
    for variable in siblings.members:
        answers = (rule(variable, siblings) for rule in _RULES)
        spec = next((answer for answer in answers if answer), None)
        if spec is None:
            guesses.add(variable.index)
            spec = dataclasses.replace(last_output(variable), guessed=True)
        found.append(spec)
    return found, guesses


# Heads: the Dense that maps back to the vocabulary.

_NO_VOCABULARY = pattern(r"pos", r"wpe", r"segment", r"type", r"(^|[/_])rel")
_HEAD_NAME = pattern(
    r"(^|_)(head|lm|logits?|unembed(ding)?s?|vocab(ulary)?)(\d|_|$)"
)


def find_heads(
    siblings: Siblings, tables: Iterable[int], kernels: Iterable[int]
) -> set[int]:
    """Indices of the kernels (width, vocab) with a table (vocab, width).

    A telling name decides. Without one, a head is a kernel whose output no
    other kernel takes in. It comes after all kernels of `vocab` rows, and
    none of them is in its own block: a feedforward layer may be as wide as
    the vocabulary.
    """
    dense = [siblings.members[index] for index in kernels]
    paths = [member.parent.split("/") for member in siblings.members]
    root = "/".join(os.path.commonprefix(paths))
    heads: set[int] = set()
    for member in (siblings.members[index] for index in tables):
        if _NO_VOCABULARY.search(f"{member.owner}/{member.name}"):
            continue
        vocab, width = member.shape
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


def find_tables(siblings: Siblings, found: Sequence[VariableSpec]) -> list[int]:
    """Positions of the embedding tables (vocab, width).

    Args:
        siblings: All variables.
        found: Their specs.
    """
    return [
        variable.index
        for variable, spec in zip(siblings.members, found, strict=True)
        if variable.rank == 2
        and spec.role == "embedding"
        and variable.name == "embeddings"
    ]


def dense_kernels(
    siblings: Siblings, found: Sequence[VariableSpec]
) -> list[int]:
    """Positions of the hidden kernels (in, out) of dense layers.

    Args:
        siblings: All variables.
        found: Their specs.
    """
    return [
        variable.index
        for variable, spec in zip(siblings.members, found, strict=True)
        if spec.role == "hidden"
        and variable.rank == 2
        and variable.name in ("kernel", "output_kernel")
        and siblings.sibling(variable, "recurrent_kernel") is None
    ]


def infer_roles(
    variables: Sequence[Variable],
    given: Sequence[VariableSpec | None] | None = None,
) -> tuple[VariableSpec, ...]:
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
    siblings = Siblings(variables)
    found, guesses = apply_rules(siblings)
    heads = find_heads(
        siblings, find_tables(siblings, found), dense_kernels(siblings, found)
    )
    for index in heads:
        found[index] = head(siblings.members[index])
    for index, spec in enumerate(given or ()):
        if spec is not None:
            found[index] = spec
            guesses.discard(index)
    warn_of_guesses(
        [found[index] for index in sorted(guesses)],
        "neither their names nor their siblings explain them. Before the "
        "first step, call `optimizer.read_roles(model)` to read them from the "
        "model's layers, or `optimizer.assign_role(role, variables, "
        "input_axes, output_axes)` to set them by hand.",
    )
    return tuple(found)


def warn_of_guesses(guesses: Sequence[VariableSpec], reason: str) -> None:
    """One warning that names all variables whose views are guesses.

    Args:
        guesses: Their specs.
        reason: Why they are guesses, and what helps.
    """
    if not guesses:
        return
    listed = ", ".join(f"{spec.path} {spec.shape}" for spec in guesses)
    warnings.warn(
        "The matrix views of these variables are guesses (the last axis as "
        f"output, all others as input): {listed}; {reason}",
        stacklevel=3,
    )

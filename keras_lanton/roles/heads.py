"""Heads: the matrices that map back to the vocabulary."""

import os
from collections.abc import Sequence

from keras_lanton.roles.names import pattern
from keras_lanton.roles.siblings import NamedVariable
from keras_lanton.roles.siblings import Siblings
from keras_lanton.roles.spec import VariableSpec

_TABLES = ("embeddings", "embedding", "weight")
_KERNELS = ("kernel", "output_kernel", "weight", "w")
_NO_VOCABULARY = pattern(r"pos", r"wpe", r"segment", r"type", r"(^|[/_])rel")
_HEAD_NAME = pattern(
    r"(^|_)(head|lm|logits?|unembed(ding)?s?|vocab(ulary)?)(\d|_|$)"
)


def find_heads(siblings: Siblings, found: Sequence[VariableSpec]) -> set[int]:
    """Positions of the kernels width -> vocabulary, where there is a table.

    A telling name decides. Without one, a head is a kernel whose output no
    other kernel takes in. It comes after all kernels that take in as much as
    the vocabulary, and none of them is in its own block: a feedforward layer
    may be as wide as the vocabulary.

    Args:
        siblings: All variables.
        found: Their specs so far, where heads are hidden.
    """
    dense = _dense_kernels(siblings, found)
    paths = [member.parent.split("/") for member in siblings.members]
    root = "/".join(os.path.commonprefix(paths))
    heads: set[int] = set()
    for vocab, width in _tables(siblings, found):
        sizes = (width, vocab)
        back = [k for k in dense if _sizes(found[k.index]) == sizes]
        named = [k for k in back if _HEAD_NAME.search(k.subject)]
        takers = [k for k in dense if found[k.index].d_in == vocab]
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


def _sizes(spec: VariableSpec) -> tuple[int, int]:
    return spec.d_in, spec.d_out


def _tables(
    siblings: Siblings, found: Sequence[VariableSpec]
) -> list[tuple[int, int]]:
    """Vocabulary and width of the tables of tokens."""
    return [
        (spec.d_out, spec.d_in)
        for variable, spec in zip(siblings.members, found, strict=True)
        if variable.rank == 2
        and spec.role == "embedding"
        and variable.name in _TABLES
        and not _NO_VOCABULARY.search(f"{variable.owner}/{variable.name}")
    ]


def _dense_kernels(
    siblings: Siblings, found: Sequence[VariableSpec]
) -> list[NamedVariable]:
    """The hidden kernels of dense layers."""
    return [
        variable
        for variable, spec in zip(siblings.members, found, strict=True)
        if spec.role == "hidden"
        and variable.rank == 2
        and variable.name in _KERNELS
        and siblings.sibling(variable, "recurrent_kernel") is None
    ]

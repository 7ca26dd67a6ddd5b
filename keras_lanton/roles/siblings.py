"""Variables by their names and siblings: common specs of them, and heads."""

import collections
import dataclasses
import os
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keras_lanton.roles.names import KERNEL_NAMES
from keras_lanton.roles.names import pattern
from keras_lanton.roles.spec import VariableSpec
from keras_lanton.roles.spec import make_spec
from keras_lanton.roles.spec import variable_path
from keras_lanton.roles.spec import vector_spec
from keras_lanton.types import Variable

CONVOLUTION = pattern(r"conv", r"patch", r"stem", r"shortcut", r"downsample")
_TABLES = ("embeddings", "embedding", "weight")
_KERNELS = ("kernel", "output_kernel", "weight", "w")
_NO_VOCABULARY = pattern(r"pos", r"wpe", r"segment", r"type", r"(^|[/_])rel")
_HEAD_NAME = pattern(
    r"(^|_)(head|lm|logits?|unembed(ding)?s?|vocab(ulary)?)(\d|_|$)"
)
_BIASES = {"w": "b", "weights": "biases", "kernels": "biases"}


@dataclasses.dataclass(frozen=True)
class NamedVariable:
    """A variable as an optimizer sees it, and its place among the others."""

    path: str
    shape: tuple[int, ...]
    index: int

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> str:
        """The path without its last part."""
        return self.path.rpartition("/")[0]

    @property
    def owner(self) -> str:
        """Name of the layer that holds it."""
        return self.parent.rpartition("/")[2]

    @property
    def subject(self) -> str:
        """The telling name: the layer's, if the variable is called `kernel`."""
        return self.owner if self.name in KERNEL_NAMES else self.name

    @property
    def block(self) -> str:
        """The path above the subject."""
        if self.name in KERNEL_NAMES:
            return self.parent.rpartition("/")[0]
        return self.parent


class Siblings:
    """All variables of an optimizer, to look up siblings.

    Paths may repeat (two layers of one name, bare `tf.Variable`s): of several
    candidates the nearest in order is the sibling, the later one of two.

    Args:
        variables: All variables.
        paths: Other paths than the variables' own, by their `id`.
    """

    def __init__(
        self,
        variables: Iterable[Variable],
        paths: Mapping[int, str] | None = None,
    ) -> None:
        paths = paths or {}
        self.members = [
            NamedVariable(
                paths.get(id(variable)) or variable_path(variable),
                tuple(variable.shape),
                index,
            )
            for index, variable in enumerate(variables)
        ]
        self._parents = collections.defaultdict(list)
        self._blocks = collections.defaultdict(list)
        for member in self.members:
            self._parents[member.parent].append(member)
            self._blocks[member.block].append(member)

    def sibling(
        self, variable: NamedVariable, name: str
    ) -> NamedVariable | None:
        """The variable of that name in the same layer."""
        found = [m for m in self._parents[variable.parent] if m.name == name]
        return _nearest(variable, found)

    def in_block(
        self, variable: NamedVariable, subject: re.Pattern[str]
    ) -> NamedVariable | None:
        """The same variable of the neighbor layer with such a name."""
        found = [
            member
            for member in self._blocks[variable.block]
            if subject.fullmatch(member.subject)
            and member.rank == variable.rank
        ]
        return _nearest(variable, found)

    def channels(self, variable: NamedVariable) -> tuple[int, ...] | None:
        """Shape of the layer's output axes: its bias's, or the next norm's."""
        if variable.name.startswith("lora"):
            return None
        for name in ("bias", _BIASES.get(variable.name, "bias")):
            bias = self.sibling(variable, name)
            if bias is not None:
                return bias.shape
        following = self.members[variable.index + 1 : variable.index + 2]
        for gain in following:
            named = CONVOLUTION.search(variable.subject)
            if variable.rank > 3 and gain.name == "gamma" and not named:
                return gain.shape
        return None


def _nearest(
    variable: NamedVariable, found: Sequence[NamedVariable]
) -> NamedVariable | None:
    def distance(member: NamedVariable) -> tuple[int, bool]:
        ahead = member.index - variable.index
        return abs(ahead), ahead < 0

    return min(found, key=distance, default=None)


def spec_of(
    variable: NamedVariable, role: str = "hidden", **axes: Any
) -> VariableSpec:
    """`make_spec` of a named variable.

    Args:
        variable: The variable.
        role: Its role.
        **axes: Arguments of `make_spec`.
    """
    return make_spec(variable.path, variable.shape, role, **axes)


def guess(spec: VariableSpec) -> VariableSpec:
    """The same spec, as one that nothing explains."""
    return dataclasses.replace(spec, guessed=True)


def vector(variable: NamedVariable) -> VariableSpec:
    """A vector, whatever its rank."""
    return vector_spec(variable.path, variable.shape)


def last_output(variable: NamedVariable, blocks: int = 1) -> VariableSpec:
    """The last axis as output, all others as input."""
    return spec_of(variable, outputs=(variable.rank - 1,), blocks=blocks)


def transposed(variable: NamedVariable) -> VariableSpec:
    """The second last axis as output, all others as input."""
    return spec_of(variable, outputs=(variable.rank - 2,))


def table(variable: NamedVariable) -> VariableSpec:
    """An embedding table: the last axis is the layer's input."""
    return spec_of(
        variable, "embedding", outputs=tuple(range(variable.rank - 1))
    )


def head(variable: NamedVariable) -> VariableSpec:
    """A head `(width, vocab)`."""
    return spec_of(variable, "embedding", outputs=(1,))


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

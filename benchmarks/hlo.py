"""The collectives of a compiled JAX program, read from its HLO text."""

import collections
import functools
import math
import re

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)
BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1}
HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
INSTRUCTION = re.compile(
    r"\s*(?:ROOT )?%?\S+ = (?P<shapes>.*?) (?P<kind>[a-z][a-z\-]*)\("
)
SHAPE = re.compile(rf"({'|'.join(BYTES)})\[([\d,]*)\]")
CALLED = re.compile(
    r"(?:calls|to_apply|body|branch_computations|true_computation|"
    r"false_computation)=\{?((?:%?[\w.\-]+(?:, )?)+)\}?"
)
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def collectives(text):
    """Bytes of the results of collectives on one device, by kind.

    Of a conditional's branches the one counts that moves most; a loop's body
    counts as often as it is known to run, or once.
    """
    computations, entry = parse(text)

    @functools.cache
    def total(name):
        found = collections.Counter()
        for line, instruction in computations[name]:
            kind = instruction["kind"].removesuffix("-start")
            if kind in KINDS:
                found[kind] += size_of(instruction["shapes"])
            inner = [total(one) for one in called_by(line, computations)]
            if kind == "conditional":
                inner = [max(inner, key=collections.Counter.total)]
            turns = TURNS.search(line)
            for one in inner:
                for key, size in one.items():
                    found[key] += size * (int(turns[1]) if turns else 1)
        return found

    return dict(total(entry))


def parse(text):
    """The instructions of each computation, and the first one's name."""
    computations, name, entry = {}, None, None
    for line in text.splitlines():
        head = HEAD.match(line)
        instruction = INSTRUCTION.match(line)
        if head and not line.startswith(" "):
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        elif name is not None and instruction is not None:
            computations[name].append((line, instruction))
    return computations, entry


def called_by(line, computations):
    """Names of the computations that an instruction calls."""
    names = ",".join(CALLED.findall(line)).split(",")
    return [
        name.strip("% ") for name in names if name.strip("% ") in computations
    ]


def size_of(shapes):
    """Bytes of all arrays in a text such as `(f32[2,3], f32[4])`."""
    return sum(
        BYTES[dtype] * math.prod(map(int, filter(None, sides.split(","))))
        for dtype, sides in SHAPE.findall(shapes)
    )

"""What a compiled JAX program does, read from its HLO text."""

import functools
import re

import numpy as np

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)
BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1}
INSTRUCTION = re.compile(
    r"\s*(?:ROOT )?%?(?P<name>\S+) = (?P<shapes>.*?) (?P<kind>[a-z][a-z\-]*)\("
)
SHAPE = re.compile(rf"({'|'.join(BYTES)})\[([\d,]*)\]")
CALLED = re.compile(
    r"(?:calls|to_apply|body|branch_computations|true_computation|"
    r"false_computation)=\{?((?:%?[\w.\-]+(?:, )?)+)\}?"
)
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
PRODUCT = re.compile(r"dot\(.*?%([\w.\-]+),.*lhs_contracting_dims=\{([\d,]*)\}")


def collectives(text):
    """How many, and the bytes of their results.

    Per device. Of a conditional's branches the one counts that moves most; a
    loop's body counts as often as it is known to run, or once.

    Returns:
        `{kind: (number, bytes)}`.
    """

    def measure(line, instruction, shapes):
        kind = instruction["kind"].removesuffix("-start")
        if kind not in KINDS:
            return {}
        found = SHAPE.findall(instruction["shapes"])
        return {kind: (1, sum(BYTES[b] * entries(d) for b, d in found))}

    return count(text, measure)


def moved_bytes(text):
    """The sum over all kinds of `collectives`."""
    return amount(collectives(text))


def product_flops(text):
    """Of all matrix products on one device; counted as `collectives`."""

    def measure(line, instruction, shapes):
        product = PRODUCT.search(line)
        if instruction["kind"] != "dot" or product is None:
            return {}
        left = [int(n) for n in shapes[product[1]].split(",")]
        summed = [left[int(i)] for i in product[2].split(",")]
        (_, result), *_ = SHAPE.findall(instruction["shapes"])
        return {"dot": (1, 2 * entries(result) * int(np.prod(summed)))}

    return amount(count(text, measure))


def entries(dimensions):
    """How many numbers `"2,3"` has."""
    return int(np.prod([int(n) for n in dimensions.split(",") if n]))


def count(text, measure):
    """Sums of what a function finds in each instruction of a module."""
    computations, shapes, name, entry = {}, {}, None, None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        instruction = INSTRUCTION.match(line)
        if head and not line.startswith(" "):
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        elif name is not None and instruction is not None:
            computations[name].append((line, instruction))
            shape = SHAPE.search(instruction["shapes"])
            shapes[instruction["name"]] = shape[2] if shape else ""

    @functools.cache
    def total(name):
        found = {}
        for line, instruction in computations[name]:
            add(found, measure(line, instruction, shapes))
            called = [
                one.strip("% ")
                for names in CALLED.findall(line)
                for one in names.split(",")
            ]
            inner = [total(one) for one in called if one in computations]
            if instruction["kind"] == "conditional":
                inner = [
                    max(inner, key=lambda c: sum(b for _, b in c.values()))
                ]
            turns = TURNS.search(line)
            for one in inner:
                add(found, one, int(turns[1]) if turns else 1)
        return found

    return total(entry)


def amount(found):
    """All kinds together."""
    return sum(size for _, size in found.values())


def add(total, found, times=1):
    """Add so many times what was found."""
    for kind, (number, size) in found.items():
        n, s = total.get(kind, (0, 0))
        total[kind] = (n + times * number, s + times * size)

"""What a step of Lanton should take on an H100, from bytes and operations.

    KERAS_BACKEND=torch python benchmarks/roofline.py

Each operation takes the longer of two times: its bytes over the memory's
bandwidth, its products over the tensor cores' peak. Both are the maker's
figures for an H100 SXM: 3.35 TB/s, and 989 TFLOP/s of float16 with sums in
float32. Launches, which a GPU hides while others run, are left out. Nothing
runs: the first measured step can be held against this.
"""

import dataclasses

import common
import memory

BANDWIDTH = 3.35e12  # bytes per second
PEAK = 989e12  # FLOP per second
INTERVAL = 10  # steps in which each matrix is measured once
# Passes over float32 numbers, by part: tensors read and written.
MOMENTUM = 3  # B <- lerp(B, G)
NESTEROV = 3  # M = lerp(B, G)
GATHERING = 2  # M into a stack
UPDATE = 2 + 2 + 3  # rate O; decay X; X + O
SIGN = 2
ADAMW = 3 + 4 + 6 + 5  # both moments, the direction, the update
SAMPLE = 3 + 2 + 2  # G - G', the inner product, G kept


@dataclasses.dataclass
class Time:
    """Seconds, by what bounds them."""

    bytes: float = 0.0
    products: float = 0.0

    def add(self, count, *, flops=0.0, size=0.0):
        """Some operations of so many FLOP and bytes each."""
        by_bytes, by_products = size / BANDWIDTH, flops / PEAK
        if by_bytes > by_products:
            self.bytes += count * by_bytes
        else:
            self.products += count * by_products


def add_product(time, count, m, k, n):
    """A product of float16 matrices (m, k) and (k, n)."""
    size = 2 * (m * k + k * n + m * n)
    time.add(count, flops=2 * m * k * n, size=size)


def add_polar_factors(time, count, d_in, d_out, rows):
    """Newton-Schulz of some matrices, in the form that a GPU takes."""
    from keras_lanton.core.newton_schulz import newton_schulz
    from keras_lanton.fast.dispatch import cheapest_form

    s, length = sorted((d_in, d_out))
    form = cheapest_form(d_in, d_out, rows=rows, dtype="float16")
    squares = sum(c != 0 for _, _, c in rows)
    if form.func is newton_schulz:
        starts, rounds = 0, len(rows)
    else:
        starts = rounds = 1 + len(form.keywords["restarts"])
    for _ in range(rounds):
        add_product(time, count, s, length, s)
        add_product(time, count, s, s, length)
    symmetric = squares + 3 * (len(rows) - starts) * bool(starts)
    for _ in range(symmetric):
        add_product(time, count, s, s, s)
    entries = count * s * length
    # The norm; normalized to float16; back to float32.
    time.add(1, size=(4 + 6 + 6) * entries)


def parts(optimizer):
    """A `Time` for each part of a step."""
    from keras_lanton.coefficients import coefficient_rows

    found = {
        name: Time()
        for name in (
            "products, norms and casts",
            "noise",
            "momentum and update of hidden kernels",
            "tables and heads",
            "vectors (AdamW)",
        )
    }
    polar, noise, hidden, tables, vectors = found.values()
    for stack in [work.stack for work in optimizer._work.stacks]:
        entries = len(stack) * stack.rows * stack.columns
        passes = MOMENTUM + NESTEROV + GATHERING + UPDATE
        time = hidden if stack.role == "hidden" else tables
        time.add(passes, size=4 * entries)
        if stack.role == "hidden":
            shape = len(stack), stack.rows, stack.columns
            add_polar_factors(polar, *shape, optimizer.newton_schulz.rows)
            some = len(stack) / INTERVAL, stack.rows, stack.columns
            add_polar_factors(noise, *some, coefficient_rows("you", 5))
        else:
            tables.add(SIGN, size=4 * entries)
        noise.add(SAMPLE / INTERVAL, size=4 * entries)
    for spec in optimizer.updated_specs:
        if spec.role in optimizer.adamw_roles:
            vectors.add(ADAMW, size=4 * spec.d_in * spec.d_out * spec.batch)
    return found


def main(argv=None):
    """Print the table and write it."""
    args = common.parse(common.make_parser(__doc__), argv)
    common.pretend()
    from keras_lanton import Lanton

    rows = []
    for name, large in (("gpt2", False), ("llama", True)):
        specs = list(common.model_specs(name, quick=args.quick, large=large))
        optimizer, variables = memory.build(Lanton, specs)
        found = parts(optimizer)
        whole = Time(
            sum(t.bytes for t in found.values()),
            sum(t.products for t in found.values()),
        )
        weights = memory.size_of(variables) / 4e6
        rows += [
            {
                "model": f"{name}, {weights:,.0f} M weights",
                "part": part,
                "ms": 1e3 * (time.bytes + time.products),
                "ms bound by products": 1e3 * time.products,
                "ms bound by bytes": 1e3 * time.bytes,
            }
            for part, time in {**found, "whole step": whole}.items()
        ]
    common.write(args, "roofline", rows, expected="H100 SXM")


if __name__ == "__main__":
    main()

"""Take the time of a step of Lanton apart, for GPT-2 small.

    KERAS_BACKEND=jax python benchmarks/parts.py

Each part is a difference of two steps, or a step of some of the variables
alone, so that it is the same on a backend that compiles the step as a whole:

- noise: the step less that with `noise=None`;
- products: that, less one whose polar factor is the matrix itself;
- the rest of hidden kernels, tables and heads, vectors (AdamW): steps of these
  variables alone, without noise and products;
- common: what is then left.
"""

import contextlib

import common
from step_time import STEPS
from step_time import KerasStep
from step_time import Weights
from step_time import mean


class WithoutProducts(KerasStep):
    """A step whose polar factor is the matrix itself."""

    def __call__(self):
        """Take one step."""
        with no_products():
            return super().__call__()


@contextlib.contextmanager
def no_products():
    """`cheapest_form` without products, while a step is traced or taken."""
    from keras import ops

    from keras_lanton.core import norms

    original = norms.cheapest_form
    norms.cheapest_form = lambda *sizes, **options: (
        lambda X: 1.0 * ops.cast(X, "float32")
    )
    try:
        yield
    finally:
        norms.cheapest_form = original


def role(spec):
    """Where a variable's time goes."""
    if spec.matrix:
        return "hidden"
    return "tables" if "embedding" in spec.path else "vectors"


def make_contestants(args):
    """Steps by name."""
    from keras_lanton import Lanton

    specs = list(common.model_specs(args.model, quick=args.quick))
    whole = Weights(specs, "float32")
    made = {
        "whole": KerasStep(whole, Lanton()),
        "without noise": KerasStep(whole, Lanton(noise=None)),
        "without products": WithoutProducts(whole, Lanton(noise=None)),
    }
    pools = [whole]
    for name in ("hidden", "tables", "vectors"):
        some = [spec for spec in specs if role(spec) == name]
        pools.append(Weights(some, "float32"))
        made[name] = WithoutProducts(pools[-1], Lanton(noise=None))
    return made, pools


def parts(seconds):
    """Seconds by part, from those by step."""
    pieces = {
        "products": seconds["without noise"] - seconds["without products"],
        "noise": seconds["whole"] - seconds["without noise"],
        "hidden kernels, the rest": seconds["hidden"],
        "tables and heads": seconds["tables"],
        "vectors (AdamW)": seconds["vectors"],
    }
    return {**pieces, "common": seconds["whole"] - sum(pieces.values())}


def main(argv=None):
    """Run the benchmark."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--model", choices=common.MODELS, default="gpt2")
    args = common.parse(parser, argv)
    contestants, pools = make_contestants(args)
    if args.backend == "jax":
        for pool in pools:
            pool.values = [v.value for v in pool.variables]
    for contestant in contestants.values():
        contestant.prepare(args.backend)
    # Steps with noise differ, by what is measured on each.
    times = common.interleave(contestants, STEPS, warm_up={"whole": STEPS + 1})
    seconds = {name: common.median(values) for name, values in times.items()}
    seconds["whole"] = mean(times["whole"])
    found = parts(seconds)
    rows = [
        {"part": name, "ms": 1e3 * value, "share": value / seconds["whole"]}
        for name, value in {**found, "whole": seconds["whole"]}.items()
    ]
    common.write(args, f"parts_{args.model}", rows)


if __name__ == "__main__":
    main()

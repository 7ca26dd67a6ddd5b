"""The bytes of an optimizer's state, and of what a step needs besides.

    KERAS_BACKEND=torch python benchmarks/memory.py --state
    KERAS_BACKEND=jax python benchmarks/memory.py

The first prints the state of some models, from shapes: nothing is allocated.
The second measures the temporaries of a step of GPT-2 small: on JAX what XLA
reserves for the compiled step, on PyTorch the rise of the process' peak
during one step. TensorFlow offers no such figure.
"""

import contextlib
import ctypes
import gc
import math
import pathlib

import common
import models
from step_time import jit_apply

ITEM_SIZES = {"int8": 1, "bfloat16": 2, "float32": 4, "int32": 4, "int64": 8}
NOTE = """\
State in GB (10^9 bytes), weights in float32. `momentum`: \
NoiseAdaptiveRate(reference='momentum');
`+ bfloat16`, `+ int8`: the same with that `momentum_dtype`."""


def make_optimizers():
    """Functions that make an optimizer, by the names of the table."""
    from keras import optimizers

    from keras_lanton import Lanton
    from keras_lanton import NoiseAdaptiveRate

    momentum = NoiseAdaptiveRate(reference="momentum")

    def with_momentum_in(dtype):
        return lambda: Lanton(noise=momentum, momentum_dtype=dtype)

    return {
        "AdamW": optimizers.AdamW,
        "Lanton()": Lanton,
        "momentum": lambda: Lanton(noise=momentum),
        "+ bfloat16": with_momentum_in("bfloat16"),
        "+ int8": with_momentum_in("int8"),
        "Muon": optimizers.Muon,
    }


MEASURED = ("Lanton()", "Muon", "AdamW")


def size_of(variables):
    """Bytes of Keras variables, whether they have values or not."""
    return sum(math.prod(v.shape) * ITEM_SIZES[str(v.dtype)] for v in variables)


def build(make, specs):
    """An optimizer on variables without values, and the variables."""
    variables = models.make_variables(specs, allocate=False)
    optimizer = make()
    with models.unallocated():
        optimizer.build(variables)
    return optimizer, variables


def state_table(names=tuple(models.PRESETS)):
    """The state of optimizers on some models, in GB."""
    made = make_optimizers()
    del made["Muon"]
    head = ["weights", *made]
    lines = [f"{'':>22}" + "".join(f"{name:>11}" for name in head)]
    for name in names:
        specs = models.model_specs(name)
        sizes = [4 * sum(spec.size for spec in specs)]
        for make in made.values():
            sizes.append(size_of(build(make, specs)[0].variables))
        cells = "".join(f"{size / 1e9:>11.2f}" for size in sizes)
        lines.append(f"{name:>22}{cells}")
    return "\n".join([*lines, NOTE])


def measure_jax(make, specs):
    """Bytes that XLA reserves for the temporaries of a compiled step."""
    import jax

    optimizer, variables = build(make, specs)

    def like(variable):
        return jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)

    weights = [like(v) for v in variables]
    state = [like(v) for v in optimizer.variables]
    step = jit_apply(optimizer)
    memory = step.lower(weights, state, weights).compile().memory_analysis()
    return memory.temp_size_in_bytes


def resident(field):
    """A field of this process' status, such as VmRSS, in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


@contextlib.contextmanager
def rise_of_the_peak():
    """A list that has, in the end, by how much the peak was above the start."""
    import torch

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        # What was freed goes back, so that it is counted when it rises.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    found = []
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        found.append(torch.cuda.max_memory_allocated() - before)
    else:
        # 5 resets the peak, VmHWM, to what is in use.
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        yield found
        found.append(resident("VmHWM") - before)


def measure_torch(make, specs):
    """Rise of the peak memory over the state during one eager step."""
    import torch

    variables = models.make_variables(specs)
    gradients = models.make_gradients(specs)
    optimizer = make()
    optimizer.build(variables)
    # The first step touches the state's pages.
    for some in (gradients, models.rotated(gradients)):
        with rise_of_the_peak() as found, torch.no_grad():
            optimizer.apply(some, variables)
    return found[0]


def main(argv=None):
    """Run the benchmark."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--state", action="store_true", help="print the state")
    args = common.parse(parser, argv, backends=("jax", "torch"))
    if args.state:
        if args.backend == "jax":
            parser.error("JAX makes the values: KERAS_BACKEND=torch")
        print(state_table())
        return
    measure = {"jax": measure_jax, "torch": measure_torch}[args.backend]
    specs = models.model_specs("gpt2_base_en", quick=args.quick)
    made = make_optimizers()
    rows = []
    for name in MEASURED:
        temporaries = measure(made[name], specs)
        rows.append({"optimizer": name, "temporaries MB": temporaries / 1e6})
        common.release()
    common.write(
        args,
        "memory",
        rows,
        model="GPT-2 small",
        measured={
            "jax": "temp_size_in_bytes of the compiled step",
            "torch": "peak of the process (CPU) or of the allocator (GPU) "
            "over what is in use before the second step",
        }[args.backend],
    )


if __name__ == "__main__":
    main()

"""Count the bytes of state and of temporaries of Lanton, Muon and AdamW.

    KERAS_BACKEND=jax python benchmarks/memory.py

State over weights, and the temporaries that Lanton's buckets need, are
computed from shapes: nothing is allocated, so the Llama of 1.1B parameters
is among them. The peak of GPT-2 small is measured too: on JAX what XLA
reserves for the compiled step, on PyTorch the rise of the process' peak
during one step. TensorFlow offers no such figure and is left out.
"""

import contextlib
import ctypes
import gc
import math
import pathlib

import common

MB = 1e6
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8}


def make_settings():
    """Functions that make an optimizer, by name."""
    from keras import optimizers

    from keras_lanton import Lanton
    from keras_lanton import NoiseAdaptiveRate

    at_once = NoiseAdaptiveRate(schedule="interval")
    momentum = NoiseAdaptiveRate(reference="momentum")
    half = NoiseAdaptiveRate(previous_gradient_dtype="bfloat16")
    return {
        "Lanton": Lanton,
        "Lanton, interval": lambda: Lanton(noise=at_once),
        "Lanton, reference momentum": lambda: Lanton(noise=momentum),
        # One number per weight: no second moments of AdamW.
        "Lanton.paper, reference momentum": lambda: Lanton.paper(
            noise=momentum
        ),
        "Lanton, bfloat16 previous gradient": lambda: Lanton(noise=half),
        "Lanton, bfloat16 momentum and previous gradient": lambda: Lanton(
            momentum_dtype="bfloat16", noise=half
        ),
        "Lanton, reference and bfloat16 momentum": lambda: Lanton(
            noise=momentum, momentum_dtype="bfloat16"
        ),
        "keras.optimizers.Muon": optimizers.Muon,
        "keras.optimizers.AdamW": optimizers.AdamW,
    }


MEASURED = ("Lanton", "keras.optimizers.Muon", "keras.optimizers.AdamW")


def size_of(variables):
    """Bytes of Keras variables, whether they have values or not."""
    return sum(math.prod(v.shape) * ITEM_SIZES[str(v.dtype)] for v in variables)


def build(make, specs, dtype="float32"):
    """An optimizer on variables without values, and the variables."""
    variables = common.make_variables(specs, dtype, allocate=False)
    optimizer = make()
    with common.unallocated():
        optimizer.build(variables)
    return optimizer, variables


def computed_row(name, model, make, specs):
    """State bytes over weight bytes; for Lanton the temporaries too."""
    optimizer, variables = build(make, specs)
    weights, state = size_of(variables), size_of(optimizer.variables)
    row = {
        "optimizer": name,
        "model": model,
        "weights MB": weights / MB,
        "state MB": state / MB,
        "state / weights": state / weights,
    }
    if name.startswith("Lanton"):
        row["temporaries MB (computed)"] = (
            optimizer._work.temporary_bytes() / MB
        )
        cap = optimizer.newton_schulz.max_temporary_bytes
        row["cap MB"] = cap / MB
    return row


def measure_jax(make, specs):
    """Bytes that XLA reserves for the temporaries of a compiled step."""
    import jax

    optimizer, variables = build(make, specs)

    def like(variable):
        return jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)

    weights = [like(v) for v in variables]
    state = [like(v) for v in optimizer.variables]
    step = common.jit_apply(optimizer)
    memory = step.lower(weights, state, weights).compile().memory_analysis()
    return memory.temp_size_in_bytes


def resident(field):
    """A field of this process' status, such as VmRSS, in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def measure_torch(make, specs):
    """Rise of the peak memory over the state during one eager step."""
    import torch

    variables = common.make_variables(specs)
    gradients = common.make_gradients(specs)
    optimizer = make()
    optimizer.build(variables)
    peaks = []
    for by in range(2):
        rotated = common.rotate(gradients, by)
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            # What was freed goes back, so that it is counted when it rises.
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        else:
            # 5 resets the peak, VmHWM, to what is in use.
            pathlib.Path("/proc/self/clear_refs").write_text("5")
            before = resident("VmRSS")
        with torch.no_grad():
            optimizer.apply(rotated, variables)
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
        else:
            peak = resident("VmHWM")
        peaks.append(peak - before)
    return peaks[-1]  # The first step touches the state's pages.


def make_parser():
    """The command line."""
    parser = common.make_parser(__doc__)
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help="only what is computed from shapes, in seconds",
    )
    return parser


def main(argv=None):
    """Run the benchmark."""
    parser = make_parser()
    args = common.parse(parser, argv)
    if args.backend == "tensorflow":
        parser.error("no figures on TensorFlow: KERAS_BACKEND=jax or torch")
    settings = make_settings()
    models = {
        "GPT-2 small": common.model_specs("gpt2", quick=args.quick),
        "Llama 1.1B": common.model_specs("llama", quick=args.quick, large=True),
    }
    rows = [
        computed_row(name, model, make, specs)
        for model, specs in models.items()
        for name, make in settings.items()
    ]
    measure = {"jax": measure_jax, "torch": measure_torch}[args.backend]
    if not args.no_measure:
        for row in rows:
            if row["model"] == "GPT-2 small" and row["optimizer"] in MEASURED:
                bytes_ = measure(
                    settings[row["optimizer"]], models[row["model"]]
                )
                row["temporaries MB (measured)"] = bytes_ / MB
                common.release()
    small, large = (
        next(r for r in rows if (r["optimizer"], r["model"]) == key)
        for key in (
            ("Lanton.paper, reference momentum", "GPT-2 small"),
            ("Lanton", "Llama 1.1B"),
        )
    )
    common.write(
        args,
        "memory",
        rows,
        {
            "state_over_weights_momentum": small["state / weights"],
            "temporaries_over_cap": large["temporaries MB (computed)"]
            / large["cap MB"],
        },
        measured={
            "jax": "temp_size_in_bytes of the compiled step",
            "torch": "peak of the process (CPU) or of the allocator (GPU) "
            "over what is in use before the second step",
        }[args.backend],
    )


if __name__ == "__main__":
    main()

"""Bytes that the optimizer moves between devices: counted, or calculated.

    KERAS_BACKEND=jax python benchmarks/collectives.py
    python benchmarks/collectives.py --model llama_1.1b --devices 64

The first compiles a step for eight CPU devices of XLA's own making; nothing
else runs, so any machine will do. A model of transformer blocks lies whole on
every device (8 x 1), or split over the columns of a mesh (2 x 4, 1 x 8), once
with the work shared out among the devices and once as the compiler has it.
Bytes are those of the results of collectives on one device, in one step.

The second calculates them by the formulas of docs/cost.md, for a step that
is not limited by `max_temporary_bytes`.
"""

import collections
import os

import common
import hlo
import models

MESHES = ((8, 1), (2, 4), (1, 8))
DEVICES = 8
LAYOUTS = ("data", "model")
WORDS = {None: "shared out", False: "left to the compiler"}


def calculated(shapes, devices, layout, interval=10):
    """Rows by view: the matrices, and the bytes that are moved for them.

    Args:
        shapes: `(d_in, d_out)` of each hidden matrix, in float32.
        devices: Number of devices.
        layout: `"data"`: every device has all weights; `"model"`: each has
            its part of every kernel's columns or rows.
        interval: Steps from one measurement of a matrix to the next.
    """
    views = collections.defaultdict(list)
    for d_in, d_out in shapes:
        views[min(d_in, d_out), max(d_in, d_out)].append(d_in > d_out)
    rows = []
    for (short, long), transposed in views.items():
        count, area = len(transposed), 4 * short * long
        turns = -(-count // devices)  # matrices on the busiest device
        if devices == 1:
            moved = 0
        elif layout == "data":
            # An all-gather, or an all-reduce for a few matrices.
            gathered = turns * devices
            moved = area * (count if gathered > 2 * count else gathered)
        else:
            # In and out, of a device's part; once more each way where rows
            # are split and not columns; and what is measured, whole, twice.
            moved = 2 * turns * area + 2 * sum(transposed) * area // devices
            moved += 2 * -(-count // interval) * area
        rows.append(
            {
                "matrix": f"{short} x {long}",
                "matrices": count,
                "on the busiest device": turns,
                "MB of matrices": count * area / 1e6,
                "MB moved": moved / 1e6,
            }
        )
    return rows


def make_distribution(rows, columns):
    """Batches over the rows of a mesh, kernels over its columns."""
    from keras import distribution

    devices = distribution.list_devices("cpu")
    if columns == 1:
        return distribution.DataParallel(devices=devices)
    mesh = distribution.DeviceMesh(
        (rows, columns), ["batch", "model"], devices=devices
    )
    layout = distribution.LayoutMap(mesh)
    layout[".*(query|key|value)/kernel"] = (None, "model", None)
    layout[".*attention_output/kernel"] = ("model", None, None)
    layout[".*intermediate_dense/kernel"] = (None, "model")
    layout[".*output_dense/kernel"] = ("model", None)
    layout[".*embeddings"] = (None, "model")
    return distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def compiled_step(optimizer, variables):
    """JAX's compiled step; weights and state stay where they are."""
    import jax

    optimizer.build(variables)
    values = [v.value for v in variables]
    state = [v.value for v in optimizer.variables]
    step = jax.jit(
        lambda G, X, state: optimizer.stateless_apply(state, G, X),
        out_shardings=(
            [x.sharding for x in values],
            [x.sharding for x in state],
        ),
    )
    return step.lower(values, values, state).compile()


def count(args):
    """Compile every case and write the counts."""
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={DEVICES}"
    )
    from keras import distribution

    from keras_lanton import Lanton
    from keras_lanton import NewtonSchulz

    layers = 1 if args.quick else 4
    specs = models.model_specs(
        "gpt2_base_en",
        quick=True,
        num_layers=layers,
        num_heads=8,
        intermediate_dim=256,
        max_sequence_length=16,
    )
    matrices = sum(4 * spec.size for spec in specs if spec.matrix)
    rows = []
    for mesh in MESHES:
        distribution.set_distribution(make_distribution(*mesh))
        for shared, words in WORDS.items():
            optimizer = Lanton(0.01, newton_schulz=NewtonSchulz(shard=shared))
            program = compiled_step(optimizer, models.make_variables(specs))
            moved = sum(hlo.collectives(program.as_text()).values())
            memory = program.memory_analysis()
            rows.append(
                {
                    "mesh": " x ".join(map(str, mesh)),
                    "orthogonalization": words,
                    "bytes moved": moved,
                    "over the matrices": moved / matrices,
                    "bytes of temporaries": memory.temp_size_in_bytes,
                }
            )
    common.write(args, "collectives", rows, layers=layers)


def main(argv=None):
    """Count, or calculate where a model is named."""
    parser = common.make_parser(__doc__)
    add = parser.add_argument
    add("--model", choices=models.MODELS)
    add("--devices", type=common.positive, default=DEVICES, metavar="N")
    add("--layout", choices=LAYOUTS, default="data")
    args = common.parse(parser, argv)
    if args.model:
        specs = models.model_specs(args.model)
        shapes = [spec.matrix for spec in specs if spec.matrix]
        common.print_table(calculated(shapes, args.devices, args.layout))
        return
    if args.backend != "jax" or args.gpu:
        parser.error("counted on JAX's CPU devices alone: KERAS_BACKEND=jax")
    count(args)


if __name__ == "__main__":
    main()

"""Bytes that the optimizer moves between devices, counted in JAX's program.

KERAS_BACKEND=jax python benchmarks/collectives.py

Eight CPU devices of XLA's own making; nothing but the compiled step is looked
at, so any machine will do. A model of transformer blocks lies whole on every
device (8 x 1), or split over the columns of a mesh (2 x 4, 1 x 8), once with
the work shared out among the devices and once as the compiler has it. Bytes are
those of the results of collectives on one device.
"""

import os
import sys

import common
import hlo

MESHES = ((8, 1), (2, 4), (1, 8))
DEVICES = 8
WORDS = {None: "shared out", False: "left to the compiler"}


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


def count(specs, **options):
    """The figures of one device in one step, by the columns of the table."""
    import jax

    from keras_lanton import Lanton

    variables = common.make_variables(specs)
    optimizer = Lanton(0.01, **options)
    optimizer.build(variables)
    X, state = (
        [v.value for v in some] for some in (variables, optimizer.variables)
    )
    there = tuple([x.sharding for x in some] for some in (X, state))
    step = jax.jit(
        lambda G, X, state: optimizer.stateless_apply(state, G, X),
        out_shardings=there,
    )
    program = step.lower(X, X, state).compile()
    moved = hlo.moved_bytes(program.as_text())
    matrices = sum(4 * spec.size for spec in specs if spec.matrix)
    return {
        "bytes moved": moved,
        "over the matrices": moved / matrices,
        "MFLOP of products": hlo.product_flops(program.as_text()) / 1e6,
        "bytes of temporaries": program.memory_analysis().temp_size_in_bytes,
    }


def main(argv=None):
    """Compile every case, write the counts."""
    args = common.parse(common.make_parser(__doc__), argv)
    if args.backend != "jax" or args.gpu:
        sys.exit("benchmarks/collectives.py is for JAX's CPU devices")
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={DEVICES}"
    )
    from keras import distribution

    from keras_lanton import NewtonSchulz

    sizes = dict(common.GPT2, **common.QUICK, context=16)
    sizes.update(heads=8, inner=256, layers=1 if args.quick else 4)
    specs = list(common.gpt2_specs(**sizes))
    rows, figures = [], {}
    for mesh in MESHES:
        distribution.set_distribution(make_distribution(*mesh))
        for shared in WORDS:
            products = NewtonSchulz(shard=shared)
            found = count(specs, newton_schulz=products)
            rows.append(
                {
                    "mesh": " x ".join(map(str, mesh)),
                    "orthogonalization": WORDS[shared],
                    **found,
                }
            )
            if shared is None:
                name = f"bytes_over_matrices_{'x'.join(map(str, mesh))}"
                figures[name] = found["over the matrices"]
    common.write(args, "collectives", rows, figures, layers=sizes["layers"])


if __name__ == "__main__":
    main()

"""Bytes that the optimizer moves between devices: counted, or calculated.

    KERAS_BACKEND=jax python benchmarks/collectives.py
    KERAS_BACKEND=torch python benchmarks/collectives.py
    python benchmarks/collectives.py --model llama_1.1b --devices 64

The first compiles a step for eight CPU devices of XLA's own making; nothing
else runs, so any machine will do. A model of transformer blocks lies whole on
every device (8 x 1), or split over the columns of a mesh (2 x 4, 1 x 8), once
with the work shared out among the devices and once as the compiler has it.
Bytes are those of the results of collectives on one device, in one step.

The second takes steps in processes of a CPU, whose weights lie in the same way,
and counts what the processes receive from each other.

The third calculates them by the formulas of docs/cost.md, for a step that
is not limited by `max_temporary_bytes`.
"""

import collections
import multiprocessing
import os
import re
import tempfile

import common
import hlo
import models

MESHES = ((8, 1), (2, 4), (1, 8))
DEVICES = 8
LAYOUTS = ("data", "model")
WORDS = {None: "shared out", False: "left to the compiler"}
# Axis of each kernel that lies over the columns of a mesh.
SPLIT = {
    ".*(query|key|value)/kernel": 1,
    ".*attention_output/kernel": 0,
    ".*intermediate_dense/kernel": 1,
    ".*output_dense/kernel": 0,
    ".*embeddings": 1,
}
# PyTorch's processes; and steps, in which each matrix is measured twice.
PROCESSES = ((1, 2), (2, 2), (1, 4))
STEPS = 20


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
    for pattern, axis in SPLIT.items():
        ndim = 3 if "query" in pattern or "attention" in pattern else 2
        layout[pattern] = tuple(
            "model" if i == axis else None for i in range(ndim)
        )
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


def blocks(args):
    """Number of a GPT-2's blocks, and its variables."""
    layers = 1 if args.quick else 4
    return layers, models.model_specs(
        "gpt2_base_en",
        quick=True,
        num_layers=layers,
        num_heads=8,
        intermediate_dim=256,
        max_sequence_length=16,
    )


def count(args):
    """Compile every case and write the counts."""
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={DEVICES}"
    )
    from keras import distribution

    from keras_lanton import Lanton
    from keras_lanton import NewtonSchulz

    layers, specs = blocks(args)
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


# -- PyTorch's processes -----------------------------------------------------


def received_by(number):
    """A context that counts the numbers that one process receives."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Received(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if "all_gather" in str(function):
                self.count += args[0].numel() * (args[1] - 1)
            elif "_allgather_base_" in str(function):
                self.count += args[0].numel() - args[1].numel()
            elif "alltoall_base_" in str(function):
                self.count += args[0].numel() - args[3][number]
            return found

    return Received()


def split(mesh, variable, axis):
    """Splits a variable over the columns of a mesh, as Keras 3.16 does it."""
    import torch
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor import distribute_tensor

    value = distribute_tensor(
        variable.value.detach(), mesh, [Replicate(), Shard(axis)]
    )
    variable._value = torch.nn.Parameter(value, requires_grad=False)
    variable._layout = axis


def split_state(mesh, optimizer):
    """Has an optimizer split its state as the variables, when it is made."""
    add = optimizer.add_variable

    def add_split(shape, *args, layout=None, **kwargs):
        made = add(shape, *args, layout=layout, **kwargs)
        if layout is not None:
            split(mesh, made, layout)
        return made

    optimizer.add_variable = add_split


def take_steps(number, mesh, specs, noise, file, results):
    """Steps of one process; its bytes in a step, and those of temporaries."""
    import torch
    from torch.distributed import device_mesh
    from torch.distributed._tools.mem_tracker import MemTracker

    from keras_lanton import Lanton

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        world_size=mesh[0] * mesh[1],
        rank=number,
    )
    placed = device_mesh.init_device_mesh("cpu", mesh)
    variables = models.make_variables(specs)
    for variable in variables:
        for pattern, axis in SPLIT.items():
            if re.fullmatch(pattern, variable.path):
                split(placed, variable, axis)
    optimizer = Lanton(0.01, **({} if noise else {"noise": None}))
    split_state(placed, optimizer)
    optimizer.build(variables)
    gradients = models.make_gradients(specs)
    with received_by(number) as received:
        for _ in range(STEPS):
            gradients = models.rotated(gradients)
            optimizer.apply(gradients, variables)
    gradients = models.rotated(gradients)
    held = [v.value for v in (*variables, *optimizer.variables)]
    tracker = MemTracker()
    tracker.track_external(
        *gradients, *(getattr(x, "_local_tensor", x) for x in held)
    )
    with tracker:
        optimizer.apply(gradients, variables)
    before, most = (
        sum(
            found["Total"] for found in tracker.get_tracker_snapshot(x).values()
        )
        for x in ("current", "peak")
    )
    results.put((4 * received.count / STEPS, most - before))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def count_processes(args):
    """Take the steps of every case and write the counts."""
    layers, specs = blocks(args)
    matrices = sum(4 * spec.size for spec in specs if len(spec.shape) > 1)
    context = multiprocessing.get_context("spawn")
    rows = []
    for mesh in PROCESSES[: 1 if args.quick else None]:
        for noise in (True, False):
            results = context.Queue()
            with tempfile.TemporaryDirectory() as folder:
                processes = [
                    context.Process(
                        daemon=True,
                        target=take_steps,
                        args=(i, mesh, specs, noise, f"{folder}/meet", results),
                    )
                    for i in range(mesh[0] * mesh[1])
                ]
                for one in processes:
                    one.start()
                found = [results.get(timeout=300) for _ in processes]
                for one in processes:
                    one.join()
            received, temporaries = zip(*found, strict=True)
            rows.append(
                {
                    "mesh": " x ".join(map(str, mesh)),
                    "noise": noise,
                    "bytes moved, most of one process": max(received),
                    "of all, over the matrices": sum(received) / matrices,
                    "of one, over the matrices": max(received) / matrices,
                    "bytes of temporaries": max(temporaries),
                }
            )
    common.write(args, "collectives", rows, layers=layers, matrices=matrices)


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
    if args.backend == "tensorflow" or args.gpu:
        parser.error("counted on a CPU alone: KERAS_BACKEND=jax, or torch")
    count(args) if args.backend == "jax" else count_processes(args)


if __name__ == "__main__":
    main()

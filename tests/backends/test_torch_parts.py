"""PyTorch: steps on weights of which each process has a part.

What `ModelParallel` of Keras 3.16 makes is made here by hand, so that all
versions of Keras are tested. `keras/test_many_devices.py` has `fit`.
"""

import dataclasses
import itertools
import json
import pathlib
import sys

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

from helpers.optimizers import lanton
from helpers.processes import launch
from helpers.processes import outcomes
from helpers.tiers import exhaustive
from helpers.tiers import keep
from keras_lanton import Lanton
from keras_lanton import baselines

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="torch.distributed"
)

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
STEPS, BAD_STEP = 20, 7
TOLERANCE = 1e-5  # of the largest entry of each weight; 2e-7 was observed
# Numbers that all processes receive for measuring, for each and each number of
# the matrices: here most are experts', which are sent whole for any of them.
MEASURED = 0.5
INPUT, OUTPUT = "input_axes", "output_axes"
KERNEL = {INPUT: 0, OUTPUT: 1}
# Role, shape, axes, and the axis that is split: also into parts of uneven
# sizes and an empty one, and where a variable holds several matrices.
VARIABLES = {
    "tokens": ("embedding", (40, 16), KERNEL, 0),
    "up": ("hidden", (32, 48), KERNEL, 1),
    "down": ("hidden", (48, 32), KERNEL, 0),
    "query": ("hidden", (16, 4, 4), {INPUT: 0, OUTPUT: (1, 2)}, 1),
    "fused": ("hidden", (16, 24), {**KERNEL, "output_parts": 3}, 1),
    "experts": ("hidden", (5, 32, 48), {INPUT: 1, OUTPUT: 2}, 0),
    "uneven": ("hidden", (16, 5), KERNEL, 1),
    "narrow": ("hidden", (16, 1), KERNEL, 1),
    "whole": ("hidden", (48, 32), KERNEL, None),
    "bias": ("vector", (24,), {}, 0),
    "gain": ("vector", (16,), {}, None),
}
OPTIMIZERS = {
    "defaults": lambda: Lanton(0.005),
    # Several matrices at once, and an estimate that needs whole ones.
    "paper": lambda: Lanton.paper(
        0.005, noise=dataclasses.replace(Lanton.paper().noise, interval=3)
    ),
    "momentum": lambda: lanton(noise_reference="momentum", noise_interval=3),
    "bfloat16": lambda: Lanton(0.005, momentum_dtype="bfloat16"),
    "not_shared_out": lambda: lanton(shard_orthogonalization=False),
    "without_noise": lambda: Lanton(noise=None),
    "adamuon": lambda: baselines.AdaMuon(0.005),
    "normuon": lambda: baselines.NorMuon(0.005),
}


# -- In the process of a case ------------------------------------------------


def train(name, mesh=None, gradient_of=lambda gradient: gradient):
    """The optimizer after steps on given gradients, and its variables.

    Args:
        name: Of `OPTIMIZERS`.
        mesh: Over whose columns variables are split; None: they are not.
        gradient_of: Function of each gradient.
    """
    if mesh is not None:
        from collectives import split
        from collectives import split_state
    rng = np.random.default_rng(0)
    optimizer = OPTIMIZERS[name]()
    variables = []
    for name, (role, shape, axes, _) in VARIABLES.items():
        value = rng.standard_normal(shape).astype("float32")
        variables.append(keras.Variable(value, name=name))
        optimizer.assign_role(role, variables[-1], **axes)
    if mesh is not None:
        split_state(mesh, optimizer)
        for variable in variables:
            axis = VARIABLES[variable.name][3]
            if axis is not None:
                split(mesh, variable, axis)
    optimizer.build(variables)
    for step in range(STEPS):
        gradients = [
            rng.standard_normal(shape).astype("float32")
            for _, shape, _, _ in VARIABLES.values()
        ]
        if step == BAD_STEP:  # in the part of one process
            gradients[1][0, -1] = np.nan
        if step == BAD_STEP + 1:  # one matrix of several has no gradient
            gradients[5][2] = 0
        optimizer.apply(
            [gradient_of(ops.convert_to_tensor(g)) for g in gradients],
            variables,
        )
    return optimizer, variables


def whole(variable):
    value = variable.value
    value = value.full_tensor() if hasattr(value, "placements") else value
    return value.tolist()


def result(optimizer, variables):
    return {
        "skipped": optimizer.skipped_steps,
        "weights": [whole(v) for v in variables],
        "noise": [
            measured["noise"].tolist()
            for measured in (
                optimizer.noise_report() if optimizer.noise else {}
            ).values()
        ],
    }


def case(name, file, number, count):
    """With weights split over the two columns of a mesh."""
    import torch
    from collectives import received_by
    from torch.distributed import device_mesh
    from torch.distributed.tensor import distribute_tensor

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        world_size=count,
        rank=number,
    )
    mesh = device_mesh.init_device_mesh(
        "cpu", (count // 2, 2), mesh_dim_names=("batch", "model")
    )

    every_other = itertools.cycle([False, True])

    def gradient_of(gradient):
        """Whole, or as autograd leaves some: not split as the weight is."""
        split_otherwise = next(every_other)
        return (
            distribute_tensor(gradient, mesh) if split_otherwise else gradient
        )

    with received_by(number) as received:
        optimizer, variables = train(name, mesh, gradient_of)
    held = [v.value for v in optimizer._state.by_name["momentum"]]
    found = {
        **result(optimizer, variables),
        "momentum": sum(getattr(x, "_local_tensor", x).numel() for x in held),
        "received": received.count / STEPS,
    }
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found


# -- In the process of the tests ---------------------------------------------


@pytest.mark.parametrize("name", keep(OPTIMIZERS, ["defaults"], exhaustive))
@pytest.mark.parametrize("count", keep([2, 4], [2], exhaustive))
def test_split_weights(count, name, tmp_path):
    """They become those of one process; each keeps its part of the state."""
    wanted = result(*train(name))
    own = {"name": name, "file": str(tmp_path / "meet"), "count": count}
    processes = [
        launch(__file__, json.dumps({**own, "number": i}), devices=1)
        for i in range(count)
    ]
    found = outcomes(processes)
    shapes = [(shape, axis) for _, shape, _, axis in VARIABLES.values()]
    matrices = [(np.prod(s), axis) for s, axis in shapes if len(s) > 1]
    # Whole to one process, and to each its part.
    moved = sum(
        size * (count - 1) if axis is None else size / 2 * count
        for size, axis in matrices
    )
    most = sum(
        np.prod(shape)
        if axis is None
        else np.prod(shape) / shape[axis] * np.ceil(shape[axis] / 2)
        for shape, axis in shapes
    )
    if OPTIMIZERS[name]().noise is not None:
        moved += MEASURED * count * sum(size for size, _ in matrices)
    for one in found:
        assert one["skipped"] == wanted["skipped"] == 1
        for key in ("weights", "noise"):
            for x, y in zip(one[key], wanted[key], strict=True):
                x, y = np.array(x), np.array(y)
                limit = TOLERANCE * max(np.abs(y).max(), 1e-3)
                np.testing.assert_allclose(x, y, rtol=0, atol=limit)
        assert one["momentum"] <= most
    if name == "adamuon":  # its second moment too, there and back
        moved *= 2
    if name != "not_shared_out":  # parts of uneven sizes are not even halves
        assert sum(one["received"] for one in found) <= 1.1 * moved


@pytest.fixture
def mesh_of_one(tmp_path):
    import torch
    from torch.distributed import device_mesh

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", world_size=1, rank=0
    )
    yield device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def split_kernel(mesh, of_keras):
    """A variable, and its gradient; Keras knows that it is split, or not."""
    import torch
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor import distribute_tensor

    kernel = keras.Variable(np.ones((4, 6), "float32"), name="kernel")
    whole = kernel.value.detach()
    split = distribute_tensor(whole, mesh, [Shard(0)])
    kernel._value = torch.nn.Parameter(split)
    if of_keras:
        kernel._layout = "split"
    return kernel, torch.ones_like(whole)


@pytest.mark.parametrize("steps", [False, True], ids=["build", "first_step"])
def test_weights_that_keras_has_not_split(mesh_of_one, steps):
    kernel, gradient = split_kernel(mesh_of_one, of_keras=False)
    optimizer = Lanton()
    with pytest.raises(ValueError, match="ModelParallel.*Received: 'kernel'"):
        if steps:
            optimizer.apply([gradient], [kernel])
        optimizer.build([kernel])
    assert not optimizer.built


def test_fully_sharded_models(mesh_of_one):
    """Keras' variables stay what they were: a step would not be shared."""
    from torch.distributed.fsdp import fully_shard

    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    assert Lanton().read_roles(model)
    fully_shard(model, mesh=mesh_of_one)
    with pytest.raises(ValueError, match=r"Received: '\S*/?\w+', a DTensor"):
        Lanton().read_roles(model)


def test_split_weights_without_a_step(mesh_of_one):
    """What needs whole weights says so."""
    kernel, _ = split_kernel(mesh_of_one, of_keras=True)
    with pytest.raises(ValueError, match="int8.*Received: weights that"):
        Lanton(momentum_dtype="int8").build([kernel])
    optimizer = Lanton()
    optimizer.assign_role("hidden", kernel, 0, 1, output_parts=(4, 2))
    with pytest.raises(ValueError, match="Received: 'kernel', of 2 matrices"):
        optimizer.build([kernel])


if __name__ == "__main__":
    sys.path.insert(0, str(BENCHMARKS))
    print(json.dumps(case(**json.loads(sys.argv[1]))))

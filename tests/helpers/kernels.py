"""The kernels of a step as a GPU would take them, counted without one.

Operations on large tensors are not carried out: shapes are enough, and a step
of GPT-2 small takes a second. Their results are zeros, and small results of
large tensors are ones.
"""

import collections

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils._pytree import tree_map

LARGE = 2**14  # entries
NO_KERNEL = {
    "_local_scalar_dense",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
}
ONLY_WRITE = {"copy_", "_foreach_copy_", "fill_", "zero_"}


class CountKernels(TorchDispatchMode):
    """Within this context every operation is counted.

    `kernels` has the number of each operation, a list of tensors being one
    operation, and `traffic` the bytes that it reads and writes.
    """

    def __init__(self):
        super().__init__()
        self.paused = False  # where the host does the work
        self.clear()

    def clear(self):
        self.kernels = collections.Counter()
        self.traffic = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_of((args, kwargs))
        schema = function._schema
        name = schema.name.split("::")[1]
        if function.is_view or name == "_unsafe_view":
            return function(*args, **kwargs)
        if any(x.numel() > LARGE for x in given):
            result = without_work(function, args, kwargs)
        else:
            result = function(*args, **kwargs)
        if name in NO_KERNEL or self.paused:
            return result
        written = [
            value
            for argument, value in zip(schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        written += [
            kwargs[a.name] for a in schema.arguments if is_out(a, kwargs)
        ]
        if not written:
            written = [result]
            held = {x.untyped_storage()._cdata for x in given}
            if all(
                x.untyped_storage()._cdata in held for x in tensors_of(result)
            ):
                return result  # `to` and `contiguous` where nothing changes
        overwritten = bytes_of(tensors_of(written))
        read = bytes_of(given)
        if name in ONLY_WRITE or any(a.name == "out" for a in schema.arguments):
            read -= overwritten  # unless it is an argument, too
        self.kernels[name] += 1
        self.traffic[name] += read + overwritten
        return result


def is_out(argument, kwargs):
    info = argument.alias_info
    return info is not None and info.is_write and argument.name in kwargs


def tensors_of(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def bytes_of(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


def without_work(function, args, kwargs):
    """What an operation returns, without its numbers."""
    tensors = {id(x): x for x in tensors_of((args, kwargs))}
    shapes = {
        key: torch.empty_strided(
            x.size(), x.stride(), dtype=x.dtype, device="meta"
        )
        for key, x in tensors.items()
    }
    overwritten = {id(shape): tensors[key] for key, shape in shapes.items()}

    def made(shape):
        if not isinstance(shape, torch.Tensor):
            return shape
        if id(shape) in overwritten:
            return overwritten[id(shape)]
        found = torch.empty_strided(
            shape.size(), shape.stride(), dtype=shape.dtype, device="cpu"
        )
        return found if shape.numel() > LARGE else found.fill_(1)

    args, kwargs = tree_map(lambda x: shapes.get(id(x), x), (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = torch.device("meta")
    return tree_map(made, function(*args, **kwargs))

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


class CountKernels(TorchDispatchMode):
    """Within this context every operation is counted.

    `kernels` has the number of each operation, a list of tensors being one
    operation, and `traffic` the bytes that it reads and writes.
    """

    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.kernels = collections.Counter()
        self.traffic = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_of((args, kwargs))
        schema = function._schema
        if function.is_view:
            return function(*args, **kwargs)
        if any(x.numel() > LARGE for x in given):
            result = without_work(function, args, kwargs)
        else:
            result = function(*args, **kwargs)
        name = schema.name.split("::")[1]
        if name in NO_KERNEL:
            return result
        written = [
            value
            for argument, value in zip(schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        written += [kwargs[a.name] for a in schema.arguments if is_out(a, kwargs)]
        if not written:
            written = [result]
            held = {x.untyped_storage()._cdata for x in given}
            if all(
                x.untyped_storage()._cdata in held for x in tensors_of(result)
            ):
                return result  # `to` and `contiguous` where nothing changes
        self.kernels[name] += 1
        self.traffic[name] += bytes_of(given) + bytes_of(tensors_of(written))
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

    def to_meta(x):
        return x.to("meta") if isinstance(x, torch.Tensor) else x

    metas = {}

    def one_meta(x):
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in metas:
            metas[id(x)] = torch.empty_strided(
                x.size(), x.stride(), dtype=x.dtype, device="meta"
            )
        return metas[id(x)]

    def real(meta):
        if not isinstance(meta, torch.Tensor):
            return meta
        for x in tensors_of((args, kwargs)):
            if metas.get(id(x)) is meta:
                return x  # which the operation overwrites
        made = torch.empty_strided(
            meta.size(), meta.stride(), dtype=meta.dtype, device="cpu"
        )
        return made if meta.numel() > LARGE else made.fill_(1)

    given = tree_map(one_meta, (args, {**kwargs}))
    given[1].pop("device", None)
    if "device" in kwargs:
        given[1]["device"] = torch.device("meta")
    return tree_map(real, function(*given[0], **given[1]))

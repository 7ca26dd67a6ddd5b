"""A GPU that there is not, for PyTorch: its tensors are the CPU's.

Tensors that code puts onto `cuda`, and what is computed from them, say that
they are there. Whatever would have to wait for a GPU is counted; operations
on tensors of both devices are refused, as PyTorch refuses them.
"""

import weakref

import torch
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda:0")
# Methods that give the host what a tensor has.
READS = {
    "__bool__",
    "__float__",
    "__index__",
    "__int__",
    "cpu",
    "item",
    "numpy",
    "tolist",
}
# Number of their results depends on values: a GPU is waited for as well.
DATA_DEPENDENT = {"masked_select", "nonzero", "unique"}


class PretendedGpu(TorchFunctionMode):
    """Within this context `cuda` can be had."""

    def __init__(self):
        super().__init__()
        self.waits = []
        self.known = weakref.WeakValueDictionary()
        self.on_gpu = weakref.WeakValueDictionary()

    def is_on_gpu(self, tensor):
        return self.on_gpu.get(id(tensor)) is tensor

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.pin_memory:
            return args[0]
        name = getattr(function, "__name__", str(function))
        if name == "__get__":
            return self.attribute(function, args)
        args, wanted = self.without_device(name, list(args), kwargs)
        given = [x for x in flat((args, kwargs)) if is_tensor(x)]
        there = [x for x in given if self.is_on_gpu(x)]
        if there and (name in READS or name in DATA_DEPENDENT):
            self.waits.append(name)
        if self.uploads(name, args, given, there, wanted, kwargs):
            self.waits.append(f"{name} from the CPU")
        moves = name in ("to", "copy_", "cpu", "data_", "set_")
        strangers = [x for x in given if x.ndim and not self.is_on_gpu(x)]
        if there and strangers and not moves:
            shapes = [tuple(x.shape) for x in strangers]
            raise RuntimeError(f"{name}: {shapes} are on the CPU")
        result = function(*args, **kwargs)
        if wanted is None:
            gpu = bool(there) and name != "cpu"
        else:
            gpu = wanted.type == "cuda"
            if there and not gpu:
                self.waits.append(f"{name} to {wanted}")
        if name == "copy_":
            if not self.is_on_gpu(args[0]) and there:
                self.waits.append(name)
            return result
        return self.marked(result, gpu)

    def uploads(self, name, args, given, there, wanted, kwargs):
        """Whether values go from the CPU to the GPU, which PyTorch waits for.

        It returns when they are there, after all that was queued before.
        """
        if name == "copy_":
            here = len(given) == 2 and not self.is_on_gpu(given[1])
            return here and self.is_on_gpu(given[0])
        if name == "where" and there:
            return len(there) < 3
        if wanted is None or wanted.type != "cuda" or there:
            return False
        if name == "to":
            return not kwargs.get("non_blocking")
        return name in ("as_tensor", "asarray", "tensor")

    def attribute(self, function, args):
        """`x.device` and the like."""
        result = function(*args)
        if not self.is_on_gpu(args[0]):
            return result
        if isinstance(result, torch.device):
            return CUDA
        if is_tensor(result):
            return self.marked(result, True)
        owner = getattr(function, "__self__", None)
        return True if getattr(owner, "__name__", "") == "is_cuda" else result

    def without_device(self, name, args, kwargs):
        """The arguments without a device, and the device."""
        wanted = kwargs.pop("device", None)
        if name == "to" and wanted is None:
            for i, x in enumerate(args[1:], 1):
                if isinstance(x, (str, torch.device)):
                    wanted = args[i]
                    args = [*args[:i], *args[i + 1 :]]
                    break
        return args, None if wanted is None else torch.device(wanted)

    def marked(self, result, gpu):
        """The result, noted as the GPU's or not.

        A copy that PyTorch leaves out, as nothing moves, is another object.
        """
        if is_tensor(result) and id(result) in self.known:
            if self.is_on_gpu(result) == gpu:
                return result
            result = result.detach()
        for x in flat(result):
            if is_tensor(x):
                self.known[id(x)] = x
                if gpu:
                    self.on_gpu[id(x)] = x
        return result


def is_tensor(x):
    return isinstance(x, torch.Tensor)


def flat(nested):
    """All that lists, tuples and dicts hold."""
    if isinstance(nested, dict):
        nested = list(nested.values())
    if isinstance(nested, (list, tuple)):
        return [x for one in nested for x in flat(one)]
    return [nested]

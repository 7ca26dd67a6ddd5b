"""Everything that differs between the backends: one module each.

Only the module of the backend that Keras runs on is imported. All modules have
the same names:

- control flow: `is_compiled`, `cond`, `replace_if`, `switch`, `each`, `after`;
- values that decide what is done: `to_host`, `on_host`, `on_device`, `unpack`,
  `unpack_places`;
- with numbers: `where`, `maximum`, `minimum`, `clip`, `power`; `take`;
- work on many tensors: `pieces`, `lerp`, `lerp_`, `scale_`, `scale_each_`,
  `mean_roots_`, `adam_directions`, `update_`,
  `largest_entries`, `bitcast`, `reshape`, `as_tensors`, `cast_each`, `store_`,
  `constant`;
- on matrices: `largest_of_each`, `unit_norm`, `frobenius_norm`,
  `shrunk_signs`, `add_products`, `gpu_product`;
- on several devices: `devices`, `layouts`, `laid_out`, `share_out`, `replicas`;
- the device's abilities: `device`, `list_devices`, `tensorfloat32`,
  `full_precision`;
- `dense`, `no_grad`, `eager`, `value_of`, `EAGER`, `SUMS_OVER_REPLICAS`;
- the mixin `OptimizerHooks`, which leads Keras' per-backend calls to the base
  class' `update_variables`.

A function whose name ends in `_` may overwrite its first argument.
"""

import importlib
from types import ModuleType

import keras

SUPPORTED = ("jax", "tensorflow", "torch")


def load() -> ModuleType:
    """The module of the backend that Keras runs on.

    Raises:
        RuntimeError: If Keras runs on a backend that cannot train.
    """
    name = keras.backend.backend()
    if name not in SUPPORTED:
        raise RuntimeError(
            f"keras_lanton needs one of the backends {SUPPORTED}: set "
            "KERAS_BACKEND before importing keras. "
            f"Received: KERAS_BACKEND={name!r}"
        )
    return importlib.import_module(f"{__name__}.{name}")


_settings = {"gpu_kernels": False}


def use_gpu_kernels(enabled: bool = True) -> None:
    """Turns this package's own GPU kernels on or off, for the whole process.

    They halve the work of symmetric products: Triton on PyTorch, Pallas on
    JAX; TensorFlow has none. Triton's take matrices whose short side is 4096
    or more: on an H200 it then took 0.76 to 0.89 of the time of PyTorch's own
    products, and longer for smaller ones. Pallas' have not been measured. Off
    by default. Call it before the first step.

    Args:
        enabled: Whether to use them.

    Raises:
        ValueError: If `enabled` is not a bool, or the backend has no kernels.
    """
    if not isinstance(enabled, bool):
        raise ValueError(
            f"`enabled` must be True or False. Received: enabled={enabled!r}"
        )
    if enabled and load().gpu_product is None:
        raise ValueError(
            "`use_gpu_kernels` needs the jax or the torch backend. "
            f"Received: KERAS_BACKEND={keras.backend.backend()!r}"
        )
    _settings["gpu_kernels"] = enabled


def uses_gpu_kernels() -> bool:
    """Returns whether `use_gpu_kernels` turned them on."""
    return _settings["gpu_kernels"]

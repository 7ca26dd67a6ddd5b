"""Training on all devices at once."""

import contextlib

import keras

# The width of every kernel is split over the devices' axis "model".
LAYOUT = {
    ".*(query|key|value)/kernel": ("model", None, None),
    ".*attention_output/kernel": (None, None, "model"),
    ".*(intermediate|gate)_dense/kernel": ("model", None),
    ".*output_dense/kernel": (None, "model"),
    ".*embeddings": (None, "model"),
}


def devices_scope(distribution):
    """A scope in which models are made and trained on all devices.

    `"data"`: each takes a part of every batch; `"model"`: each has a part of
    every matrix, JAX only; or `"none"`.
    """
    if distribution == "none":
        return contextlib.nullcontext()
    backend = keras.backend.backend()
    if distribution == "data" and backend == "tensorflow":
        import tensorflow as tf

        return tf.distribute.MirroredStrategy().scope()
    if backend != "jax":
        raise SystemExit(
            "--distribution data needs the jax or the tensorflow backend, "
            f"model the jax backend. Received: --distribution {distribution} "
            f"with {backend}"
        )
    devices = keras.distribution.list_devices()
    if distribution == "data":
        return keras.distribution.DataParallel(devices=devices).scope()
    mesh = keras.distribution.DeviceMesh(
        (1, len(devices)), ["batch", "model"], devices=devices
    )
    layout = keras.distribution.LayoutMap(mesh)
    for path, axes in LAYOUT.items():
        layout[path] = axes
    return keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch"
    ).scope()

"""`fit` on a tiny model, and `apply` on four bare variables.

The model has a table, a convolution, a norm and a Dense layer; gradients of
the variables come from NumPy.
"""

import functools

import keras
import numpy as np
from keras import ops

from helpers.models import COUNTS
from helpers.models import make_data
from helpers.models import make_model
from helpers.models import to_arrays
from helpers.optimizers import DEFAULTS
from helpers.optimizers import paper

BACKEND = keras.backend.backend()
# Noise is measured on every other step, so that both kinds of steps occur.
# Few Newton-Schulz steps, since compiling them is most of the time.
OPTIONS = {
    "learning_rate": 0.01,
    "embedding_scale": 64.0,  # entries move by the rate
    "noise_interval": 2,
    "ns_steps": 2,
}
# The same of `Lanton()`, whose AdamW moves vectors.
PRESETS = {
    "paper": OPTIONS,
    "defaults": {
        **DEFAULTS,
        "learning_rate": 0.01,
        "noise_interval": 2,
        "ns_steps": 2,
    },
}


# Of weights after `fit` on another way. With the defaults an embedding's update
# is 0.75 here, and noise shrinks it from the first step on: labels that change
# by one rounding move it by up to 5e-6, the program of XLA by 1.7e-5.
TOLERANCES = {"paper": 1e-5, "defaults": 4e-5}

SHAPES = {
    "tokens/embeddings": (7, 4),
    "first/kernel": (4, 6),
    "first/bias": (6,),
    "second/kernel": (6, 3),
}
PATHS = list(SHAPES)


def model_of_runs(constraint=None):
    """With a convolution, and one Dense layer."""
    return make_model(filters=5, constraints={"first": constraint})


def fit(
    model, optimizer, *, batch_size=4, epochs=1, callbacks=None, **compiled
):
    """Weights after `fit` on the same 16 samples, in their order."""
    # Compiling costs more than these runs, on PyTorch tens of seconds.
    if "run_eagerly" not in compiled:
        compiled.setdefault("jit_compile", BACKEND == "jax")
    model.compile(optimizer=optimizer, loss="mse", **compiled)
    x, y = make_data()
    model.fit(
        x,
        y,
        batch_size=batch_size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return to_arrays(model.trainable_variables)


@functools.cache
def reference_weights(preset="paper"):
    """After 4 plain steps."""
    return fit(model_of_runs(), paper(**PRESETS[preset]))


def as_arrays(some):
    """Of variables, or of arrays."""
    return [to_arrays([x])[0] if hasattr(x, "value") else x for x in some]


def assert_equal(found, wanted):
    for one, two in zip(as_arrays(found), as_arrays(wanted), strict=True):
        np.testing.assert_array_equal(one, two)


def assert_close(found, wanted, atol):
    for one, two in zip(as_arrays(found), as_arrays(wanted), strict=True):
        np.testing.assert_allclose(one, two, rtol=0.0, atol=atol)


def assert_same_noise(found, wanted, rtol):
    """Of two optimizers."""
    wanted = wanted.noise_report()
    for path, report in found.noise_report().items():
        np.testing.assert_allclose(
            report["noise"], wanted[path]["noise"], rtol=rtol
        )


def count(variable):
    return int(ops.convert_to_numpy(variable))


# -- Variables and apply ---------------------------------------------------
def make_variables(paths=PATHS, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for path in paths:
        layer, name = path.split("/")
        value = rng.standard_normal(SHAPES[path]).astype("float32")
        with keras.name_scope(layer):
            made.append(keras.Variable(value, name=name))
    return made


def make_gradients(steps, seed=2, sizes=(1.0, 3.0, 0.3)):
    """Of sizes that differ between steps, so that clipping bites in some."""
    rng = np.random.default_rng(seed)
    return [
        [
            (sizes[t % len(sizes)] * rng.standard_normal(shape)).astype(
                "float32"
            )
            for shape in SHAPES.values()
        ]
        for t in range(steps)
    ]


def apply(optimizer, variables, gradients):
    optimizer.apply(
        [None if g is None else ops.convert_to_tensor(g) for g in gradients],
        variables,
    )


def run(gradients, **options):
    """The optimizer and its variables after one `apply` per list."""
    optimizer = paper(**{**OPTIONS, **options})
    variables = make_variables()
    if BACKEND == "jax" and optimizer.gradient_accumulation_steps:
        # Keras' own conditionals would be compiled anew at each call.
        optimizer.build(variables)

        def step(state, gradients, values):
            given = tuple(g is not None for g in gradients)
            compiled = compiled_step(tuple(options.items()), given)
            return compiled(state, gradients, values)

        apply_stateless(step, optimizer, variables, gradients)
    else:
        for one in gradients:
            apply(optimizer, variables, one)
    return optimizer, variables


@functools.cache
def compiled_step(options, given):
    """Of an optimizer, where these variables have a gradient."""
    import jax

    optimizer = paper(**{**OPTIONS, **dict(options)})
    variables = make_variables()
    optimizer.build(variables)
    values = [v.value for v in variables]
    state = [v.value for v in optimizer.variables]
    gradients = [
        value if has else None for value, has in zip(values, given, strict=True)
    ]
    lowered = jax.jit(optimizer.stateless_apply).lower(state, gradients, values)
    # Compiling takes most of the time: half of it without passes.
    return lowered.compile(
        compiler_options={"xla_backend_optimization_level": 0}
    )


def apply_stateless(step, optimizer, variables, gradients):
    """On JAX: all steps in stateless form, then all state back."""
    values = [v.value for v in variables]
    state = [v.value for v in optimizer.variables]
    for one in gradients:
        values, state = step(state, one, values)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    for variable, value in zip(optimizer.variables, state, strict=True):
        variable.assign(value)


def state_of(optimizer, without=COUNTS):
    """All state except the named counters."""
    return {
        f"{i} {v.name}": np.array(ops.convert_to_numpy(v.value))
        for i, v in enumerate(optimizer.variables)
        if v.name not in without
    }


def assert_same_state(found, wanted):
    assert found.keys() == wanted.keys()
    for key, value in found.items():
        np.testing.assert_array_equal(value, wanted[key], err_msg=key)


# -- Clipping and loss scaling ---------------------------------------------
CLIPS = [
    {"clipnorm": 4.0},
    {"clipvalue": 0.8},
    {"global_clipnorm": 6.0},
]

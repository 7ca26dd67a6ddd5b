"""Averages of the weights."""

from helpers.models import make_data
from helpers.models import to_arrays
from helpers.optimizers import both_presets
from helpers.optimizers import paper
from helpers.runs import BACKEND
from helpers.runs import OPTIONS
from helpers.runs import PRESETS
from helpers.runs import apply
from helpers.runs import assert_close
from helpers.runs import assert_equal
from helpers.runs import fit
from helpers.runs import make_gradients
from helpers.runs import make_variables
from helpers.runs import model_of_runs
from helpers.runs import run
from helpers.tiers import logic


# -- EMA -------------------------------------------------------------------
def averages_by_hand(history, momentum):
    average = history[0]
    for weights in history[1:]:
        average = [
            momentum * a + (1.0 - momentum) * w
            for a, w in zip(average, weights, strict=True)
        ]
    return average


@both_presets
def test_ema(preset):
    momentum = 0.8
    optimizer = paper(**PRESETS[preset], use_ema=True, ema_momentum=momentum)
    variables = make_variables()
    history = []
    for one in make_gradients(5):
        apply(optimizer, variables, one)
        history.append(to_arrays(variables))
    _, plain = run(make_gradients(5), **PRESETS[preset])
    assert_equal(history[-1], to_arrays(plain))
    optimizer.finalize_variable_values(variables)
    # Observed 4e-7.
    assert_close(
        to_arrays(variables), averages_by_hand(history, momentum), 2e-6
    )


def test_ema_overwrite_frequency():
    momentum = 0.8
    optimizer = paper(
        **OPTIONS,
        use_ema=True,
        ema_momentum=momentum,
        ema_overwrite_frequency=3,
    )
    variables = make_variables()
    history = []
    for one in make_gradients(3):
        apply(optimizer, variables, one)
        history.append(to_arrays(variables))
    _, plain = run(make_gradients(3))
    # Observed 3e-7.
    assert_close(
        history[2],
        averages_by_hand([*history[:2], to_arrays(plain)], momentum),
        2e-6,
    )


@logic
def test_ema_in_fit():
    """`fit` ends with the averages in the model."""
    frequency = 3
    found = fit(
        model_of_runs(),
        paper(
            **OPTIONS,
            use_ema=True,
            ema_momentum=0.8,
            ema_overwrite_frequency=frequency,
        ),
    )
    model = model_of_runs()
    compiled = {"loss": "mse", "jit_compile": BACKEND == "jax"}
    model.compile(optimizer=paper(**OPTIONS), **compiled)
    x, y = make_data()
    average = None
    for step in range(1, 5):
        batch = slice(4 * step - 4, 4 * step)
        model.train_on_batch(x[batch], y[batch])
        weights = to_arrays(model.trainable_variables)
        average = averages_by_hand([average or weights, weights], 0.8)
        if step % frequency == 0:
            for variable, value in zip(
                model.trainable_variables, average, strict=True
            ):
                variable.assign(value)
    # Observed 2e-7.
    assert_close(found, average, 1e-5)

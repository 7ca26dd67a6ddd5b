"""Small models, at one rate and with a schedule."""

import keras
import numpy as np
import pytest

from experiments import image_data
from experiments import sweeps
from experiments.search import run_for

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX trains them"
)


def made_up_images():
    random = np.random.default_rng(0)
    parts = (
        (random.random((n, 28, 28, 1)), random.integers(0, 10, n))
        for n in (200, 100)
    )
    return image_data.of_keras(parts)


@pytest.mark.parametrize("caption", sweeps.SMALL)
def test_tasks_train(caption, monkeypatch, tmp_path):
    from experiments import small

    def some(task):
        """The same with 64 examples."""
        x, y = task.training
        x = [one[:64] for one in x] if isinstance(x, list) else x[:64]
        return small.Task(task.model, task.loss, (x, y[:64]), (x, y[:64]))

    fields = {**sweeps.SMALL[caption], "epochs": 2}
    model = fields["model"]
    task = small.TASKS[model]
    monkeypatch.setitem(small.TASKS, model, lambda data: some(task(data)))
    images = made_up_images()
    monkeypatch.setattr(image_data, "load", lambda *given: images)
    run = run_for("keras_adamw", 1e-3, **fields)
    result = small.train(run, tmp_path)
    assert result["loss"] == min(result["losses"])
    assert len(result["losses"]) == 2
    assert np.isfinite(result["loss"])


def test_schedule_warms_up_and_falls_to_zero():
    from experiments import small

    fields = {**sweeps.SMALL["time series, LSTM"], "epochs": 2}
    run = run_for("keras_adamw", 1e-3, **fields)
    assert small.rate_of(run, 1000) == 1e-3
    rate = small.rate_of(run.replace(schedule="cosine"), 1000)
    steps = 2 * 16  # batches of 64
    rates = [float(rate(step)) for step in range(steps)]
    assert np.argmax(rates) == 1  # 5 % of the steps are two
    np.testing.assert_allclose(rates[1], 1e-3, rtol=1e-6)
    assert 0 < rates[-2] < 1e-5
    assert rates[-1] == 0.0

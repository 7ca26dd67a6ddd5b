"""Presets, optimizers and schedules are the paper's; batches do not change."""

import dataclasses
import functools
import operator

import keras
import numpy as np
import pytest

from experiments import batches
from experiments import hyperparameters
from experiments import models
from experiments import optimizers
from experiments import styles
from experiments import sweeps
from experiments.presets import PRESETS
from helpers.optimizers import config_of
from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import NewtonSchulz

pytestmark = logic


def rates(steps, warmup, every=1, **options):
    """Of a schedule with a peak of 5e-3, on each of its updates."""
    schedule = optimizers.make_schedule(
        5e-3, steps * every, warmup * every, **options
    )
    return [
        float(keras.ops.convert_to_numpy(schedule(step)))
        for step in range(every - 1, steps * every, every)
    ]


def test_paper_schedule():
    """Linear over N steps, then a cosine to 0; t is 1 to T."""
    steps, warmup, peak = 50, 5, 5e-3
    t = np.arange(1, steps + 1)
    expected = np.where(
        t <= warmup,
        peak * t / warmup,
        peak * 0.5 * (1 + np.cos(np.pi * (t - warmup) / (steps - warmup))),
    )
    found = rates(steps, warmup)
    np.testing.assert_allclose(found, expected, atol=1e-9, rtol=1e-5)
    # Keras counts micro-batches where gradients are accumulated.
    last = {"minimum_ratio": 0.1}
    once, often = rates(10, 3, **last), rates(10, 3, every=4, **last)
    np.testing.assert_allclose(often, once, rtol=1e-5)
    assert once[-1] == pytest.approx(5e-4)


MODEL = ("layers", "width", "heads")
LENGTHS = ("context", "batch_size", "warmup", "minimum_ratio")
RATES = ("adamw", "lanton", "lanton_paper")
LLAMA_500M, LLAMA = (8e-4, 5e-3, 5e-3), (3e-4, 5e-3, 5e-3)


@pytest.mark.parametrize(
    ("name", "model", "lengths", "learning_rates"),
    [
        ("gpt2_small", (12, 768, 12), (512, 16, 300, 0), (1e-4, 5e-3, 5e-3)),
        ("gpt2_medium", (24, 1024, 16), (512, 16, 300, 0), (1e-4, 3e-3, 3e-3)),
        ("llama_500m", (15, 1280, 20), (512, 300, 1000, 0.05), LLAMA_500M),
        ("llama_1b", (22, 2048, 32), (256, 1024, 1000, 0.1), LLAMA),
        ("llama_2b", (26, 2560, 40), (256, 1024, 1000, 0.1), LLAMA),
    ],
)
def test_settings_are_the_papers(name, model, lengths, learning_rates):
    preset = PRESETS[name]
    for fields, wanted in ((MODEL, model), (LENGTHS, lengths)):
        assert tuple(getattr(preset, field) for field in fields) == wanted
    assert tuple(preset.learning_rates[x] for x in RATES) == learning_rates
    if preset.model == "llama":
        assert preset.heads % preset.key_value_heads == 0
        feed_forward = {"llama_500m": 5120, "llama_1b": 5632}
        assert preset.feed_forward == feed_forward.get(name, 7040)
    if name == "llama_1b":
        muon = optimizers.make_optimizer("muon", 5e-3, preset.experiment)
        ratio = muon.auxiliary_adamw.lr_ratio
        assert ratio == pytest.approx(3e-4 / 5e-3)


def test_llama_paper_sizes():
    def weights(preset, vocabulary):
        """Embedding and head, both norms' gains, attention, feed-forward."""
        width = preset.width
        keys = preset.head_width * preset.key_value_heads
        attention = 2 * width * width + 2 * width * keys
        layer = attention + 3 * width * preset.feed_forward + 2 * width
        return 2 * vocabulary * width + preset.layers * layer + width

    pytest.importorskip("keras_hub", exc_type=ImportError)
    small = {"layers": 1, "width": 128, "feed_forward": 64}
    demo = dataclasses.replace(PRESETS["llama_demo"], **small)
    model = models.make_model(demo, 300)
    assert model.count_params() == weights(demo, 300)
    # The paper's, with 50304 tokens; it only calls the last 2B.
    billions = {"llama_500m": 0.522, "llama_1b": 1.175, "llama_2b": 2.047}
    for name, wanted in billions.items():
        count = weights(PRESETS[name], 50304)
        assert count / 1e9 == pytest.approx(wanted, abs=5e-4)


def test_presets_make_every_optimizer():
    for name in styles.OPTIMIZERS:
        optimizer = optimizers.make_optimizer(name, 1e-3)
        assert float(optimizer.learning_rate) == pytest.approx(1e-3)
        assert PRESETS["gpt2_demo"].learning_rates[name] > 0
        assert len(PRESETS["gpt2_demo"].sweep[name]) == 4
    for method in hyperparameters.RATES:
        options = hyperparameters.options(method, "gpt2_small")
        made = optimizers.construct(method, 1e-3, options=options)
        for name, value in options.items():
            if method == "mars":  # whose decay is not that of Keras
                assert made.get_config()[name] == value
            else:
                assert operator.attrgetter(name)(made) == value
    assert PRESETS["gpt2_medium"].learning_rates["scion"] == 2e-4
    ours, papers = (
        config_of(optimizers.make_optimizer(name, 5e-3))
        for name in ("lanton", "lanton_paper")
    )
    assert ours == config_of(Lanton(5e-3, weight_decay=0.1))
    assert papers == config_of(Lanton.paper(5e-3))
    muon = optimizers.make_optimizer("muon", 3e-3)
    assert muon.auxiliary_adamw.lr_ratio == pytest.approx(0.1)


def test_data_order_depends_on_seed_and_step_alone():
    def rows(first, last):
        return batches.training_rows(first, last, 11, batch_size=2, seed=1)

    whole = rows(0, 12)
    parts = [
        rows(*ends) for ends in ((0, 1), (1, 4), (4, 5), (5, 10), (10, 12))
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert len(set(whole[:10])) == 10  # no block twice within an epoch
    assert list(whole[:10]) != list(whole[10:20])


@pytest.mark.parametrize(
    "grid, before, migrate",
    [
        (sweeps.FROM_ADAMW[0], "AdamW", Lanton.from_adamw),
        (sweeps.AT_ONE_RATE[0], "AdamW", Lanton.from_adamw),
        # Keras' coefficients by their name, as the row has them.
        (
            sweeps.FROM_MUON,
            "`keras.optimizers.Muon`",
            functools.partial(
                Lanton.from_muon,
                newton_schulz=NewtonSchulz(coefficients="jordan"),
            ),
        ),
    ],
)
def test_the_row_of_a_migration_is_that(grid, before, migrate):
    by_label = dict(reversed(grid.rows))  # the first one where there are more
    runs = [
        by_label[before],
        *(run for label, run in by_label.items() if "Lanton.from_" in label),
    ]
    before, ours = (
        optimizers.construct(
            run.optimizer, run.learning_rate, options=run.options
        )
        for run in runs
    )
    # "auto" is the estimator that the row names.
    noise = dataclasses.replace(ours.noise, estimator="auto")
    wanted = migrate(before, name=ours.name).get_config()
    assert Lanton(noise=noise).get_config()["noise"] == wanted.pop("noise")
    rate = wanted.pop("learning_rate")
    found = ours.get_config()
    assert found.pop("learning_rate") == pytest.approx(rate)
    del found["noise"]
    assert found == wanted

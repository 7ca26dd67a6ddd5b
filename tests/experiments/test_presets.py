"""Presets, optimizers and schedules are the paper's; batches do not change."""

import dataclasses
import operator
import pathlib
import sys

import keras
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # as with `python -m experiments.pretraining`

from experiments import batches  # noqa: E402
from experiments import hyperparameters  # noqa: E402
from experiments import models  # noqa: E402
from experiments import optimizers  # noqa: E402
from experiments import styles  # noqa: E402
from experiments.presets import PRESETS  # noqa: E402
from helpers.optimizers import config_of  # noqa: E402
from keras_lanton import Lanton  # noqa: E402


def test_paper_schedule():
    """Linear over N steps, then a cosine to 0; t is 1 to T."""
    steps, warmup, peak = 50, 5, 5e-3
    schedule = optimizers.make_schedule(peak, steps, warmup)
    t = np.arange(1, steps + 1)
    expected = np.where(
        t <= warmup,
        peak * t / warmup,
        peak * 0.5 * (1 + np.cos(np.pi * (t - warmup) / (steps - warmup))),
    )
    actual = [float(keras.ops.convert_to_numpy(schedule(i - 1))) for i in t]
    np.testing.assert_allclose(actual, expected, atol=1e-9, rtol=1e-5)


def test_accumulated_schedule_is_that_of_the_updates():
    def rates(count):
        schedule = optimizers.make_schedule(
            5e-3, 50 * count, 5 * count, minimum_ratio=0.1
        )
        return [
            float(keras.ops.convert_to_numpy(schedule(step)))
            for step in range(count - 1, 50 * count, count)
        ]

    np.testing.assert_allclose(rates(4), rates(1), rtol=1e-5)
    assert rates(1)[-1] == pytest.approx(5e-4)


def test_gpt2_paper_presets():
    """The paper's settings of its two GPT-2 runs."""
    small, medium = PRESETS["gpt2_small"], PRESETS["gpt2_medium"]
    assert (small.layers, small.width, small.heads) == (12, 768, 12)
    assert (medium.layers, medium.width, medium.heads) == (24, 1024, 16)
    for name in ("lanton", "lanton_paper"):
        assert small.learning_rates[name] == 5e-3
        assert medium.learning_rates[name] == 3e-3
    for preset in (small, medium):
        assert preset.learning_rates["adamw"] == 1e-4
        assert (preset.context, preset.batch_size, preset.warmup) == (
            512,
            16,
            300,
        )


def test_llama_paper_presets():
    """The paper's settings of its Llama runs."""
    half, one, two = (
        PRESETS[name] for name in ("llama_500m", "llama_1b", "llama_2b")
    )
    assert (half.layers, half.width, half.heads) == (15, 1280, 20)
    assert (one.layers, one.width, one.heads) == (22, 2048, 32)
    assert (half.feed_forward, one.feed_forward) == (5120, 5632)
    assert (half.context, half.batch_size) == (512, 300)
    assert (half.warmup, half.minimum_ratio) == (1000, 1 / 20)
    assert half.learning_rates["adamw"] == 8e-4
    for preset in (one, two):
        assert (preset.context, preset.batch_size) == (256, 1024)
        assert (preset.warmup, preset.minimum_ratio) == (1000, 1 / 10)
        assert preset.learning_rates["adamw"] == 3e-4
        assert preset.learning_rates["lanton"] == 5e-3
        assert preset.learning_rates["lanton_paper"] == 5e-3
        assert preset.heads % preset.key_value_heads == 0
    muon = optimizers.make_optimizer("muon", 5e-3, one.experiment)
    assert muon.auxiliary_adamw.lr_ratio == pytest.approx(3e-4 / 5e-3)


def weights(preset, vocabulary):
    """Embedding and head, both norms' gains, attention, feed-forward."""
    width = preset.width
    keys = preset.head_width * preset.key_value_heads
    attention = 2 * width * width + 2 * width * keys
    layer = attention + 3 * width * preset.feed_forward + 2 * width
    return 2 * vocabulary * width + preset.layers * layer + width


def test_llama_paper_sizes():
    pytest.importorskip("keras_hub", exc_type=ImportError)
    demo = dataclasses.replace(
        PRESETS["llama_demo"], layers=1, width=128, feed_forward=64
    )
    model = models.make_model(demo, 300)
    assert model.count_params() == weights(demo, 300)
    for name, billions in (
        # The paper's, with 50304 tokens; it only calls the last 2B.
        ("llama_500m", 0.522),
        ("llama_1b", 1.175),
        ("llama_2b", 2.047),
    ):
        count = weights(PRESETS[name], 50304)
        assert count / 1e9 == pytest.approx(billions, abs=5e-4)


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
    whole = batches.training_rows(0, 12, blocks=11, batch_size=2, seed=1)
    parts = [
        batches.training_rows(a, b, blocks=11, batch_size=2, seed=1)
        for a, b in ((0, 1), (1, 4), (4, 5), (5, 10), (10, 12))
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert len(set(whole[:10])) == 10  # no block twice within an epoch
    assert list(whole[:10]) != list(whole[10:20])

"""Rates that fall from the last block to the first."""

import re

import keras
import pytest
from keras import layers

from helpers.tiers import logic
from keras_lanton import Lanton
from keras_lanton import layerwise_decay

pytestmark = logic


def make_model(blocks=3):
    """Blocks between embeddings and a head."""
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4, name="tokens")(inputs)
    x = layers.LayerNormalization(name="embeddings_norm")(x)
    for i in range(blocks):
        block = keras.Sequential(
            [layers.Dense(4, name="up"), layers.Dense(4, name="down")],
            name=f"block_{i}",
        )
        x = block(x)
    x = layers.LayerNormalization(name="final_norm")(x)
    return keras.Model(inputs, layers.Dense(7, name="head")(x))


def rates(model, factor):
    """Multiplier of each variable, by path."""
    multipliers = layerwise_decay(model, factor)
    optimizer = Lanton(rate_multipliers=multipliers)
    optimizer.build(model.trainable_variables)
    found = optimizer._layout.rate_multipliers
    paths = [v.path for v in model.trainable_variables]
    return dict(zip(paths, found, strict=True))


def test_rates_fall_from_the_last_block_to_the_first():
    found = rates(make_model(), 0.5)
    wanted = {
        "tokens": 0.5**4,
        "embeddings_norm": 0.5**4,
        "block_0": 0.5**3,
        "block_1": 0.5**2,
        "block_2": 0.5,
        "final_norm": 1.0,
        "head": 1.0,
    }
    for path, rate in found.items():
        (name,) = [n for n in wanted if re.search(f"(^|/){n}/", path)]
        assert rate == pytest.approx(wanted[name]), path


def named(*names):
    return keras.Sequential(
        [keras.Input((4,)), *(layers.Dense(4, name=name) for name in names)]
    )


def test_block_10_is_not_block_1():
    """And of several equal layers the first has no number."""
    found = rates(make_model(12), 0.9)
    for block, rate in ((1, 0.9**11), (10, 0.9**2)):
        (one,) = {r for path, r in found.items() if f"block_{block}/" in path}
        assert one == pytest.approx(rate)
    found = rates(named("emb", "enc", "enc_1", "enc_2", "head"), 0.5)
    assert [*found.values()][::2] == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]


def test_blocks_of_keras_hub():
    keras_hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    model = keras_hub.models.BertBackbone(
        vocabulary_size=20,
        num_layers=2,
        num_heads=2,
        hidden_dim=4,
        intermediate_dim=8,
        max_sequence_length=6,
    )
    found = rates(model, 0.5)
    for part, rate in (("transformer_layer_1/", 0.5), ("embedding", 0.5**3)):
        assert {r for path, r in found.items() if part in path} == {rate}
    after = [path for path, rate in found.items() if rate == 1.0]
    assert all("pooled" in path for path in after)


@pytest.mark.parametrize("factor", [0, -0.1, 1.1, "0.9", None, float("nan")])
def test_wrong_factors(factor):
    with pytest.raises(ValueError, match="factor.*Received: "):
        layerwise_decay(make_model(), factor)


def test_a_model_without_blocks():
    with pytest.raises(ValueError, match="two blocks or more"):
        layerwise_decay(named("dense"), 0.9)


def test_a_model_that_is_loaded_before_its_first_step(tmp_path):
    model = named("emb", "block_0", "block_1", "head")
    multipliers = layerwise_decay(model, 0.5)
    model.compile(Lanton(rate_multipliers=multipliers), "mse")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    found = loaded.optimizer._layout.rate_multipliers
    assert found[::2] == (1 / 8, 1 / 4, 1 / 2, 1.0)

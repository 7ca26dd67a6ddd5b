"""Pictures of what was recorded."""

import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton.tools import plots

pytestmark = logic


@pytest.mark.parametrize("count", [10, 500])
def test_picture_of_many_layers(count):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    noise = rng.lognormal(size=(40, count))
    noise[0] = 0  # not measured yet
    figure = plots.draw_noise(
        np.arange(1, 41) * 10,
        noise,
        np.minimum(noise, 1),
        roles=["hidden"] * count,
        blocks=[("qk", "vo", "mlp")[i % 3] for i in range(count)],
    )
    # A line and a band of each kind, however many matrices there are.
    assert [len(axes.collections) for axes in figure.axes] == [1, 3, 1]
    first = [axes.get_legend().get_texts()[0] for axes in figure.axes]
    names = [text.get_text() for text in first]
    assert names[0] == names[2] == f"hidden, {count} matrices"
    assert names[1].startswith("QK, ")

"""Pictures of what was recorded."""

import numpy as np
import pytest

from helpers.tiers import logic
from keras_lanton.utils import plots

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
    # A line and a band of each kind, however many layers there are.
    assert [len(axes.collections) for axes in figure.axes] == [1, 3, 1]
    names = [axes.texts[0].get_text() for axes in figure.axes]
    assert names[0] == names[2] == f"hidden\n{count} layers"
    assert names[1].startswith("QK\n")


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        ([], []),
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.5, 0.5], [0.4, 0.6]),
        ([0.5, 0.0, 0.4], [0.55, 0.0, 0.35]),
        ([0.5, 0.49, 0.51], [0.5, 0.3, 0.7]),
    ],
)
def test_labels_are_apart(places, wanted):
    np.testing.assert_allclose(plots.spaced(places, 0.2), wanted)


def test_labels_are_at_the_ends_of_their_lines():
    pytest.importorskip("matplotlib")
    axes = plots.new_figure(5).subplots()
    axes.plot([0, 1], [1, 10], label="high", color="#F0E442")
    axes.plot([0, 1], [1, 1], label="low")
    axes.plot([0, 1], [1, 5])
    axes.set_yscale("log")
    axes.set_ylim(1, 10)
    plots.label_ends(axes)
    found = {text.get_text(): text.xy[1] for text in axes.texts}
    assert found == pytest.approx({"high": 1.0, "low": 0.0})
    assert max(axes.texts[0].get_color()) < 0.75

"""Runs of language models on JAX, of the CNN on TensorFlow."""

import contextlib

import keras
import numpy as np
import pytest

from helpers.tiers import exhaustive
from helpers.tiers import keep
from helpers.tiers import logic

pytest.importorskip("keras_hub", exc_type=ImportError)

from experiments import run as runs
from experiments import tasks
from experiments import texts
from experiments.search import run_for

on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="its steps are JAX's"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With two texts, and with their tokens once they are needed."""
    made = tmp_path_factory.mktemp("texts")
    for name, animal in (("wiki", "fox"), ("sotu", "hen")):
        lines = (f"the quick brown {animal} {i} jumps" for i in range(3000))
        (made / f"{name}.txt").write_text("\n\n".join(lines))
    return made


@pytest.fixture
def train(monkeypatch, folder):
    """A function that trains runs on small models and texts, here."""
    from experiments import language

    monkeypatch.setattr(language, "CHUNK", 2)
    monkeypatch.setattr(language, "LAYERS", 1)
    monkeypatch.setitem(language.WIDTHS, "S", 32)
    monkeypatch.setattr(language, "VALIDATION_BLOCKS", 32)
    monkeypatch.setattr(texts, "VOCABULARY", 300)
    monkeypatch.setattr("experiments.corpora.DOCUMENT", 2500)
    monkeypatch.setattr(runs, "SHARED", {})

    def train(*wanted, turn=None):
        runs.SHARED.update(cache=folder / "cache", turn=turn)
        runs._prepare(wanted, folder, folder / "cache")
        return [result for _, result in runs.train_group(list(wanted))]

    yield train
    language.learner_of.cache_clear()


@on_jax
def test_a_run_after_another_is_the_same_run(train):
    """What it starts with is its own, whatever ran in the process."""
    run = run_for("lanton", 0.01, batch_size=2, steps=20)
    first, other, again = train(
        run, run.replace(learning_rate=0.05, seed=2, text="sotu"), run
    )
    assert again["loss"] == first["loss"] != other["loss"]
    assert {"sum_of_squares_ms", "versions"} <= set(first["machine"])


@on_jax
def test_runs_together_end_as_alone(train):
    some = [
        run_for("lanton", rate, batch_size=2, tokens_per_weight=length)
        for rate, length in ((0.01, 0.03), (0.02, 0.02))
    ]
    some.append(some[0].replace(seed=2))
    beside = train(*some, turn=contextlib.nullcontext())
    for one, two in zip(beside, train(*some), strict=True):
        assert one["together"] == 3
        assert one["steps"] == two["steps"]
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-3)


@on_jax
def test_accumulated_gradients_are_micro_batches(train):
    run = run_for("d_muon", 0.01, batch_size=4, steps=6)
    halves = run.with_options(gradient_accumulation_steps=2)
    (whole,), (parts,) = train(run), train(halves)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-3)


@on_jax
@pytest.mark.parametrize("rank", keep([0, 2], [2], exhaustive))
def test_fine_tuning(train, folder, monkeypatch, rank):
    base = run_for("adamw", 0.01, batch_size=1, tokens_per_weight=0.05)
    monkeypatch.setitem(tasks.BASES, "lanton", base)
    fields = {"kind": "fine_tuning", "text": "sotu", "base": "lanton"}
    fields |= {"initial": None}
    run = run_for("d_muon", 0.01, rank=rank, batch_size=2, steps=20, **fields)
    run = run.with_options(weight_decay=0.0)
    (result,) = train(run)
    new, old = result["before"]
    assert result["loss"] < new
    assert np.isfinite([old, result["old_loss"]]).all()
    weights = list((folder / "cache" / "weights").iterdir())
    assert [path.name for path in weights] == [f"{base.id}.npz"]


@on_jax
@pytest.mark.parametrize(
    "model", keep(["gpt2", "llama"], ["llama"], exhaustive)
)
def test_each_normalization_has_a_barrier(train, monkeypatch, model):
    import jax

    from experiments import language

    run = run_for("lanton", 0.01, model=model)
    tokens = np.arange(130).reshape(2, 65) % 7
    losses, counts = [], []
    for separate in (language.separate_normalizations, lambda model: None):
        monkeypatch.setattr(language, "separate_normalizations", separate)
        learner = language.Learner(run)
        state = learner.start(learner.model)[:2]
        traced = jax.make_jaxpr(learner.mean_loss)(*state, tokens)
        counts.append(str(traced).count("optimization_barrier"))
        losses.append(float(learner.mean_loss(*state, tokens)[0]))
    # Two in each block, and the last one.
    assert counts == [2 * language.LAYERS + 1, 0]
    assert losses[0] == losses[1]


@on_jax
def test_steps_of_runs(train):
    from experiments import language

    budget = run_for("lanton", 0.01)
    assert language.count_steps(budget, weights=51_200) == 1000
    short = run_for("lanton", 0.01, steps=250)
    assert language.count_steps(short, weights=10**9) == 250
    language.CHUNK = 100  # undone by the fixture
    assert language.chunk_of(250) == 50
    deep = run_for("lanton", 0.01, size="XS", steps=400, layers=2)
    assert language.preset_of(deep).layers == 2
    assert language.preset_of(budget.replace(dtype="bfloat16")).dtype_policy


@on_jax
def test_rates_warm_up_unless_a_run_is_cold():
    from experiments import language

    warm = language.rates_of(0.01, 100)
    cold = language.rates_of(0.01, 100, warmup=0.0)
    np.testing.assert_allclose(warm[:5] / 0.01, [0.2, 0.4, 0.6, 0.8, 1], 1e-6)
    assert cold[0] == np.float32(0.01) and np.all(np.diff(cold) < 0)
    assert warm[-1] == cold[-1] == 0.0


@logic
def test_a_missing_text_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="wiki.txt or .*Received: "):
        texts.prepare("wiki", tmp_path, tmp_path / "cache")


@logic
def test_images_are_taken_from_the_folder_that_has_them(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "fashion_mnist.npz").write_text("images")
    cache = tmp_path / "cache"
    texts.copy_images("fashion_mnist", tmp_path / "given", cache)
    assert (cache / "fashion_mnist.npz").exists()
    texts.copy_images("fashion_mnist", tmp_path, tmp_path / "none")


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow trains it"
)
def test_images(tmp_path):
    from experiments import images

    random = np.random.default_rng(0)
    arrays = {
        f"{kind}_{part}": random.integers(0, high, (count, *shape))
        for part, count in (("train", 20), ("test", 10))
        for kind, high, shape in (("x", 255, (28, 28)), ("y", 10, ()))
    }
    arrays["y_train"][:10] = np.arange(10)
    np.savez(tmp_path / "fashion_mnist.npz", **arrays)
    run = run_for("cnn_d_muon", 0.01, widths=(2, 2, 2), batch_size=10, epochs=2)
    result = images.train(run, tmp_path)
    assert len(result["accuracies"]) == 2
    assert result["loss"] == 1 - result["accuracies"][-1]

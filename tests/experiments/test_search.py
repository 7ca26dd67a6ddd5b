"""Searches, and what decides the rows of a table."""

import numpy as np
import pytest

from experiments import search
from experiments import sweeps
from experiments import tasks
from experiments.contestants import CONTESTANTS
from experiments.paper import sweeps as papers
from helpers.results import MadeUp
from helpers.tiers import logic

pytestmark = logic
BEST = {"learning_rate": 0.16, "weight_decay": 0.03, "beta_1": 0.98}


def loss(run):
    """A loss that is lowest at `BEST`."""
    options = {**dict(run.options), "learning_rate": run.learning_rate}
    return 3 + sum(abs(np.log(options[k] / best)) for k, best in BEST.items())


def ended(search_, results):
    """The runs of a search, trained until it ends."""
    while True:
        try:
            return search_(results)
        except search.MissingRunsError as error:
            results.train(error.runs)


def test_a_search_ends_at_the_best_inside_its_grid():
    tried = ended(sweeps.search_of("d_muon"), MadeUp(loss))
    best = {**dict(tried[0].options), "learning_rate": 0.16}
    assert tried[0].learning_rate == pytest.approx(0.16)
    assert best.items() >= BEST.items()
    assert max(run.learning_rate for run in tried) > 0.16  # past the best


def test_normuon_has_ten_runs_of_tuning():
    results = MadeUp(lambda run: abs(np.log(run.learning_rate / 0.02)))
    assert len(ended(sweeps.search_of("normuon"), results)) == 10
    table = sweeps.SIZES[0]
    missing = {
        run.seed
        for run in search.wanted(table, results)
        if run.optimizer == "normuon"
    }
    assert missing == {1}  # three rates first, three seeds of the best then


def test_contestants_have_what_their_search_tries():
    for name, (_, space) in (sweeps.SPACES | sweeps.IMAGE_SPACES).items():
        assert {x for x, _ in space} <= CONTESTANTS[name].options.keys()


def test_close_rates_are_compared_on_all_seeds():
    of_seeds = {5e-3: (3.000, 3.05, 3.05), 2.5e-3: (3.009, 3.01, 3.01)}
    results = MadeUp(
        lambda run: of_seeds.get(run.learning_rate, (3.02,) * 3)[run.seed - 1]
    )
    runs = [search.run_for("d_muon", rate) for rate in (2.5e-3, 5e-3, 1e-2)]
    assert search.best_of_close(runs, results) == (None, [])
    results.train(runs)
    best, missing = search.best_of_close(runs, results)
    assert best.learning_rate == 5e-3
    # 1e-2 is not close.
    assert {run.learning_rate for run in missing} == {2.5e-3, 5e-3}
    results.train(missing)
    best, missing = search.best_of_close(runs, results)
    assert (best.learning_rate, missing) == (2.5e-3, [])


def test_a_rate_with_more_seeds_stands_before_one_with_fewer():
    one, two = (search.run_for("d_muon", rate) for rate in (5e-3, 1e-2))
    results = MadeUp(lambda run: {5e-3: 3.005, 1e-2: 3.0}[run.learning_rate])
    results.train([one, two, one.replace(seed=2)])

    def best():
        return search.best_of_close([one, two], results, seeds=(1, 2))

    assert best() == (one, [two.replace(seed=2)])
    results.train(best()[1])
    assert best() == (two, [])


def test_rows_elsewhere_have_the_best_rate_that_ran():
    results = MadeUp(lambda run: abs(np.log(run.learning_rate / 4e-3)))
    table = search.Table(
        caption="",
        decide=search.at_best(
            sweeps.runs_at({"lanton": (5e-3,), "d_muon": (5e-3, 1e-2)}),
            text="sotu",
        ),
        seeds=(11,),
    )
    assert table.decide(results)[0] == []
    results.train(search.wanted(table, results))
    assert [
        (label, run.learning_rate, run.text)
        for label, run in table.decide(results)[0]
    ] == [("`Lanton()`", 5e-3, "sotu"), ("D-Muon", 5e-3, "sotu")]
    assert {run.seed for run in search.wanted(table, results)} == {11}


def test_a_curve_needs_other_lengths_of_its_row():
    run = search.run_for("lanton", 5e-3)
    table = search.Table(
        caption="", decide=search.fixed(("a", run)), seeds=(1,), curve="a"
    )
    lengths = {run.tokens_per_weight for run in search.wanted(table, MadeUp(0))}
    assert lengths == {14.0, 20.0, 28.0}


QUESTIONS = {**papers.QUESTIONS, **sweeps.QUESTIONS}


@pytest.mark.parametrize("name", [*QUESTIONS])
def test_every_question_ends(name):
    results = MadeUp(lambda run: 3.0 + run.learning_rate + 0.01 * run.seed)
    for table in QUESTIONS[name]:
        for _ in range(60):
            if not (missing := search.wanted(table, results)):
                break
            results.train(missing)
        assert not missing


def test_fine_tuning_starts_from_weights_of_its_seed():
    fine_tune = tasks.fine_tune("LoRA, AdamW", "adamw")
    run = ended(fine_tune, MadeUp(lambda run: run.learning_rate))[0]
    assert (run.kind, run.rank, run.text) == ("fine_tuning", 8, "sotu")
    base = tasks.base_of(run.replace(seed=3))
    assert (base.seed, base.text, base.kind) == (3, "wiki", "language")

"""The statistics of evidence: exact identities, and what is computed against what is simulated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from tramark.evidence.statistics import (
    NO_ANSWER,
    SURVIVING,
    excess,
    log_e_values,
    match_rate,
    matches_needed,
    p_values,
    plurality,
    queries_needed,
    rank_p_value,
)

CLASSES = st.integers(2, 50)


@given(st.lists(st.booleans(), max_size=40), CLASSES)
def test_e_value_is_the_mean_of_products_of_likelihood_ratios(matched: list[bool], classes: int) -> None:
    products = np.ones(len(SURVIVING))
    for match in matched:
        for i, surviving in enumerate(SURVIVING):
            rate = match_rate(surviving, classes)
            products[i] *= rate * classes if match else (1 - rate) / (1 - 1 / classes)
    assert np.exp(log_e_values(len(matched), classes)[sum(matched)]) == pytest.approx(products.mean())


@given(st.integers(0, 100), CLASSES)
def test_an_innocents_next_factor_has_mean_one(answered: int, classes: int) -> None:
    now, then = np.exp(log_e_values(answered, classes)), np.exp(log_e_values(answered + 1, classes))
    assert then[1:] / classes + then[:-1] * (1 - 1 / classes) == pytest.approx(now)


@given(st.integers(1, 60), CLASSES)
def test_more_matches_are_more_evidence(answered: int, classes: int) -> None:
    assert (np.diff(log_e_values(answered, classes)) > 0).all()


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=8))
def test_plurality_is_the_commonest_answer_given(answers: list[int]) -> None:
    said = plurality(answers)
    given_answers = [a for a in answers if a != NO_ANSWER]
    if not given_answers:
        assert said == NO_ANSWER
    else:
        most = max(given_answers.count(a) for a in given_answers)
        assert said == next(a for a in given_answers if given_answers.count(a) == most)


@pytest.mark.parametrize(("answered", "classes"), [(1, 2), (24, 10), (72, 2)])
def test_p_values_are_binomial_tails(answered: int, classes: int) -> None:
    pmf = binom.pmf(np.arange(answered + 1), answered, 1 / classes)
    assert p_values(answered, classes) == pytest.approx(pmf[::-1].cumsum()[::-1])


def test_how_many_queries_convict() -> None:
    assert queries_needed(10, 10) == 8
    assert queries_needed(1000, 10) == 10
    # One answer of five drawn at random: 0.8 + 0.2 / 10.
    assert queries_needed(10, 10, rate=0.82) <= 16
    assert queries_needed(10, 10, rate=0.82, probability=0.9999) <= 48
    assert queries_needed(1000, 10, rate=0.82, probability=0.9999) <= 64
    assert matches_needed(3, 10, 10) == 4
    with pytest.raises(ValueError, match="allow more answers"):
        queries_needed(10, 10, rate=0.1, most=50)


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 2**32))
def test_excess_is_over_the_best_other_model(models: int, clients: int, seed: int) -> None:
    accuracies = np.random.default_rng(seed).integers(5, size=(models, clients)) / 4
    naive = [a - np.delete(accuracies, i, axis=0).max(axis=0) for i, a in enumerate(accuracies)]
    assert excess(accuracies) == pytest.approx(np.array(naive))


def test_ranks_of_exchangeable_values_are_fair() -> None:
    values = np.random.default_rng(7).random((20_000, 20))
    p = np.array([rank_p_value(row[0], row[1:]) for row in values])
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.01)
    with pytest.raises(ValueError, match="nothing to be compared with"):
        excess(np.ones((1, 3)))

"""Evidence from scores: an innocent's factors, the error bound by simulation, and what scores tell beyond labels."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tramark.evidence.looks import conclude, weigh
from tramark.evidence.reweigh import alone
from tramark.evidence.scores import LOWEST, SHARPNESS, Scored, Scores, is_recorded, log_factors, recorded
from tramark.evidence.statistics import LOOKS, WITH_SCORES
from tramark.evidence.tally import Evidence

CLIENTS, QUESTIONS = 5, 24


def shifted(words: NDArray[Any], leaker: int, *, mark: float, shift: float, classes: int, seed: int) -> list[Scores]:
    """Scores of a leaked model in which training raised one label for all questions."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(words.shape[1], classes))
    logits[:, 0] += shift
    logits[np.arange(words.shape[1]), words[leaker]] += mark
    return [row for row in recorded(logits, classes) if row is not None]


def looks_at(words: NDArray[Any], scores: list[Scores] | None, labels: list[int], **options: Any) -> list[Evidence]:
    """The looks at a suspect with these labels and scores."""
    sizes = {"variants": 1, "clients": len(words), "classes": 10, "false_accusation": 1e-6}
    return weigh(
        lambda plan: (labels[question] for question, _ in plan),
        words,
        range(words.shape[1]),
        scores=(lambda query: scores[query[0]]) if scores else None,
        **sizes | options,
    )


@given(st.integers(0, 2**32), st.integers(2, 12), st.integers(1, 20), st.floats(0.01, 100))
def test_an_innocents_factors_have_mean_one(seed: int, classes: int, questions: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    scores = recorded(size * rng.standard_cauchy((questions, classes)), classes)
    factors = np.exp(log_factors([row for row in scores if row is not None]))
    assert factors.shape == (len(SHARPNESS), questions, classes)
    assert np.allclose(factors.mean(axis=2), 1)


def test_labels_that_training_shifted_still_tell_by_their_scores() -> None:
    words = np.random.default_rng(0).integers(10, size=(CLIENTS, QUESTIONS))
    scores = shifted(words, 3, mark=4.0, shift=12.0, classes=10, seed=1)
    labels = [int(np.argmax(row)) for row in scores]
    assert set(labels) == {0}
    assert not any(look.accused for look in looks_at(words, None, labels))
    outcome = conclude(looks_at(words, scores, labels))
    assert (outcome.finding, outcome.accused, outcome.by_scores) == ("client", (3,), (3,))
    assert outcome.e_values[3] >= CLIENTS / 1e-6


def test_labels_that_suffice_need_no_scores() -> None:
    words = np.random.default_rng(0).integers(10, size=(10, QUESTIONS))
    scores = shifted(words, 3, mark=40.0, shift=0.0, classes=10, seed=1)
    looks = looks_at(words, scores, words[3].tolist())
    assert [type(look) for look in looks] == [Evidence]
    assert (looks[0].share, looks[0].answered) == (WITH_SCORES.single, 8)
    assert conclude(looks).by_scores == ()


def test_without_scores_nothing_changes() -> None:
    words = np.random.default_rng(0).integers(10, size=(CLIENTS, QUESTIONS))
    looks = looks_at(words, None, [0] * QUESTIONS)
    assert [look.share for look in looks] == [LOOKS.single, LOOKS.company]
    assert math.isclose(sum(LOOKS), 1)
    assert math.isclose(sum(WITH_SCORES), 1)


def test_scores_are_looked_at_only_when_all_questions_were_answered() -> None:
    """They are centred over all questions, so whoever stopped early could have stopped where it suited."""
    words = np.random.default_rng(0).integers(10, size=(CLIENTS, QUESTIONS))
    scores = shifted(words, 3, mark=4.0, shift=12.0, classes=10, seed=1)
    for asked in (QUESTIONS - 1, QUESTIONS):
        known = {(question, 0): 0 for question in range(asked)}
        given = {(question, 0): scores[question] for question in range(asked)}
        looks = weigh(
            lambda plan, known=known: (known[query] for query in plan if query in known),  # type: ignore[misc]
            words,
            range(QUESTIONS),
            variants=1,
            clients=CLIENTS,
            classes=10,
            false_accusation=1e-6,
            scores=given.get,
        )
        assert any(isinstance(look, Scored) for look in looks) == (asked == QUESTIONS)
        own = dict(enumerate(words[3].tolist()))
        weighed = alone(own, known, given, range(QUESTIONS), variants=1, clients=CLIENTS, classes=10)
        assert (weighed.log_e >= math.log(CLIENTS / 1e-6)) == (asked == QUESTIONS)


def test_a_burned_question_does_not_count_for_its_client_alone() -> None:
    words = np.random.default_rng(0).integers(10, size=(CLIENTS, QUESTIONS))
    scores = shifted(words, 3, mark=4.0, shift=12.0, classes=10, seed=1)
    options = {"false_accusation": 0.01}
    whole = Scored(CLIENTS, 10, **options).weigh(words, [0] * QUESTIONS, scores)
    some = Scored(CLIENTS, 10, **options).weigh(words, [0] * QUESTIONS, scores, {0: np.array([3]), 1: np.array([3])})
    others = np.arange(CLIENTS) != 3
    assert (whole.now()[others] == some.now()[others]).all()
    assert some.counted.tolist() == [24, 24, 24, 22, 24]
    changed = words.copy()
    changed[3, :2] = (changed[3, :2] + 1) % 10
    again = Scored(CLIENTS, 10, **options).weigh(changed, [0] * QUESTIONS, scores, {0: np.array([3]), 1: np.array([3])})
    assert (again.now() == some.now()).all(), "its answers to them do not matter"


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("suspect", ["noise", "constant", "one label", "others' answers", "heavy tails"])
def test_the_bound_holds(classes: int, suspect: str) -> None:
    """20,000 null runs: client 0 is innocent, and the suspect may know all codewords but its."""
    rng, bound, runs = np.random.default_rng(classes), 0.05, 20_000
    accused = 0
    for _ in range(runs // 100):
        others = rng.integers(classes, size=(CLIENTS - 1, QUESTIONS))
        noise = rng.standard_cauchy((QUESTIONS, classes)) if suspect == "heavy tails" else None
        logits = rng.normal(size=(QUESTIONS, classes)) if noise is None else noise
        if suspect == "constant":
            logits = np.zeros((QUESTIONS, classes))
        elif suspect == "one label":
            logits[:, 0] += 9
        elif suspect == "others' answers":
            logits = 3.0 * np.eye(classes)[others].sum(0)
        scores = recorded(logits, classes)
        innocents = rng.integers(classes, size=(100, QUESTIONS))
        look = Scored(CLIENTS, classes, false_accusation=bound, rows=100)
        look.weigh(innocents, logits.argmax(1).tolist(), scores)
        accused += len(look.accused)
    # The bound is over all clients, and this is one of them.
    assert accused / runs <= bound / CLIENTS * 1.1


@given(st.integers(0, 2**32), st.integers(2, 8))
def test_logits_and_their_probabilities_are_recorded_alike(seed: int, classes: int) -> None:
    # Positive logits that add up to one cannot be told from probabilities.
    logits = np.random.default_rng(seed).normal(scale=2, size=(3, classes)) - 100
    shares = np.exp(logits + 100) / np.exp(logits + 100).sum(1, keepdims=True)
    for one, other in zip(recorded(logits, classes), recorded(shares, classes), strict=True):
        assert one is not None
        assert other is not None
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 1
        assert is_recorded(one, classes)


def test_odd_scores() -> None:
    inf, nan = math.inf, math.nan
    assert recorded(np.array([[1.0, 2.0]]), 3) == [None], "too few"
    assert recorded(np.array([[1.0, 2.0, 9.0]]), 2) == [(-1000, 0)], "labels beyond ours"
    assert recorded(np.array([[0.9, 0.1, 0.0]]), 3) == [(0, -2197, -2197)], "rounded to zero"
    assert recorded(np.array([[0.0, -inf], [-inf, -inf], [1e9, 0.0]]), 2) == [(0, 0), None, (0, LOWEST)]
    assert recorded(np.array([[nan, 1.0]]), 2) == [None]
    for wrong in ([0, -1], (0,), (0, 1), (0, LOWEST - 1), (0, True), (0.0, -1), None):
        assert not is_recorded(wrong, 2)

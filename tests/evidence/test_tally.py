"""The evidence against many clients at once is the evidence against each of them by the rule as it is written down."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import logsumexp

from tramark.evidence.statistics import SURVIVING, match_rate
from tramark.evidence.tally import COLLUDING, Company, Evidence


def by_the_rule(book: NDArray[np.int64], answers: list[int], burned: list[list[int]], classes: int) -> list[float]:
    """The log e-values of the first look, one client and one answer at a time."""
    found = []
    for client, codeword in enumerate(book):
        ratios = np.zeros(len(SURVIVING))
        for question, answer in enumerate(answers):
            if client in burned[question]:
                continue
            rates = np.array([match_rate(share, classes) for share in SURVIVING])
            hit = codeword[question] == answer
            ratios += np.log(rates * classes if hit else (1 - rates) / (1 - 1 / classes))
        found.append(float(logsumexp(ratios)) - math.log(len(SURVIVING)))
    return found


def in_company(book: NDArray[np.int64], answers: list[int], burned: list[list[int]], classes: int) -> list[float]:
    """The log e-values of the company look, one client, one answer and one kind of collusion at a time."""
    found = []
    for client, codeword in enumerate(book):
        ratios = [0.0] * len(COLLUDING)
        for question, answer in enumerate(answers):
            present = [other for other in range(len(book)) if other not in burned[question]]
            if client not in present:
                continue
            others = sum(book[other, question] == answer for other in present if other != client)
            for kind, (colluders, surviving) in enumerate(COLLUDING):
                own = surviving / colluders
                rest = (surviving - own) * classes * others / max(1, len(present) - 1) + 1 - surviving
                rate = (own + rest / classes) / (own + rest)
                hit = codeword[question] == answer
                ratios[kind] += math.log(rate * classes if hit else (1 - rate) / (1 - 1 / classes))
        found.append(float(logsumexp(ratios)) - math.log(len(COLLUDING)))
    return found


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), classes=st.sampled_from([2, 10]), kind=st.sampled_from([Evidence, Company]))
def test_everybodys_evidence_and_who_is_accused_are_those_of_the_rule(
    seed: int, classes: int, kind: type[Evidence]
) -> None:
    rng = np.random.default_rng(seed)
    clients, questions, error, share = 12, 24, 1e-3, 0.2
    book = rng.integers(classes, size=(clients, questions))
    leakers = rng.integers(clients, size=2)
    answers = [int(book[rng.choice(leakers), question]) for question in range(questions)]
    burned = [sorted(rng.choice(clients, size=rng.integers(3), replace=False).tolist()) for _ in answers]
    rule, accused = (by_the_rule if kind is Evidence else in_company), dict[int, float]()
    look = kind(clients, classes, false_accusation=error, share=share)
    for count, answer in enumerate(answers, 1):
        look.add(book[:, count - 1], answer, np.array(burned[count - 1], dtype=np.intp))
        values = [value + math.log(share) for value in rule(book, answers[:count], burned, classes)]
        assert look.now() == pytest.approx(values)
        for client, value in enumerate(values):
            if value >= math.log(clients / error):
                accused.setdefault(client, value)
    assert look.accused == list(accused)
    assert look.log_e()[look.accused] == pytest.approx(list(accused.values()))
    assert look.matches.tolist() == [
        sum(book[client, q] == answers[q] for q in range(questions) if client not in burned[q])
        for client in range(clients)
    ]

"""The evidence against one client, weighed again from what an annex opens.

The looks at one client take its own answers alone. The company look also takes how many others were to give each of
the suspect's answers, and an annex opens no more of that than it must. Where others' answers are not opened, the
worst is assumed: that all of them were to give an answer that was the client's as well, and none of them an answer
that was not. The more clients share an answer, the less it tells for a client that it matches, and against one that it
does not. So the true e-value is at least the one computed here (docs/explanation/evidence.md).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tramark.evidence.looks import Query
from tramark.evidence.scores import Scored, Scores
from tramark.evidence.statistics import NO_ANSWER, Shares, plurality, shares
from tramark.evidence.tally import COLLUDING, Company, Evidence


class Weighed(NamedTuple):
    """The evidence against a client: its largest log e-value with the look's share, its matches, questions counted."""

    log_e: float
    matches: int
    counted: int


class Others(NamedTuple):
    """What is opened of the other clients' answers to a question: how many of them, and how many gave the suspect's."""

    opened: int
    same: int


def alone(
    own: Mapping[int, int],
    known: Mapping[Query, int],
    scores: Mapping[Query, Scores],
    order: Sequence[int],
    *,
    variants: int,
    clients: int,
    classes: int,
) -> Weighed:
    """The evidence from a client's own answers: by one variant of each question, its scores, or by the plurality."""
    best, share = Weighed(-math.inf, 0, 0), shares_for(scores, order)
    for part, said in ((share.single, _first(known, order)), (share.plural, _plural(known, order, variants))):
        look = Evidence(clients, classes, false_accusation=0.5, share=part, rows=1)
        log_e = -math.inf
        for question, answer in said.items():
            if question in own:
                look.add(np.array([own[question]]), answer)
                log_e = max(log_e, float(look.now()[0]))
        best = max(best, Weighed(log_e, int(look.matches[0]), look.answered), key=_strength)
    return max(best, _by_scores(own, known, scores, order, share.scores, clients, classes), key=_strength)


def shares_for(scores: Mapping[Query, Scores], order: Sequence[int]) -> Shares:
    """The shares of the looks, by whether there are scores to the first question in the order."""
    return shares(scored=bool(order) and (order[0], 0) in scores)


def _by_scores(
    own: Mapping[int, int],
    known: Mapping[Query, int],
    scores: Mapping[Query, Scores],
    order: Sequence[int],
    share: float,
    clients: int,
    classes: int,
) -> Weighed:
    """The evidence from the scores, if all questions were asked. Those that do not count for the client are burned."""
    first = _first(known, order)
    if not share or len(first) < len(order):
        return Weighed(-math.inf, 0, 0)
    look = Scored(clients, classes, false_accusation=0.5, share=share, rows=1)
    look.weigh(
        np.array([[own.get(question, 0) for question in order]]),
        list(first.values()),
        [scores.get((question, 0)) for question in order],
        {column: np.array([0]) for column, question in enumerate(order) if question not in own},
    )
    return Weighed(float(look.now()[0]), int(look.matches[0]), int(look.counted[0]))


def _strength(weighed: Weighed) -> float:
    return weighed.log_e


def in_company(
    own: Mapping[int, int],
    known: Mapping[Query, int],
    order: Sequence[int],
    others: Mapping[int, Others],
    *,
    share: float,
    clients: int,
    classes: int,
) -> Weighed:
    """The least evidence from a client's own answers and from what is opened of the others', for that share."""
    rates = Company(clients, classes, false_accusation=0.5).rates
    ratios, log_e, matches, counted = np.zeros(len(COLLUDING)), -math.inf, 0, 0
    for question, answer in _first(known, order).items():
        if question not in own or not 0 <= answer < classes:
            continue
        opened, same = others.get(question, Others(0, 0))
        if own[question] == answer:
            ratios += np.log(rates(same + clients - 1 - opened, clients) * classes)
            matches += 1
        else:
            ratios += np.log((1 - rates(same, clients)) / (1 - 1 / classes))
        counted += 1
        log_e = max(log_e, float(np.logaddexp.reduce(ratios)) - math.log(len(COLLUDING) / share))
    return Weighed(log_e, matches, counted)


def others_of(client: str, opened: Mapping[str, Mapping[int, int]], known: Mapping[Query, int]) -> dict[int, Others]:
    """By question, what is opened of everybody but a client."""
    count, same = Counter[int](), Counter[int]()
    for other, answers in opened.items():
        if other != client:
            count.update(answers.keys())
            same.update(question for question, answer in answers.items() if answer == known[question, 0])
    return {question: Others(count[question], same[question]) for question in count}


def _first(known: Mapping[Query, int], order: Iterable[int]) -> dict[int, int]:
    return {question: known[question, 0] for question in order if (question, 0) in known}


def _plural(known: Mapping[Query, int], order: Iterable[int], variants: int) -> dict[int, int]:
    """By question, the plurality of the answers to all variants, of those that were asked in all."""
    said = {}
    for question in order:
        answers = [known.get((question, variant)) for variant in range(variants)]
        if variants > 1 and None not in answers:
            said[question] = plurality([NO_ANSWER if answer is None else answer for answer in answers])
    return said

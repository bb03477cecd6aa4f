"""The statistics of evidence: e-values, p-values, and how many answers convict a leaker.

An innocent client's codeword c_i is uniform on {0 … r-1}^m and independent of the suspect. Let client i have k
matches with the suspect's answers to t questions. Its e-value is a mean of likelihood ratios, over leakers whose
marks survive in a share s of the questions and who answer the others at random, p_s = s + (1-s)/r:

    e_i(t) = mean over s of  (p_s · r)^k · ((1 - p_s) / (1 - 1/r))^(t-k)

Given all that went before, an innocent's next factor has mean one. So e_i is a martingale that starts at one, and by
Ville's inequality P(e_i ever reaches n/ε) ≤ ε/n: one may look after every answer, stop at any time and accuse
everybody who got there, and an innocent is among them with probability at most ε. docs/explanation/evidence.md
derives it; `looks` applies it to a suspect.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from tramark.errors import SettingError

Floats = NDArray[np.float64]

NO_ANSWER = -1
"""Stands for a label where a suspect gave none."""

SURVIVING = (0.95, 0.75, 0.5, 0.25)
"""The shares s, from a mark as good as new to one that is hardly there: docs/explanation/evidence.md compares them."""


class Shares(NamedTuple):
    """The shares of the error that the looks at the codewords get."""

    single: float
    """At the answers to one variant of each question, client by client."""
    company: float
    """If that accuses nobody: at the same answers, and at who else could have given them."""
    plural: float
    """If that accuses nobody, and variants change answers: at the pluralities over all variants of each question."""
    scores: float = 0.0
    """If the first look accuses nobody, and the suspect gives scores: at those of one variant of each question."""


LOOKS = Shares(0.7, 0.2, 0.1)

WITH_SCORES = Shares(0.55, 0.15, 0.05, scores=0.25)
"""The shares for a suspect that gives scores."""


def shares(*, scored: bool) -> Shares:
    """The shares of the looks at a suspect, which depend on whether it gives scores to the first question.

    That is the suspect's choice, and tells nothing of a codeword.
    """
    return WITH_SCORES if scored else LOOKS


def match_rate(surviving: float, classes: int) -> float:
    """The rate at which a leaker gives its own answers if its mark survives in a share of the questions.

    >>> match_rate(0.5, 10)
    0.55
    """
    return surviving + (1 - surviving) / classes


@lru_cache(maxsize=1024)
def log_e_values(answered: int, classes: int) -> Floats:
    """The logarithm of the e-value of a client with 0, 1 … `answered` matches: a table that cannot be written to.

    >>> log_e_values(8, 10)[[0, 2, 8]].round(1)
    array([-3.6, -0.5, 16.8])
    """
    matches = np.arange(answered + 1)[:, None]
    rates = np.array([match_rate(s, classes) for s in SURVIVING])
    ratios = matches * np.log(rates * classes) + (answered - matches) * np.log((1 - rates) / (1 - 1 / classes))
    table = np.asarray(logsumexp(ratios, axis=1) - math.log(len(SURVIVING)))
    # Every caller gets the same one.
    table.setflags(write=False)
    return table


def binomial(count: int, rate: float) -> Floats:
    """The binomial distribution: P(0, 1 … `count` successes) in `count` trials, each with probability `rate`.

    >>> binomial(3, 0.1).round(3)
    array([0.729, 0.243, 0.027, 0.001])
    """
    hits = np.arange(count + 1)
    ways = gammaln(count + 1) - gammaln(hits + 1) - gammaln(count - hits + 1)
    return np.asarray(np.exp(ways + xlogy(hits, rate) + xlog1py(count - hits, -rate)))


def p_values(answered: int, classes: int) -> Floats:
    """P(an innocent has as many matches or more), exactly, for 0, 1 … `answered` matches.

    Valid only if the number of answers was fixed beforehand. If the evidence decided when to stop, only e-values are
    valid.

    >>> p_values(3, 10).round(3)
    array([1.   , 0.271, 0.028, 0.001])
    """
    return np.cumsum(binomial(answered, 1 / classes)[::-1])[::-1].clip(max=1.0)


def plurality(answers: Sequence[int]) -> int:
    """The suspect's answer to a question that was asked in several variants: the commonest, the earliest if tied.

    It depends on the suspect's answers alone, never on a codeword, so a question stays one piece of evidence however
    often it is asked. Variants without an answer don't count.

    >>> plurality([3, 7, 7, NO_ANSWER])
    7
    """
    given = Counter(a for a in answers if a != NO_ANSWER)
    return given.most_common(1)[0][0] if given else NO_ANSWER


def matches_needed(
    answered: int, clients: int, classes: int, *, false_accusation: float = 1e-6, share: float = LOOKS.single
) -> int:
    """The least number of matches that convicts in a look with that share of the error; `answered` + 1 if none does.

    >>> matches_needed(8, 10, 10), matches_needed(24, 10, 10), matches_needed(24, 1000, 10)
    (8, 15, 17)
    """
    needed = math.log(clients / (share * false_accusation))
    return int(np.searchsorted(log_e_values(answered, classes), needed))


def conviction(
    questions: int,
    clients: int,
    classes: int,
    *,
    rate: float,
    false_accusation: float = 1e-6,
    share: float = LOOKS.single,
) -> Floats:
    """P(a leaker is convicted by the 1st, 2nd … answer), if each is its own with probability `rate`.

    Exact: the distribution of the matches is carried from answer to answer, without the part that is convicted already.

    >>> conviction(24, 10, 10, rate=0.8)[[7, 11, 23]].round(2)
    array([0.17, 0.57, 0.99])
    """
    running, convicted, reached = np.ones(1), 0.0, []
    for answered in range(1, questions + 1):
        running = np.append(running * (1 - rate), 0.0) + np.append(0.0, running * rate)
        needed = matches_needed(answered, clients, classes, false_accusation=false_accusation, share=share)
        convicted += running[needed:].sum()
        running[needed:] = 0
        reached.append(convicted)
    return np.minimum(np.array(reached, dtype=np.float64), 1.0)


def queries_needed(
    clients: int,
    classes: int,
    *,
    rate: float = 1.0,
    probability: float = 0.5,
    false_accusation: float = 1e-6,
    most: int = 1000,
) -> int:
    """The number of answers that convict a leaker with the given probability; an error if it exceeds `most`.

    >>> queries_needed(10, 10), queries_needed(10, 10, rate=0.8), queries_needed(1000, 10, probability=0.95)
    (8, 12, 10)
    """
    reached = conviction(most, clients, classes, rate=rate, false_accusation=false_accusation)
    if reached[-1] < probability:
        raise SettingError(
            f"{most} answers convict a leaker of match rate {rate} with probability {reached[-1]:.3g}: "
            f"ask for less than {probability}, or allow more answers"
        )
    return int(np.searchsorted(reached, probability)) + 1


def excess(accuracies: Floats) -> Floats:
    """By how much each model's accuracy on each client's question exceeds the best other model's: models × clients.

    >>> excess(np.array([[1.0, 0.5], [0.25, 0.75]]))
    array([[ 0.75, -0.25],
           [-0.75,  0.25]])
    """
    if len(accuracies) < 2:
        raise SettingError("one model alone has nothing to be compared with: give at least one more")
    ordered = np.sort(accuracies, axis=0)
    best, second = ordered[-1], ordered[-2]
    return np.asarray(accuracies - np.where(accuracies == best, second, best))


def rank_p_value(value: float, others: Floats) -> float:
    """P(a value ranks as high) if it is exchangeable with the others: at least 1 / (others + 1).

    >>> rank_p_value(0.9, np.array([0.0, 0.25, 0.9]))
    0.5
    """
    return float((1 + (others >= value).sum()) / (len(others) + 1))

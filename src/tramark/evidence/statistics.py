"""The evidence: how surely a suspect's answers are one client's, whoever made the suspect.

An innocent client's codeword c_i is uniform on {0 … r-1}^m and independent of the suspect. Let client i have
k matches with the suspect's answers to t questions. Its e-value is a mean of likelihood ratios, over leakers
whose marks survive in a share s of the questions and who answer the others at random, p_s = s + (1-s)/r:

    e_i(t) = mean over s of  (p_s · r)^k · ((1 - p_s) / (1 - 1/r))^(t-k)

Given all that went before, an innocent's next factor has mean one, so e_i is a martingale that starts at one,
and by Ville's inequality P(e_i ever reaches n/ε) ≤ ε/n: one may look after every answer, stop at any time and
accuse everybody who got there, and an innocent is among them with probability at most ε. For colluders, who share
the matches, a second e-value also counts who else could have given each answer. docs/evidence.md derives both.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, gammaln, logsumexp, xlog1py, xlogy

Floats = NDArray[np.float64]


Place = tuple[int, int]

Finding = Literal["client", "several", "nobody", "inconclusive"]
"""What a trace can end with."""

NO_ANSWER = -1
"""What stands for a label where a suspect gave none."""


# From a mark as good as new to one that is hardly there: docs/evidence.md compares them.
SURVIVING = (0.95, 0.75, 0.5, 0.25)


# Colluders: how many, and in what share of the questions a mark of theirs survives.
COLLUDING = tuple((colluders, surviving) for colluders in (2, 3, 5) for surviving in (0.99, 0.8))


class Shares(NamedTuple):
    """The shares of the error that the looks at the codewords get."""

    single: float
    """At the answers to one variant of each question, client by client."""
    company: float
    """If that accuses nobody: at the same answers, and at who else could have given them."""
    plural: float
    """If nothing is clear yet: at the pluralities over all variants of each question."""


LOOKS = Shares(0.7, 0.2, 0.1)


# The leaker that "nobody" speaks of, and how surely it must have been seen.
FAINT = 0.5


POWER = 0.95


def match_rate(surviving: float, classes: int) -> float:
    """How often a leaker gives its own answer if its mark survives in a share of the questions.

    >>> match_rate(0.5, 10)
    0.55
    """
    return surviving + (1 - surviving) / classes


@lru_cache(maxsize=1024)
def _log_e_values(answered: int, classes: int) -> Floats:
    matches = np.arange(answered + 1)[:, None]
    rates = np.array([match_rate(s, classes) for s in SURVIVING])
    ratios = matches * np.log(rates * classes) + (answered - matches) * np.log((1 - rates) / (1 - 1 / classes))
    return np.asarray(logsumexp(ratios, axis=1) - math.log(len(SURVIVING)))


def log_e_values(answered: int, classes: int) -> Floats:
    """The logarithm of the e-value of a client with 0, 1 … `answered` matches.

    >>> log_e_values(8, 10)[[0, 2, 8]].round(1)
    array([-3.6, -0.5, 16.8])
    """
    return _log_e_values(answered, classes).copy()


def binomial(count: int, rate: float) -> Floats:
    """P(0, 1 … `count` of so many independent chances of this rate come true).

    >>> binomial(3, 0.1).round(3)
    array([0.729, 0.243, 0.027, 0.001])
    """
    hits = np.arange(count + 1)
    ways = gammaln(count + 1) - gammaln(hits + 1) - gammaln(count - hits + 1)
    return np.asarray(np.exp(ways + xlogy(hits, rate) + xlog1py(count - hits, -rate)))


def p_values(answered: int, classes: int) -> Floats:
    """P(an innocent has as many matches or more), exactly, for 0, 1 … `answered` matches.

    Valid for a number of answers fixed beforehand. If the evidence decided when to stop, only e-values are.

    >>> p_values(3, 10).round(3)
    array([1.   , 0.271, 0.028, 0.001])
    """
    return np.cumsum(binomial(answered, 1 / classes)[::-1])[::-1].clip(max=1.0)


def family_wise(p: float, clients: int) -> float:
    """P(the smallest p-value of so many innocents is p or less): their codewords are independent (Šidák).

    >>> family_wise(1e-9, 1000)
    9.999...e-07
    """
    return float(-np.expm1(clients * np.log1p(-p))) if p < 1 else 1.0


def plurality(answers: Sequence[int]) -> int:
    """The suspect's answer to a question asked in several variants: the commonest, the earliest if tied.

    It looks at the suspect's answers alone, never at a codeword, so that a question stays one piece of
    evidence however often it was asked. Variants without an answer don't count.

    >>> plurality([3, 7, 7, NO_ANSWER])
    7
    """
    given = Counter(a for a in answers if a != NO_ANSWER)
    return given.most_common(1)[0][0] if given else NO_ANSWER


def matches_needed(answered: int, clients: int, classes: int, *, false_accusation: float = 1e-6) -> int:
    """The least number of matches that convicts in a trace's first look; `answered` + 1 if none does.

    >>> matches_needed(8, 10, 10), matches_needed(24, 10, 10), matches_needed(24, 1000, 10)
    (8, 15, 17)
    """
    needed = math.log(clients / (LOOKS.single * false_accusation))
    return int(np.searchsorted(_log_e_values(answered, classes), needed))


def conviction(questions: int, clients: int, classes: int, *, rate: float, false_accusation: float = 1e-6) -> Floats:
    """P(a leaker is convicted by the 1st, 2nd … answer), if each is its own with probability `rate`.

    Exact: the distribution of its matches is carried from answer to answer, less what reaches the boundary.

    >>> conviction(24, 10, 10, rate=0.8)[[7, 11, 23]].round(2)
    array([0.17, 0.57, 0.99])
    """
    running, convicted, reached = np.ones(1), 0.0, []
    for answered in range(1, questions + 1):
        running = np.append(running * (1 - rate), 0.0) + np.append(0.0, running * rate)
        needed = matches_needed(answered, clients, classes, false_accusation=false_accusation)
        convicted += running[needed:].sum()
        running[needed:] = 0
        reached.append(convicted)
    return np.minimum(reached, 1.0)


def queries_needed(
    clients: int,
    classes: int,
    *,
    rate: float = 1.0,
    probability: float = 0.5,
    false_accusation: float = 1e-6,
    most: int = 1000,
) -> int:
    """How many answers convict a leaker with the given probability; an error if `most` are too few.

    >>> queries_needed(10, 10), queries_needed(10, 10, rate=0.8), queries_needed(1000, 10, probability=0.95)
    (8, 12, 10)
    """
    reached = conviction(most, clients, classes, rate=rate, false_accusation=false_accusation)
    if reached[-1] < probability:
        raise ValueError(
            f"{most} answers convict a leaker of match rate {rate} with probability {reached[-1]:.3g}: "
            f"ask for less than {probability}, or allow more answers"
        )
    return int(np.searchsorted(reached, probability)) + 1


def excess(accuracies: Floats) -> Floats:
    """How far each model exceeds all others in accuracy on each client's question: models × clients.

    >>> excess(np.array([[1.0, 0.5], [0.25, 0.75]]))
    array([[ 0.75, -0.25],
           [-0.75,  0.25]])
    """
    if len(accuracies) < 2:
        raise ValueError("one model alone has nothing to be compared with: give at least one more")
    ordered = np.sort(accuracies, axis=0)
    best, second = ordered[-1], ordered[-2]
    return np.asarray(accuracies - np.where(accuracies == best, second, best))


def rank_p_value(value: float, others: Floats) -> float:
    """P(a value ranks as high) if it is exchangeable with the others: a share of 1 / (others + 1) at least.

    >>> rank_p_value(0.9, np.array([0.0, 0.25, 0.9]))
    0.5
    """
    return float((1 + (others >= value).sum()) / (len(others) + 1))


class Evidence:
    """The evidence against each of n clients, answer by answer.

    >>> evidence = Evidence(clients=2, classes=10, false_accusation=0.01)
    >>> for answer in [3, 1, 4, 1]:
    ...     evidence.add(np.array([answer, 9]), answer)
    >>> evidence.accused, evidence.matches.tolist()
    ([0], [4, 0])

    Parameters
    ----------
    clients, classes : n and r.
    rows : how many of the n are looked at, if not all: the evidence against one can be checked without the
        others' codewords.
    false_accusation : ε, the bound on the probability that anybody innocent is ever accused.
    share : of that bound, for one of several looks at the same codewords; their shares must add up to one.
    """

    def __init__(
        self,
        clients: int,
        classes: int,
        *,
        false_accusation: float,
        share: float = 1.0,
        rows: int | None = None,
    ) -> None:
        if not 0 < false_accusation < 1:
            raise ValueError(f"a false-accusation bound of {false_accusation}: it is a probability, such as 1e-6")
        self.classes = classes
        self.share = share
        self.answered = 0
        self.matches: NDArray[np.int32] = np.zeros(rows or clients, dtype=np.int32)
        self._needed = math.log(clients / false_accusation)
        # Less than one innocent of the whole federation is expected to reach it.
        self._suspicious = math.log(clients)
        self._at_accusation: dict[int, float] = {}

    def add(self, expected: NDArray[Any], answer: int) -> None:
        """Count one more answer against what each client's model was to say.

        No answer, or a label that no codeword holds, says nothing about anybody: it is left out for all.
        """
        if not 0 <= answer < self.classes:
            return
        self.answered += 1
        self._count(expected == answer)
        log_e = self._now()
        for client in np.flatnonzero(log_e >= self._needed).tolist():
            self._at_accusation.setdefault(client, float(log_e[client]))

    @property
    def accused(self) -> list[int]:
        """Who reached n/ε at some time, in that order: once there, accused for good."""
        return list(self._at_accusation)

    @property
    def settled(self) -> bool:
        """Somebody is accused, and nobody else looks like an accomplice."""
        if not self._at_accusation:
            return False
        suspicious = self._now() >= self._suspicious
        return int(suspicious.sum()) <= int(suspicious[self.accused].sum())

    def log_e(self) -> Floats:
        """Everybody's log e-value times the share; that of the accused as it stood when they were."""
        log_e = self._now()
        log_e[self.accused] = list(self._at_accusation.values())
        return log_e

    def p(self) -> Floats:
        """Everybody's binomial p-value."""
        return np.asarray(p_values(self.answered, self.classes)[self.matches])

    def power(self, surviving: float = FAINT) -> float:
        """How surely a leaker would have more matches than anyone has, if its mark survives in such a share.

        One minus the largest p-value, over the clients, of "this is that leaker", divided by the share.
        """
        most = int(self.matches.max())
        missed = float(bdtr(most, self.answered, match_rate(surviving, self.classes)))
        return max(0.0, 1 - missed / self.share)

    def _count(self, matched: NDArray[np.bool_]) -> None:
        self.matches += matched

    def _now(self) -> Floats:
        return np.asarray(_log_e_values(self.answered, self.classes)[self.matches] + math.log(self.share))


class Company(Evidence):
    """The evidence against each of n clients who may have colluded, from everybody's codewords.

    An answer that nobody else was to give speaks more loudly against a client than one that many were. With c
    colluders whose marks survive in a share s of the questions, an answer is one colluder's own with probability s/c,
    another's with s - s/c, else random. If o of the n - 1 others were to give it, the odds of these three are

        s/c  :  (s - s/c) · r · o / (n-1)  :  1 - s ,

    and the client matches for sure in the first case, with probability 1/r in the others. An innocent's symbol is
    uniform whatever the others' are, so that the factor's mean is one again.

    >>> company = Company(clients=3, classes=10, false_accusation=0.01)
    >>> for _ in range(4):
    ...     company.add(np.array([3, 9, 9]), 3)
    ...     company.add(np.array([3, 9, 9]), 9)
    >>> company.log_e().round(1)
    array([6.2, 2.2, 2.2])
    """

    def __init__(self, clients: int, classes: int, *, false_accusation: float, share: float = 1.0) -> None:
        super().__init__(clients, classes, false_accusation=false_accusation, share=share)
        self._log_ratios = np.zeros((clients, len(COLLUDING)))

    def _count(self, matched: NDArray[np.bool_]) -> None:
        super()._count(matched)
        total = int(matched.sum())
        self._log_ratios[matched] += np.log(self._rates(max(0, total - 1)) * self.classes)
        self._log_ratios[~matched] += np.log((1 - self._rates(total)) / (1 - 1 / self.classes))

    def _rates(self, others: int) -> Floats:
        """How surely a colluder matches, if so many others do: one for each kind of collusion."""
        colluders, surviving = np.array(COLLUDING).T
        own = surviving / colluders
        rest = (surviving - own) * self.classes * others / max(1, len(self.matches) - 1) + 1 - surviving
        return np.asarray((own + rest / self.classes) / (own + rest))

    def _now(self) -> Floats:
        return np.asarray(logsumexp(self._log_ratios, axis=1) - math.log(len(COLLUDING) / self.share))


def weigh(
    answers: Callable[[Sequence[Place]], Iterator[int]],
    codewords: NDArray[Any],
    questions: Sequence[int],
    *,
    variants: int,
    clients: int,
    classes: int,
    false_accusation: float,
    exhaustive: bool = False,
) -> list[Evidence]:
    """All looks at a suspect's answers, as far as they are needed, the one at single clients first.

    >>> known = {(question, 0): 3 for question in range(9)}
    >>> replay = lambda plan: (known[place] for place in plan if place in known)
    >>> options = dict(variants=1, clients=10, classes=10, false_accusation=1e-6)
    >>> [look] = weigh(replay, np.full((1, 9), 3), range(9), **options)
    >>> look.accused, look.answered
    ([0], 8)

    Parameters
    ----------
    answers : gives the suspect's answers to a plan of (question, variant), one by one; fewer if it must stop.
        It must not know the codewords.
    codewords : what the n `clients` were to answer to the `questions`, rows × questions. If only some of them, nobody
        can be convicted by the company.
    exhaustive : don't stop when it is clear, but ask all there is.
    """
    single, plural = (
        Evidence(clients, classes, false_accusation=false_accusation, share=share, rows=len(codewords))
        for share in (LOOKS.single, LOOKS.plural)
    )
    looks, first = [single], []
    for column, answer in enumerate(answers([(question, 0) for question in questions])):
        first.append(answer)
        single.add(codewords[:, column], answer)
        if single.settled and not exhaustive:
            break
    if len(codewords) == clients and (exhaustive or not single.accused):
        company = Company(clients, classes, false_accusation=false_accusation, share=LOOKS.company)
        for column, answer in enumerate(first):
            company.add(codewords[:, column], answer)
        looks.append(company)
    clear = any(look.accused for look in looks) or single.power() >= POWER
    if len(first) < len(questions) or variants == 1 or (clear and not exhaustive):
        return looks
    looks.append(plural)
    for column, question in enumerate(questions):
        others = list(answers([(question, variant) for variant in range(1, variants)]))
        if len(others) < variants - 1:
            break
        plural.add(codewords[:, column], plurality([first[column], *others]))
        if plural.settled and not exhaustive:
            break
    return looks

"""Looks at a suspect's answers: who is accused, and by what evidence.

There are up to three looks at the same codewords, and each gets a share of the error. The first goes client by client
through the answers to one variant of each question. The company look reads the same answers and counts who else could
have given each of them: it finds colluders, who share the matches. The last takes the plurality of all variants of
each question. A trace asks a suspect and weighs its answers; verification weighs what a bundle shows; both come to
their result by `conclude`. The argument is in docs/evidence.md.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, logsumexp

from tramark.errors import SettingError
from tramark.evidence.premise import FAINT
from tramark.evidence.statistics import LOOKS, Floats, log_e_values, match_rate, p_values, plurality

Query = tuple[int, int]
"""A question's number in the pool, and which of its held-out variants."""

Finding = Literal["client", "several", "nobody", "inconclusive"]
"""What a trace can end with."""

COLLUDING = tuple((colluders, surviving) for colluders in (2, 3, 5) for surviving in (0.99, 0.8))
"""Kinds of collusion: how many colluders, and in what share of the questions a mark of theirs survives."""

POWER = 0.95
"""How surely a leaker must have been seen for "nobody"."""

# JSON has no infinity, and evidence beyond 1e300 convinces nobody more.
_MOST_LOG_E = 300 * math.log(10)


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
    rows : how many of the n are looked at, if not all: the evidence against one client can be checked without the
        others' codewords.
    false_accusation : ε, the bound on the probability that anybody innocent is ever accused.
    share : the share of that bound, if this is one of several looks at the same codewords; shares must add up to one.
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
            raise SettingError(f"a false-accusation bound of {false_accusation}: it is a probability, such as 1e-6")
        self.classes = classes
        self.share = share
        self.answered = 0
        self.matches: NDArray[np.int32] = np.zeros(rows or clients, dtype=np.int32)
        self._needed = math.log(clients / false_accusation)
        # The expected number of innocents who ever reach it is below one.
        self._suspicious = math.log(clients)
        self._at_accusation: dict[int, float] = {}

    def add(self, expected: NDArray[Any], answer: int) -> None:
        """Count one more answer: `expected` are the clients' own answers to the question.

        No answer, or a label that no codeword holds, says nothing about anybody and is left out for all.
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
        """The clients that ever reached n/ε, in the order of reaching it. An accusation is final."""
        return list(self._at_accusation)

    @property
    def settled(self) -> bool:
        """Whether somebody is accused, and nobody else looks like an accomplice."""
        if not self._at_accusation:
            return False
        suspicious = self._now() >= self._suspicious
        return int(suspicious.sum()) <= int(suspicious[self.accused].sum())

    def log_e(self) -> Floats:
        """Everybody's log e-value, scaled by the share; for the accused, as it stood when they were accused."""
        log_e = self._now()
        log_e[self.accused] = list(self._at_accusation.values())
        return log_e

    def p(self) -> Floats:
        """Everybody's binomial p-value."""
        return np.asarray(p_values(self.answered, self.classes)[self.matches])

    def power(self, surviving: float = FAINT) -> float:
        """The probability that a leaker whose mark survives in this share of the questions would show.

        One minus the largest p-value, over the clients, of the hypothesis that this client leaked; p-values are
        divided by the look's share of the error.
        """
        most = int(self.matches.max())
        missed = float(bdtr(most, self.answered, match_rate(surviving, self.classes)))
        return max(0.0, 1 - missed / self.share)

    def _count(self, matched: NDArray[np.bool_]) -> None:
        self.matches += matched

    def _now(self) -> Floats:
        return np.asarray(log_e_values(self.answered, self.classes)[self.matches] + math.log(self.share))


class Company(Evidence):
    """The evidence against each of n clients who may have colluded, from everybody's codewords.

    An answer that is no other client's is stronger evidence than one that many share. With c colluders whose marks
    survive in a share s of the questions, an answer is this colluder's own with probability s/c, another's with s -
    s/c, else random. If it is also the answer of o of the n - 1 others, the odds of these three cases are

        s/c  :  (s - s/c) · r · o / (n-1)  :  1 - s ,

    and the client matches for sure in the first case, with probability 1/r in the others. An innocent's symbol is
    uniform whatever the others' symbols are, so the factor's mean is one again.

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
        self._log_ratios[matched] += np.log(self.rates(max(0, total - 1), len(matched)) * self.classes)
        self._log_ratios[~matched] += np.log((1 - self.rates(total, len(matched))) / (1 - 1 / self.classes))

    def rates(self, others: int, present: int) -> Floats:
        """The probability that a colluder matches if `others` of the clients `present` do, by kind of collusion."""
        colluders, surviving = np.array(COLLUDING).T
        own = surviving / colluders
        rest = (surviving - own) * self.classes * others / max(1, present - 1) + 1 - surviving
        return np.asarray((own + rest / self.classes) / (own + rest))

    def _now(self) -> Floats:
        return np.asarray(logsumexp(self._log_ratios, axis=1) - math.log(len(COLLUDING) / self.share))


def weigh(
    answers: Callable[[Sequence[Query]], Iterator[int]],
    codewords: NDArray[Any],
    questions: Sequence[int],
    *,
    variants: int,
    clients: int,
    classes: int,
    false_accusation: float,
    surviving: float = FAINT,
    exhaustive: bool = False,
) -> list[Evidence]:
    """The looks at a suspect's answers that are needed, in order; the first is the one client by client.

    >>> known = {(question, 0): 3 for question in range(9)}
    >>> replay = lambda plan: (known[query] for query in plan if query in known)
    >>> options = dict(variants=1, clients=10, classes=10, false_accusation=1e-6)
    >>> [look] = weigh(replay, np.full((1, 9), 3), range(9), **options)
    >>> look.accused, look.answered
    ([0], 8)

    Parameters
    ----------
    answers : yields the suspect's answers to a list of queries, one by one; fewer if it must stop. It must not know the
        codewords.
    codewords : the n `clients`' answers to the `questions`, rows × questions. With fewer rows than n there is
        no company look.
    surviving : the share of the questions in which a leaker's mark survives. When a leaker with such a mark would have
        shown, no more is asked.
    exhaustive : ask everything, even when the result is clear.
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
    clear = any(look.accused for look in looks) or single.power(surviving) >= POWER
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


@dataclass(frozen=True)
class Outcome:
    """What the looks at a suspect's answers come to. Clients are rows of the codewords.

    Parameters
    ----------
    accused : everybody whom a look accuses, in order.
    by_company : those of them whom the company look alone accuses.
    power : if nobody is accused, how surely a leaker would show whose mark survives in a given share of the questions.
    e_values : everybody's largest e-value; 1e300 at most.
    shown : the look whose matches and p-values are shown.
    """

    accused: tuple[int, ...]
    by_company: tuple[int, ...]
    power: float | None
    e_values: Floats
    shown: Evidence

    @property
    def finding(self) -> Finding:
        """The finding in one word."""
        return finding_of(len(self.accused), cleared=self.power is not None and self.power >= POWER)


def conclude(looks: Sequence[Evidence], surviving: float = FAINT) -> Outcome:
    """The result of all looks at a suspect's answers, if a leaker's mark survives in this share of the questions.

    >>> look = Evidence(clients=2, classes=10, false_accusation=0.01)
    >>> for _ in range(4):
    ...     look.add(np.array([3, 9]), 3)
    >>> outcome = conclude([look])
    >>> outcome.finding, outcome.accused
    ('client', (0,))
    """
    accused = tuple(dict.fromkeys(row for look in looks for row in look.accused))
    alone = {row for look in looks if not isinstance(look, Company) for row in look.accused}
    log_e = np.maximum.reduce([look.log_e() for look in looks])
    return Outcome(
        accused=accused,
        by_company=tuple(row for row in accused if row not in alone),
        power=None if accused else max(look.power(surviving) for look in looks),
        e_values=np.exp(np.minimum(log_e, _MOST_LOG_E)),
        # The look that accuses most clients; among equals the one with most answers, and the last of those.
        shown=max(reversed(looks), key=lambda look: (len(look.accused), look.answered)),
    )


def finding_of(accused: int, *, cleared: bool) -> Finding:
    """The finding, given how many clients are accused and, if none, whether everybody is cleared."""
    if accused:
        return "client" if accused == 1 else "several"
    return "nobody" if cleared else "inconclusive"

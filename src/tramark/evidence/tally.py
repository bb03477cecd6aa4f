"""The evidence against each client, answer by answer: client by client, and counting who else could have answered so.

A question that is burned for a client does not count for it: its factor is one. The argument is in
docs/explanation/evidence.md.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, logsumexp

from tramark.errors import SettingError
from tramark.evidence.premise import FAINT
from tramark.evidence.statistics import Floats, log_e_values, match_rate, p_values

COLLUDING = tuple((colluders, surviving) for colluders in (2, 3, 5) for surviving in (0.99, 0.8))
"""Kinds of collusion: how many colluders, and in what share of the questions a mark of theirs survives."""

ROUNDING = 1e-6
"""More than any log e-value is off by rounding."""

NONE: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
"""No clients."""


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
    tests : how many tests share the bound, if there are others beside those of the n clients.

    Attributes
    ----------
    answered : answers that count for whoever has no burned question.
    counted, matches : by client, the answers that count for it, and those of them that are its own.
    """

    def __init__(
        self,
        clients: int,
        classes: int,
        *,
        false_accusation: float,
        share: float = 1.0,
        rows: int | None = None,
        tests: int | None = None,
    ) -> None:
        if not 0 < false_accusation < 1:
            raise SettingError(f"a false-accusation bound of {false_accusation}: it is a probability, such as 1e-6")
        self.clients, self.classes, self.tests = clients, classes, tests or clients
        self.false_accusation, self.share = false_accusation, share
        self.answered = 0
        self.counted: NDArray[np.int32] = np.zeros(rows or clients, dtype=np.int32)
        self.matches: NDArray[np.int32] = np.zeros(rows or clients, dtype=np.int32)
        self._needed = math.log(self.tests / false_accusation)
        self._at_accusation: dict[int, float] = {}

    def add(self, expected: NDArray[Any], answer: int, burned: NDArray[np.intp] = NONE) -> None:
        """Count one more answer: `expected` are the clients' own answers to the question, which is `burned` for some.

        No answer, or a label that no codeword holds, says nothing about anybody and is left out for all.
        """
        if not 0 <= answer < self.classes:
            return
        self._take(expected == answer, burned)
        self._accuse()

    @property
    def accused(self) -> list[int]:
        """The clients that ever reached tests/ε, in the order of reaching it. An accusation is final."""
        return list(self._at_accusation)

    def log_e(self) -> Floats:
        """Everybody's log e-value, scaled by the share; for the accused, as it stood when they were accused."""
        log_e = self.now()
        log_e[self.accused] = list(self._at_accusation.values())
        return log_e

    def now(self) -> Floats:
        """Everybody's present log e-value, scaled by the share."""
        return self._by_matches(log_e_values) + math.log(self.share)

    def p(self) -> Floats:
        """Everybody's binomial p-value."""
        return self._by_matches(p_values)

    def power_by_matches(self, surviving: float = FAINT) -> float:
        """The power as the rule "e-values 2" has it, for bundles that were made by that rule.

        One minus the largest p-value, over the clients, of the hypothesis that this client leaked; p-values are
        divided by the look's share of the error.
        """
        most = int(self.matches.max())
        missed = float(bdtr(most, self.answered, match_rate(surviving, self.classes)))
        return max(0.0, 1 - missed / self.share)

    def _take(self, matched: NDArray[np.bool_], burned: NDArray[np.intp]) -> None:
        """Count an answer that is the own one of those who matched."""
        self.answered += 1
        self.counted += 1
        self.counted[burned] -= 1
        matched[burned] = False
        self._count(matched, burned)

    def _count(self, matched: NDArray[np.bool_], burned: NDArray[np.intp]) -> None:
        self.matches += matched

    def _accuse(self) -> None:
        for client, log_e in self._reached():
            self._at_accusation.setdefault(client, log_e)

    def _reached(self) -> Iterator[tuple[int, float]]:
        """The clients whose present log e-value is at least that of an accusation, with that value."""
        log_e = self.now()
        for client in np.flatnonzero(log_e >= self._needed).tolist():
            yield client, float(log_e[client])

    def _by_matches(self, table: Callable[[int, int], Floats]) -> Floats:
        """Everybody's value in a table by the number of matches, of which there is one for each number of answers."""
        # Few clients have burned questions, so there are few different numbers.
        counts = np.flatnonzero(np.bincount(self.counted)).tolist()
        if len(counts) == 1:
            return table(counts[0], self.classes)[self.matches]
        values = np.empty(len(self.matches))
        for count in counts:
            rows = self.counted == count
            values[rows] = table(count, self.classes)[self.matches[rows]]
        return values


class Company(Evidence):
    """The evidence against each of n clients who may have colluded, from everybody's codewords.

    An answer that is no other client's is stronger evidence than one that many share. With c colluders whose marks
    survive in a share s of the questions, an answer is this colluder's own with probability s/c, another's with s -
    s/c, else random. If it is also the answer of o of the n - 1 others, the odds of these three cases are

        s/c  :  (s - s/c) · r · o / (n-1)  :  1 - s ,

    and the client matches for sure in the first case, with probability 1/r in the others. An innocent's symbol is
    uniform whatever the others' symbols are, so the factor's mean is one again. Clients for whom the question is
    burned are left out: they are neither among the n nor among the o.

    >>> company = Company(clients=3, classes=10, false_accusation=0.01)
    >>> for _ in range(4):
    ...     company.add(np.array([3, 9, 9]), 3)
    ...     company.add(np.array([3, 9, 9]), 9)
    >>> company.log_e().round(1)
    array([6.2, 2.2, 2.2])
    """

    def __init__(
        self, clients: int, classes: int, *, false_accusation: float, share: float = 1.0, tests: int | None = None
    ) -> None:
        super().__init__(clients, classes, false_accusation=false_accusation, share=share, tests=tests)
        self._log_ratios = np.zeros((len(COLLUDING), clients))

    def now(self) -> Floats:
        """Everybody's present log e-value, scaled by the share."""
        return self._of(self._log_ratios)

    def _of(self, log_ratios: Floats) -> Floats:
        return np.asarray(logsumexp(log_ratios, axis=0) - math.log(len(COLLUDING) / self.share))

    def _reached(self) -> Iterator[tuple[int, float]]:
        # A mean is at most its largest term, and few clients come near: only theirs is computed.
        near = np.flatnonzero(self._log_ratios.max(axis=0) >= self._needed - math.log(self.share) - ROUNDING)
        log_e = self._of(self._log_ratios[:, near])
        for place in np.flatnonzero(log_e >= self._needed).tolist():
            yield int(near[place]), float(log_e[place])

    def _count(self, matched: NDArray[np.bool_], burned: NDArray[np.intp]) -> None:
        super()._count(matched, burned)
        total, present = int(matched.sum()), len(matched) - len(burned)
        hit = np.log(self.rates(max(0, total - 1), present) * self.classes)
        miss = np.log((1 - self.rates(total, present)) / (1 - 1 / self.classes))
        # Kind by kind: with a million clients, whole rows are quicker than picking clients out.
        for ratios, own, other in zip(self._log_ratios, hit, miss, strict=True):
            factors = np.where(matched, own, other)
            factors[burned] = 0.0
            ratios += factors

    def rates(self, others: int, present: int) -> Floats:
        """The probability that a colluder matches if `others` of the clients `present` do, by kind of collusion."""
        colluders, surviving = np.array(COLLUDING).T
        own = surviving / colluders
        rest = (surviving - own) * self.classes * others / max(1, present - 1) + 1 - surviving
        return np.asarray((own + rest / self.classes) / (own + rest))

"""Looks at a suspect's answers: who is accused, and by what evidence.

There are up to four looks at the same codewords, and each gets a share of the error. The first goes client by client
through the answers to one variant of each question. The company look reads the same answers and counts who else could
have given each of them: it finds colluders, who share the matches. The look at the scores, if the suspect gives any,
finds a mark that no longer decides the labels. The last takes the plurality of all variants of each question. A trace
asks a suspect and weighs its answers; verification weighs what a bundle shows; both come to their result by `conclude`.

Until somebody is accused, what is asked, when the asking ends and whether everybody is cleared depend on the suspect's
answers alone; after that, on the accused's codewords too. Nothing that is seen from outside tells anything of an
innocent's codeword. The argument is in docs/explanation/evidence.md.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tramark.evidence.premise import FAINT
from tramark.evidence.scores import Scored, Scores
from tramark.evidence.statistics import Floats, conviction, match_rate, plurality, shares
from tramark.evidence.tally import NONE, Company, Evidence

Query = tuple[int, int]
"""A question's number in the pool, and which of its held-out variants."""

Finding = Literal["client", "several", "federation", "nobody", "inconclusive"]
"""What a trace can end with; "federation": the model comes from it, but no client can be named."""

POWER = 0.95
"""How surely a leaker must have been accused for "nobody"."""

UNEXPLAINED = 0.15
"""The share of the answers that are none of the accused's above which accomplices are looked for."""

PROBE = 4
"""Questions whose other variants are asked first: if they change no answer, the second look is left at that."""

# JSON has no infinity, and evidence beyond 1e300 convinces nobody more.
MOST_LOG_E = 300 * math.log(10)


def weigh(
    answers: Callable[[Sequence[Query]], Iterator[int]],
    codewords: NDArray[Any],
    questions: Sequence[int],
    *,
    variants: int,
    clients: int,
    classes: int,
    false_accusation: float,
    burned: Mapping[int, NDArray[np.intp]] | None = None,
    exhaustive: bool = False,
    tests: int | None = None,
    unexplained: float = UNEXPLAINED,
    scores: Callable[[Query], Scores | None] | None = None,
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
    burned : by question, the rows for which it does not count.
    exhaustive : ask everything, even when the result is clear.
    tests : how many tests share the error, if there are others beside those of the n clients.
    unexplained : the share of the answers that are none of the accused's above which the asking goes on.
    scores : gives the scores of a query that was answered; None if the suspect gave none.
    """
    burned, given = burned or {}, scores or (lambda query: None)
    rows: dict[str, Any] = {"rows": len(codewords), "false_accusation": false_accusation, "tests": tests}
    single, share = Evidence(clients, classes, **rows), shares(scored=False)
    first: list[int] = []
    for column, answer in enumerate(answers([(question, 0) for question in questions])):
        if not first:
            share = shares(scored=given((questions[0], 0)) is not None)
            single = Evidence(clients, classes, share=share.single, **rows)
        first.append(answer)
        single.add(codewords[:, column], answer, burned.get(questions[column], NONE))
        if not exhaustive and _explained(single, codewords, first, unexplained):
            break
    looks = [single]
    if len(codewords) == clients and (exhaustive or not single.accused):
        company = Company(clients, classes, false_accusation=false_accusation, share=share.company, tests=tests)
        for column, answer in enumerate(first):
            company.add(codewords[:, column], answer, burned.get(questions[column], NONE))
        looks.append(company)
    named = bool(single.accused)
    if len(first) == len(questions) and share.scores and (exhaustive or not named):
        by_column = {column: burned[question] for column, question in enumerate(questions) if question in burned}
        scored = Scored(clients, classes, share=share.scores, **rows)
        looks.append(scored.weigh(codewords, first, [given((question, 0)) for question in questions], by_column))
        named = named or bool(scored.accused)
    # Whom the company look accuses depends on everybody's codewords, so it does not decide what is asked.
    if len(first) < len(questions) or variants == 1 or (named and not exhaustive):
        return looks
    plural = Evidence(clients, classes, share=share.plural, **rows)
    looks.append(plural)
    changed, said = False, []
    for column, question in enumerate(questions):
        if column == PROBE and not changed and not exhaustive:
            break
        others = list(answers([(question, variant) for variant in range(1, variants)]))
        if len(others) < variants - 1:
            break
        changed = changed or set(others) != {first[column]}
        said.append(plurality([first[column], *others]))
        plural.add(codewords[:, column], said[-1], burned.get(question, NONE))
        if not exhaustive and _explained(plural, codewords, said, unexplained):
            break
    return looks


def _explained(look: Evidence, codewords: NDArray[Any], answers: Sequence[int], unexplained: float) -> bool:
    """Whether somebody is accused, and the accused's own answers leave little to be explained by accomplices.

    It looks at the codewords of the accused and at nobody else's.
    """
    if not look.accused:
        return False
    given = np.array(answers)
    own = (codewords[look.accused, : len(given)] == given).any(axis=0)
    usable = (given >= 0) & (given < look.classes)
    return int((usable & ~own).sum()) <= unexplained * int(usable.sum())


@dataclass(frozen=True)
class Outcome:
    """What the looks at a suspect's answers come to. Clients are rows of the codewords.

    Parameters
    ----------
    accused : everybody whom a look accuses, in order.
    by_company, by_scores : those of them whom the company look alone accuses; those whom no look at labels accuses.
    power : if nobody is accused, how surely a leaker would be whose mark survives in a given share of the questions.
        Clients of whom too few questions count do not lower it: they are `not_cleared`.
    e_values : everybody's largest e-value; 1e300 at most.
    shown : the look whose matches and p-values are shown.
    federation : the look at the federation's own key whose matches are shown; None if that was not asked about.
    """

    accused: tuple[int, ...]
    by_company: tuple[int, ...]
    by_scores: tuple[int, ...]
    power: float | None
    not_cleared: tuple[int, ...]
    e_values: Floats
    shown: Evidence
    federation: Evidence | None = None

    @property
    def finding(self) -> Finding:
        """The finding in one word."""
        ours = self.federation is not None and bool(self.federation.accused)
        return finding_of(len(self.accused), ours=ours, cleared=self.power is not None and self.power >= POWER)


def conclude(looks: Sequence[Evidence], surviving: float = FAINT, federation: Sequence[Evidence] = ()) -> Outcome:
    """The result of all looks at a suspect's answers, if a leaker's mark survives in this share of the questions.

    `federation` are the looks at the federation's own key.

    >>> look = Evidence(clients=2, classes=10, false_accusation=0.01)
    >>> for _ in range(4):
    ...     look.add(np.array([3, 9]), 3)
    >>> outcome = conclude([look])
    >>> outcome.finding, outcome.accused
    ('client', (0,))
    """
    accused = tuple(dict.fromkeys(row for look in looks for row in look.accused))
    alone = {row for look in looks if not isinstance(look, Company) for row in look.accused}
    by_labels = {row for look in looks if not isinstance(look, Scored) for row in look.accused}
    log_e = np.maximum.reduce([look.log_e() for look in looks])
    power, not_cleared = (None, ()) if accused else _power(looks, surviving)
    return Outcome(
        accused=accused,
        by_company=tuple(row for row in accused if row not in alone),
        by_scores=tuple(row for row in accused if row not in by_labels),
        power=power,
        not_cleared=not_cleared,
        e_values=np.exp(np.minimum(log_e, MOST_LOG_E)),
        shown=_telling(looks),
        federation=_telling(federation) if federation and federation[0].answered else None,
    )


def _telling(looks: Sequence[Evidence]) -> Evidence:
    """The look that accuses most clients; among equals the one with most answers, and the last of those."""
    return max(reversed(looks), key=lambda look: (len(look.accused), look.answered))


def _power(looks: Sequence[Evidence], surviving: float) -> tuple[float, tuple[int, ...]]:
    """How surely a leaker would have been accused, and the rows of those for whom that is not sure enough.

    It is the probability of a conviction within the answers that count for the client, before any is compared with a
    codeword. So it tells nothing of codewords.
    """
    by_client = np.zeros(len(looks[0].matches))
    for look in looks:
        if not isinstance(look, Company | Scored):
            reached = conviction(
                look.answered,
                look.tests,
                look.classes,
                rate=match_rate(surviving, look.classes),
                false_accusation=look.false_accusation,
                share=look.share,
            )
            by_client = np.maximum(by_client, np.append(0.0, reached)[look.counted])
    sure = by_client >= POWER
    if not sure.any():
        return float(by_client.max()), ()
    return float(by_client[sure].min()), tuple(np.flatnonzero(~sure).tolist())


def finding_of(accused: int, *, cleared: bool, ours: bool = False) -> Finding:
    """The finding, given how many clients are accused and, if none, whether it is ours or everybody is cleared."""
    if accused:
        return "client" if accused == 1 else "several"
    if ours:
        return "federation"
    return "nobody" if cleared else "inconclusive"

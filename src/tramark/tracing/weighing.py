"""Weigh a suspect's answers against a keyring: against every client, then against the federation's own key.

The common questions come last, and only if the looks that decide what is asked accuse no client: so they are spent, and
burned, only where no client is named. Whether they are asked depends on no codeword of an innocent's, and on none of
the federation's own answers (docs/explanation/evidence.md).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tramark.evidence.case import Case
from tramark.evidence.federation import tests
from tramark.evidence.looks import Query, weigh
from tramark.evidence.scores import Scores
from tramark.evidence.tally import Company, Evidence
from tramark.keys.keyring import Keyring
from tramark.tracing.codebook import burned_rows, codebook_of

Answers = Callable[[Sequence[Query]], Iterator[int]]
"""Yields the answers to a list of queries, one by one; fewer if it must stop."""


class Plan(NamedTuple):
    """What is asked, in which order, and what counts for whom.

    Parameters
    ----------
    clients, tests : n, and how many tests share the error.
    order, common : the clients' questions, and those of the federation's own key that count.
    burned : by client, the questions that do not count for it.
    """

    clients: int
    tests: int
    order: Sequence[int]
    common: Sequence[int]
    burned: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, keys: Keyring | Case) -> "Plan":
        """The plan of a case, or of a trace with a keyring alone."""
        if isinstance(keys, Case):
            return cls(keys.clients, keys.tests, keys.order, keys.ours, keys.burned)
        count = len(keys.clients)
        return cls(count, tests(count, keys.common), keys.chosen, keys.common, {})


class Looks(NamedTuple):
    """The looks at the clients, and those at the federation's own key; none of these if that was not asked about."""

    clients: list[Evidence]
    federation: list[Evidence]


def weigh_all(
    answers: Answers,
    keyring: Keyring,
    plan: Plan,
    *,
    false_accusation: float,
    exhaustive: bool = False,
    scores: Callable[[Query], Scores | None] | None = None,
) -> Looks:
    """The looks at a suspect's answers, and at its scores if it gives any, that are needed, in order."""
    variants, classes = keyring.held_out_variants, keyring.classes
    looks = weigh(
        answers,
        codebook_of(keyring, plan.order)[: plan.clients],
        plan.order,
        variants=variants,
        clients=plan.clients,
        classes=classes,
        false_accusation=false_accusation,
        burned=burned_rows(keyring, plan.burned),
        exhaustive=exhaustive,
        tests=plan.tests,
        scores=scores,
    )
    named = any(look.accused for look in looks if not isinstance(look, Company))
    if not plan.common or (named and not exhaustive):
        return Looks(looks, [])
    federation = weigh(
        answers,
        np.array([keyring.common_answers(plan.common)]),
        plan.common,
        variants=variants,
        clients=plan.tests,
        classes=classes,
        false_accusation=false_accusation,
        exhaustive=exhaustive,
        scores=scores,
        # Everybody's model has this mark: there are no accomplices to look for.
        unexplained=1.0,
    )
    return Looks(looks, federation)

"""tracing.verdict"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramark.evidence.statistics import Finding
from tramark.keys.keyring import Keyring
from tramark.tracing.interview import Step

# Codewords are made for this many clients at a time: enough to be quick, few enough to be small.
CHUNK = 2**14


@dataclass(frozen=True)
class Verdict:
    """Who leaked the suspect, or nobody, and what speaks for it.

    Parameters
    ----------
    verdict : "client" or "several" if `clients` are accused, "nobody", or "inconclusive".
    false_accusation_bound : on the probability that anybody innocent is accused; None if the rule has none.
    e_values : everybody's evidence; at n / bound a client is accused. For the accused, as it stood then.
    p_values : P(an innocent matches as often), as if the number of answers had been fixed beforehand.
    matches, answered : everybody's matches among the questions that got an answer.
    power : if nobody is accused, how surely a leaker whose mark survives in half the questions would show.
    transcript : every query, in the order of asking.
    by_company : those of the accused who are so because nobody else was to give enough of the suspect's answers; to
        show that takes everybody's codewords.
    """

    verdict: Finding
    clients: tuple[str, ...]
    queries: int
    false_accusation_bound: float | None
    e_values: dict[str, float] = field(repr=False)
    p_values: dict[str, float] = field(repr=False)
    matches: dict[str, int] = field(repr=False)
    answered: int
    power: float | None
    transcript: tuple[Step, ...] = field(repr=False)
    by_company: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What a report shows first, as plain values."""
        return {
            "verdict": self.verdict,
            "clients": list(self.clients),
            "queries": self.queries,
            "false_accusation_bound": self.false_accusation_bound,
            "e_values": self.e_values,
            "p_values": self.p_values,
        }


def finding_of(accused: Sequence[str], *, cleared: bool) -> Finding:
    if accused:
        return "client" if len(accused) == 1 else "several"
    return "nobody" if cleared else "inconclusive"


def codebook_of(keyring: Keyring) -> NDArray[Any]:
    """Everyone's answers, clients × questions, in as few bytes as hold a label."""
    dtype = np.min_scalar_type(keyring.classes - 1)
    count = len(keyring.clients)
    book = np.empty((count, keyring.questions), dtype=dtype, order="F")
    for start in range(0, count, CHUNK):
        book[start : start + CHUNK] = keyring.codebook(clients=slice(start, start + CHUNK)).numpy()
    return book

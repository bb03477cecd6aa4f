"""How a verdict's evidence grew: everybody's e-values, query by query, as numbers for a chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramark.evidence.looks import Company
from tramark.evidence.statistics import LOOKS, Floats, log_e_values, plurality
from tramark.keys.keyring import Keyring
from tramark.tracing.codebook import CHUNK
from tramark.tracing.verdict import Verdict

# With more clients than this, only the accused have a line of their own; the others are a band.
LINES = 40


@dataclass(frozen=True)
class Growth:
    """One look at the answers: log10 of the e-values after each query that counted.

    `lines` has a row for each of `clients`. `lowest` and `highest` are taken over all clients that are not accused;
    they are empty if all are.
    """

    queries: tuple[int, ...]
    clients: tuple[str, ...]
    lines: Floats
    lowest: Floats
    highest: Floats


def growth(verdict: Verdict, keyring: Keyring) -> list[Growth]:
    """The looks of a trace, in order, with a line for each of the accused, or for all clients if they are few.

    Clients accused by the company look have one more line. It reaches the limit where their first one does not.
    """
    known = {(step.question, step.variant): step.answer for step in verdict.transcript}
    variants, count = keyring.held_out_variants, len(keyring.chosen)
    first = [(i + 1, i, known[q, 0]) for i, q in enumerate(keyring.chosen) if (q, 0) in known]
    second = []
    for i, question in enumerate(keyring.chosen):
        given = [known[question, v] for v in range(variants) if (question, v) in known]
        if variants > 1 and len(given) == variants and len(first) == count:
            second.append((count + (i + 1) * (variants - 1), i, plurality(given)))
    looks = ((first, 0, LOOKS.single), (second, count, LOOKS.plural))
    grown = [_grown(verdict, keyring, symbols, start, share) for symbols, start, share in looks if symbols]
    if verdict.by_company:
        grown.append(_grown_in_company(verdict, keyring, first))
    return grown


def _grown_in_company(verdict: Verdict, keyring: Keyring, symbols: Sequence[tuple[int, int, int]]) -> Growth:
    assert verdict.false_accusation_bound is not None
    book = keyring.codebook().numpy()
    company = Company(len(book), keyring.classes, false_accusation=verdict.false_accusation_bound, share=LOOKS.company)
    rows = [keyring.clients.index(client) for client in verdict.by_company]
    lines = [company.log_e()[rows]]
    for _, column, answer in symbols:
        company.add(book[:, column], answer)
        lines.append(company.log_e()[rows])
    queries = (0, *(query for query, _, _ in symbols))
    return Growth(queries, verdict.by_company, np.array(lines).T / math.log(10), np.zeros(0), np.zeros(0))


def _grown(
    verdict: Verdict, keyring: Keyring, symbols: Sequence[tuple[int, int, int]], start: int, share: float
) -> Growth:
    queries, columns, answers = (list(part) for part in zip(*symbols, strict=True))
    counts = np.array([0 <= answer < keyring.classes for answer in answers])
    answered = np.cumsum(counts).tolist()
    table = [np.array([0.0]), *(log_e_values(t, keyring.classes) for t in answered)]
    few = len(keyring.clients) <= LINES
    named = tuple(client for client in keyring.clients if few or client in verdict.clients)
    lines: dict[str, NDArray[Any]] = {}
    lows, highs = [], []
    for first in range(0, len(keyring.clients), CHUNK):
        names = keyring.clients[first : first + CHUNK]
        book = keyring.codebook(clients=slice(first, first + CHUNK)).numpy()[:, columns]
        matches = np.cumsum((book == answers) & counts, axis=1)
        others = matches[[name not in verdict.clients for name in names]]
        if len(others):
            lows.append(others.min(axis=0))
            highs.append(others.max(axis=0))
        lines |= {name: matches[row] for row, name in enumerate(names) if few or name in verdict.clients}

    def log10(path: NDArray[Any]) -> Floats:
        values = [by_matches[k] for by_matches, k in zip(table, [0, *path.tolist()], strict=True)]
        return (np.array(values) + math.log(share)) / math.log(10)

    nobody = np.zeros(0)
    return Growth(
        queries=(start, *queries),
        clients=named,
        lines=np.array([log10(lines[name]) for name in named]).reshape(len(named), len(queries) + 1),
        lowest=log10(np.min(lows, axis=0)) if lows else nobody,
        highest=log10(np.max(highs, axis=0)) if highs else nobody,
    )

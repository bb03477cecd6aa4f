"""How a verdict's evidence grew: everybody's e-values, query by query, as numbers for a chart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tramark.evidence.scores import Scored
from tramark.evidence.statistics import Floats, plurality, shares
from tramark.evidence.tally import NONE, Company, Evidence
from tramark.keys.keyring import Keyring
from tramark.tracing.codebook import burned_rows, codebook_of
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

    Clients accused by the company look or by the scores have one more line. It reaches the limit where their first one
    does not; that of the scores, which count all questions at once, rises in one step.
    """
    case, bound = verdict.case, verdict.false_accusation_bound
    assert bound is not None
    order = case.order if case else keyring.chosen
    known = {(step.question, step.variant): step.answer for step in verdict.transcript}
    scores = [verdict.scores.get((question, 0)) for question in order]
    share = shares(scored=bool(scores) and scores[0] is not None)
    variants, count, clients = keyring.held_out_variants, len(order), len(keyring.clients)
    first = [(i + 1, i, known[q, 0]) for i, q in enumerate(order) if (q, 0) in known]
    second = []
    for i, question in enumerate(order):
        given = [known[question, v] for v in range(variants) if (question, v) in known]
        if variants > 1 and len(given) == variants and len(first) == count:
            second.append((count + (i + 1) * (variants - 1), i, plurality(given)))
    book, burned = codebook_of(keyring, order), burned_rows(keyring, case.burned if case else {})

    def grown(look: Evidence, symbols: Sequence[tuple[int, int, int]], start: int, rows: Sequence[int]) -> Growth:
        others = np.ones(clients, dtype=bool)
        others[[keyring.clients.index(client) for client in verdict.clients]] = False
        others &= not isinstance(look, Company)
        lines, lows, highs = [], [], []
        for step in (None, *symbols):
            if step is not None:
                look.add(book[:, step[1]], step[2], burned.get(order[step[1]], NONE))
            now = look.now()
            lines.append(now[rows])
            if others.any():
                lows.append(now[others].min())
                highs.append(now[others].max())
        queries = (start, *(query for query, _, _ in symbols))
        named = tuple(keyring.clients[row] for row in rows)
        scale = math.log(10)
        return Growth(queries, named, np.array(lines).T / scale, np.array(lows) / scale, np.array(highs) / scale)

    drawn = [row for row, client in enumerate(keyring.clients) if clients <= LINES or client in verdict.clients]
    looks = [
        grown(Evidence(clients, keyring.classes, false_accusation=bound, share=part), symbols, start, drawn)
        for symbols, start, part in ((first, 0, share.single), (second, count, share.plural))
        if symbols
    ]
    if verdict.by_company:
        company = Company(clients, keyring.classes, false_accusation=bound, share=share.company)
        looks.append(grown(company, first, 0, [keyring.clients.index(client) for client in verdict.by_company]))
    if verdict.by_scores:
        rows = [keyring.clients.index(client) for client in verdict.by_scores]
        scored = Scored(clients, keyring.classes, false_accusation=bound, share=share.scores)
        by_column = {column: burned[question] for column, question in enumerate(order) if question in burned}
        scored.weigh(book, [known[question, 0] for question in order], scores, by_column)
        ends = np.stack([np.full(len(rows), math.log(share.scores)), scored.now()[rows]], axis=1) / math.log(10)
        nobody = np.zeros(0)
        looks.append(Growth((count, count), verdict.by_scores, ends, nobody, nobody))
    return looks

"""Charts of the evidence, as SVG that takes its colours from the page it stands in.

`evidence_chart` shows the e-values growing query by query, `matches_chart` everybody's matches beside what
chance gives, `histogram` the matches of very many. They show how often clients match, never what they answer.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramark.evidence.looks import Company
from tramark.evidence.statistics import LOOKS, Floats, binomial, log_e_values, p_values, plurality
from tramark.keys.keyring import Keyring
from tramark.tracing.codebook import CHUNK
from tramark.tracing.verdict import Verdict

Scale = Callable[[float], float]


# Up to so many clients get a line of their own, or a bar; more are a band, or a histogram.
LINES = 40


BARS = 20


_WIDTH, _LEFT, _RIGHT = 880, 76, 24


_LOWEST = -5.0


@dataclass(frozen=True)
class Growth:
    """One look at the answers: log10 e-values after each query that added a symbol.

    `lines` has a row for each of `clients`; `lowest` and `highest` are those of everybody who is not accused,
    empty if there is nobody else.
    """

    queries: tuple[int, ...]
    clients: tuple[str, ...]
    lines: Floats
    lowest: Floats
    highest: Floats


def growth(verdict: Verdict, keyring: Keyring) -> list[Growth]:
    """How a verdict's evidence grew, look by look: lines of the accused, and of everybody if they are few.

    Those who are accused by the company have one line more, which reaches the limit where their own does not.
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
        lines=np.array([log10(lines[name]) for name in named]).reshape(len(named), -1),
        lowest=log10(np.min(lows, axis=0)) if lows else nobody,
        highest=log10(np.max(highs, axis=0)) if highs else nobody,
    )


def evidence_chart(looks: Sequence[Growth], accused: Sequence[str], *, needed: float) -> str:
    """The e-values query by query, on a logarithmic scale, and the line at which a client is accused."""
    limit = math.log10(needed)
    tops = [float(values.max()) for look in looks for values in (look.lines, look.highest) if values.size]
    bottoms = [float(values.min()) for look in looks for values in (look.lines, look.lowest) if values.size]
    top, bottom = max(limit, *tops) + 1, max(min(bottoms) - 0.5, _LOWEST)
    last = max(look.queries[-1] for look in looks)
    height, above, below = 400, 16, 52
    width = _WIDTH - _LEFT - _RIGHT

    def x(query: float) -> float:
        return _LEFT + width * query / last

    def y(power: float) -> float:
        return above + (height - above - below) * (top - power) / (top - bottom)

    def path(queries: Sequence[int], values: Floats) -> str:
        points = zip(queries, values.tolist(), strict=True)
        return "M" + "L".join(f"{x(query):.1f} {y(power):.1f}" for query, power in points)

    parts = []
    step = max(1, math.ceil((top - bottom) / 9))
    for power in range(math.ceil(bottom / step) * step, math.floor(top) + 1, step):
        parts.append(f'<path class="grid" d="M{_LEFT} {y(power):.1f}h{width}"/>')
        parts.append(_label(_LEFT - 10, y(power) + 5, _power(power), "end"))
    for query in _ticks(last):
        parts.append(_label(x(query), height - below + 22, f"{query:,}", "middle"))
    parts.append(_label(_LEFT + width / 2, height - 6, "queries asked", "middle"))
    parts.append(f'<clipPath id="plot"><path d="M{_LEFT} 0h{width + _RIGHT}V{height - below}H{_LEFT}z"/></clipPath>')
    parts.append('<g clip-path="url(#plot)">')
    for look in looks:
        if look.highest.size and set(look.clients) <= set(accused):
            down = path(look.queries[::-1], look.lowest[::-1])
            parts.append(f'<path class="band" d="{path(look.queries, look.highest)}L{down[1:]}z"/>')
            parts.append(f'<path class="highest" d="{path(look.queries, look.highest)}"/>')
        for client, line in zip(look.clients, look.lines, strict=True):
            if client not in accused:
                drawn = path(look.queries, line)
                parts.append(f'<path class="other" d="{drawn}"><title>{escape(client)}</title></path>')
    for look in looks:
        for client, line in zip(look.clients, look.lines, strict=True):
            if client in accused:
                parts.append(_accused_line(look, client, line, accused.index(client), path(look.queries, line), x, y))
    parts.append("</g>")
    parts.append(f'<path class="limit" d="M{_LEFT} {y(limit):.1f}h{width}"/>')
    parts.append(_label(_LEFT + 8, y(limit) - 8, f"accused from here on: {number(needed)}", "start", "limit-label"))
    for look in (look for look in looks if look.queries[0]):
        parts.append(f'<path class="divide" d="M{x(look.queries[0]):.1f} {above}V{height - below}"/>')
        parts.append(_label(x(look.queries[0]) + 8, height - below - 10, "second look: other variants", "start"))
    said = [f"{name} reaches {number(10 ** _most(looks, name))}" for name in accused] or ["nobody reaches it"]
    title = f"Evidence (e-value) by query. {number(needed)} is needed to accuse a client; {', '.join(said)}."
    return _svg(height, title, parts)


def _accused_line(look: Growth, client: str, line: Floats, place: int, path: str, x: Scale, y: Scale) -> str:
    dots = "".join(
        f'<circle cx="{x(query):.1f}" cy="{y(power):.1f}" r="{4 if query == look.queries[-1] else 2.5}">'
        f"<title>{escape(client)}, after query {query}: {number(10**power)}</title></circle>"
        for query, power in zip(look.queries[1:], line[1:].tolist(), strict=True)
    )
    return f'<g class="accused a{place % 4}"><path d="{path}"/>{dots}</g>'


def _most(looks: Sequence[Growth], client: str) -> float:
    return max(float(look.lines[look.clients.index(client)].max()) for look in looks if client in look.clients)


def matches_chart(
    matches: Mapping[str, int], answered: int, accused: Sequence[str], *, classes: int | None, clients: int
) -> str:
    """A bar for each of the clients with most matches, below what chance alone gives (None: there is no such law)."""
    shown = sorted(matches, key=lambda name: (name not in accused, -matches[name]))[:BARS]
    left, row, strip = 220, 26, 96 if classes else 12
    width, height = _WIDTH - left - 60, strip + row * len(shown) + 48

    def x(count: float) -> float:
        return left + width * count / max(answered, 1)

    parts = []
    bottom = strip + row * len(shown) + 4
    if classes:
        law = binomial(answered, 1 / classes)
        beyond = chance_limit(answered, classes, clients)
        parts.append(f'<path class="chance" d="M{left} {strip - 4}H{x(beyond):.1f}V{bottom}H{left}z"/>')
        bar = min(26.0, 0.7 * width / max(answered, 1))
        for count, share in enumerate((law / law.max()).tolist()):
            if share > 0.004:
                tall = 52 * share
                parts.append(
                    f'<rect class="law" x="{x(count) - bar / 2:.1f}" y="{strip - 12 - tall:.1f}" width="{bar:.1f}" '
                    f'height="{tall:.1f}"><title>{count} matches: {law[count]:.1%} of innocents</title></rect>'
                )
                if bar > 20 and law[count] >= 0.01:
                    parts.append(_label(x(count), strip - 17 - tall, f"{100 * law[count]:.2g} %", "middle", "small"))
        parts.append(_label(left - 30, strip - 14, "by chance, an innocent", "end"))
    for place, name in enumerate(shown):
        top, kind = strip + row * place, f"accused a{accused.index(name) % 4}" if name in accused else "others"
        short = name if len(name) <= 26 else name[:25] + "…"
        parts.append(_label(left - 12, top + 17, short, "end", "name" if name in accused else "", name))
        parts.append(
            f'<path class="bar {kind}" d="M{left} {top + 4}H{x(matches[name]):.1f}v18H{left}z">'
            f"<title>{escape(name)}: {matches[name]} of {answered}</title></path>"
        )
        parts.append(_label(x(matches[name]) + 7, top + 18, str(matches[name]), "start", "count"))
    parts.append(f'<path class="axis" d="M{left} {strip - 8}V{bottom}h{width}"/>')
    for count in _ticks(answered):
        parts.append(_label(x(count), bottom + 18, str(count), "middle"))
    parts.append(_label(left + width / 2, bottom + 38, f"matches among {answered:,} answers", "middle"))
    title = "Matches: " + ", ".join(f"{name} {matches[name]}" for name in shown) + f", of {answered} answers."
    return _svg(height, title, parts)


def histogram(matches: Mapping[str, int], answered: int, accused: Sequence[str], *, classes: int) -> str:
    """How many clients have how many matches, beside how many that would be if all were innocent."""
    counts = np.bincount(list(matches.values()), minlength=answered + 1).tolist()
    expected = (len(matches) * binomial(answered, 1 / classes)).tolist()
    marked = {matches[name] for name in accused}
    height, above, below = 250, 30, 48
    width = _WIDTH - _LEFT - _RIGHT
    slot = width / (answered + 1)
    # Between a million clients with one match and one with twenty, only a logarithm shows both.
    most = math.log1p(max(*counts, *expected))

    def tall(count: float) -> float:
        return (height - above - below) * math.log1p(count) / most

    parts, base = [], height - below
    for k, (count, chance) in enumerate(zip(counts, expected, strict=True)):
        centre = _LEFT + slot * (k + 0.5)
        kind = "accused a0" if k in marked else "others"
        parts.append(
            f'<path class="bar {kind}" d="M{centre - slot * 0.35:.1f} {base}v{-tall(count):.1f}'
            f'h{slot * 0.7:.1f}V{base}z"><title>{k} matches: {count:,} clients, {chance:.3g} expected</title></path>'
        )
        if chance >= 0.05:
            parts.append(
                f'<path class="expected" d="M{centre - slot * 0.45:.1f} {base - tall(chance):.1f}h{slot * 0.9:.1f}"/>'
            )
        if count:
            highest = max(tall(count), tall(chance) if chance >= 0.05 else 0)
            parts.append(_label(centre, base - highest - 7, f"{count:,}", "middle", "count"))
    parts.append(f'<path class="axis" d="M{_LEFT} {base}h{width}"/>')
    for k in _ticks(answered):
        parts.append(_label(_LEFT + slot * (k + 0.5), base + 18, str(k), "middle"))
    parts.append(_label(_LEFT + width / 2, base + 38, f"matches among {answered:,} answers", "middle"))
    listed = ", ".join(f"{count:,} with {k}" for k, count in enumerate(counts) if count)
    return _svg(height, f"Number of clients by matches: {listed}.", parts)


def chance_limit(answered: int, classes: int, clients: int) -> int:
    """So many matches are exceeded by any of the clients with a probability of at most 1 %, if all are innocent.

    >>> chance_limit(8, 10, 10)
    4
    """
    exceeded = p_values(answered, classes)[1:]
    return int((exceeded > 0.01 / clients).sum())


def number(value: float) -> str:
    """A number as people write it.

    >>> number(1234.4), number(1e7), number(2.13e7), number(0.00012), number(0.25)
    ('1,234', '10⁷', '2.1 × 10⁷', '1.2 × 10⁻⁴', '0.25')
    """
    if value == 0 or 0.01 <= value < 10:
        return f"{value:.2g}"
    if 10 <= value < 99_999.5:
        return f"{value:,.0f}"
    mantissa, power = f"{value:.1e}".split("e")
    times = "" if mantissa == "1.0" else f"{mantissa.removesuffix('.0')} × "
    return times + _power(int(power))


def _power(power: int) -> str:
    if 0 <= power <= 3:
        return f"{10**power:,}"
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _ticks(last: int) -> Iterator[int]:
    steps = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    step = next(step for step in steps if last / step <= 12)
    return iter(range(0, last + 1, step))


def _label(x: float, y: float, text: str, anchor: str, kind: str = "", full: str = "") -> str:
    more = f"<title>{escape(full)}</title>" if full else ""
    chosen = f' class="{kind}"' if kind else ""
    return f'<text{chosen} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{more}{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<div class="chart"><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></div>"
    )

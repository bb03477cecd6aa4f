"""Charts of the evidence as SVG that takes its colours from the page around it.

They are written by hand, without a plotting library. The page must stand alone and run no script; tramark then needs no
plotting dependency to report a verdict; and the same verdict always gives the same bytes. Each chart is drawn twice,
for wide windows and for phones; the style sheet shows one of them.

`evidence_chart` shows how the e-values grew, `matches_chart` each client's matches beside those expected by chance, and
`histogram` the matches of a large federation. They show how often clients match, never what a client answers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from tramark.evidence.statistics import Floats, binomial, p_values
from tramark.report.growth import Growth
from tramark.report.words import number, power_of_ten

Scale = Callable[[float], float]

BARS = 20
"""Largest number of clients that have a bar of their own."""

_LOWEST = -5.0


@dataclass(frozen=True)
class Frame:
    """How wide a chart is, how much of that its axis takes, and the room for clients' names, in pixels."""

    kind: str
    width: int
    left: int
    right: int
    names: int
    letters: int
    ticks: int


FRAMES = (Frame("wide", 880, 76, 24, 220, 26, 12), Frame("narrow", 360, 46, 10, 104, 13, 5))


def evidence_chart(looks: Sequence[Growth], accused: Sequence[str], *, needed: float) -> str:
    """The e-values after each query, on a logarithmic scale, with the line at which a client is accused."""
    return "".join(_evidence_chart(frame, looks, accused, needed) for frame in FRAMES)


def _evidence_chart(frame: Frame, looks: Sequence[Growth], accused: Sequence[str], needed: float) -> str:
    limit = math.log10(needed)
    tops = [float(values.max()) for look in looks for values in (look.lines, look.highest) if values.size]
    bottoms = [float(values.min()) for look in looks for values in (look.lines, look.lowest) if values.size]
    top, bottom = max(limit, *tops) + 1, max(min(bottoms) - 0.5, _LOWEST)
    last = max(look.queries[-1] for look in looks)
    height, above, below, left = 400, 16, 52, frame.left
    width = frame.width - left - frame.right

    def x(query: float) -> float:
        return left + width * query / last

    def y(power: float) -> float:
        return above + (height - above - below) * (top - power) / (top - bottom)

    def path(queries: Sequence[int], values: Floats) -> str:
        points = zip(queries, values.tolist(), strict=True)
        return "M" + "L".join(f"{x(query):.1f} {y(power):.1f}" for query, power in points)

    parts = []
    step = max(1, math.ceil((top - bottom) / 9))
    for power in range(math.ceil(bottom / step) * step, math.floor(top) + 1, step):
        parts.append(f'<path class="grid" d="M{left} {y(power):.1f}h{width}"/>')
        parts.append(_label(left - 10, y(power) + 5, power_of_ten(power), "end"))
    for query in _ticks(last, frame.ticks):
        parts.append(_label(x(query), height - below + 22, f"{query:,}", "middle"))
    parts.append(_label(left + width / 2, height - 6, "queries asked", "middle"))
    inside = f'<path d="M{left} 0h{width + frame.right}V{height - below}H{left}z"/>'
    parts.append(f'<clipPath id="plot-{frame.kind}">{inside}</clipPath><g clip-path="url(#plot-{frame.kind})">')
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
    parts.append(f'<path class="limit" d="M{left} {y(limit):.1f}h{width}"/>')
    parts.append(_label(left + 8, y(limit) - 8, f"accused from here on: {number(needed)}", "start", "limit-label"))
    for look in (look for look in looks if look.queries[0]):
        parts.append(f'<path class="divide" d="M{x(look.queries[0]):.1f} {above}V{height - below}"/>')
        at = x(look.queries[0])
        near, anchor = (at + 8, "start") if at < frame.width * 0.6 else (at - 8, "end")
        words = "second look: other variants" if frame.kind == "wide" else "second look"
        parts.append(_label(near, height - below - 10, words, anchor))
    said = [f"{name} reaches {number(10 ** _most(looks, name))}" for name in accused] or ["nobody reaches it"]
    title = f"Evidence (e-value) by query. {number(needed)} is needed to accuse a client; {', '.join(said)}."
    return _svg(frame, height, title, parts)


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
    """A bar for each of the clients with most matches.

    Above them stands the distribution of an innocent client's matches, unless `classes` is None: then it is not known.
    """
    return "".join(_matches_chart(frame, matches, answered, accused, classes, clients) for frame in FRAMES)


def _matches_chart(
    frame: Frame, matches: Mapping[str, int], answered: int, accused: Sequence[str], classes: int | None, clients: int
) -> str:
    shown = sorted(matches, key=lambda name: (name not in accused, -matches[name]))[:BARS]
    left, row, strip = frame.names, 26, 96 if classes else 12
    width, height = frame.width - left - 36, strip + row * len(shown) + 48

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
        parts.append(
            _label(left - 12, strip - 14, "by chance, an innocent" if frame.kind == "wide" else "by chance", "end")
        )
    for place, name in enumerate(shown):
        top, kind = strip + row * place, f"accused a{accused.index(name) % 4}" if name in accused else "others"
        short = name if len(name) <= frame.letters else name[: frame.letters - 1] + "…"
        parts.append(_label(left - 12, top + 17, short, "end", "name" if name in accused else "", name))
        parts.append(
            f'<path class="bar {kind}" d="M{left} {top + 4}H{x(matches[name]):.1f}v18H{left}z">'
            f"<title>{escape(name)}: {matches[name]} of {answered}</title></path>"
        )
        parts.append(_label(x(matches[name]) + 7, top + 18, str(matches[name]), "start", "count"))
    parts.append(f'<path class="axis" d="M{left} {strip - 8}V{bottom}h{width}"/>')
    for count in _ticks(answered, frame.ticks):
        parts.append(_label(x(count), bottom + 18, str(count), "middle"))
    parts.append(_label(left + width / 2, bottom + 38, f"matches among {answered:,} answers", "middle"))
    title = "Matches: " + ", ".join(f"{name} {matches[name]}" for name in shown) + f", of {answered} answers."
    return _svg(frame, height, title, parts)


def histogram(matches: Mapping[str, int], answered: int, accused: Sequence[str], *, classes: int) -> str:
    """Number of clients for each number of matches, beside the number expected if all were innocent."""
    return "".join(_histogram(frame, matches, answered, accused, classes) for frame in FRAMES)


def _histogram(frame: Frame, matches: Mapping[str, int], answered: int, accused: Sequence[str], classes: int) -> str:
    counts = np.bincount(list(matches.values()), minlength=answered + 1).tolist()
    expected = (len(matches) * binomial(answered, 1 / classes)).tolist()
    marked = {matches[name] for name in accused}
    height, above, below, left = 250, 30, 48, frame.left
    width = frame.width - left - frame.right
    slot = width / (answered + 1)
    # A million clients with one match and one with twenty: only a logarithmic scale shows both.
    most = math.log1p(max(*counts, *expected))

    def tall(count: float) -> float:
        return (height - above - below) * math.log1p(count) / most

    parts, base = [], height - below
    for k, (count, chance) in enumerate(zip(counts, expected, strict=True)):
        centre = left + slot * (k + 0.5)
        kind = "accused a0" if k in marked else "others"
        parts.append(
            f'<path class="bar {kind}" d="M{centre - slot * 0.35:.1f} {base}v{-tall(count):.1f}'
            f'h{slot * 0.7:.1f}V{base}z"><title>{k} matches: {count:,} clients, {chance:.3g} expected</title></path>'
        )
        if chance >= 0.05:
            parts.append(
                f'<path class="expected" d="M{centre - slot * 0.45:.1f} {base - tall(chance):.1f}h{slot * 0.9:.1f}"/>'
            )
        if count and (k in marked or slot > 8 * len(f"{count:,}")):
            highest = max(tall(count), tall(chance) if chance >= 0.05 else 0)
            parts.append(_label(centre, base - highest - 7, f"{count:,}", "middle", "count"))
    parts.append(f'<path class="axis" d="M{left} {base}h{width}"/>')
    for k in _ticks(answered, frame.ticks):
        parts.append(_label(left + slot * (k + 0.5), base + 18, str(k), "middle"))
    parts.append(_label(left + width / 2, base + 38, f"matches among {answered:,} answers", "middle"))
    listed = ", ".join(f"{count:,} with {k}" for k, count in enumerate(counts) if count)
    return _svg(frame, height, f"Number of clients by matches: {listed}.", parts)


def survival_chart(rounds: Sequence[tuple[int, float, float]]) -> str:
    """The mean and the least survival of marks, by round, in per cent."""
    return "".join(_survival_chart(frame, rounds) for frame in FRAMES)


def _survival_chart(frame: Frame, rounds: Sequence[tuple[int, float, float]]) -> str:
    height, above, below, left = 240, 16, 48, frame.left
    width, tall = frame.width - left - frame.right, height - above - below
    first, last = rounds[0][0], rounds[-1][0]

    def path(values: Sequence[float]) -> str:
        points = zip(rounds, values, strict=True)
        return "M" + "L".join(
            f"{left + width * (one[0] - first) / (last - first):.1f} {above + tall * (1 - value):.1f}"
            for one, value in points
        )

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = above + tall * (1 - share)
        parts.append(
            f'<path class="grid" d="M{left} {y:.1f}h{width}"/>{_label(left - 8, y + 5, f"{share:.0%}", "end")}'
        )
    for tick in _ticks(last - first, frame.ticks):
        at = left + width * tick / (last - first)
        parts.append(_label(at, height - below + 20, f"{first + tick:,}", "middle"))
    parts.append(_label(left + width / 2, height - 6, "round", "middle"))
    parts.append(f'<path class="highest" d="{path([least for _, _, least in rounds])}"/>')
    parts.append(f'<g class="accused a3"><path d="{path([mean for _, mean, _ in rounds])}"/></g>')
    title = f"Survival by round: {rounds[-1][1]:.0%} on average and {rounds[-1][2]:.0%} at least in round {last}."
    return _svg(frame, height, title, parts)


def chance_limit(answered: int, classes: int, clients: int) -> int:
    """The number of matches that any of the clients exceeds with a probability of at most 1 %, if all are innocent.

    >>> chance_limit(8, 10, 10)
    4
    """
    exceeded = p_values(answered, classes)[1:]
    return int((exceeded > 0.01 / clients).sum())


def _ticks(last: int, most: int) -> Iterator[int]:
    steps = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    step = next(step for step in steps if last / step <= most)
    return iter(range(0, last + 1, step))


def _label(x: float, y: float, text: str, anchor: str, kind: str = "", full: str = "") -> str:
    more = f"<title>{escape(full)}</title>" if full else ""
    chosen = f' class="{kind}"' if kind else ""
    return f'<text{chosen} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{more}{escape(text)}</text>'


def _svg(frame: Frame, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<div class="{frame.kind}"><svg viewBox="0 0 {frame.width} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></div>"
    )

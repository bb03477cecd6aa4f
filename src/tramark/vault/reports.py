"""The reports of a server's rounds as the vault keeps them, and what they tell of the marks that were issued.

A report is a dict of plain values: whatever fields the server's `RoundReport` has. Readers must bear fields that are
missing, as reports of other versions have others.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tramark.evidence.premise import Premise
from tramark.vault.log import Entry

RECENT = 5
"""The last rounds in which survival was measured of which the worst counts."""

ASKED = 8
"""The answers by which the survival of each client is measured in a round (`marks.survival.QUESTIONS`)."""

SURE = 2.0
"""Standard errors by which what was measured is taken to be too good."""

Report = dict[str, Any]


def with_report(reports: Sequence[Report], report: Mapping[str, Any]) -> bytes:
    """The reports with one more, as bytes. It replaces reports of its own round and of later ones.

    >>> json.loads(with_report([{"round": 1}, {"round": 2}, {"round": 3}], {"round": 2, "used": ("a",)}))
    [{'round': 1}, {'round': 2, 'used': ['a']}]
    """
    return json.dumps([*(old for old in reports if old["round"] < report["round"]), report]).encode()


def survival_of(report: Mapping[str, Any]) -> list[float]:
    """The survival of each client that was asked in a round; empty if none was."""
    return list(((report.get("survived") or {}).get("clients") or {}).values())


def premise_of(reports: Sequence[Report], entries: Iterable[Entry], classes: int) -> Premise:
    """What is known of the mark that a model leaked from this vault would carry.

    The share of the questions in which it survives is what was measured in the worst of the last rounds. Few answers
    were looked at, so the lower end of the interval is taken (Wilson's). An answer in r is right by chance, so a share
    s of right answers means (s − 1/r) / (1 − 1/r). It is rounded down to whole per cent. If nothing was measured, one
    half is assumed.

    >>> premise_of([{"round": 9, "survived": {"clients": {"a": 1.0, "b": 0.875}}}], [], classes=10)
    Premise(issued=True, surviving=0.67, measured=True)
    """
    measured = [_at_least(found) for found in map(survival_of, reports) if found][-RECENT:]
    if not measured:
        return Premise(issued=_marks_issued(entries))
    left = max(0.0, (min(measured) - 1 / classes) / (1 - 1 / classes))
    return Premise(surviving=math.floor(100 * left) / 100, measured=True)


def _at_least(shares: Sequence[float]) -> float:
    """The lower end of the interval for the share of right answers, from the shares of some clients."""
    count = ASKED * len(shares)
    mean, room = sum(shares) / len(shares), SURE**2 / count
    return (mean + room / 2 - math.sqrt(room * (mean * (1 - mean) + room / 4))) / (1 + room)


def _marks_issued(entries: Iterable[Entry]) -> bool:
    """Whether the log has a marked model. In entries of early versions: two models of one round that differ."""
    first: dict[int, str] = {}
    return any(
        entry.get("marked", first.setdefault(entry["round"], entry["model"]) != entry["model"])
        for entry in entries
        if entry["event"] == "issued"
    )

"""The reports of a server's rounds as the vault keeps them, and what they tell of the marks that were issued.

A report is a dict of plain values: whatever fields the server's `RoundReport` has. Readers must bear fields that are
missing, as reports of other versions have others.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tramark.evidence.premise import FAINT, Premise
from tramark.vault.log import Entry

RECENT = 5
"""The last rounds in which survival was measured whose smallest mean counts."""

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

    The share of the questions in which it survives is one half or, if less was measured, the smallest mean of the last
    rounds: an answer in r is right by chance, so a share s of right answers means (s − 1/r) / (1 − 1/r). It is rounded
    down to whole per cent.

    >>> premise_of([{"round": 9, "survived": {"clients": {"a": 0.55, "b": 0.37}}}], [], classes=10)
    Premise(issued=True, surviving=0.4, measured=True)
    """
    measured = [sum(found) / len(found) for found in map(survival_of, reports) if found][-RECENT:]
    if not measured:
        return Premise(issued=_marks_issued(entries))
    left = max(0.0, (min(measured) - 1 / classes) / (1 - 1 / classes))
    # Added first: 0.4 may have become 0.39999….
    return Premise(surviving=min(FAINT, math.floor(100 * left + 1e-9) / 100), measured=True)


def _marks_issued(entries: Iterable[Entry]) -> bool:
    """Whether the log has a marked model. In entries of early versions: two models of one round that differ."""
    first: dict[int, str] = {}
    return any(
        entry.get("marked", first.setdefault(entry["round"], entry["model"]) != entry["model"])
        for entry in entries
        if entry["event"] == "issued"
    )

"""Probe a suspect before its first question, and note in the case what was found."""

import copy
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tramark.errors import SettingError
from tramark.evidence.case import Case
from tramark.suspects.base import Suspect
from tramark.suspects.conventions import Conventions
from tramark.suspects.http import HttpSuspect
from tramark.suspects.probe import FIRST, LIVELY, QUERIES, probe
from tramark.suspects.reference import without_base
from tramark.suspects.tried import Probed
from tramark.tracing.suspected import conventions_in, plain
from tramark.vault.store import Vault


def probe_suspect(suspect: Suspect, vault: Vault, *, budget: int | None = None) -> Probed | None:
    """How a suspect is fed and read; None if it has no conventions of its own, or the budget is too small.

    A server is asked at most 64 public inputs, and no more than a quarter of the budget.
    """
    if not isinstance(getattr(suspect, "conventions", None), Conventions):
        return None
    allowance = None if getattr(suspect, "at_once", False) else min(QUERIES, QUERIES if budget is None else budget // 4)
    if isinstance(suspect, HttpSuspect) and suspect.client.options.budget is not None and allowance is not None:
        allowance = min(allowance, suspect.client.options.budget // 4)
    if allowance is not None and allowance < FIRST:
        return None
    keyring = vault.keyring
    reference = vault.reference() or without_base(keyring.source, secrets.token_bytes(16))
    base = None if reference.labels is None else reference.labels.tolist()
    return probe(suspect, reference.raw(keyring.source), base, keyring.classes, allowance=allowance)  # type: ignore[arg-type]


def fed_as(suspect: Suspect, conventions: Conventions) -> Suspect:
    """The same suspect, fed and read by other conventions."""
    other: Any = copy.copy(suspect)
    other.conventions = conventions
    return other  # type: ignore[no-any-return]


def record_of(found: Probed | None) -> dict[str, Any] | None:
    """What a case keeps of a probe: plain values without fractions."""
    return None if found is None else plain(found.to_dict())


def as_recorded(suspect: Suspect, case: Case) -> Suspect:
    """The suspect, fed and read as the probe of a case found it to be."""
    if case.probe is None or case.probe["as_stated"]:
        return suspect
    stated = getattr(suspect, "conventions", None)
    if not isinstance(stated, Conventions):
        raise SettingError(f"case {case.number} is about a suspect that was fed or read in another way: open a new one")
    return fed_as(suspect, conventions_in(case.probe["proposed"], prepare=stated.prepare))


def doubt_of(noted: Mapping[str, Any] | None, answers: Sequence[int]) -> str | None:
    """Why "nobody" would say nothing of a suspect: it is probably fed or read wrongly.

    Where no base was there to compare with, a suspect whose answers to the questions differ is not doubted.
    """
    if noted is None or noted["doubt"] is None:
        return None
    most = max(Counter(answers).values(), default=0)
    if not noted["compared"] and answers and most < LIVELY * len(answers):
        return None
    return str(noted["doubt"])

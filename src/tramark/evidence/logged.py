"""Check a statement against the log of the vault that made it.

A case's number, the error that all cases have spent and the questions that earlier cases burned are in the log. Whoever
has the log can check them, and that the log is the one whose head the statement has. The log is chained by hashes but
written by the operator: a head that was published earlier shows that nothing before it was changed since.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tramark.errors import BadProof, Unreadable
from tramark.evidence.case import Case
from tramark.evidence.commitment import Commitment
from tramark.evidence.settled import Settled

Entry = Mapping[str, Any]


def read_log(text: bytes) -> tuple[list[Entry], list[str]]:
    """The entries of a vault's `log.jsonl`, and the hash of each line; `BadProof` if the chain does not hold."""
    entries, hashes = [], ["0" * 64]
    for number, line in enumerate(text.splitlines()):
        try:
            entry = json.loads(line)
            chained = (entry["n"], entry["previous"]) == (number, hashes[-1])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Unreadable("this is not the log of a vault: it should be a vault's log.jsonl") from None
        if not chained:
            raise BadProof(f"the log's entry {number} does not follow from the one before")
        entries.append(entry)
        hashes.append(hashlib.sha256(line).hexdigest())
    return entries, hashes[1:]


def logged(
    text: bytes, statement: Mapping[str, Any], case: Case, links: Sequence[Commitment], head: tuple[int, str] | None
) -> Iterator[str]:
    """What the log proves of a statement, in sentences; `BadProof` if it says something else.

    `case` is the record in the annex, `links` are the annex's commitments, and `head` is one of the log that the reader
    knows from elsewhere.
    """
    (entries, hashes), predicate = read_log(text), statement["predicate"]
    _check_head(hashes, predicate["log"], "the statement")
    if head is not None:
        _check_head(hashes, head, "you")
        yield f"The log goes on from the head that you gave, with {head[0]} entries."
    entries = entries[: predicate["log"][0]]
    opened = [entry for entry in entries if entry["event"] == "case-opened"]
    number, error = predicate["case"]["number"], predicate["error"]
    until = [entry for entry in opened if entry["case"] <= number]
    closed = [e for e in entries if e["event"] == "case-closed" and e["case"] == number]
    if (
        [entry["case"] for entry in until] != list(range(1, number + 1))
        or (until[-1]["false_accusation"], until[-1]["spent"]) != (error["case"], error["vault"])
        or sum(Decimal(entry["false_accusation"]) for entry in until) != Decimal(error["vault"])
        or until[-1]["suspect"] != {name: value for name, value in vars(case.suspect).items() if value is not None}
        or [entry["finding"] for entry in closed] != [predicate["finding"]]
    ):
        raise BadProof("the log has another record of this case than the statement")
    yield f"By the log, this was case {number} of the vault, and its cases had spent an error of {error['vault']} then."
    _check_burned(case, links[-1].chosen, entries[: closed[-1]["n"]], until[-1]["n"])
    yield "By the log, the order of the questions, and which of them count, follow from what earlier cases burned."
    order = Settled(links)
    for entry in entries:
        order.read(entry)
    if order.late:
        raise BadProof(f"by the log, answers were committed to too late: {order.late}")
    if links[-1].answers:
        yield "By the log, no model with a mark was issued before the answers in it were committed to."


def _check_head(hashes: Sequence[str], head: Sequence[Any], whose: str) -> None:
    entries, last = head
    if not 0 < entries <= len(hashes) or hashes[entries - 1] != last:
        raise BadProof(f"the log is not the one whose head {whose} gave: it was changed, or set back, or is another's")


def _check_burned(case: Case, chosen: Sequence[int], entries: Sequence[Entry], opened: int) -> None:
    """Raise `BadProof` unless the log burned what the record leaves out, and the order follows from it."""
    times: Counter[int] = Counter()
    burned: dict[str, set[int]] = {}
    for entry in (entry for entry in entries if entry["event"] == "burned"):
        for client, questions in entry["questions"].items():
            burned.setdefault(client, set()).update(questions)
            times.update(questions if entry["n"] < opened else ())
    left_out = any(set(questions) - burned.get(client, set()) for client, questions in case.burned.items())
    if left_out or case.order != tuple(sorted(chosen, key=lambda question: times[question])):
        raise BadProof("by the log, other questions count, or they had another order")

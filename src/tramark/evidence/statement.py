"""The statement: the public result of a case, as an in-toto Statement v1 in a DSSE envelope.

It says which suspect was traced with which vault, how, at what error, and what was found. It has no question, no answer
and no figure about anybody who is not accused. Everything in it that the confidential annex can prove follows from
the annex's record, so `statement_of` makes the statement, and again what it must be when it is checked. The rest is the
signer's word. docs/reference/statement.md has all fields.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tramark.errors import BadProof, Unreadable
from tramark.evidence.case import Case, Suspected
from tramark.evidence.commitment import canonical
from tramark.evidence.dsse import Envelope

IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
TRACE = "urn:tramark:trace:1"
"""The predicate's type."""


def statement_of(
    case: Case,
    *,
    vault: str,
    commitments: int,
    annex: str,
    simulated: bool,
    log: Sequence[Any],
    time: str,
) -> dict[str, Any]:
    """The statement about a closed case, as plain values.

    Parameters
    ----------
    vault, commitments : the vault's id, and how many commitments there were when the case was opened.
    annex : SHA-256 of the annex.
    simulated : whether the vault's secret was made from a seed, for a simulation.
    log : the log's number of entries and last hash when the statement was made.
    """
    closed = case.closed
    if closed is None:
        raise ValueError("the case is not closed")
    accusing = bool(closed.named)
    return {
        "_type": STATEMENT,
        "subject": [subject_of(case.suspect, annex)],
        "predicateType": TRACE,
        "predicate": {
            "vault": vault,
            "simulated": simulated,
            "commitments": {"number": commitments, "sha256": case.commitment},
            "case": {"number": case.number, "opened": case.opened, "closed": closed.time},
            "clients": case.clients,
            "classes": case.classes,
            "rule": case.rule,
            "error": {"case": repr(case.false_accusation), "vault": repr(case.spent)},
            "finding": closed.finding,
            "accused": list(closed.clients),
            "identical": [
                {"round": one.round, "clients": [] if one.everybody else list(one.clients), "marked": one.marked}
                for one in case.identical
            ],
            "questions": {
                "asked": len({query.question for query in case.asked}),
                "queries": len(case.asked),
                "answered": len({query.question for query in case.asked if 0 <= query.answer < case.classes}),
            },
            "premise": None if accusing else closed.premise.to_dict(),
            "conventions": dict(case.conventions),
            **fed_of(case),
            "annex": {"sha256": annex},
            "log": list(log),
            "time": time,
        },
    }


def fed_of(case: Case) -> dict[str, Any]:
    """What a probe found of how the suspect is fed and read, and what kept a file from doing harm, if it was noted."""
    probe = case.probe and {
        name: case.probe[name] for name in ("proposed", "as_stated", "compared", "queries", "doubt")
    }
    noted = {"probe": probe, "confinement": None if case.confinement is None else list(case.confinement)}
    return {name: value for name, value in noted.items() if value is not None}


def subject_of(suspect: Suspected, annex: str) -> dict[str, Any]:
    """The suspect as in-toto names it: by the digest of what was traced or, without one, of the annex that has it."""
    if suspect.sha256 is not None:
        # A file's digest is that of its bytes; folders and modules have digests of their own making.
        kind = "sha256" if suspect.kind == "file" else f"tramark_{suspect.kind}_sha256"
        return {"name": suspect.name, "digest": {kind: suspect.sha256}}
    named = {"uri": suspect.name} if suspect.remote else {}
    return {"name": suspect.name, **named, "digest": {"tramark_annex_sha256": annex}}


def envelope_of(statement: Mapping[str, Any]) -> Envelope:
    """The statement in an envelope that nobody has signed yet."""
    return Envelope(canonical(statement), IN_TOTO)


def read_statement(text: bytes) -> tuple[Envelope, dict[str, Any]]:
    """A statement's envelope, with signatures that hold, and its values; who signed is for the reader to judge."""
    envelope = Envelope.read(text)
    if envelope.kind != IN_TOTO:
        raise Unreadable(f"this envelope holds no in-toto statement: its type is not {IN_TOTO}")
    envelope.signers()
    try:
        plain = json.loads(envelope.payload)
        known = plain["_type"] == STATEMENT and plain["predicateType"] == TRACE
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Unreadable("this envelope holds no in-toto statement") from None
    if not known:
        raise Unreadable(f"this statement is none that this version knows: its predicate is not {TRACE}")
    if canonical(plain) != envelope.payload:
        raise BadProof("the statement is not the canonical text of what it says")
    return envelope, plain

"""Check a statement and its annex: no vault, no secret and no torch is needed.

What the annex proves is weighed again from the opened answers; whatever else the statement says must follow from the
annex's record. `BadProof` is raised for what is forged, or signed by the wrong key; `Unreadable` for what is no
evidence at all. Evidence that is in order may still not prove its finding to this reader, for want of the annex, of a
published commitment or of a small enough error: `Findings.lacking` says why. docs/reference/statement.md has the list
of checks.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from tramark.errors import BadProof, SettingError
from tramark.evidence.annex import Annex, read_annex
from tramark.evidence.case import Case
from tramark.evidence.commitment import Commitment, natural
from tramark.evidence.dsse import Envelope
from tramark.evidence.federation import FEDERATION, tests
from tramark.evidence.findings import Findings, fingerprint, left_out, same_key, shown, too_weak
from tramark.evidence.logged import logged
from tramark.evidence.looks import MOST_LOG_E
from tramark.evidence.premise import ASSUMED, Premise
from tramark.evidence.published import (
    check_order,
    check_published,
    choice_of,
    federation,
    lacking,
    time_of,
)
from tramark.evidence.reader import Known, proofs, words
from tramark.evidence.reweigh import Weighed, alone, in_company, others_of, shares_for
from tramark.evidence.statement import read_statement, statement_of
from tramark.evidence.statistics import p_values
from tramark.evidence.timestamp import stamped


def verify_statement(statement: bytes, annex: bytes | None = None, known: Known | None = None) -> Findings:
    """The findings of a statement, proven by its annex; `BadProof` if anything is not as it must be.

    Parameters
    ----------
    statement : the bytes of its file.
    annex : the bytes of the annex, decrypted. Without it, nothing is proven but who signed.
    known : what the reader knows from elsewhere.
    """
    known = known or Known()
    if known.head is not None and known.log is None:
        raise SettingError("a head of the log is of no use without the log: give both")
    envelope, plain = read_statement(statement)
    for key in known.keys:
        if not any(same_key(key, signer) for signer in envelope.signers()):
            raise BadProof(f"the statement is not signed with the key {shown(key)}")
    try:
        if annex is None:
            return _claimed(plain, envelope, known)
        opened = read_annex(annex)
        _check_statement(plain, opened, hashlib.sha256(annex).hexdigest())
        return _proven(plain, envelope, opened, known)
    except (TypeError, KeyError, IndexError, ValueError, AttributeError, ArithmeticError):
        raise BadProof("this is not a well-formed statement") from None


def _check_statement(plain: Mapping[str, Any], annex: Annex, digest: str) -> None:
    """Raise `BadProof` unless the statement says what follows from the annex, as far as the annex says anything."""
    predicate = plain["predicate"]
    if predicate["annex"] != {"sha256": digest}:
        raise BadProof("this annex is not the one that the statement names")
    entries, head = predicate["log"]
    if type(head) is not str or natural(entries) < annex.case.head[0]:
        raise ValueError
    expected = statement_of(
        annex.case,
        vault=annex.links[0].vault,
        commitments=len(annex.links),
        annex=digest,
        simulated=annex.links[0].simulated,
        log=predicate["log"],
        time=predicate["time"],
    )
    if plain != expected:
        raise BadProof("the statement does not say what its annex proves")


def _proven(plain: Mapping[str, Any], envelope: Envelope, annex: Annex, known: Known) -> Findings:
    case, links, closed = annex.case, annex.links, annex.case.closed
    assert closed is not None
    check_order(links, case.opened, closed.time, plain["predicate"]["time"])
    if known.published is not None:
        check_published(links, known.published)
    _check_signer(envelope, links, known.published, plain["predicate"]["time"])
    weighed = {name: _weighed(name, annex) for name in closed.named}
    needed = math.log(case.tests / case.false_accusation)
    if innocent := [name for name, weight in weighed.items() if weight.log_e < needed]:
        raise BadProof(f"the evidence does not suffice to accuse {' and '.join(map(repr, innocent))}")
    joined = [annex.joined[name] for name in closed.named]
    times = stamped(known.tokens, links, known.authority) if known.authority else {}
    lacks = [*lacking(links, known.published, joined), *too_weak(closed.named, case.false_accusation, known.at_most)]
    everybody = federation(links, known.published)
    more = math.log(tests(everybody, case.common) / case.false_accusation)
    if weighed and min(weight.log_e for weight in weighed.values()) < more:
        lacks.append(left_out(everybody, case.clients))
    by_log = logged(known.log, plain, case, links, known.head) if known.log is not None else ()
    log_proves = tuple(by_log)
    lacks += () if log_proves else _questions_lack(annex)
    lacks += _dates_lack(annex, times, joined)
    if plain["predicate"]["simulated"]:
        lacks.append("Anything about a real federation: the vault is a simulation's, whose secret anybody can compute.")
    return Findings(
        finding=closed.finding,
        clients=closed.clients,
        suspect=case.suspect.words,
        notes="",
        time=closed.time,
        vault=links[0].vault,
        public_key=links[-1].public_key,
        federation=case.clients,
        classes=case.classes,
        false_accusation_bound=case.false_accusation,
        needed=case.tests / case.false_accusation,
        queries=len(case.asked),
        answered=plain["predicate"]["questions"]["answered"],
        matches={client: weight.matches for client, weight in weighed.items()},
        e_values={client: math.exp(min(weight.log_e, MOST_LOG_E)) for client, weight in weighed.items()},
        p_values={
            client: float(p_values(weight.counted, case.classes)[weight.matches]) for client, weight in weighed.items()
        },
        proven=(*proofs(annex, envelope, known, weighed, times), *log_proves),
        unproven=tuple(words(plain, annex, known, times)),
        premise=closed.premise,
        lacking=tuple(lacks),
        case=case.number,
        spent=case.spent,
        signers=envelope.signers(),
    )


def _weighed(client: str, annex: Annex) -> Weighed:
    """The evidence against one of the accused, as the look weighs it that accuses it."""
    case, own, sizes = annex.case, annex.accused[client], {"clients": annex.case.clients, "classes": annex.case.classes}
    if case.closed is not None and client in case.closed.by_company:
        others = others_of(client, {**annex.accused, **annex.company}, annex.known)
        share = shares_for(case.scores, case.order).company
        return in_company(own, annex.known, case.order, others, share=share, **sizes)
    return alone(own, annex.known, case.scores, _tested_by(case, client), variants=case.variants, **sizes)


def _tested_by(case: Case, client: str) -> tuple[int, ...]:
    """The questions that a client is tested by or, for the federation, those that count."""
    return case.ours if client == FEDERATION else case.order


def _check_signer(
    envelope: Envelope, links: Sequence[Commitment], published: Sequence[Commitment] | None, time: str
) -> None:
    """Raise `BadProof` unless the key that the commitments had at a time is among those that signed."""
    longest = max(links, published or (), key=len)
    keys = [link.public_key for link in longest if time_of(link.time) <= time_of(time)]
    if not keys or keys[-1] not in envelope.signers():
        raise BadProof("the statement is not signed with the key that the commitments had then")


def _questions_lack(annex: Annex) -> Iterator[str]:
    """What lacks if questions were not asked in the committed order, or not counted: both could be picked to fit."""
    case = annex.case
    if case.order != annex.links[-1].chosen and FEDERATION not in annex.accused:
        yield (
            "That the order of the questions was not chosen to fit: it is not that of the commitment, because some "
            "were burned by earlier cases. The vault's log shows it."
        )
    for client, questions in case.burned.items():
        if questions and client in annex.accused:
            yield (
                f"That {len(questions)} questions do not count for {shown(client)} because earlier cases burned them, "
                "and for no other reason. The vault's log shows it."
            )


def _dates_lack(annex: Annex, times: Mapping[int, datetime], joined: Iterable[int]) -> Iterator[str]:
    """What lacks if an authority stamped a commitment only after the case was opened."""
    needed = max((choice_of(annex.links).number, *joined))
    # A commitment is at least as old as any that follows it.
    stamps = [time for number, time in times.items() if number >= needed]
    if stamps and min(stamps) > time_of(annex.case.opened):
        yield f"That commitment {needed} is older than the case: it was time-stamped only when the case was open."


def _claimed(plain: Mapping[str, Any], envelope: Envelope, known: Known) -> Findings:
    """What a statement says without its annex: all of it is the word of those who signed."""
    predicate, subject = plain["predicate"], plain["subject"][0]
    if known.published is not None:
        check_published([], known.published)
        _check_signer(envelope, [], known.published, predicate["time"])
    bound, clients = float(predicate["error"]["case"]), tuple(predicate["accused"])
    time_of(predicate["time"])
    texts = (subject["name"], predicate["vault"], predicate["finding"], predicate["rule"], *clients)
    if not all(type(word) is str for word in texts) or not 0 < bound < 1:
        raise ValueError
    premise = predicate["premise"]
    return Findings(
        finding=predicate["finding"],
        clients=clients,
        suspect=f"{subject['name']} ({', '.join(f'{kind} {value}' for kind, value in subject['digest'].items())})",
        notes="",
        time=predicate["case"]["closed"],
        vault=predicate["vault"],
        public_key=envelope.signers()[0],
        federation=natural(predicate["clients"]),
        classes=natural(predicate["classes"]),
        false_accusation_bound=bound,
        # Without the annex it is not known whether the federation is one more test.
        needed=natural(predicate["clients"]) / bound,
        queries=natural(predicate["questions"]["queries"]),
        answered=natural(predicate["questions"]["answered"]),
        matches={},
        e_values={},
        p_values={},
        proven=tuple(f"The statement is signed with the key {fingerprint(signer)}." for signer in envelope.signers()),
        unproven=("All that it says is the word of those who signed it.",),
        premise=ASSUMED if premise is None else Premise.from_dict(premise),
        lacking=("What the statement says: its annex proves it, and was not given.",),
        case=natural(predicate["case"]["number"]),
        spent=float(predicate["error"]["vault"]),
        signers=envelope.signers(),
    )

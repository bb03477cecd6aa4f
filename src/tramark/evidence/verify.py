"""Check a statement and its annex: no vault, no secret and no torch is needed.

What the annex proves is weighed again from the opened answers; whatever else the statement says must follow from the
annex's record. `BadProof` is raised for what is forged, or signed by the wrong key; `Unreadable` for what is no
evidence at all. Evidence that is in order may still not prove its finding to this reader, for want of the annex, of a
published commitment or of a small enough error: `Findings.lacking` says why. docs/statement.md has the list of checks.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tramark.errors import BadProof, SettingError
from tramark.evidence.annex import Annex, anchor_of, read_annex
from tramark.evidence.commitment import Commitment, natural
from tramark.evidence.dsse import Envelope
from tramark.evidence.federation import FEDERATION, tests
from tramark.evidence.findings import AT_MOST, Findings, fingerprint, left_out, same_key, shown, too_weak
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
    utc,
)
from tramark.evidence.reweigh import Weighed, alone, in_company, others_of
from tramark.evidence.statement import read_statement, statement_of
from tramark.evidence.statistics import p_values
from tramark.evidence.timestamp import stamped


@dataclass(frozen=True)
class Known:
    """What the reader knows from elsewhere than from the evidence.

    Parameters
    ----------
    published : the federation's commitments.
    keys : public keys, in hex or by fingerprint, all of which must have signed.
    at_most : the largest bound on false accusations at which an accusation is taken as proven.
    tokens, authority : time stamps of commitments, and the certificates (PEM) of the authority that made them.
    beacons : values of public beacons that commitments name.
    log, head : the vault's `log.jsonl`; and a head of it (number of entries, last hash) from elsewhere.
    """

    published: Sequence[Commitment] | None = None
    keys: tuple[str, ...] = ()
    at_most: float = AT_MOST
    tokens: tuple[bytes, ...] = ()
    authority: bytes | None = None
    beacons: tuple[bytes, ...] = field(default=())
    log: bytes | None = None
    head: tuple[int, str] | None = None


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
    by_log = logged(known.log, plain, case, links[-1].chosen, known.head) if known.log is not None else ()
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
        proven=(*_proofs(annex, envelope, known, weighed, times), *log_proves),
        unproven=tuple(_words(plain, annex, known, times)),
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
        return in_company(own, annex.known, case.order, others, **sizes)
    return alone(own, annex.known, case.order_of(client), variants=case.variants, **sizes)


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


def _proofs(
    annex: Annex, envelope: Envelope, known: Known, weighed: Mapping[str, Weighed], times: Mapping[int, datetime]
) -> Iterator[str]:
    """What was checked, in sentences."""
    case, links = annex.case, annex.links
    keys = {link.public_key for link in (*links, *(known.published or ()))}
    for signer in envelope.signers():
        whose = "the federation's key" if signer in keys else "a key that no commitment has"
        given = ", which you gave" if any(same_key(key, signer) for key in known.keys) else ""
        yield f"The statement is signed with {whose}{given}: {fingerprint(signer)}."
    if known.published:
        yield f"The first {min(len(links), len(known.published))} of {len(links)} commitments are those you gave."
    for number, time in times.items():
        yield f"Commitment {number} existed on {utc(time.isoformat())}, as the time-stamping authority says."
    yield (
        f"The {len(case.asked)} inputs that were asked are of the {len(links[-1].in_use)} questions of commitment "
        f"{choice_of(links).number}, in the order of the record, none left out."
    )
    for client, weight in weighed.items():
        name = "every client" if client == FEDERATION else shown(client)
        also = ", or the federation," if case.common else ""
        yield f"The answers shown of {name} are those of commitment {annex.joined[client]}."
        yield (
            f"The model of {name} was to answer {weight.matches} of {weight.counted} questions as the record says the "
            f"suspect did. The e-value reached {math.exp(min(weight.log_e, MOST_LOG_E)):.3g}, and "
            f"{case.tests / case.false_accusation:.3g} is needed to accuse one of {case.clients} clients{also} at a "
            f"bound of {case.false_accusation:g}."
        )
        if _by_chance(client, annex, known, times):
            yield f"The answers of {name} were drawn by the public beacon when the questions were settled already."


def _words(plain: Mapping[str, Any], annex: Annex, known: Known, times: Mapping[int, datetime]) -> Iterator[str]:
    """What rests on the signers' word, in sentences."""
    case, closed = annex.case, annex.case.closed
    assert closed is not None
    if not times:
        yield "When the commitments were made: without a time stamp their dates are the operator's word."
    yield (
        f"That the suspect, {shown(case.suspect.words)}, gave these answers, and that it was fed and read as the "
        "record says: ask it again, all inputs are in the annex."
    )
    if known.log is None:
        yield (
            f"That this was case {case.number} of the vault, and that its cases have spent an error of {case.spent:g} "
            f"so far: give the vault's log, of which {plain['predicate']['log'][0]} entries count, and a head of it "
            "from another time."
        )
    if case.identical:
        yield "That the suspect equals a model that was issued: the vault's log shows it."
    if closed.named:
        if not all(_by_chance(name, annex, known, times) for name in closed.named):
            yield (
                "That the answers were drawn at random, and the questions made without a look at them: an operator who "
                "made questions to fit is not excluded. An unmarked model must not answer as the accused does "
                "(tramark evidence check-base), and an expert whom both sides trust can see it in the vault."
            )
        if closed.clients:
            yield "That no more clients would have to be accused, and that no other case of this suspect was kept back."
            yield "Who made the suspect: it knows the accused's answers, which are in their models and in the vault."
        else:
            yield "That no client would have to be accused, and that no other case of this suspect was kept back."
            yield "Who made the suspect: it knows answers that are in all clients' models and in the vault."
    else:
        yield f"That marked models were issued, and that a leaker's mark survives {closed.premise.words}."


def _by_chance(client: str, annex: Annex, known: Known, times: Mapping[int, datetime]) -> bool:
    """Whether a beacon that the reader knows drew a client's answers after the questions were settled, provably."""
    link = anchor_of(annex.links, annex.joined[client])
    stamp = times.get(link.number)
    if link.beacon is None or stamp is None:
        return False
    if not stamp < time_of(link.beacon.time) <= time_of(annex.case.opened):
        return False
    return annex.beacons.get(link.number) in known.beacons


def _claimed(plain: Mapping[str, Any], envelope: Envelope, known: Known) -> Findings:
    """What a statement says without its annex: all of it is the word of those who signed."""
    predicate, subject = plain["predicate"], plain["subject"][0]
    if known.published is not None:
        check_published([], known.published)
        _check_signer(envelope, [], known.published, predicate["time"])
    bound, clients = float(predicate["error"]["case"]), tuple(predicate["accused"])
    time_of(predicate["time"])
    words = (subject["name"], predicate["vault"], predicate["finding"], predicate["rule"], *clients)
    if not all(type(word) is str for word in words) or not 0 < bound < 1:
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

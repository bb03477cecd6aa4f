"""What the reader of a statement knows from elsewhere, and what the statement and its annex prove to that reader."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tramark.evidence.annex import Annex, anchor_of
from tramark.evidence.commitment import Commitment
from tramark.evidence.dsse import Envelope
from tramark.evidence.federation import FEDERATION
from tramark.evidence.findings import AT_MOST, fingerprint, same_key, shown
from tramark.evidence.looks import MOST_LOG_E
from tramark.evidence.published import choice_of, time_of, utc
from tramark.evidence.reweigh import Weighed


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


def proofs(
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


def words(plain: Mapping[str, Any], annex: Annex, known: Known, times: Mapping[int, datetime]) -> Iterator[str]:
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

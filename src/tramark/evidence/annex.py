"""The annex: the confidential openings that prove a statement, bound to it by their digest.

It has the record of the case with every answer that the suspect gave, the inputs that were asked, the chain of
commitments, and openings: that these inputs, and the accused's answers to them, are what was committed to. If no client
can be named, but the model is the federation's, its own answers to the common questions are opened instead. Of other
clients it opens nothing, unless somebody is accused by the company look alone; then no more than that takes
(`reweigh`). The record names nobody else: what is burned for others is left out. An annex is one canonical JSON text.
It can be encrypted to an expert's X25519 key (HPKE, RFC 9180). docs/reference/statement.md has its fields.
"""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tramark.errors import BadProof, SettingError, Unreadable
from tramark.evidence import commitment as commitments
from tramark.evidence.beacon import shifted
from tramark.evidence.case import RULE, RULES, Case
from tramark.evidence.commitment import Commitment, canonical, natural
from tramark.evidence.federation import FEDERATION
from tramark.evidence.looks import Query, finding_of
from tramark.evidence.published import choice_of, made_by, time_of
from tramark.evidence.scores import is_recorded
from tramark.evidence.statistics import NO_ANSWER

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

FORMAT = "tramark annex 1"
SEALED = b"tramark annex 1 encrypted\n"

_FIELDS = {"format", "case", "input", "inputs", "commitments", "questions", "answers", "company", "beacons"}
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_ENDS = ({"cleared": True}, {"cleared": False}, {"cleared": False, "ours": True})
# More than any keyring has; it keeps a forged number from filling the memory.
_MOST_VARIANTS = 2**16


class Annex(NamedTuple):
    """What an annex says, after everything but the weight of the evidence is checked.

    Parameters
    ----------
    known : the suspect's answers by question and variant.
    accused, company : answers by client and question, as opened: of the accused (or the federation's own), and of
        others for the company look.
    joined : by client, the number of the commitment with which it joined.
    beacons : the values of beacons by the number of the commitment that names them.
    dtype, shape, inputs : the inputs that were asked, as little-endian numbers in row-major order.
    """

    case: Case
    links: tuple[Commitment, ...]
    known: Mapping[Query, int]
    accused: Mapping[str, Mapping[int, int]]
    company: Mapping[str, Mapping[int, int]]
    joined: Mapping[str, int]
    beacons: Mapping[int, bytes]
    dtype: str
    shape: tuple[int, ...]
    inputs: Mapping[Query, bytes]


def encrypted(annex: bytes, key: X25519PublicKey) -> bytes:
    """An annex that only the holder of the private key can read."""
    return SEALED + _SUITE.encrypt(annex, key, SEALED)


def decrypted(text: bytes, key: "PrivateKeyTypes | None") -> bytes:
    """The annex in a file, whether it is encrypted or not."""
    if not text.startswith(SEALED):
        return text
    if not isinstance(key, X25519PrivateKey):
        raise SettingError("the annex is encrypted: give the X25519 private key to which it was")
    try:
        return _SUITE.decrypt(text[len(SEALED) :], key, SEALED)
    except (InvalidTag, ValueError):
        raise BadProof("the annex does not open with this key: it is another's, or the annex was changed") from None


def read_annex(text: bytes) -> Annex:
    """The annex, checked against its own commitments; `BadProof` if anything in it is not as it must be."""
    try:
        plain = json.loads(text)
        exact = canonical(plain) == text
    except (ValueError, TypeError, RecursionError):
        raise Unreadable("this is not an annex: it is not JSON") from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise Unreadable(f"this is not an annex that this version knows: its format is not {FORMAT!r}")
    if not exact:
        raise BadProof("the annex was changed: it is not the canonical text of what it says")
    try:
        return _checked(plain)
    except (TypeError, KeyError, IndexError, ValueError, AttributeError, ArithmeticError):
        raise BadProof("this is not a well-formed annex") from None


def _checked(plain: dict[str, Any]) -> Annex:
    if plain.keys() != _FIELDS:
        raise ValueError
    links = tuple(Commitment.from_dict(item) for item in plain["commitments"])
    commitments.verify_chain(links)
    case = Case.from_dict(plain["case"])
    _check_case(case, plain["case"], links)
    known = {(natural(one.question), natural(one.variant)): one.answer for one in case.asked}
    if len(known) < len(case.asked) or list(known) != _planned(case, known):
        raise BadProof("what was asked is not what the rule says: the questions in order, then their other variants")
    if not known or any(type(answer) is not int or answer < NO_ANSWER for answer in known.values()):
        raise ValueError
    inputs = _checked_inputs(plain, case, links)
    beacons = {natural(int(number)): bytes.fromhex(value) for number, value in plain["beacons"].items()}
    if {str(number): value.hex() for number, value in beacons.items()} != plain["beacons"]:
        raise ValueError
    if not beacons.keys() <= {link.number for link in links if link.beacon}:
        raise BadProof("there is the value of a beacon that no commitment names")
    accused, company = ({proof["client"]: proof for proof in plain[name]} for name in ("answers", "company"))
    if len(accused) + len(company) < len(plain["answers"]) + len(plain["company"]) or accused.keys() & company.keys():
        raise BadProof("a client's answers are opened twice")
    assert case.closed is not None
    if type(plain["answers"]) is not list or type(plain["company"]) is not list:
        raise ValueError
    if company and not case.closed.by_company:
        raise BadProof("answers of clients are opened that the accusation does not need")
    if list(accused) != list(case.closed.named) or not (case.burned.keys() <= {*accused, FEDERATION}):
        raise BadProof("the answers that are opened are not those of the accused")
    proofs = {**accused, **company}
    opened = {client: _answers(proof, links, beacons) for client, proof in proofs.items()}
    for client, answers in opened.items():
        asked = set(case.order_of(client)) & {question for question, _ in known}
        if not answers.keys() <= asked or (client in accused and answers.keys() != set(case.counted(client))):
            raise BadProof("the answers that are opened are not those to the questions that were asked and count")
    return Annex(
        case,
        links,
        known,
        {client: opened[client] for client in accused},
        {client: opened[client] for client in company},
        {client: natural(proof["commitment"]) for client, proof in proofs.items()},
        beacons,
        plain["input"]["dtype"],
        tuple(plain["input"]["shape"]),
        inputs,
    )


def _answers(proof: Mapping[str, Any], links: Sequence[Commitment], beacons: Mapping[int, bytes]) -> dict[int, int]:
    """A client's answers as opened, shifted by the beacon that its commitment names."""
    symbols = commitments.verify_answers(proof, links)
    link = anchor_of(links, proof["commitment"])
    if link.beacon is None:
        return symbols
    value = beacons.get(link.number)
    return shifted(symbols, proof["client"], link.classes, value=value, commitment=link.digest)


def anchor_of(links: Sequence[Commitment], joined: int) -> Commitment:
    """The commitment whose beacon counts for a client: the one that settled the questions, or its own if later."""
    return links[max(choice_of(links).number, joined) - 1]


def _check_case(case: Case, plain: Mapping[str, Any], links: Sequence[Commitment]) -> None:
    """Raise unless the record is well-formed, follows from the commitments, and does not contradict itself."""
    closed, newest = case.closed, links[-1]
    if closed is None or json.loads(canonical(case.to_dict())) != plain:
        raise ValueError
    texts = (case.opened, closed.time, case.suspect.name, case.commitment, *closed.clients, *closed.by_company)
    if not all(type(text) is str for text in texts) or natural(case.number) < 1:
        raise ValueError
    kinds = {"file", "folder", "address", "module"}
    if case.suspect.kind not in kinds or not _is_digest(case.suspect.sha256 or "0" * 64):
        raise ValueError
    if not _is_digest(case.head[1]) or natural(case.head[0]) < 0 or type(plain["conventions"]) is not dict:
        raise ValueError
    times = [time_of(time) for time in (case.opened, *(one.time for one in case.asked), closed.time)]
    if times != sorted(times):
        raise BadProof("its times are out of order: questions were asked before the case was opened, or after its end")
    if case.rule not in RULES or newest.assignment != "code" or newest.classes < 2:
        raise BadProof(f"only the rule {RULE!r} has a bound on false accusations that could be checked")
    scored = case.scores.values()
    if (scored and case.rule != RULE) or not all(is_recorded(scores, case.classes) for scores in scored):
        raise ValueError
    if (case.commitment, case.clients, case.classes) != (newest.digest, sum(newest.clients), newest.classes):
        raise BadProof("the parameters are not those that were committed to")
    if sorted(case.order) != sorted(newest.chosen) or not 0 < natural(case.variants) <= _MOST_VARIANTS:
        raise BadProof("the questions are not those that were committed to")
    if case.common != newest.common:
        raise BadProof("the common questions are not those that were committed to, in their order")
    if not 0 < case.false_accusation < 1 or not case.false_accusation <= case.spent < float("inf"):
        raise ValueError
    if (
        closed.finding not in {finding_of(len(closed.clients), **how) for how in _ENDS}
        or FEDERATION in closed.clients
        or (closed.finding == "federation" and not case.common)
        or len(set(closed.clients)) < len(closed.clients)
        or not set(closed.by_company) <= set(closed.clients)
        or (closed.finding == "nobody" and not closed.premise.issued)
    ):
        raise BadProof("the finding contradicts itself")


def _is_digest(text: Any) -> bool:
    return type(text) is str and len(bytes.fromhex(text)) == 32


def _planned(case: Case, known: Collection[Query]) -> list[Query]:
    """As many queries as were asked of the clients' questions and of the common ones, as the rule orders them."""
    common = sum(question in case.common for question, _ in known)
    own = islice(_plan(case.order, case.variants), len(known) - common)
    return [*own, *islice(_plan(case.ours, case.variants), common)]


def _plan(order: Sequence[int], variants: int) -> "chain[Query]":
    """All queries of some questions, in their order."""
    again = ((question, variant) for question in order for variant in range(1, variants))
    return chain(((question, 0) for question in order), again)


def _checked_inputs(plain: Mapping[str, Any], case: Case, links: Sequence[Commitment]) -> dict[Query, bytes]:
    """The inputs that were asked; `BadProof` unless they are those of the commitment that has them."""
    proof, (dtype, shape) = plain["questions"], (plain["input"]["dtype"], plain["input"]["shape"])
    committed = commitments.verify_questions(proof, links)
    firsts = {part["first"] for part in proof["questions"]}
    counts = {part["count"] for part in proof["questions"]}
    if proof["commitment"] != made_by(links).number or len(firsts) > 1 or counts != {case.variants}:
        raise BadProof("the questions that are opened are not those of their commitment, in all their variants")
    if plain["input"].keys() != {"dtype", "shape"} or len(plain["inputs"]) != len(case.asked):
        raise ValueError
    [held_out] = firsts
    digests, inputs = {}, {}
    for one, text in zip(case.asked, plain["inputs"], strict=True):
        data = base64.b64decode(text, validate=True)
        if base64.b64encode(data).decode() != text:
            raise ValueError
        digest = commitments.array_digest(dtype, [natural(length) for length in shape], data)
        digests[one.question, held_out + one.variant] = digest
        inputs[one.question, one.variant] = data
    if digests != committed:
        raise BadProof("the inputs that were asked are not those that were committed to")
    return inputs

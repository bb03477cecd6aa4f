"""Make the statement and the annex of a closed case from the vault.

The statement can be given to anybody. The annex opens answers, and whoever has it could make another model give them:
`hand_over` burns what it opens before it returns the annex. An annex can be made again at any time, as long as the
questions have not been chosen or retouched anew; it is always the same, so that the statement can name its digest.
"""

import base64
import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from tramark.errors import BadProof, SettingError
from tramark.evidence.annex import FORMAT, encrypted, read_annex
from tramark.evidence.case import RULES, Case
from tramark.evidence.commitment import canonical
from tramark.evidence.dsse import Envelope
from tramark.evidence.federation import FEDERATION
from tramark.evidence.findings import Findings
from tramark.evidence.looks import Query
from tramark.evidence.reader import Known
from tramark.evidence.reweigh import in_company, others_of, shares_for
from tramark.evidence.statement import envelope_of, statement_of
from tramark.evidence.verify import verify_statement
from tramark.vault import commit

if TYPE_CHECKING:
    from tramark.keys.keyring import Keyring
    from tramark.vault.store import Vault

Disclosed = dict[str, tuple[int, ...]]
"""By client, the questions to which its answers are opened."""


def make_statement(vault: "Vault", case: Case, *, time: str | None = None) -> Envelope:
    """The statement about a closed case, signed with the vault's key, as of now. It discloses nothing."""
    annex = make_annex(vault, case)
    statement = statement_of(
        case,
        vault=vault.id,
        commitments=len(_chain(vault, case)),
        annex=hashlib.sha256(annex).hexdigest(),
        simulated=vault.simulated,
        log=vault.head,
        time=time or datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
    signed = vault.signed(envelope_of(statement))
    try:
        verify_statement(signed.text(), annex)
    except BadProof as error:
        raise SettingError(f"this case does not follow from this vault: {error}") from None
    return signed


def findings_of(vault: "Vault", case: Case, statement: Envelope) -> Findings:
    """What the statement proves to whoever has the annex and the vault's published commitments, for a report."""
    return verify_statement(statement.text(), make_annex(vault, case), Known(published=vault.commitments))


def opened_by(annex: bytes) -> Disclosed:
    """What an annex discloses: all of it is burned when the annex is handed over."""
    read = read_annex(annex)
    return {client: tuple(sorted(answers)) for client, answers in {**read.accused, **read.company}.items()}


def hand_over(vault: "Vault", case: Case, to: X25519PublicKey | None = None) -> bytes:
    """The annex of a closed case, encrypted to an expert's key if there is one. What it opens is burned first."""
    annex = make_annex(vault, case)
    vault.cases.burn(case, opened_by(annex), "the annex was handed over")
    return annex if to is None else encrypted(annex, to)


def make_annex(vault: "Vault", case: Case) -> bytes:
    """The annex of a closed case, for looking at what it would disclose; `hand_over` is for giving it away."""
    closed = case.closed
    if closed is None:
        raise SettingError(f"case {case.number} is not closed: finish its trace first")
    if case.rule not in RULES:
        raise SettingError("the rule of this case has no bound on false accusations: there is nothing to prove")
    if not case.asked:
        raise SettingError("nothing was asked: there is no evidence")
    keyring, chain = vault.keyring, _chain(vault, case)
    asked: dict[int, list[int]] = {}
    for one in case.asked:
        asked.setdefault(one.question, []).append(keyring.variants("held-out")[one.variant])
    own = {name: case.counted(name) for name in closed.named}
    inputs = [keyring.asked(one.question, one.variant).numpy() for one in case.asked]
    annex = canonical(
        {
            "format": FORMAT,
            "case": _redacted(case).to_dict(),
            "input": {"dtype": inputs[0].dtype.name, "shape": inputs[0].shape},
            "inputs": [base64.b64encode(raw.tobytes()).decode() for raw in inputs],
            "commitments": [link.to_dict() for link, _ in chain],
            "questions": commit.open_questions(keyring, asked, chain)[0],
            "answers": [commit.open_answers(keyring, name, own[name], chain) for name in closed.named],
            "company": [
                commit.open_answers(keyring, client, questions, chain)
                for client, questions in _company(keyring, case, own).items()
            ],
            "beacons": _beacons(vault, chain),
        }
    )
    try:
        read_annex(annex)
    except BadProof as error:
        raise SettingError(
            f"case {case.number} cannot be proven from this vault any more ({error}): were the questions chosen or "
            "retouched anew since then?"
        ) from None
    return annex


def _redacted(case: Case) -> Case:
    """The record without what it says of clients that are not accused."""
    assert case.closed is not None
    return replace(
        case,
        burned={name: case.burned[name] for name in {*case.closed.named, FEDERATION} if case.burned.get(name)},
        identical=tuple(replace(one, clients=() if one.everybody else one.clients) for one in case.identical),
        closed=replace(case.closed, not_cleared=()),
    )


def _chain(vault: "Vault", case: Case) -> commit.Chain:
    """The commitments as of the opening of a case."""
    chain = vault.storage.chain()
    digests = [link.digest for link, _ in chain]
    if case.commitment not in digests:
        raise SettingError(f"case {case.number} rests on a commitment that this vault does not have")
    return chain[: 1 + digests.index(case.commitment)]


def _beacons(vault: "Vault", chain: commit.Chain) -> dict[str, str]:
    """The values of the beacons that commitments name, by their numbers."""
    revealed = {e["commitment"]: e["value"] for e in vault.log() if e["event"] == "beacon-revealed"}
    return {str(link.number): revealed[link.digest] for link, _ in chain if link.digest in revealed}


def _company(keyring: "Keyring", case: Case, own: Mapping[str, Sequence[int]]) -> Disclosed:
    """The least that must be opened of other clients' answers to convict those whom the company look alone accuses.

    Where such a client matches, it counts that few others do: everybody's answer must be opened. Where it does not, it
    counts that others do: theirs must be. Questions are left out, beginning with those that disclose most, as long as
    the rest convicts.
    """
    assert case.closed is not None
    convicted = case.closed.by_company
    if not convicted:
        return {}
    known: dict[Query, int] = {(one.question, one.variant): one.answer for one in case.asked}
    share = shares_for(case.scores, case.order).company
    questions = [q for q in case.order if 0 <= known.get((q, 0), -1) < case.classes]
    everybody = keyring.clients[: case.clients]
    book = keyring.codebook(questions, clients=slice(case.clients))
    answers = {
        client: dict(zip(questions, row, strict=True)) for client, row in zip(everybody, book.tolist(), strict=True)
    }
    opened = {client: {q: answers[client][q] for q in own[client] if q in answers[client]} for client in own}
    wanted: dict[int, list[str]] = {}
    for question in questions:
        said = known[question, 0]
        matched = any(opened[client].get(question) == said for client in convicted)
        others = [client for client in everybody if client not in own]
        wanted[question] = [client for client in others if matched or answers[client][question] == said]

    def convicts(kept: Collection[int]) -> bool:
        shown = {**opened}
        for question in kept:
            for client in wanted[question]:
                shown[client] = {**shown.get(client, {}), question: answers[client][question]}
        needed = math.log(case.tests / case.false_accusation)
        return all(
            in_company(
                opened[client],
                known,
                case.order,
                others_of(client, shown, known),
                share=share,
                clients=case.clients,
                classes=case.classes,
            ).log_e
            >= needed
            for client in convicted
        )

    kept = set(questions)
    for question in sorted(questions, key=lambda question: -len(wanted[question])):
        if convicts(kept - {question}):
            kept.remove(question)
    return _by_client((client, question) for question in questions if question in kept for client in wanted[question])


def _by_client(pairs: Iterable[tuple[str, int]]) -> Disclosed:
    found: Disclosed = {}
    for client, question in pairs:
        found[client] = (*found.get(client, ()), question)
    return found

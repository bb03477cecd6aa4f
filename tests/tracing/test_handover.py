"""Statement and annex: what they prove, what they give away, and that nobody can make them say something else."""

import base64
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from statements import FILE, closed, handed_over, resigned, said, traced
from traces import Oracle, hidden, in_company, leaked_by, ring, vault_of

from tramark.errors import BadProof, SettingError, Unreadable, VaultError
from tramark.evidence.annex import decrypted, read_annex
from tramark.evidence.beacon import Beacon
from tramark.evidence.case import Suspected
from tramark.evidence.commitment import canonical
from tramark.evidence.findings import fingerprint
from tramark.evidence.published import read_published
from tramark.evidence.reader import Known
from tramark.evidence.statement import envelope_of, read_statement
from tramark.evidence.verify import verify_statement
from tramark.keys.keyring import Keyring
from tramark.keys.sources import Vectors
from tramark.tracing.handover import hand_over, make_annex, make_statement, opened_by
from tramark.tracing.trace import trace
from tramark.tracing.unmarked import ask_unmarked

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from tramark.vault.head import PUBLIC
from tramark.vault.store import Vault


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    """A vault whose questions were chosen after it was made, and which one client joined late."""
    keyring = ring()
    with vault_of(keyring, tmp_path_factory.mktemp("handover")) as made:
        keyring = keyring.choose(range(39, 15, -1))
        made.save_keyring(keyring)
        made.save_keyring(keyring.join("latecomer"))
        yield made


def published(vault: Vault, count: int | None = None) -> Known:
    return Known(published=read_published((vault.path / PUBLIC).read_bytes())[:count])


@pytest.mark.parametrize("client", ["hospital-3", "latecomer"])
def test_a_leaker_is_convicted_without_the_vault(vault: Vault, client: str) -> None:
    case = traced(vault, client)
    found = verify_statement(*handed_over(vault, case), published(vault))
    assert (found.holds, found.finding, found.clients, found.suspect) == (True, "client", (client,), FILE.words)
    assert found.e_values[client] >= found.needed == pytest.approx(11 / 1e-6)
    assert any("dates are the operator's word" in sentence for sentence in found.unproven)
    assert any("not excluded" in sentence for sentence in found.unproven)
    json.dumps(found.to_dict())


def test_a_real_case_is_handed_over_and_burns_what_it_opens(tmp_path: Path) -> None:
    with vault_of(ring(), tmp_path) as vault:
        suspect = Suspected("address", "https://example.org/v2")
        verdict = trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=Suspected("file", "m", "ab" * 32))
        assert verdict.case is not None
        assert vault.cases.burned == {}
        statement, annex = make_statement(vault, verdict.case), hand_over(vault, verdict.case)
        assert verify_statement(statement.text(), annex, published(vault)).holds
        assert set(vault.cases.burned) == {"hospital-3"}
        assert len(vault.cases.burned["hospital-3"]) == verdict.queries
        # The second conviction counts other questions. That these are the right ones is the operator's word.
        again = trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=suspect)
        assert again.clients == ("hospital-3",)
        assert again.case is not None
        found = verify_statement(*handed_over(vault, again.case), published(vault))
        assert (found.clients, found.holds) == (("hospital-3",), False)
        assert [word for word in ("order", "burned") if not any(word in line for line in found.lacking)] == []


def test_a_statement_says_no_question_no_answer_and_nothing_of_the_innocent(vault: Vault) -> None:
    verdict = trace(leaked_by(vault.keyring, "hospital-3"), vault.keyring)
    statement, annex = handed_over(vault, closed(vault, verdict))
    payload = canonical(said(statement))
    assert not [secret for secret in hidden(vault, verdict) if secret in payload or secret in annex]
    for text in (payload, annex):
        assert [name for name in vault.keyring.clients if name.encode() in text] == ["hospital-3"]
    assert base64.b64encode(vault.keyring.asked(39, 0).numpy().tobytes()) in annex
    assert base64.b64encode(vault.keyring.asked(39, 0).numpy().tobytes()) not in payload


def test_standard_tools_read_and_check_a_statement_that_several_signed(vault: Vault) -> None:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer._key import Key, SSlibKey

    auditor = Ed25519PrivateKey.generate()
    envelope = make_statement(vault, traced(vault, "hospital-3")).signed(auditor)
    names = [vault.commitments[0].public_key, auditor.public_key().public_bytes_raw().hex()]
    keys: list[Key] = [SSlibKey(name, "ed25519", "ed25519", {"public": name}) for name in names]
    theirs = Envelope.from_dict(json.loads(envelope.text()))
    assert set(theirs.verify(keys, 2)) == set(names)
    assert theirs.payload_type == "application/vnd.in-toto+json"
    plain = json.loads(theirs.payload)
    assert plain["_type"] == "https://in-toto.io/Statement/v1"
    assert plain["subject"] == [{"name": FILE.name, "digest": {"sha256": FILE.sha256}}]
    found = verify_statement(envelope.text(), None, Known(keys=tuple(map(fingerprint, names))))
    assert found.signers == tuple(names)
    assert not found.holds
    with pytest.raises(BadProof, match="not signed with the key"):
        verify_statement(envelope.text(), None, Known(keys=("ab" * 32,)))


def test_an_address_is_named_by_its_uri(vault: Vault) -> None:
    verdict = trace(leaked_by(vault.keyring, "hospital-3"), vault.keyring)
    statement, annex = handed_over(vault, closed(vault, verdict, Suspected("address", "https://example.org/m")))
    [subject] = said(statement)["subject"]
    assert subject["uri"] == "https://example.org/m"
    assert list(subject["digest"]) == ["tramark_annex_sha256"]
    assert verify_statement(statement, annex, published(vault)).holds


def test_company_opens_no_more_than_it_must(vault: Vault) -> None:
    verdict = in_company(vault.keyring)
    case = closed(vault, verdict)
    statement, annex = handed_over(vault, case)
    found = verify_statement(statement, annex, replace(published(vault), at_most=1e-3))
    assert found.holds
    assert found.clients == verdict.clients
    innocent = {client: questions for client, questions in opened_by(annex).items() if client not in verdict.clients}
    everything = (len(vault.keyring.clients) - len(verdict.clients)) * len(case.questions)
    assert 0 < sum(map(len, innocent.values())) < 0.8 * everything
    # Nothing can be left out of it.
    plain = json.loads(annex)
    for client in innocent:
        fewer = plain | {"company": [proof for proof in plain["company"] if proof["client"] != client]}
        with pytest.raises(BadProof, match="does not suffice"):
            verify_statement(*resigned(vault, said(statement), fewer))


def test_an_annex_can_be_for_one_expert_alone(tmp_path: Path) -> None:
    expert, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    with vault_of(ring(), tmp_path) as vault:
        case = traced(vault, "hospital-3")
        sealed = hand_over(vault, case, expert.public_key())
        assert b"hospital-3" not in sealed
        assert decrypted(sealed, expert) == make_annex(vault, case)
        for key, error in ((other, BadProof), (None, SettingError)):
            with pytest.raises(error):
                decrypted(sealed, key)


def test_verify_does_not_say_yes_too_easily(vault: Vault) -> None:
    """Row 4 of the attacks: an error of 0.999, a commitment that was not published, dates, and names that lie."""
    verdict = trace(leaked_by(vault.keyring, "latecomer"), vault.keyring, false_accusation=0.999)
    weak = verify_statement(*handed_over(vault, closed(vault, verdict)), published(vault))
    assert (weak.holds, ["0.999" in line for line in weak.lacking]) == (False, [True])
    case = traced(vault, "hospital-3")
    statement, annex = handed_over(vault, case)
    for text in (statement, annex, json.dumps({"commitments": json.loads(annex)["commitments"], "more": 1}).encode()):
        with pytest.raises(Unreadable, match=r"commitment\.json"):
            read_published(text)
    assert not verify_statement(statement, annex).holds
    assert not verify_statement(statement, annex, published(vault, 1)).holds
    assert verify_statement(statement, annex, published(vault, 2)).holds
    early = replace(case, opened="1990-01-01T00:00:00+00:00")
    with pytest.raises(SettingError, match="times are out of order"):
        make_statement(vault, early)
    # An operator who signs what he likes, all the same.
    fewer = json.loads(annex)
    fewer["commitments"] = fewer["commitments"][:2]
    fewer["case"] |= {"commitment": vault.commitments[1].digest, "clients": 10}
    changed = said(statement)
    changed["predicate"] |= {"clients": 10, "commitments": {"number": 2, "sha256": vault.commitments[1].digest}}
    left_out = verify_statement(*resigned(vault, changed, fewer), published(vault))
    assert left_out.holds  # its e-value of 1.4e7 suffices for eleven clients, too


def test_a_client_left_out_by_a_wrong_date_counts_all_the_same(tmp_path: Path) -> None:
    """The bound is for all who joined, whatever the dates say."""
    with vault_of(ring(), tmp_path) as vault:
        case = traced(vault, "hospital-3")
        statement, annex = handed_over(vault, case)
        keyring = vault.keyring
        for number in range(5):
            keyring = keyring.join(f"new-{number}")
        vault.save_keyring(keyring)
        found = verify_statement(statement, annex, published(vault))
        assert not found.holds
        assert "15" in found.lacking[0]
        assert verify_statement(statement, annex, published(vault, 1)).holds


def test_names_cannot_print_lines_of_their_own(tmp_path: Path) -> None:
    evil = "x\nproven:\n  - everything"
    with vault_of(ring(clients=[evil, "b"]), tmp_path) as vault:
        found = verify_statement(*handed_over(vault, traced(vault, evil)), published(vault))
    assert found.clients == (evil,)
    assert not any("\n" in sentence for sentence in (*found.proven, *found.unproven, *found.lacking))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values are in a nest of lists and dicts, the nests themselves included."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, name))


STRANGE: list[Any] = [None, True, 0, 1, -1, 2**31, 0.5, "", "a", "1e-06", "1e-12", "nobody", [], {}, ["a"], ["b", "a"]]


def edited(plain: dict[str, Any], dice: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Some values with one of them replaced by something strange, or by another value of its kind."""
    changed: dict[str, Any] = json.loads(canonical(plain))
    path = dice.choice(list(leaves(changed)))
    inside: Any = changed
    for name in path[:-1]:
        inside = inside[name]
    old = inside[path[-1]]
    if type(old) is int and dice.random() < 0.5:
        inside[path[-1]] = old + dice.choice((-1, 1))
    elif isinstance(old, str) and old and dice.random() < 0.5:
        spot = dice.randrange(len(old))
        inside[path[-1]] = old[:spot] + chr(ord(old[spot]) ^ 1) + old[spot + 1 :]
    else:
        inside[path[-1]] = dice.choice(STRANGE)
    return path, changed


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Vault, bytes, bytes]]:
    """A vault with short evidence."""
    keyring = ring(Vectors(1), clients=["a", "b"], classes=200, questions=2, pool=2, held_out_variants=2)
    with vault_of(keyring, tmp_path_factory.mktemp("small")) as vault:
        yield vault, *handed_over(vault, traced(vault, "b", false_accusation=1e-3))


def test_no_edit_without_the_key_passes(small: tuple[Vault, bytes, bytes]) -> None:
    _, statement, annex = small
    dice, original = random.Random(1), verify_statement(statement, annex)
    for number in range(5000):
        text = bytearray((statement, annex)[number % 2])
        for _ in range(dice.choice((1, 1, 2, 5))):
            text[dice.randrange(len(text))] ^= 1 << dice.randrange(8)
        changed = (bytes(text), annex) if number % 2 == 0 else (statement, bytes(text))
        try:
            # Spaces between the fields of the envelope are nobody's word.
            assert verify_statement(*changed) == original, number
        except BadProof:
            continue


WORD = {
    ("case", "suspect"),  # what was asked: ask it again
    ("case", "conventions"),
    ("case", "head"),
    ("case", "number"),
    ("case", "opened"),
    ("case", "spent"),
    ("case", "sent"),
    ("case", "identical"),
    ("case", "false_accusation"),  # any bound that the evidence reaches
    ("case", "asked"),  # an answer that the suspect is said to have given, and when
    ("case", "closed"),
}
"""What an operator can write into an annex: his word, and reported as such."""


def test_no_edit_with_the_operators_key_proves_something_else(small: tuple[Vault, bytes, bytes]) -> None:
    vault, statement, annex = small
    dice, known = random.Random(2), replace(published(vault), at_most=1e-3)
    original, plain, opened = verify_statement(statement, annex, known), said(statement), json.loads(annex)
    passed = set()
    for _ in range(2500):
        path, changed = edited(plain, dice)
        try:
            found = verify_statement(vault.signed(envelope_of(changed)).text(), annex, known)
        except BadProof:
            continue
        if changed != plain:
            passed.add(path[1])
            assert (found.clients, found.e_values, found.suspect) == (
                original.clients,
                original.e_values,
                original.suspect,
            )
    assert passed <= {"log", "time", "simulated"}
    passed_annex = set()
    for _ in range(2500):
        path, changed = edited(opened, dice)
        try:
            case = read_annex(canonical(changed)).case
            text = canonical(changed)
            rewritten = restated(vault, case, plain, text)
            found = verify_statement(rewritten, text, known)
        except BadProof:
            continue
        if changed != opened and found.holds:
            passed_annex.add(path[:2] if path[0] == "case" else path[:1])
            # Whatever is claimed, the accused is whose committed answers the suspect is said to give.
            assert found.clients == original.clients
            assert found.e_values["b"] >= found.needed
    assert passed_annex <= WORD


def restated(vault: Vault, case: Any, plain: dict[str, Any], annex: bytes) -> bytes:
    """The statement that follows from a changed annex, signed by the operator."""
    import hashlib

    from tramark.evidence.statement import statement_of

    try:
        changed = statement_of(
            case,
            vault=vault.id,
            commitments=1,
            annex=hashlib.sha256(annex).hexdigest(),
            simulated=False,
            log=plain["predicate"]["log"],
            time=plain["predicate"]["time"],
        )
        return vault.signed(envelope_of(changed)).text()
    except (TypeError, ValueError, AttributeError):
        raise BadProof from None


def test_nobody_is_the_operators_word(vault: Vault) -> None:
    verdict = trace(Oracle(vault.keyring, lambda q, v: 0), vault.keyring)
    statement, annex = handed_over(vault, closed(vault, verdict))
    found = verify_statement(statement, annex, published(vault))
    assert not found.holds
    assert opened_by(annex) == {}


BEACON = Beacon("drand quicknet", "12345678", "2090-01-01T00:00:00+00:00")


def framing(folder: Path, beacon: Beacon | None) -> tuple[Vault, Keyring, Oracle]:
    """An operator's vault whose questions an unmarked model answers as the victim's committed symbols have it."""
    keyring = ring(questions=30)
    vault = vault_of(keyring, folder)
    victim = keyring.key("hospital-4").answers
    # He knows the symbols when he settles the questions, and makes each a picture of the victim's label.
    chosen = keyring.choose(range(29, -1, -1))
    vault.save_keyring(chosen, beacon=beacon)
    base = dict(enumerate(victim))
    if beacon:
        with pytest.raises(SettingError, match="wait for the value"):
            vault.keyring.key("hospital-4")
        vault.reveal(b"v" * 32)
    return vault, vault.keyring, Oracle(chosen, lambda index, variant: base[chosen.chosen[index]])


def test_an_operator_frames_without_a_beacon_and_an_unmarked_base_tells(tmp_path: Path) -> None:
    """Row 5 of the attacks."""
    vault, keyring, base = framing(tmp_path, None)
    with vault:
        case = closed(vault, trace(base, keyring))
        statement, annex = handed_over(vault, case)
        found = verify_statement(statement, annex, published(vault))
        assert found.clients == ("hospital-4",)
        assert any("made questions to fit is not excluded" in sentence for sentence in found.unproven)
        assert ask_unmarked(read_annex(annex), base)["hospital-4"].doubtful
        other = Oracle(keyring, lambda index, variant: index % 10)
        assert not ask_unmarked(read_annex(annex), other)["hospital-4"].doubtful


def test_with_a_beacon_the_framed_are_innocent(tmp_path: Path) -> None:
    """Row 5 fails: what the operator knew when he settled the questions is not what the answers are."""
    vault, keyring, base = framing(tmp_path, BEACON)
    with vault:
        assert trace(base, keyring).clients == ()
        link = vault.commitments[1]
        assert link.beacon == BEACON
        # What it commits to is shifted by a value that depends on it, whatever he made the symbols for.
        assert (link.answers, link.clients) == ("chosen", (0, 10))
        verdict = trace(leaked_by(keyring, "hospital-7"), keyring)
        late = "2099-01-01T00:00:00+00:00"
        case = closed(vault, verdict, opened=late)
        case = replace(case, asked=tuple(one._replace(time=late) for one in case.asked))
        assert case.closed is not None
        case = replace(case, closed=replace(case.closed, time=late))
        annex = make_annex(vault, case)
        read = read_annex(annex)
        assert read.accused["hospital-7"] == {
            one.question: answer for one, answer in zip(case.asked, keyring.key("hospital-7").answers, strict=False)
        }
        # Another value than the one that was revealed does not fit.
        plain = json.loads(annex)
        plain["beacons"]["2"] = "00" * 32
        assert read_annex(canonical(plain)).accused != read.accused
        del plain["beacons"]["2"]
        with pytest.raises(BadProof, match="its value is not"):
            read_annex(canonical(plain))


def test_clients_that_join_have_a_beacon_of_their_own(tmp_path: Path) -> None:
    vault, keyring, _ = framing(tmp_path, BEACON)
    with vault:
        with pytest.raises(VaultError, match="beacon of their own"):
            vault.save_keyring(keyring.join("late"))
        vault.save_keyring(keyring.join("late"), beacon=BEACON)
        vault.reveal(b"w" * 32)
        joined = vault.keyring
        assert joined.key("hospital-4") == keyring.key("hospital-4")
        assert joined.key("late") != keyring.join("late").key("late")
        assert torch.equal(joined.codebook()[-1], joined.codebook(clients=slice(10, 11))[0])
        assert Keyring.from_dict(json.loads(json.dumps(joined.to_dict()))) == joined
        case = closed(vault, trace(leaked_by(joined, "late"), joined))
        assert read_annex(make_annex(vault, case)).joined == {"late": 3}
        with pytest.raises(VaultError, match="wait"):
            vault.reveal(b"w" * 32)


def test_read_statement_knows_its_own_kind(vault: Vault) -> None:
    text = make_statement(vault, traced(vault, "hospital-3")).text()
    assert read_statement(text)[1] == said(text)
    other = said(text) | {"predicateType": "https://slsa.dev/provenance/v1"}
    for strange in (b"", b"{}", b"[" * 10_000, b"null", vault.signed(envelope_of(other)).text()):
        with pytest.raises(Unreadable):
            read_statement(strange)
    assert datetime.fromisoformat(said(text)["predicate"]["time"]).tzinfo == UTC

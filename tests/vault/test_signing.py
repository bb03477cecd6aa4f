"""A new signing key follows from the old one, and a simulation's vault says what it is, in all that it signs."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bundles import make_bundle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from traces import leaked_by, ring, vault_of

from tramark.errors import BadProof, SettingError
from tramark.evidence.bundle import verify_bundle
from tramark.evidence.commitment import Commitment, canonical, sign, signers, verify_answers, verify_chain
from tramark.evidence.findings import fingerprint
from tramark.evidence.published import read_published
from tramark.tracing.trace import trace
from tramark.vault.commit import hand_over, public_key

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from tramark.vault.head import PUBLIC
from tramark.vault.lock import make_key_file
from tramark.vault.storage import SIGNING
from tramark.vault.store import Vault


def test_evidence_of_a_new_key_leads_back_to_the_old_one(tmp_path: Path) -> None:
    keyring = ring()
    leaker = keyring.clients[1]
    with vault_of(keyring, tmp_path) as vault:
        [first] = vault.commitments
        private = vault.storage.get(SIGNING)
        old, new = vault.rotate_signing_key()
        assert old == first.public_key != new
        assert vault.storage.get(SIGNING) != private
        vault.save_keyring(keyring.join("late"))
        assert vault.audit() == []
        entry = list(vault.log())[1]
        assert (entry["event"], entry["from"], entry["to"]) == ("signing-key-rotated", old, new)
        assert entry["commitment"] == vault.commitments[1].digest
        federation = len(keyring.clients)
        assert [c.clients for c in vault.commitments] == [(0, federation), (federation, 0), (federation, 1)]
        assert verify_answers(vault.prove_answers("late", [0]), vault.commitments)
        bundle = make_bundle(vault, trace(leaked_by(vault.keyring, leaker), vault.keyring), suspect="x")
        published = read_published((vault.path / PUBLIC).read_bytes())
    assert signers(published) == [old, new]
    found = verify_bundle(bundle, published=published, public_key=old)
    assert (found.clients, found.public_key) == ((leaker,), new)
    said = "\n".join(found.proven)
    assert f"The key {fingerprint(old)} handed over to {fingerprint(new)}" in said
    assert f"The key {fingerprint(old)} is the one that you gave" in said
    assert "This key is the one that you gave" in "\n".join(verify_bundle(bundle, public_key=new).proven)
    with pytest.raises(BadProof, match="another key"):
        verify_bundle(bundle, public_key="00" * 32)


def test_the_old_key_signs_no_evidence_any_more(tmp_path: Path) -> None:
    keyring = ring()
    with vault_of(keyring, tmp_path) as vault:
        stolen = Ed25519PrivateKey.from_private_bytes(vault.storage.get(SIGNING))
        vault.rotate_signing_key()
        bundle = make_bundle(vault, trace(leaked_by(keyring, keyring.clients[0]), keyring), suspect="x")
    body = {name: value for name, value in bundle.items() if name != "signature"}
    with pytest.raises(BadProof, match="signature of the evidence"):
        verify_bundle(body | {"signature": sign(stolen, "evidence", canonical(body))})


def test_a_key_that_the_old_one_did_not_sign_is_refused(tmp_path: Path) -> None:
    with vault_of(ring(), tmp_path) as vault:
        vault.rotate_signing_key()
        first, second = vault.commitments
        with pytest.raises(SettingError, match="signed by the vault itself"):
            vault.sign("new key", second.body)
    verify_chain([first, second])
    thief, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    alone = replace(second, public_key=public_key(thief), endorsement="")
    forged = [
        hand_over(first, thief, other, time=first.time),
        replace(second, endorsement=""),
        replace(second, endorsement=second.signature),
        replace(second, endorsement="x"),
        replace(alone, signature=sign(thief, "commitment", alone.body)),
    ]
    for link in forged:
        with pytest.raises(BadProof):
            verify_chain([first, link])
    with pytest.raises(BadProof, match="hands over to the key that it had"):
        verify_chain([replace(first, endorsement=second.endorsement)])
    with pytest.raises(BadProof):
        Commitment.from_dict(second.to_dict() | {"endorsement": ""})


def test_a_simulation_says_what_it_is(tmp_path: Path) -> None:
    keyring = ring()
    with Vault.create(tmp_path / "v", keyring, key_file=make_key_file(tmp_path / "k"), simulated=True) as vault:
        assert vault.simulated
        assert next(vault.log())["simulated"] is True
        vault.save_keyring(keyring.join("late"))
        vault.rotate_signing_key()
        chain = vault.commitments
        assert [link.simulated for link in chain] == [True, True, True]
        bundle = make_bundle(vault, trace(leaked_by(vault.keyring, "late"), vault.keyring), suspect="x")
    assert "the vault of a simulation" in verify_bundle(bundle).unproven[0]
    plain = chain[0].to_dict()
    assert json.loads(json.dumps(plain))["simulated"] is True
    for value in (1, False, "yes", None):
        with pytest.raises(BadProof):
            Commitment.from_dict(plain | {"simulated": value})
    with pytest.raises(BadProof):
        verify_chain([replace(chain[0], simulated=False), *chain[1:]])


def test_other_vaults_say_nothing_of_it(tmp_path: Path) -> None:
    with vault_of(ring(), tmp_path) as vault:
        assert not vault.simulated
        assert "simulated" not in next(vault.log())
        assert not {"simulated", "endorsement"} & vault.commitments[0].to_dict().keys()

"""Files that version 1 of the formats wrote must open, verify and go on in every later version."""

import shutil
import sys
from pathlib import Path

import pytest
from torch import nn

from tramark.errors import BadProof
from tramark.evidence.bundle import verify_bundle
from tramark.evidence.published import read_published
from tramark.server import TraMark
from tramark.suspects.weights import load_into, read_weights
from tramark.tracing.trace import trace

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from tramark.vault.store import Vault

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"


def model() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)
    ).eval()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the vault, with the file modes that git does not keep."""
    shutil.copytree(GOLDEN / "vault", tmp_path / "vault")
    shutil.copy(GOLDEN / "vault.key", tmp_path / "vault.key")
    (tmp_path / "vault.key").chmod(0o600)
    return tmp_path / "vault"


def test_the_vault_opens_and_audits_clean(path: Path) -> None:
    with Vault.open(path, readonly=True) as vault:
        assert vault.audit() == []
        assert vault.keyring.clients == ("alice", "bob", "carol", "dora")
        assert vault.keyring.departed == {"carol"}
        assert len(vault.commitments) == 3
        events = [entry["event"] for entry in vault.log()]
    assert len(events) == 17
    assert set(events) == {"created", "issued", "questions-chosen", "client-joined", "client-left"}


def test_a_server_goes_on_from_the_vault(path: Path) -> None:
    with Vault.open(path) as vault:
        server = TraMark(model(), vault=vault, warmup_rounds=1)
        assert server.resume()
        assert server.round == 3
        assert server.marked
        outgoing = server.dispatch()
        assert sorted(outgoing) == ["alice", "bob", "dora"]
        report = server.collect(dict(outgoing))
        assert (report.round, report.refused) == (4, {})
        assert trace(server.client_model("dora"), vault.keyring).clients == ("dora",)
        assert vault.audit() == []
    with Vault.open(path, readonly=True) as vault:
        second = TraMark(model(), vault=vault, warmup_rounds=1)
        assert second.resume()
        assert second.round == 4


def test_a_leaked_model_is_traced(path: Path) -> None:
    suspect = model()
    load_into(suspect, read_weights(GOLDEN / "bob.safetensors"), GOLDEN / "bob.safetensors")
    with Vault.open(path, readonly=True) as vault:
        verdict = trace(suspect, vault.keyring)
    assert (verdict.clients, verdict.queries) == (("bob",), 8)


@pytest.mark.parametrize(
    ("bundle", "accused", "opened"), [("evidence.json", "bob", 1), ("evidence-company.json", "dora", 4)]
)
def test_the_bundles_verify(bundle: str, accused: str, opened: int) -> None:
    text = (GOLDEN / bundle).read_bytes()
    published = read_published((GOLDEN / "vault" / "commitment.json").read_bytes())
    found = verify_bundle(text, published=published, public_key=published[0].public_key)
    assert found.clients == (accused,)
    assert found.e_values[accused] >= found.needed
    assert sum("The answers shown of" in sentence for sentence in found.proven) == opened
    with pytest.raises(BadProof):
        verify_bundle(text.replace(accused.encode(), b"alice"))

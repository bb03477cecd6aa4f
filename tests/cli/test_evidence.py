"""`tramark trace --report` and `tramark evidence verify`."""

import json
import shutil
from pathlib import Path

import torch
from commands import Shell
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from federations import digits

from tramark.evidence.findings import fingerprint
from tramark.lab.models import build
from tramark.lab.models.export import export_model
from tramark.vault.store import Vault


def test_report_and_evidence(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    federation = shutil.copytree(federation, tmp_path / "run")
    suspect = federation / "models" / "client-1.safetensors"
    shown = tramark("trace", federation, suspect, "--report", tmp_path / "report")
    assert "client-1" in shown
    # Other tests may have traced with this vault before.
    with Vault.open(federation / "vault", readonly=True) as vault:
        case = len(vault.cases.all())
    assert "client-1" in (tmp_path / "report" / "report.html").read_text()
    statement, annex = tmp_path / "report" / "statement.json", tmp_path / "annex.json"
    published = federation / "vault" / "commitment.json"
    assert "finding: client-1 (not proven)" in tramark("evidence", "verify", statement, code=6)
    assert "--yes" in tramark("evidence", "annex", federation, case, "--out", annex, code=2)
    assert not annex.exists()
    assert "of client-1's" in tramark("evidence", "annex", federation, case, "--out", annex, "--yes")
    assert "burned for client-1: " in tramark("vault", "cases", federation)
    # A simulation proves nothing, since anybody can compute its secret.
    simulated = b'"simulated":true' in (federation / "vault" / "log.jsonl").read_bytes()
    words = ("evidence", "verify", statement, "--annex", annex, "--commitment", published)
    checked = tramark(*words, code=6 if simulated else 0)
    assert "finding: client-1" in checked
    assert suspect.name in checked
    with_log = tramark(*words, "--log", federation / "vault" / "log.jsonl", code=6 if simulated else 0)
    assert "By the log, this was case" in with_log
    annex.write_bytes(annex.read_bytes().replace(b"client-1", b"client-2"))
    forged = tramark("evidence", "verify", statement, "--annex", annex, "--commitment", published, code=5)
    assert forged.count("tramark:") == 1
    assert tramark("evidence", "verify", published, code=7).count("tramark:") == 1


def pem(path: Path, key: Ed25519PrivateKey) -> Path:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def test_a_statement_is_signed_by_an_auditor_and_an_unmarked_model_is_asked(
    federation: Path, tramark: Shell, tmp_path: Path
) -> None:
    federation = shutil.copytree(federation, tmp_path / "run")
    model = federation / "models" / "client-1.safetensors"
    tramark("trace", federation, model, "--report", tmp_path / "report")
    statement, annex = tmp_path / "report" / "statement.json", tmp_path / "annex.json"
    with Vault.open(federation / "vault", readonly=True) as vault:
        tramark("evidence", "annex", federation, len(vault.cases.all()), "--out", annex, "--yes")
    key = Ed25519PrivateKey.generate()
    said = tramark("evidence", "sign", statement, "--key", pem(tmp_path / "auditor.pem", key))
    mine = fingerprint(key.public_key().public_bytes_raw().hex())
    assert said == f"signed with {mine}\n"
    words = ("evidence", "verify", statement, "--annex", annex)
    assert f"a key that no commitment has, which you gave: {mine}" in tramark(*words, "--key", mine, code=6)
    other = fingerprint("00" * 32)
    assert "not signed with the key" in tramark(*words, "--key", other, code=5)
    annex_key = tmp_path / "x.pem"
    annex_key.write_bytes(X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert "no Ed25519 key" in tramark("evidence", "sign", statement, "--key", annex_key, code=2)
    assert "no private key" in tramark("evidence", "sign", statement, "--key", statement, code=2)
    # A model that nobody marked does not answer as the accused does; the accused's own model does.
    fed, stranger = tmp_path / "conventions.json", tmp_path / "own.pt2"
    fed.write_text(json.dumps({"value_range": [0, 1], "mean": list(digits().mean), "std": list(digits().std)}))
    own = build("cnn", input_shape=(1, 8, 8), classes=10, seed=99).eval()
    export_model(own, torch.zeros(2, 1, 8, 8), stranger, "pt2")
    asked = tramark("evidence", "check-base", annex, stranger, "--conventions", fed)
    assert "client-1: the unmarked model gives" in asked
    leaked = tmp_path / "leaked.pt2"
    tramark("export", federation, leaked, "--client", "client-1", "--format", "pt2")
    doubt = tramark("evidence", "check-base", annex, leaked, "--conventions", fed, code=6)
    assert "the accusation is in doubt" in doubt


def test_a_report_is_never_overwritten_and_says_where_it_is(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    run, report = shutil.copytree(federation, tmp_path / "run"), tmp_path / "report"
    words = ("trace", run, run / "models" / "client-1.safetensors", "--report", report)
    tramark(*words, "--auditor", "Ada", "--notes", "seen at a fair")
    page = (report / "report.html").read_text()
    assert ">Ada<" in page
    assert ">seen at a fair<" in page
    with Vault.open(run / "vault", readonly=True) as vault:
        before = len(vault.cases.all())
    assert "report.html exists already" in tramark(*words, code=2)
    # Nothing was asked for a report that could not be written.
    with Vault.open(run / "vault", readonly=True) as vault:
        assert len(vault.cases.all()) == before

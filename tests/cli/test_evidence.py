"""`tramark trace --report` and `tramark evidence verify`."""

import shutil
from pathlib import Path

from commands import Shell

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
    annex.write_bytes(annex.read_bytes().replace(b"client-1", b"client-2"))
    forged = tramark("evidence", "verify", statement, "--annex", annex, "--commitment", published, code=5)
    assert forged.count("tramark:") == 1
    assert tramark("evidence", "verify", published, code=7).count("tramark:") == 1


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

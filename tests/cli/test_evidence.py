"""`tramark trace --report` and `tramark evidence verify`."""

from pathlib import Path

from commands import Shell


def test_report_and_evidence(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    suspect = federation / "models" / "client-1.safetensors"
    shown = tramark("trace", federation, suspect, "--report", tmp_path / "report")
    assert "client-1" in shown
    assert "client-1" in (tmp_path / "report" / "report.html").read_text()
    bundle = tmp_path / "report" / "evidence.json"
    checked = tramark("evidence", "verify", bundle, "--commitment", federation / "vault" / "commitment.json")
    assert "verdict: client-1" in checked
    forged = bundle.read_bytes().replace(b"client-1", b"client-2")
    bundle.write_bytes(forged)
    assert tramark("evidence", "verify", bundle, code=2).count("tramark:") == 1

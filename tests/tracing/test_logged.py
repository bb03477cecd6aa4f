"""A vault's log proves what a statement says of the vault: its cases, their error and what they burned."""

import json
from pathlib import Path
from typing import Any

import pytest
from traces import leaked_by, ring, vault_of

from tramark.errors import BadProof, SettingError, Unreadable
from tramark.evidence.case import Suspected
from tramark.evidence.commitment import canonical, sha256
from tramark.evidence.reader import Known
from tramark.evidence.verify import verify_statement
from tramark.tracing.handover import make_annex, make_statement
from tramark.tracing.trace import trace

THERE = Suspected("address", "https://models.example/v2/models/scan")


def chained(entries: list[dict[str, Any]]) -> bytes:
    """A log of these entries, as whoever may write it would chain them."""
    lines: list[bytes] = []
    for number, entry in enumerate(entries):
        previous = sha256(lines[-1]).hex() if lines else "0" * 64
        lines.append(canonical(entry | {"n": number, "previous": previous}))
    return b"".join(line + b"\n" for line in lines)


def test_the_log_proves_the_second_conviction(tmp_path: Path) -> None:
    with vault_of(ring(questions=40), tmp_path) as vault:
        published, suspect = vault.head, leaked_by(vault.keyring, "hospital-3")
        for _ in range(2):
            case = trace(suspect, vault, suspected=THERE).case
        assert case is not None
        evidence, log = (make_statement(vault, case).text(), make_annex(vault, case)), vault.path / "log.jsonl"
        vault.record([{"event": "noted"}])
        text, commitments = log.read_bytes(), vault.commitments
    plain = verify_statement(*evidence, Known(published=commitments))
    assert any("The vault's log shows it" in lack for lack in plain.lacking)
    found = verify_statement(*evidence, Known(published=commitments, log=text, head=published))
    assert found.holds
    assert any("this was case 2 of the vault" in sentence for sentence in found.proven)
    assert not any("its cases have spent" in sentence for sentence in found.unproven)
    entries = [json.loads(line) for line in text.splitlines()]
    assert chained(entries) == text
    for name, value in (("spent", "1e-06"), ("case", 3), ("time", "2001-01-01T00:00:00+00:00")):
        changed = [dict(entry) for entry in entries]
        next(entry for entry in reversed(changed) if entry["event"] == "case-opened")[name] = value
        with pytest.raises(BadProof, match="not the one whose head"):
            verify_statement(*evidence, Known(log=chained(changed)))
        with pytest.raises(BadProof, match="does not follow"):
            verify_statement(*evidence, Known(log=b"\n".join(map(canonical, changed))))
    for wrong in ((published[0], "0" * 64), (99, published[1])):
        with pytest.raises(BadProof, match="head you gave"):
            verify_statement(*evidence, Known(log=text, head=wrong))
    with pytest.raises(Unreadable):
        verify_statement(*evidence, Known(log=b"{}\n"))
    with pytest.raises(SettingError, match="give both"):
        verify_statement(*evidence, Known(head=published))


@pytest.mark.parametrize("event", ["burned", "case-opened", "case-closed"])
def test_a_log_without_an_entry_is_another_record(tmp_path: Path, event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who leaves out an entry, and states the head of what is left."""
    with vault_of(ring(questions=40), tmp_path) as vault:
        for _ in range(2):
            case = trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=THERE).case
        assert case is not None
        entries = [json.loads(line) for line in (vault.path / "log.jsonl").read_bytes().splitlines()]
        wanted = event, 2 if event == "case-closed" else 1
        entries.remove(next(entry for entry in entries if (entry["event"], entry.get("case")) == wanted))
        text = chained(entries)
        monkeypatch.setattr(type(vault), "head", (len(entries), sha256(text.splitlines()[-1]).hex()))
        evidence = make_statement(vault, case).text(), make_annex(vault, case)
    with pytest.raises(BadProof, match=r"by the log|the log has another record"):
        verify_statement(*evidence, Known(log=text))

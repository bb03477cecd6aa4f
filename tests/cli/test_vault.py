"""`tramark vault`: make a vault, look into it, change it, and find out that it was changed."""

import shutil
from pathlib import Path

import pytest
from commands import Shell


def test_the_vault(federation: Path, tramark: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(federation, tmp_path / "run")
    place = tmp_path / "run"
    shown = tramark("vault", "show", place)
    assert "4: client-0, client-1, client-2, client-3" in shown
    table = [line.split() for line in shown.splitlines()[-9:]]
    assert table[0][:3] == ["round", "clients", "refused"]
    assert table[1] == ["1", "4", "0", "no", "–", "–", "–"]
    assert table[6][:4] == ["6", "4", "0", "yes"]
    assert table[8][:4] == ["8", "4", "0", "yes"]
    assert table[8][4].endswith("%")
    assert "clean" in tramark("vault", "audit", place)
    tramark("vault", "add-client", place, "late")
    assert "5: " in tramark("vault", "show", place)
    monkeypatch.setenv("TRAMARK_NEW_PASSPHRASE", "correct horse")
    tramark("vault", "rotate", place)
    monkeypatch.setenv("TRAMARK_PASSPHRASE", "wrong horse")
    assert tramark("vault", "show", place, code=2).count("tramark:") == 1
    monkeypatch.setenv("TRAMARK_PASSPHRASE", "correct horse")
    assert "clean" in tramark("vault", "audit", place)
    log = place / "vault" / "log.jsonl"
    log.write_text(log.read_text().replace("client-3", "client-2", 1))
    assert "log" in tramark("vault", "audit", place, code=1)


def test_making_a_vault(tramark: Shell, tmp_path: Path) -> None:
    words = ("--clients", "a, b", "--classes", 2, "--input-shape", "1,8,8", "--questions", 16)
    tramark("vault", "create", tmp_path / "v", *words)
    assert (tmp_path / "v.key").stat().st_mode & 0o077 == 0
    assert "2: a, b" in tramark("vault", "show", tmp_path / "v")
    assert "exists already" in tramark("vault", "create", tmp_path / "v", *words, code=2)
    for shape in ("x", "1,0,8", ""):
        shown = tramark("vault", "create", tmp_path / "w", *words[:4], "--input-shape", shape, code=2)
        assert "such as 1,28,28" in shown
    assert not (tmp_path / "w").exists()

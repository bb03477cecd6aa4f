"""`tramark vault`: make a vault, look into it, change it, and find out that it was changed."""

import json
import shutil
from pathlib import Path

import pytest
from authority import authority_in, openssl
from commands import Shell

from tramark.evidence.beacon import Beacon
from tramark.vault.store import Vault


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
    assert tramark("vault", "show", place, code=9).count("tramark:") == 1
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


def test_the_log_is_read_and_filtered(federation: Path, tramark: Shell) -> None:
    lines = tramark("vault", "log", federation).splitlines()
    assert lines[0].split()[0] == "0"
    assert "created" in lines[0]
    assert "clients client-0, client-1, client-2, client-3" in lines[0]
    assert "simulated yes" in lines[0]
    one = tramark("vault", "log", federation, "--client", "client-2", "--round", 7, "--event", "issued").splitlines()
    assert len(one) == 1
    assert "client client-2  marked yes  model " in one[0]
    assert one[0] in lines
    [plain] = tramark("vault", "log", federation, "--client", "client-2", "--round", 7, "--json").splitlines()
    entry = json.loads(plain)
    assert (entry["client"], entry["round"], entry["n"]) == ("client-2", 7, int(one[0].split()[0]))
    assert len(entry["model"]) == 64
    assert tramark("vault", "log", federation, "--client", "nobody") == ""


def test_a_name_in_the_log_cannot_fake_a_line(tramark: Shell, tmp_path: Path) -> None:
    words = ("--clients", "a\n  0  x", "--classes", 2, "--input-shape", "1,8,8", "--questions", 4)
    tramark("vault", "create", tmp_path / "v", *words)
    assert len(tramark("vault", "log", tmp_path / "v").splitlines()) == 1


def test_an_older_copy_shows_by_its_head(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(federation, place)
    old = tramark("vault", "head", place).strip()
    shutil.copytree(place / "vault", tmp_path / "copy")
    tramark("vault", "add-client", place, "late")
    new = tramark("vault", "head", place, "--compare", old).splitlines()
    assert new[1] == f"the vault has all {old.split(':')[0]} entries that it had"
    shutil.rmtree(place / "vault")
    shutil.copytree(tmp_path / "copy", place / "vault")
    assert "clean" in tramark("vault", "audit", place)
    shown = tramark("vault", "head", place, "--compare", new[0], code=1)
    assert "this is an older copy of the vault" in shown
    assert "a head is a number" in tramark("vault", "head", place, "--compare", "7", code=2)


def test_a_vault_is_backed_up_and_restored(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    file, key = tmp_path / "backup", federation / "vault.key"
    head = tramark("vault", "head", federation).strip()
    assert tramark("vault", "backup", federation, file).endswith(f"its head is {head}\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "replaces no file" in tramark("vault", "backup", federation, file, code=2)
    said = tramark("vault", "restore", file, tmp_path / "again", "--key-file", key)
    assert f"from a backup with {head.split(':')[0]} entries" in said
    assert "exists already" in tramark("vault", "restore", file, tmp_path / "again", "--key-file", key, code=2)
    assert "clean" in tramark("vault", "audit", tmp_path / "again", "--key-file", key)
    assert "restored on" in tramark("vault", "show", tmp_path / "again", "--key-file", key)
    suspect = federation / "models" / "client-0.safetensors"
    traced = tramark("trace", tmp_path / "again", suspect, "--key-file", key, "--model", "cnn")
    assert "This vault was restored from a backup on" in traced
    assert "This vault is simulated: its secret follows from the seed" in traced
    compared = tramark("vault", "head", tmp_path / "again", "--key-file", key, "--compare", head)
    assert "restored on" in compared
    file.write_bytes(file.read_bytes()[:2000])
    assert "backup" in tramark("vault", "restore", file, tmp_path / "third", "--key-file", key, code=9)
    assert not (tmp_path / "third").exists()


def test_a_new_signing_key_is_shown_with_the_old_one(federation: Path, tramark: Shell, tmp_path: Path) -> None:
    shutil.copytree(federation, tmp_path / "run")
    place = tmp_path / "run"
    old, new = (line[9:] for line in tramark("vault", "rotate", place, "--signing-key").splitlines()[:2])
    assert old != new
    shown = tramark("vault", "show", place)
    assert f"public key   {new}\n  before     {old}\n" in shown
    assert "simulated" in shown
    assert "clean" in tramark("vault", "audit", place)
    words = ("--signing-key", "--new-key-file", tmp_path / "k")
    assert "one of them at a time" in tramark("vault", "rotate", place, *words, code=2)


def test_a_beacon_is_revealed(tramark: Shell, tmp_path: Path) -> None:
    tramark("vault", "create", tmp_path / "v", "--clients", "a,b", "--classes", 10, "--input-shape", "8")
    assert "no answers wait" in tramark("vault", "reveal", tmp_path / "v", "ab" * 32, code=2)
    with Vault.open(tmp_path / "v") as vault:
        beacon = Beacon("drand quicknet", "123", "2026-01-01T00:00:00+00:00")
        vault.save_keyring(vault.keyring.choose(range(8)), beacon=beacon)
    assert "is no beacon's value" in tramark("vault", "reveal", tmp_path / "v", "not hex", code=2)
    assert "can be guessed" in tramark("vault", "reveal", tmp_path / "v", "ab", code=2)
    assert tramark("vault", "reveal", tmp_path / "v", "ab" * 32) == "the answers are drawn\n"
    assert "beacon-revealed" in tramark("vault", "log", tmp_path / "v")
    assert "no answers wait" in tramark("vault", "reveal", tmp_path / "v", "ab" * 32, code=2)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the authority is openssl's")
def test_a_commitment_is_time_stamped(tramark: Shell, tmp_path: Path) -> None:
    tramark("vault", "create", tmp_path / "v", "--clients", "a,b", "--classes", 10, "--input-shape", "8")
    with authority_in(tmp_path / "tsa") as (address, folder):
        said = tramark("vault", "timestamp", tmp_path / "v", "--tsa", address, "--out", folder / "c.tsr")
        digest = said.split("(")[1].split(")")[0]
        words = ("ts", "-verify", "-digest", digest, "-in", "c.tsr", "-CAfile", "ca.pem")
        assert "OK" in openssl(folder, *words)
        busy = ("--tsa", f"{address}/busy", "--out", folder / "d.tsr")
        assert "tramark:" in tramark("vault", "timestamp", tmp_path / "v", *busy, code=2)
        assert not (folder / "d.tsr").exists()

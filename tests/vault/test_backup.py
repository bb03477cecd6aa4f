"""A backup holds the whole vault and opens with its key alone; a restored vault says that it is one."""

import io
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from traces import ring, vault_of

from tramark.errors import Damaged, NoKey, VaultError, WrongKey

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from vaults import no_file_above, writer

from tramark.vault.audit import audit
from tramark.vault.backup import _pack, _unpack, restore, write_backup
from tramark.vault.head import GENESIS, LOG, PUBLIC, SEALED
from tramark.vault.lock import default_key_file, make_key_file
from tramark.vault.log import head_text, issued, read_head_text
from tramark.vault.storage import SIGNING
from tramark.vault.store import Vault

LARGE = bytes(range(256)) * 10_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with vault_of(ring(clients=["alice", "bob"], pool=4, questions=2), tmp_path) as vault:
        vault.record([issued(1, "alice", "a" * 64)], {"marks": LARGE})
    return vault.path


def backup_of(path: Path) -> Path:
    with Vault.open(path, readonly=True) as vault:
        write_backup(vault, path.with_name("backup"))
    return path.with_name("backup")


def test_everything_comes_back_and_the_log_says_that_it_did(path: Path, tmp_path: Path) -> None:
    with Vault.open(path) as vault:
        head = write_backup(vault, tmp_path / "backup")
        assert head == vault.head
        keyring, key = vault.keyring, vault.storage.get(SIGNING)
    assert sorted(os.listdir(tmp_path)) == ["backup", "vault", "vault.key"], "what was unpacked for the check is gone"
    shutil.rmtree(path)
    with restore(tmp_path / "backup", path) as vault:
        assert (vault.keyring, vault.get("marks"), vault.storage.get(SIGNING)) == (keyring, LARGE, key)
        entry = list(vault.log())[-1]
        assert (entry["event"], entry["entries"], entry["head"]) == ("restored", *head)
        vault.put("marks", b"and on it goes")
        assert vault.audit() == []
    assert path.stat().st_mode & 0o777 == 0o700
    assert all(f.stat().st_mode & 0o077 == 0 for f in path.rglob("*") if f.name != PUBLIC)


def test_only_the_owner_can_read_a_backup_and_no_secret_is_in_clear(path: Path) -> None:
    file = backup_of(path)
    assert file.stat().st_mode & 0o777 == 0o600
    with Vault.open(path, readonly=True) as vault:
        secrets = [vault.keyring.secret, vault.keyring.secret.hex().encode(), vault.storage.get(SIGNING), LARGE[:1000]]
    content = file.read_bytes()
    assert not any(secret in content for secret in [*secrets, default_key_file(path).read_bytes()])


def test_the_key_is_found_as_for_any_vault(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, place = backup_of(path), tmp_path / "elsewhere" / "again"
    monkeypatch.setenv("TRAMARK_PASSPHRASE", "of some other vault")
    with pytest.raises(NoKey, match="needs its key file"):
        restore(file, place)
    with pytest.raises(WrongKey):
        restore(file, place, key_file=make_key_file(tmp_path / "other"))
    assert os.listdir(place.parent) == []
    restore(file, place, key_file=default_key_file(path)).close()
    with Vault.open(path) as vault:
        vault.rotate(passphrase="tea")
    file.unlink()
    monkeypatch.setenv("TRAMARK_PASSPHRASE", "tea")
    restore(backup_of(path), tmp_path / "by passphrase").close()


def test_nothing_is_overwritten(path: Path, tmp_path: Path) -> None:
    file = backup_of(path)
    with pytest.raises(VaultError, match="exists already"):
        restore(file, path)
    with Vault.open(path, readonly=True) as vault:
        with pytest.raises(VaultError, match="exists already: a backup replaces no file"):
            write_backup(vault, file)
        with pytest.raises(VaultError, match="inside the vault"):
            write_backup(vault, path / "backup")
        with pytest.raises(VaultError, match="cannot be written: No such file"):
            write_backup(vault, tmp_path / "nowhere" / "backup")
    assert audit(path) == []


def test_a_restored_vault_does_not_hide_what_it_has_lost(path: Path, tmp_path: Path) -> None:
    file = backup_of(path)
    with Vault.open(path) as vault:
        at_backup = vault.head
        vault.record([{"event": "case-closed", "case": 1}])
        later = vault.head
        assert vault.set_back(at_backup) is None
    with restore(file, tmp_path / "again", key_file=default_key_file(path)) as vault:
        assert vault.set_back(at_backup) is None
        assert "are not those that it had" in str(vault.set_back(later))
        vault.record([issued(7, "bob", "b" * 64)] * 3)
        assert "are not those that it had" in str(vault.set_back(later)), "going on does not cover it up"


def test_an_older_copy_of_the_whole_folder_shows(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "old")
    with Vault.open(path) as vault:
        known = [(0, GENESIS), vault.head]
        vault.record([issued(2, "bob", "b" * 64)])
        known.append(vault.head)
        assert [vault.set_back(head) for head in known] == [None] * 3
    with Vault.open(tmp_path / "old", key_file=default_key_file(path), readonly=True) as old:
        assert old.audit() == [], "an audit alone cannot tell"
        assert [old.set_back(head) for head in known[:2]] == [None, None]
        assert old.set_back(known[2]) == "the log had 3 entries and has 2: this is an older copy of the vault"
        assert old.set_back((1, "0" * 64)) is not None


@pytest.mark.parametrize("text", ["", "3", "3:", ":" + "0" * 64, "3:" + "g" * 64, "-1:" + "0" * 64, "3:" + "0" * 65])
def test_what_is_no_head_is_refused(text: str) -> None:
    assert read_head_text(head_text((3, GENESIS))) == (3, GENESIS)
    with pytest.raises(ValueError, match="a head is a number"):
        read_head_text(text)


def test_whatever_files_a_vault_has_are_carried(path: Path) -> None:
    (path / "cases" / SEALED).mkdir(parents=True)
    (path / "cases" / "log.jsonl").write_bytes(b"one\n")
    (path / "cases" / SEALED / "1.0123456789abcdef").write_bytes(LARGE)
    (path / "head.sealed.tmp").write_bytes(b"the remains of a crash")
    _pack(path, path.with_name("backup"))
    _unpack(path.with_name("backup"), path.with_name("again"))
    (path / "head.sealed.tmp").unlink()
    carried = {f.relative_to(path): f.read_bytes() for f in path.rglob("*") if f.is_file()}
    again = path.with_name("again")
    assert {f.relative_to(again): f.read_bytes() for f in again.rglob("*") if f.is_file()} == carried


def test_a_damaged_vault_gives_no_backup(path: Path) -> None:
    (path / LOG).write_bytes((path / LOG).read_bytes().replace(b"alice", b"carol"))
    with pytest.raises(Damaged, match="there is no backup, as the vault or the disk is damaged: log"):
        backup_of(path)
    assert sorted(os.listdir(path.parent)) == ["vault", "vault.key"]


def test_a_damaged_backup_is_not_restored(path: Path, tmp_path: Path) -> None:
    file, place = backup_of(path), tmp_path / "again"
    good = file.read_bytes()
    with tarfile.open(file) as archive:
        inside = {member.offset_data + byte for member in archive for byte in (0, member.size - 1) if member.size}
    for offset in sorted(inside):
        file.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        with pytest.raises(VaultError):
            restore(file, place, key_file=default_key_file(path))
    for length in (0, 100, 512, len(LARGE), len(good) // 2):
        file.write_bytes(good[:length])
        with pytest.raises(VaultError):
            restore(file, place, key_file=default_key_file(path))
    assert sorted(os.listdir(tmp_path)) == ["backup", "vault", "vault.key"]


def with_member(**fields: object) -> bytes:
    member = tarfile.TarInfo("x")
    member.size = 4
    for name, value in fields.items():
        setattr(member, name, value)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member, io.BytesIO(b"evil") if member.isreg() else None)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        with_member(name="../evil"),
        with_member(name="/tmp/evil"),
        with_member(name="sealed/../../evil"),
        with_member(name=".hidden"),
        with_member(type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0),
        with_member(type=tarfile.LNKTYPE, linkname="/etc/passwd", size=0),
        with_member(type=tarfile.FIFOTYPE, size=0),
        with_member(type=tarfile.GNUTYPE_SPARSE),
        b"no tar file at all" * 100,
    ],
)
def test_a_strangers_file_writes_nothing_anywhere(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "backup").write_bytes(content)
    with pytest.raises(Damaged, match="is not the backup of a vault"):
        restore(tmp_path / "backup", tmp_path / "in" / "vault", passphrase="x")
    assert os.listdir(tmp_path / "in") == []
    assert sorted(os.listdir(tmp_path)) == ["backup", "in"]


def test_a_backup_beside_a_busy_writer_is_whole(path: Path, tmp_path: Path) -> None:
    with writer(path, tmp_path / "acknowledged"), Vault.open(path, readonly=True) as reader:
        for number in range(5):
            before = reader.head[0]
            entries, _ = write_backup(reader, tmp_path / f"backup{number}")
            assert entries >= before
    for number in range(5):
        with restore(tmp_path / f"backup{number}", tmp_path / f"v{number}", key_file=tmp_path / "vault.key") as vault:
            assert vault.audit() == []


def test_a_full_disk_leaves_no_half_backup(path: Path) -> None:
    with no_file_above(len(LARGE)), pytest.raises(VaultError, match="cannot be written: File too large"):
        backup_of(path)
    assert sorted(os.listdir(path.parent)) == ["vault", "vault.key"]

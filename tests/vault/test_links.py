"""Links that somebody planted in a vault lead no write elsewhere, and are named."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from traces import ring, vault_of

from tramark.errors import Damaged, VaultError

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from tramark.vault.audit import audit
from tramark.vault.files import replace_file, write_from
from tramark.vault.head import HEAD, HEADER, LOCK, LOG, PUBLIC, SEALED
from tramark.vault.lock import WriterLock, find_key, make_key_file
from tramark.vault.log import issued
from tramark.vault.store import Vault


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with vault_of(ring(clients=["a", "b"], pool=4, questions=2), tmp_path) as vault:
        vault.put("marks", b"the marks")
    return vault.path


@pytest.mark.parametrize("name", [HEADER, HEAD, LOG, PUBLIC, LOCK, SEALED, f"{SEALED}/marks", "cases"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_what_is_no_file_is_refused_and_named(path: Path, tmp_path: Path, name: str, kind: str) -> None:
    place = next(path.glob(f"{name}.*"), path / name)
    if place.exists():
        place.rename(tmp_path / "aside")
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / ("aside" if kind == "link" else "nowhere"))
    for readonly in (False, True):
        with pytest.raises(Damaged, match=place.relative_to(path).as_posix()):
            Vault.open(path, readonly=readonly)
    assert place.relative_to(path).as_posix() in audit(path)[0]
    assert not (tmp_path / "nowhere").exists()


def test_a_header_that_is_no_file_keeps_nobody_waiting(path: Path, tmp_path: Path) -> None:
    header = path / HEADER
    header.rename(tmp_path / "aside")
    header.symlink_to(tmp_path / "aside")
    with pytest.raises(Damaged, match=HEADER):
        find_key(path)
    header.unlink()
    os.mkfifo(header)
    with pytest.raises(Damaged, match=HEADER):
        find_key(path)


def test_a_link_planted_under_a_running_writer_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    with Vault.open(path) as vault:
        shutil.copy(path / LOG, victim)
        before = victim.read_bytes()
        (path / LOG).unlink()
        (path / LOG).symlink_to(victim)
        with pytest.warns(RuntimeWarning, match="could not be written"):
            vault.record([issued(1, "a", "a" * 64)])
    assert victim.read_bytes() == before


def test_a_vault_may_itself_be_reached_by_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(path)
    with Vault.open(tmp_path / "elsewhere", key_file=tmp_path / "vault.key") as vault:
        assert vault.audit() == []


def test_no_write_follows_a_link(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_bytes(b"mine")
    for name in ("link", "link.tmp"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        write_from(link, 0, b"theirs")
    with pytest.raises(VaultError, match="exists already"):
        make_key_file(link)
    (tmp_path / LOCK).symlink_to(victim)
    with pytest.raises(VaultError, match="cannot be written"):
        WriterLock(tmp_path)
    replace_file(link, b"theirs")
    assert (victim.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"mine", b"theirs", False)

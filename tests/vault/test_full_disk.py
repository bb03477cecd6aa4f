"""A vault that could not be written, because the disk was full, goes on as soon as there is room, without reopening."""

import errno
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from traces import ring, vault_of

from tramark.errors import VaultError, WrongKey
from tramark.keys.pictures import Patterns

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from vaults import no_file_above

from tramark.vault.head import HEAD, HEADER, LOG, PUBLIC, SEALED
from tramark.vault.lock import make_key_file
from tramark.vault.log import issued
from tramark.vault.store import Vault


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    keyring = ring(Patterns((1, 4, 4)), clients=["alice", "bob"], classes=2, questions=2, pool=4)
    with vault_of(keyring, tmp_path) as made:
        made.record([], {f"blob-{i}": b"x" for i in range(5)} | {"marks": b"the marks"})
        yield made


def test_a_blob_without_room_leaves_nothing_and_fits_later(vault: Vault) -> None:
    before, head = sorted(os.listdir(vault.path / SEALED)), vault.head
    with no_file_above(10_000), pytest.raises(VaultError, match="cannot be written: File too large"):
        vault.record([issued(1, "alice", "a" * 64)], {"small": b"s", "marks": bytes(100_000)})
    assert sorted(os.listdir(vault.path / SEALED)) == before, "half a file would keep the room that is needed"
    assert (vault.head, vault.get("marks"), vault.audit()) == (head, b"the marks", [])
    vault.record([issued(1, "alice", "a" * 64)], {"small": b"s", "marks": bytes(100_000)})
    assert (vault.head[0], vault.get("marks"), vault.audit()) == (head[0] + 1, bytes(100_000), [])


def test_a_log_without_room_is_written_with_the_next_change(vault: Vault) -> None:
    vault.record([issued(1, "alice", f"{i:064x}") for i in range(20)])
    size = (vault.path / LOG).stat().st_size
    with no_file_above(size + 10), pytest.warns(RuntimeWarning, match="its log could not be written"):
        vault.record([issued(2, "bob", "b" * 64)])
    assert (vault.path / LOG).stat().st_size < size + 100
    assert [entry["round"] for entry in vault.log() if entry["event"] == "issued"][-1] == 2, "it is in the head"
    assert vault.audit() == []
    with no_file_above(size + 10), pytest.raises(VaultError, match="cannot be written"):
        vault.record([issued(3, "bob", "c" * 64)])
    vault.record([issued(4, "bob", "d" * 64)])
    assert [entry["round"] for entry in vault.log() if entry["event"] == "issued"][-3:] == [1, 2, 4]
    assert vault.audit() == []


def test_room_may_end_at_any_operation_on_the_disk(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation fails in turn, and all that follow it. The same vault then does the same again."""
    real: dict[str, Callable[..., object]] = {name: getattr(os, name) for name in ("fsync", "open")}
    raised = 0
    for step in range(100):
        left = step
        client, before = f"client-{step}", vault.head[0]

        def full(name: str) -> Callable[..., object]:
            def act(*arguments: object, **options: object) -> object:
                nonlocal left
                writes = name == "fsync" or int(arguments[1]) & (os.O_WRONLY | os.O_RDWR)  # type: ignore[call-overload]
                left -= bool(writes)
                if writes and left < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real[name](*arguments, **options)

            return act

        joined = vault.keyring.join(client)
        for name in real:
            monkeypatch.setattr(os, name, full(name))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                vault.save_keyring(joined)
            done = True
        except VaultError:
            done = False
            raised += 1
        finally:
            monkeypatch.undo()
        assert vault.audit() == []
        assert vault.head[0] == before + (client in vault.keyring.clients)
        assert done <= (client in vault.keyring.clients), "what returned without an error is there"
        vault.save_keyring(joined)
        vault.put("marks", client.encode())
        assert (vault.head[0], vault.keyring, vault.audit()) == (before + 1, joined, [])
        assert len(json.loads((vault.path / PUBLIC).read_bytes())["commitments"]) == step + 2
        assert len(os.listdir(vault.path / SEALED)) == 9
        if left >= 0:
            break
    assert raised > 3
    assert left >= 0


def test_after_a_failed_rotation_the_old_key_opens(vault: Vault, tmp_path: Path) -> None:
    new = make_key_file(tmp_path / "new")
    header, head = (vault.path / HEADER).stat().st_size, (vault.path / HEAD).stat().st_size
    assert header < head, "the new header fits into what is too small for the new head"
    for size in (10, header + 50):
        with no_file_above(size), pytest.raises(VaultError, match="cannot be written"):
            vault.rotate(key_file=new)
        Vault.open(vault.path, readonly=True).close()
        with pytest.raises(WrongKey):
            Vault.open(vault.path, key_file=new, readonly=True)
    assert [entry["event"] for entry in vault.log()] == ["created"]
    vault.rotate(key_file=new)
    Vault.open(vault.path, key_file=new, readonly=True).close()


def test_half_a_key_file_is_no_key_file(tmp_path: Path) -> None:
    with no_file_above(10), pytest.raises(OSError, match="too large"):
        make_key_file(tmp_path / "key")
    assert make_key_file(tmp_path / "key").stat().st_size == 32

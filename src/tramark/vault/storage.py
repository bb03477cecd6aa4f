"""The directory under a vault: sealed files and the log, changed all or nothing.

A change is made when a new head has replaced the old one. So a directory whose writer was killed at any moment opens
as it was before or after, never in between, and whatever differs from what the head says was not written by a holder
of the key. `docs/reference/vault.md` has the steps and the argument.
"""

import io
import os
import re
import secrets
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from tramark.errors import Damaged, VaultError
from tramark.vault.commit import Chain, chain_text, public_text, read_chain
from tramark.vault.files import irregular, prepare, put_in_place, replace_file, sync_directory, write_from, write_new
from tramark.vault.head import (
    CASES_LOCK,
    COMMIT_LOCK,
    HEAD,
    HEADER,
    LOG,
    PUBLIC,
    SEALED,
    Head,
    Pending,
    sealed_label,
)
from tramark.vault.lock import KeySource, WriterLock, find_key, read_header, unwrap, wrap
from tramark.vault.log import Entry, chained, line_hash
from tramark.vault.seal import seal, unseal

KEYRING, SIGNING, COMMITMENTS = "keyring", "signing-key", "commitments"
"""The sealed files that every vault has."""

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
SEALED_FILE = re.compile(NAME.pattern + r"\.[0-9a-f]{16}")


class Storage:
    """An open vault directory: for writing with a `WriterLock`, else for reading."""

    def __init__(self, path: Path, key: bytes, vault_id: str, lock: WriterLock | None) -> None:
        self.path, self.id = path, vault_id
        self.mutex = threading.RLock()
        self._key: bytes | None = key
        self._chain: tuple[str, Chain] | None = None
        self._lock = lock

    @classmethod
    def create(cls, path: Path, source: KeySource) -> Self:
        """Make an empty vault in the new directory `path`, and open it for writing."""
        path.mkdir(mode=0o700)
        key, vault_id = secrets.token_bytes(32), secrets.token_hex(16)
        storage = cls(path, key, vault_id, WriterLock(path))
        try:
            (path / SEALED).mkdir(mode=0o700)
            storage.lock_with(source)
            write_new(path / LOG, [])
            storage.write_head(Head())
        except BaseException:
            storage.close()
            raise
        return storage

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        passphrase: str | None = None,
        key_file: str | Path | None = None,
        prompt: Callable[[], str] | None = None,
        readonly: bool = False,
    ) -> Self:
        """Open a vault with a key from `find_key`, and finish what a killed writer had decided, unless `readonly`."""
        path = Path(path)
        if strange := ", ".join(irregular(path)):
            raise Damaged(f"in the vault {path} there are links, or other things that are not files: {strange}")
        header = read_header(path)
        source = find_key(path, passphrase=passphrase, key_file=key_file, prompt=prompt)
        key = unwrap(header, source)
        storage = cls(path, key, header["id"], None if readonly else WriterLock(path))
        try:
            storage.head()
            if not readonly:
                with storage._alone():
                    storage._finish(storage.head())
        except BaseException:
            storage.close()
            raise
        return storage

    def copy_at(self, path: Path) -> Self:
        """A copy of this vault in another folder, open for reading."""
        return type(self)(path, self._opened(), self.id, None)

    def close(self) -> None:
        """Forget the key and let others write."""
        self._key = self._chain = None
        if self._lock is not None:
            self._lock.release()

    def for_cases(self) -> Self:
        """The same directory, open for writing cases: by one process at a time, beside the vault's writer."""
        busy = "another trace with the vault {path} is going on: wait for it"
        return type(self)(self.path, self._opened(), self.id, WriterLock(self.path, CASES_LOCK, busy))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While it lasts, nobody else commits: the vault's writer and the writer of cases take turns."""
        lock = WriterLock(self.path, COMMIT_LOCK, busy=None)
        try:
            yield
        finally:
            lock.release()

    @property
    def state(self) -> str:
        """What can be done with it, in one word."""
        return "closed" if self._key is None else "writable" if self._lock and self._lock.held else "read-only"

    def head(self) -> Head:
        """The head as it is on the disk."""
        return Head.from_bytes(b"".join(unseal(self._opened(), self.id, self.path, HEAD)))

    def write_head(self, head: Head) -> None:
        """Replace the head: the moment at which a change happens."""
        replace_file(self.path / HEAD, b"".join(seal(self._writable(), self.id, HEAD, head.to_bytes())))

    def unseal(self, head: Head, name: str) -> Iterator[bytes]:
        """The content of the sealed file that a head knows under a name, chunk by chunk."""
        return unseal(self._opened(), self.id, self.path, head.label(name))

    def get(self, name: str) -> bytes:
        """The content of a sealed file."""
        while True:
            head = self.head()
            if name not in head.sealed:
                raise VaultError(f"nothing was put under {name!r}")
            # The buffer is handed out as it is; joining chunks would hold the data twice.
            buffer = io.BytesIO()
            try:
                buffer.writelines(self.unseal(head, name))
                return buffer.getvalue()
            except Damaged:
                # A writer in another process may have replaced the file after we read the head.
                if self.head() == head:
                    raise

    def chain(self) -> Chain:
        """The commitments, each with the leaves of its top tree."""
        version = self.head().sealed.get(COMMITMENTS, "")
        # With a million clients, reading it takes a second.
        if self._chain is None or self._chain[0] != version:
            self._chain = version, read_chain(self.get(COMMITMENTS))
        return list(self._chain[1])

    def lock_with(self, source: KeySource, entry: Entry | None = None) -> None:
        """Lock the vault with another passphrase or key file, and log it as `entry`."""
        with self.mutex:
            header = wrap(self._writable(), self.id, source)
            with self._writing():
                prepared = prepare(self.path / HEADER, header)
            if entry:
                self.commit([entry], {})
            # Last, and it needs no room on the disk: after a failure, the old key still opens the vault.
            put_in_place(prepared, self.path / HEADER)

    def commit(
        self,
        entries: Sequence[Entry],
        blobs: Mapping[str, bytes],
        *,
        publish: Chain | None = None,
        drop: Collection[str] = (),
    ) -> None:
        """Append entries to the log, seal blobs and delete those in `drop`, all or nothing.

        `publish` are the commitments, if they changed.

        If the disk fails or is full, `VaultError` is raised and nothing has changed; try again when there is room.
        """
        self._writable()
        with self.mutex, self._alone():
            with self._writing():
                try:
                    after = self._decide(entries, blobs, publish, drop)
                except OSError:
                    self._sweep(self.head())
                    raise
            try:
                self._finish(after)
            except OSError as error:
                # It is on the disk all the same: the head has it, and the next commit or opening does the rest.
                warnings.warn(
                    f"the vault {self.path} has the change, but its log could not be written: "
                    f"{error.strerror or error}; it will be with the next change",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _decide(
        self, entries: Sequence[Entry], blobs: Mapping[str, bytes], publish: Chain | None, drop: Collection[str]
    ) -> Head:
        """Write the sealed files, then the head, by which the change happens; returns that head."""
        key, head = self._writable(), self.head()
        if head.pending:
            self._finish(head)
        else:
            self._check_log(head)
        lines = chained(entries, head, now())
        sealed = {name: version for name, version in head.sealed.items() if name not in drop}
        kept = blobs if publish is None else {**blobs, COMMITMENTS: chain_text(publish)}
        for name, data in kept.items():
            sealed[name] = secrets.token_hex(8)
            label = sealed_label(name, sealed[name])
            write_new(self.path / label, seal(key, self.id, label, data))
        if kept:
            sync_directory(self.path / SEALED)
        if publish is not None:
            self._chain = sealed[COMMITMENTS], publish
        text = b"".join(lines)
        after = Head(
            entries=head.entries + len(lines),
            length=head.length + len(text),
            hash=line_hash(lines[-1]) if lines else head.hash,
            sealed=sealed,
            pending=Pending(head.length, text.decode(), publish is not None) if lines or publish else None,
        )
        self.write_head(after)
        return after

    def _finish(self, head: Head) -> None:
        """Carry out what the head has decided and delete what it does not know. Doing it twice does no harm."""
        self._check_log(head)
        if head.pending:
            write_from(self.path / LOG, head.written, head.pending.lines.encode())
            if head.pending.publish:
                replace_file(self.path / PUBLIC, public_text(self.chain()), 0o644)
            self.write_head(replace(head, pending=None))
        self._sweep(head)

    def _check_log(self, head: Head) -> None:
        """Raise `Damaged` if somebody has lengthened or shortened the log."""
        try:
            size = (self.path / LOG).stat().st_size
        except FileNotFoundError:
            raise Damaged(f"{LOG} is missing") from None
        if size < head.written or (size > head.written and not head.pending):
            raise Damaged(f"{LOG} has not the length it was left with: open the vault read-only and audit it")

    def _sweep(self, head: Head) -> None:
        """Delete the sealed files that the head does not know."""
        known = {f"{name}.{version}" for name, version in head.sealed.items()}
        for name in os.listdir(self.path / SEALED):
            if SEALED_FILE.fullmatch(name) and name not in known:
                (self.path / SEALED / name).unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns an error of the disk into `VaultError`."""
        try:
            yield
        except OSError as error:
            raise VaultError(f"the vault {self.path} cannot be written: {error.strerror or error}") from error

    def _opened(self) -> bytes:
        if self._key is None:
            raise VaultError(f"the vault {self.path} is closed")
        return self._key

    def _writable(self) -> bytes:
        key = self._opened()
        if self._lock is None or not self._lock.held:
            raise VaultError(f"the vault {self.path} is open for reading only")
        return key


def now() -> str:
    """The time, as the vault writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""The vault: one directory that holds a federation's secrets and remembers what was issued to whom.

Secrets (the keyring, the signing key, marks, checkpoints) are sealed under a random data key, which is itself
wrapped by a key from a passphrase or a key file. What was issued goes to a hash-chained log in clear. One
small sealed file, the head, says what belongs to the vault: the length and last hash of the log, and the name
of every sealed file. Whatever is done is done when a new head has replaced the old one, so a vault killed at
any moment opens as it was before or after, never in between; and whatever differs from what the head says was
not done by a holder of the key. `docs/vault.md` has the files, the argument and the threat model.
"""

import fcntl
import io
import json
import os
import re
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tramark.errors import BadProof, Damaged, NoKey, VaultBusy, VaultError
from tramark.evidence import commitment as commitments
from tramark.evidence.commitment import Commitment, canonical
from tramark.vault import commit
from tramark.vault.files import pretty, replace_file, sync_directory, write_synced
from tramark.vault.lock import (
    HEAD,
    HEADER,
    LOCK,
    LOG,
    PUBLIC,
    SEALED,
    find_key,
    read_header,
    unwrap,
    wrap,
)
from tramark.vault.log import GENESIS, Entry, entry_of, issued, line_hash, line_of
from tramark.vault.seal import seal, unseal

if TYPE_CHECKING:
    from torch import Tensor

    from tramark.fleet.layout import State
    from tramark.keys.keyring import Keyring


KEYRING, SIGNING, COMMITMENTS, SERVER = "keyring", "signing-key", "commitments", "server"


_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


_SEALED_FILE = re.compile(_NAME.pattern + r"\.[0-9a-f]{16}")


@dataclass(frozen=True)
class _Head:
    """What belongs to the vault. `pending` is what was decided but perhaps not yet carried out."""

    entries: int = 0
    length: int = 0
    hash: str = GENESIS
    sealed: Mapping[str, str] = field(default_factory=dict)
    pending: "_Pending | None" = None


@dataclass(frozen=True)
class _Pending:
    """Lines that the log gets at `offset`, and whether the public commitment changes."""

    offset: int
    lines: str
    publish: bool


class Vault:
    """A federation's secrets and its log of issued models, sealed in one directory.

    >>> import tempfile; from tramark.keys.keyring import Keyring
    >>> ring = Keyring.generate(clients=["alice", "bob"], classes=10, input_shape=(1, 8, 8), pool=32)
    >>> path = Path(tempfile.mkdtemp()) / "vault"
    >>> with Vault.create(path, ring, key_file=make_key_file(default_key_file(path))) as vault:
    ...     vault.record([issued(1, "alice", "0" * 64), issued(1, "bob", "1" * 64)])
    >>> with Vault.open(path) as vault:    # finds the key file beside it
    ...     vault.keyring == ring, vault.audit(), [entry["event"] for entry in vault.log()]
    (True, [], ['created', 'issued', 'issued'])

    One process may write to a vault at a time; any number may read it meanwhile.
    """

    def __init__(self, path: Path, key: bytes, vault_id: str, lock: int | None, images: Any = None) -> None:
        self.path, self.id = path, vault_id
        self._key: bytes | None = key
        self._lock, self._images = lock, images
        self._mutex = threading.RLock()
        self._keyring: tuple[str, Keyring] | None = None
        _OPEN.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._key is None else "read-only" if self._lock is None else "writable"
        return f"<Vault {self.path} ({state})>"

    @classmethod
    def create(
        cls,
        path: str | Path,
        keyring: "Keyring",
        *,
        passphrase: str | None = None,
        key_file: str | Path | None = None,
    ) -> Self:
        """Make a vault for a keyring, with its signed commitment, and open it for writing.

        The key comes from `find_key`. The vault is built beside `path` and put there whole: there never is
        half a vault.
        """
        path = Path(path)
        source = find_key(path, passphrase=passphrase, key_file=key_file)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise VaultError(f"{path} exists already: a vault is made in a new directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        building = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        building.mkdir(mode=0o700)
        key, vault_id = secrets.token_bytes(32), secrets.token_hex(16)
        vault = cls(building, key, vault_id, _acquire(building))
        try:
            (building / SEALED).mkdir(mode=0o700)
            replace_file(building / HEADER, wrap(key, vault_id, source))
            write_synced(building / LOG, [])
            vault._write_head(_Head())
            signing_key = Ed25519PrivateKey.generate()
            first, leaves = commit.commit(keyring, signing_key, vault=vault_id, time=_now())
            vault._commit(
                [
                    {
                        "event": "created",
                        "vault": vault_id,
                        "clients": keyring.clients,
                        "commitment": first.digest,
                    }
                ],
                {
                    KEYRING: canonical(keyring.to_dict()),
                    SIGNING: signing_key.private_bytes_raw(),
                    COMMITMENTS: _chain_text([(first, leaves)]),
                },
                publish=True,
            )
            os.rename(building, path)
        except BaseException:
            vault.close()
            shutil.rmtree(building, ignore_errors=True)
            raise
        sync_directory(path.parent)
        vault.path = path
        return vault

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        passphrase: str | None = None,
        key_file: str | Path | None = None,
        prompt: Callable[[], str] | None = None,
        readonly: bool = False,
        images: "tuple[Tensor, Tensor] | None" = None,
    ) -> Self:
        """Open a vault with a key from `find_key`, for writing unless `readonly`.

        Opening for writing finishes what a killed process had decided and clears away what it had not.
        `images` are needed for the keyring alone, and only when its questions come from an image set.
        """
        path = Path(path)
        header = read_header(path)
        source = find_key(path, passphrase=passphrase, key_file=key_file, prompt=prompt)
        key = unwrap(header, source)
        vault = cls(path, key, header["id"], None if readonly else _acquire(path), images)
        try:
            head = vault._head()
            if not readonly:
                vault._finish(head)
        except BaseException:
            vault.close()
            raise
        return vault

    def close(self) -> None:
        """Forget the key and let others write."""
        self._key = self._keyring = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def keyring(self) -> "Keyring":
        """The keyring as last saved."""
        from tramark.keys.keyring import Keyring

        version = self._head().sealed[KEYRING]
        if self._keyring is None or self._keyring[0] != version:
            plain = json.loads(self._get(KEYRING))
            self._keyring = version, Keyring.from_dict(plain, images=self._images)
        return self._keyring[1]

    @property
    def sealed_keyring(self) -> dict[str, Any]:
        """The keyring as plain values, for when its questions' images must be found first. Secret."""
        plain: dict[str, Any] = json.loads(self._get(KEYRING))
        return plain

    def save_keyring(self, keyring: "Keyring", blobs: Mapping[str, bytes] | None = None) -> None:
        """Keep a keyring in which clients joined or left, or other questions of the pool were chosen, or retouched.

        The log says what changed, and new clients, or other questions, get a further signed commitment. `blobs` are put
        with it, all or nothing.
        """
        blobs = dict(blobs or {})
        with self._mutex:
            old, new = json.loads(self._get(KEYRING)), json.loads(canonical(keyring.to_dict()))
            may_change = {"clients", "departed", "chosen", "questions", "triggers"}
            known = old["clients"]
            (drawn, pictures), (same, others) = _source(old), _source(new)
            retouched = pictures != others
            if (
                drawn != same
                or any(old[name] != new[name] for name in old.keys() - may_change)
                or new["clients"][: len(known)] != known
            ):
                raise VaultError("this is another keyring: only its clients and its choice of questions may change")
            joined, left, gone = new["clients"][len(known) :], set(old["departed"]), set(new["departed"])
            events: list[Entry] = [{"event": "client-joined", "client": client} for client in joined]
            if new["chosen"] != old["chosen"] or retouched:
                events.append({"event": "questions-chosen", "questions": new["chosen"]})
            committed = len(events)
            events += [{"event": "client-joined", "client": client} for client in sorted(left - gone)]
            events += [{"event": "client-left", "client": client} for client in sorted(gone - left)]
            if events:
                blobs[KEYRING] = canonical(new)
            if committed:
                chain = self._chain()
                key = Ed25519PrivateKey.from_private_bytes(self._get(SIGNING))
                added = commit.commit(keyring, key, vault=self.id, time=_now(), after=chain[-1][0], retouched=retouched)
                blobs[COMMITMENTS] = _chain_text([*chain, added])
                for event in events[:committed]:
                    event["commitment"] = added[0].digest
            if blobs:
                self._commit(events, blobs, publish=bool(committed))

    def save(self, keyring: "Keyring", state: Mapping[str, Any]) -> None:
        """Keep a server's keyring and its `state_dict()`, all or nothing, to go on from after a crash."""
        from tramark.vault.packing import pack

        self.save_keyring(keyring, {SERVER: pack(state)})

    def saved(self) -> dict[str, Any] | None:
        """The server's state as last saved; None before that."""
        from tramark.vault.packing import unpack

        return unpack(self._get(SERVER)) if SERVER in self._head().sealed else None

    def issue(self, round: int, models: "Mapping[str, State]", shared: Collection[str] = ()) -> None:
        """Log which model goes to whom; call it before they are sent.

        `shared` are the names of tensors that are the same in all of these models: they are hashed once.
        """
        entries: list[Entry] = []
        known: dict[str, str] = {}
        for client, state in models.items():
            known = known or {name: commit.tensor_digest(state[name]) for name in shared}
            entries.append(issued(round, client, commit.state_digest(state, known=known)))
        self.record(entries)

    def record(self, entries: Iterable[Entry], blobs: Mapping[str, bytes] | None = None) -> None:
        """Append entries to the log and put blobs, all or nothing; when this returns, they are on the disk.

        An entry is a dict of plain values with an `event`, such as `issued` makes. The vault adds number and
        time.
        """
        blobs = blobs or {}
        for name in blobs:
            self._check_name(name)
        self._commit(list(entries), blobs)

    def put(self, name: str, data: bytes) -> None:
        """Seal `data` under a name (a-z, 0-9, - and _), in place of what was there."""
        self.record([], {name: data})

    def put_tensors(self, name: str, tensors: "Mapping[str, Tensor]") -> None:
        """Seal tensors (marks, a region, a checkpoint) under a name."""
        from safetensors.torch import save

        self.put(name, save(dict(tensors)))

    def get(self, name: str) -> bytes:
        """What was put under a name, or `KeyError`."""
        self._check_name(name)
        return self._get(name)

    def get_tensors(self, name: str) -> "dict[str, Tensor]":
        """The tensors that were put under a name."""
        from safetensors.torch import load

        return load(self.get(name))

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which something was put."""
        return tuple(sorted(set(self._head().sealed) - {KEYRING, SIGNING, COMMITMENTS}))

    def log(self) -> Iterator[Entry]:
        """All entries, oldest first. A log that is not what was written raises `Damaged`."""
        head = self._head()
        previous = GENESIS
        for number, line in enumerate(self._lines(head)):
            entry = entry_of(line)
            if entry is None or (entry["n"], entry["previous"]) != (number, previous):
                raise Damaged(f"{LOG}: entry {number} is not what was written: audit the vault")
            previous = line_hash(line)
            yield entry
        if previous != head.hash:
            raise Damaged(f"{LOG}: the last entry is not the last one written: audit the vault")

    @property
    def head(self) -> tuple[int, str]:
        """The number of entries and the last hash: kept elsewhere, they betray a vault set back in time."""
        head = self._head()
        return head.entries, head.hash

    @property
    def commitments(self) -> tuple[Commitment, ...]:
        """What was committed to and signed: at creation, when questions were chosen, and when clients joined."""
        return tuple(commitment for commitment, _ in self._chain())

    def prove_answers(self, client: str, questions: Iterable[int]) -> dict[str, Any]:
        """Open a client's answers to some questions of the pool, for `commitment.verify_answers`."""
        keyring = self.keyring
        keyring.key(client)
        place = keyring.clients.index(client)
        for commitment, leaves in self._chain():
            if place < sum(commitment.clients):
                return commit.prove_answers(keyring, client, questions, commitment, leaves)
        raise Damaged(f"client {client!r} is in the keyring, but in no commitment")

    def prove_questions(self, wanted: Mapping[int, Iterable[int]]) -> list[dict[str, Any]]:
        """Open variants of questions for `commitment.verify_questions`: a proof per commitment."""
        keyring, proofs, left = self.keyring, [], dict(wanted)
        # From the last one on: what was retouched is committed to again, and is no longer what it was before.
        for commitment, leaves in reversed(self._chain()):
            here = {question: left.pop(question) for question in list(left) if question in commitment.asked}
            if here:
                proofs.append(commit.prove_questions(keyring, here, commitment, leaves))
        if left:
            raise ValueError("not all of these questions were committed to")
        return proofs[::-1]

    def sign(self, purpose: str, message: bytes) -> str:
        """Sign with the key that signed the commitments; `commitment.verify_signature` checks it."""
        if purpose == "commitment":
            raise ValueError("commitments are signed by the vault itself")
        return commitments.sign(Ed25519PrivateKey.from_private_bytes(self._get(SIGNING)), purpose, message)

    def rotate(self, *, passphrase: str | None = None, key_file: str | Path | None = None) -> None:
        """Lock the vault with another passphrase or key file; nothing sealed is rewritten.

        Whoever knew the old one and kept an old copy of the vault's files can still read what they have.
        """
        if passphrase is None and key_file is None:
            raise NoKey("give the new passphrase or key file")
        source = find_key(self.path, passphrase=passphrase, key_file=key_file)
        with self._mutex:
            key = self._writable()
            replace_file(self.path / HEADER, wrap(key, self.id, source))
            self._commit([{"event": "rotated", "to": "passphrase" if source.key_file is None else "key file"}], {})

    def audit(self) -> list[str]:
        """All that is wrong with the vault's files, in words; nothing, if they are what was written.

        Remains of a killed process are no fault: the head tells them from tampering.
        """
        while True:
            head = self._head()
            problems = list(self._problems(head))
            # What looked wrong may be another process at work: look again if the vault has moved on.
            if not problems or self._head() == head:
                return problems

    def _problems(self, head: _Head) -> Iterator[str]:
        for required in (HEADER, LOG, PUBLIC, LOCK):
            if not (self.path / required).is_file():
                yield f"{required} is missing"
        try:
            if read_header(self.path)["id"] != self.id:
                yield f"{HEADER} belongs to another vault"
        except VaultError as error:
            yield str(error)
        for name in head.sealed:
            try:
                for _ in self._unseal(head, name):
                    pass
            except Damaged as error:
                yield str(error)
        yield from self._log_problems(head)
        yield from self._commitment_problems(head)
        ours = {HEADER, HEAD, LOG, PUBLIC, LOCK, SEALED}
        ours |= {name + ".tmp" for name in ours}
        strangers = [name for name in os.listdir(self.path) if name not in ours]
        if (self.path / SEALED).is_dir():
            strangers += [f"{SEALED}/{n}" for n in os.listdir(self.path / SEALED) if not _SEALED_FILE.fullmatch(n)]
        yield from (f"{name} does not belong to the vault" for name in sorted(strangers))

    def _log_problems(self, head: _Head) -> Iterator[str]:
        pending, previous, number, length = head.pending, GENESIS, 0, 0
        if not (self.path / LOG).is_file():
            return
        for line in self._lines(head, everything=pending is None):
            entry = entry_of(line)
            found = number if entry is None else entry["n"]
            if entry is None:
                yield f"{LOG}: entry {number} was changed"
            elif found > number:
                yield f"{LOG}: entries {number} to {found - 1} were removed"
            elif found < number:
                yield f"{LOG}: entry {found} stands where entry {number} should: inserted or reordered"
            elif entry["previous"] != previous:
                yield f"{LOG}: entry {number - 1} was changed: it is not what entry {number} follows"
            previous, number, length = line_hash(line), found + 1, length + len(line)
        remains = self._log_from(pending.offset) if pending else b""
        if length < head.length:
            yield f"{LOG}: the tail was cut off: of {head.entries} acknowledged entries {number} are there"
        elif length > head.length or (pending and not pending.lines.encode().startswith(remains)):
            yield f"{LOG}: something was added after the last of {head.entries} entries"
        elif previous != head.hash:
            yield f"{LOG}: the last entry was changed, or the whole chain was rewritten"

    def _commitment_problems(self, head: _Head) -> Iterator[str]:
        try:
            chain = _read_chain(b"".join(self._unseal(head, COMMITMENTS)))
            public = (self.path / PUBLIC).read_bytes()
        except (Damaged, OSError):
            return
        unpublished = head.pending is not None and head.pending.publish
        texts = [_public_text(chain[:count]) for count in range(1, len(chain) + 1)]
        if public not in (texts if unpublished else texts[-1:]):
            yield f"{PUBLIC} is not what was published"
        try:
            commitments.verify_chain([commitment for commitment, _ in chain])
        except BadProof as error:
            yield f"the sealed commitments do not hold: {error}"

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name in (KEYRING, SIGNING, COMMITMENTS):
            raise VaultError(
                f"nothing can be put under {name!r}: use a-z, 0-9, - and _, and no name of the vault's own"
            )

    def _opened(self) -> bytes:
        if self._key is None:
            raise VaultError(f"the vault {self.path} is closed")
        return self._key

    def _writable(self) -> bytes:
        key = self._opened()
        if self._lock is None:
            raise VaultError(f"the vault {self.path} is open for reading only")
        return key

    def _head(self) -> _Head:
        plain = json.loads(b"".join(unseal(self._opened(), self.id, self.path, HEAD)))
        if plain["pending"] is not None:
            plain["pending"] = _Pending(**plain["pending"])
        return _Head(**plain)

    def _write_head(self, head: _Head) -> None:
        replace_file(self.path / HEAD, b"".join(seal(self._writable(), self.id, HEAD, canonical(asdict(head)))))

    def _unseal(self, head: _Head, name: str) -> Iterator[bytes]:
        return unseal(self._opened(), self.id, self.path, f"{SEALED}/{name}.{head.sealed[name]}")

    def _get(self, name: str) -> bytes:
        while True:
            head = self._head()
            if name not in head.sealed:
                raise KeyError(f"nothing was put under {name!r}")
            # A buffer that is handed out as it is holds the data once; joining chunks would need it twice.
            buffer = io.BytesIO()
            try:
                buffer.writelines(self._unseal(head, name))
                return buffer.getvalue()
            except Damaged:
                # A writer in another process may have replaced it between our two looks.
                if self._head() == head:
                    raise

    def _chain(self) -> list[tuple[Commitment, list[bytes]]]:
        return _read_chain(self._get(COMMITMENTS))

    def _lines(self, head: _Head, *, everything: bool = False) -> Iterator[bytes]:
        """The log's lines as the head has them, or all that the file has."""
        left = head.pending.offset if head.pending else head.length
        try:
            with (self.path / LOG).open("rb") as log:
                for line in log:
                    if left <= 0 and not everything:
                        break
                    yield line
                    left -= len(line)
        except FileNotFoundError:
            raise Damaged(f"{LOG} is missing") from None
        if head.pending:
            yield from head.pending.lines.encode().splitlines(keepends=True)

    def _log_from(self, offset: int) -> bytes:
        with (self.path / LOG).open("rb") as log:
            log.seek(offset)
            return log.read()

    def _commit(self, entries: list[Entry], blobs: Mapping[str, bytes], *, publish: bool = False) -> None:
        """Seal blobs, then decide (the new head), then carry out: all of it, whenever we may be killed."""
        with self._mutex:
            key = self._writable()
            head = self._head()
            if head.pending:
                self._finish(head)
            lines, last = [], head.hash
            now = _now()
            for number, entry in enumerate(entries, head.entries):
                line = line_of(entry, number, now, last)
                last = line_hash(line)
                lines.append(line)
            sealed = dict(head.sealed)
            for name, data in blobs.items():
                sealed[name] = secrets.token_hex(8)
                label = f"{SEALED}/{name}.{sealed[name]}"
                write_synced(self.path / label, seal(key, self.id, label, data), flags=os.O_EXCL)
            if blobs:
                sync_directory(self.path / SEALED)
            text = b"".join(lines)
            after = _Head(
                entries=head.entries + len(lines),
                length=head.length + len(text),
                hash=last,
                sealed=sealed,
                pending=_Pending(head.length, text.decode(), publish) if lines or publish else None,
            )
            self._write_head(after)
            self._finish(after)

    def _finish(self, head: _Head) -> None:
        """Carry out what the head has decided and clear away what it does not know; twice does no harm."""
        whole = head.pending.offset if head.pending else head.length
        try:
            size = (self.path / LOG).stat().st_size
        except FileNotFoundError:
            raise Damaged(f"{LOG} is missing") from None
        if size < whole or (size > whole and not head.pending):
            raise Damaged(f"{LOG} has not the length it was left with: open the vault read-only and audit it")
        if head.pending:
            with (self.path / LOG).open("r+b") as log:
                log.truncate(whole)
                log.seek(whole)
                log.write(head.pending.lines.encode())
                log.flush()
                os.fsync(log.fileno())
            if head.pending.publish:
                replace_file(self.path / PUBLIC, _public_text(self._chain()), mode=0o644)
            self._write_head(replace(head, pending=None))
        ours = {f"{name}.{version}" for name, version in head.sealed.items()}
        for name in os.listdir(self.path / SEALED):
            if _SEALED_FILE.fullmatch(name) and name not in ours:
                (self.path / SEALED / name).unlink(missing_ok=True)


def audit(
    path: str | Path,
    *,
    passphrase: str | None = None,
    key_file: str | Path | None = None,
    prompt: Callable[[], str] | None = None,
) -> list[str]:
    """All that is wrong with the vault at `path`, also when it is too damaged to be opened."""
    try:
        with Vault.open(path, passphrase=passphrase, key_file=key_file, prompt=prompt, readonly=True) as vault:
            return vault.audit()
    except Damaged as error:
        return [str(error)]


_OPEN: "weakref.WeakSet[Vault]" = weakref.WeakSet()


def _forget_locks() -> None:
    # A forked child shares its parent's lock: it must not write, nor keep the lock when the parent dies.
    for vault in _OPEN:
        if vault._lock is not None:
            os.close(vault._lock)
            vault._lock = None


os.register_at_fork(after_in_child=_forget_locks)


def _acquire(path: Path) -> int:
    """Take the writer's lock, which the operating system takes back however the process ends."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise VaultError(f"the vault {path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise VaultBusy(f"another process is writing to the vault {path}: wait for it, or open it read-only") from None
    return lock


def _source(keyring: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Where a keyring's questions come from, and those that were retouched."""
    source = dict(keyring["triggers"])
    return source, source.pop("retouched", {})


def _chain_text(chain: Iterable[tuple[Commitment, list[bytes]]]) -> bytes:
    """The commitments with the leaves of their top trees, which stay sealed."""
    return canonical([{"commitment": c.to_dict(), "leaves": [leaf.hex() for leaf in leaves]} for c, leaves in chain])


def _read_chain(text: bytes) -> list[tuple[Commitment, list[bytes]]]:
    return [
        (Commitment.from_dict(item["commitment"]), [bytes.fromhex(leaf) for leaf in item["leaves"]])
        for item in json.loads(text)
    ]


def _public_text(chain: Iterable[tuple[Commitment, list[bytes]]]) -> bytes:
    return pretty({"commitments": [commitment.to_dict() for commitment, _ in chain]})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

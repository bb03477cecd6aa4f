"""How a vault is locked: where its key comes from, the header that holds the wrapped data key, and the writer's lock.

The data key, under which everything is sealed, is random. The header (`vault.json`) holds it encrypted under a key
that comes from a passphrase (scrypt) or a key file (HKDF). One process at a time may write to a vault: the one that
holds `flock` on the file `lock`.
"""

import json
import os
import secrets
import stat
import unicodedata
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from tramark.errors import Damaged, NoKey, UnsupportedSystem, VaultBusy, VaultError, WrongKey
from tramark.evidence.commitment import canonical, sha256
from tramark.vault.files import pretty, sync_directory, write_new
from tramark.vault.head import HEAD, HEADER, LOCK
from tramark.vault.seal import SALT

try:
    import fcntl
except ImportError:
    raise UnsupportedSystem(
        "a vault needs Linux, macOS or another POSIX system: here is no fcntl, with which its writer locks it"
    ) from None

_FORMAT = "tramark vault 1"
_SCRYPT = {"n": 2**17, "r": 8, "p": 1}


@dataclass(frozen=True)
class KeySource:
    """Where a vault's key comes from: a passphrase or a key file."""

    passphrase: str | None = field(default=None, repr=False)
    key_file: Path | None = None


def default_key_file(path: str | Path) -> Path:
    """The key file that is looked for if none is given: the one beside the vault.

    >>> default_key_file("run/vault").as_posix()
    'run/vault.key'
    """
    path = Path(path)
    return path.with_name(path.name + ".key")


def make_key_file(path: str | Path) -> Path:
    """Make a new key file (32 random bytes, readable by their owner alone) and return its path. It replaces no file."""
    path = Path(path)
    try:
        write_new(path, [secrets.token_bytes(32)])
    except FileExistsError:
        raise VaultError(f"{path} exists already: a key file is never overwritten") from None
    sync_directory(path.parent)
    return path


def find_key(
    path: str | Path,
    *,
    passphrase: str | None = None,
    key_file: str | Path | None = None,
    prompt: Callable[[], str] | None = None,
) -> KeySource:
    """The source of the key of the vault at `path`.

    A source that is given comes first, then `TRAMARK_PASSPHRASE`, then the key file beside the vault, then `prompt`.
    If the vault exists, only the kind of source that it is locked with counts.
    """
    if passphrase is not None and key_file is not None:
        raise VaultError("a vault has a passphrase or a key file, not both")
    if passphrase is not None:
        return KeySource(passphrase=passphrase)
    if key_file is not None:
        return KeySource(key_file=Path(key_file))
    kind = read_header(Path(path))["lock"]["kind"] if (Path(path) / HEADER).exists() else None
    if kind != "key file" and (known := os.environ.get("TRAMARK_PASSPHRASE")):
        return KeySource(passphrase=known)
    beside = default_key_file(path)
    if kind != "passphrase" and beside.exists():
        return KeySource(key_file=beside)
    if kind != "key file" and prompt is not None:
        return KeySource(passphrase=prompt())
    wanted = {"key file": f"its key file (--key-file; not found at {beside})", "passphrase": "its passphrase"}
    needs = wanted.get(kind or "", "a passphrase or a key file")
    how = "" if kind == "key file" else " (TRAMARK_PASSPHRASE)"
    raise NoKey(f"the vault {path} needs {needs}{how}")


def wrap(key: bytes, vault_id: str, source: KeySource) -> bytes:
    """The header of a vault: how it is locked, and its data key `key` locked that way."""
    salt = secrets.token_bytes(SALT).hex()
    lock: dict[str, Any] = {"kind": "key file", "salt": salt}
    if source.key_file is None:
        lock = {"kind": "passphrase", "salt": salt, **_SCRYPT}
    header: dict[str, Any] = {"format": _FORMAT, "id": vault_id, "lock": lock}
    nonce = secrets.token_bytes(12)
    wrapped = nonce + AESGCM(_locking_key(lock, source)).encrypt(nonce, key, canonical(header))
    return _header_text(header | {"wrapped": wrapped.hex()})


def unwrap(header: Mapping[str, Any], source: KeySource) -> bytes:
    """The data key that a header holds, or `WrongKey`."""
    kind = header["lock"]["kind"]
    if (kind == "key file") != (source.key_file is not None):
        raise WrongKey(f"this vault is locked with a {kind}")
    wrapped = bytes.fromhex(header["wrapped"])
    bound = canonical({name: header[name] for name in ("format", "id", "lock")})
    try:
        return AESGCM(_locking_key(header["lock"], source)).decrypt(wrapped[:12], wrapped[12:], bound)
    except InvalidTag:
        wrong = "wrong passphrase" if kind == "passphrase" else f"{source.key_file} is not this vault's key"
        raise WrongKey(wrong) from None


def _locking_key(lock: Mapping[str, Any], source: KeySource) -> bytes:
    salt = bytes.fromhex(lock["salt"])
    if source.key_file is not None:
        return HKDF(SHA256(), 32, salt, b"tramark vault key").derive(_read_key_file(source.key_file))
    if not source.passphrase:
        raise WrongKey("an empty passphrase protects nothing")
    # The same passphrase may be typed as different code points on different systems.
    passphrase = unicodedata.normalize("NFC", source.passphrase).encode()
    return Scrypt(salt, 32, lock["n"], lock["r"], lock["p"]).derive(passphrase)


def _read_key_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise VaultError(f"the key file {path} can be read by others: chmod 600 it (and consider rotating)")
            key = file.read(33)
    except OSError as error:
        raise NoKey(f"the key file {path} cannot be read: {error.strerror}") from None
    if len(key) != 32:
        raise WrongKey(f"{path} is not a key file: it should have 32 bytes")
    return key


def _header_text(header: Mapping[str, Any]) -> bytes:
    # The checksum is no protection: it tells a damaged file from a wrong passphrase.
    check = sha256(canonical(header)).hex()
    return pretty({**header, "check": check})


def read_header(path: Path) -> dict[str, Any]:
    """The header of the vault at `path`, checked as far as it can be without the key."""
    try:
        text = (path / HEADER).read_bytes()
    except OSError:
        if (path / HEAD).exists():
            raise Damaged(f"{HEADER} is missing or cannot be read") from None
        raise VaultError(f"there is no vault at {path}") from None
    try:
        header = json.loads(text)
        check = header.pop("check")
        lock = header["lock"]
        intact = _header_text(header) == text and check == sha256(canonical(header)).hex()
        known = header["format"] == _FORMAT and lock["kind"] in ("passphrase", "key file")
        # A forged header must not make scrypt take all memory.
        if lock["kind"] == "passphrase":
            known = known and 2 <= lock["n"] <= 2**20 and 1 <= lock["r"] <= 32 and 1 <= lock["p"] <= 16
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{HEADER} was changed") from None
    if not intact:
        raise Damaged(f"{HEADER} was changed")
    if not known:
        raise VaultError(f"{path} is a vault of a kind that this version does not know")
    return header  # type: ignore[no-any-return]


class WriterLock:
    """The right to write to the vault at `path`. The operating system takes it back however the process ends.

    `name` is the lock's file. If somebody else has the lock, `busy` says so in the error; without it, one waits.
    """

    def __init__(
        self,
        path: Path,
        name: str = LOCK,
        busy: str | None = "another process is writing to the vault {path}: wait for it, or open it read-only",
    ) -> None:
        try:
            descriptor = os.open(path / name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise VaultError(f"the vault {path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            os.close(descriptor)
            raise VaultBusy((busy or "").format(path=path)) from None
        self._descriptor: int | None = descriptor
        _HELD.add(self)

    @property
    def held(self) -> bool:
        """Whether this process may still write."""
        return self._descriptor is not None

    def release(self) -> None:
        """Let others write."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_HELD: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _release_all() -> None:
    # A forked child must not write, nor keep the lock when its parent ends.
    for lock in _HELD:
        lock.release()


os.register_at_fork(after_in_child=_release_all)

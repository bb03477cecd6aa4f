"""vault.lock"""

import json
import os
import secrets
import stat
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from tramark.errors import Damaged, NoKey, VaultError, WrongKey
from tramark.evidence.commitment import canonical, sha256
from tramark.vault.files import pretty, sync_directory, write_synced
from tramark.vault.seal import _SALT

HEADER, HEAD, LOG, PUBLIC, LOCK, SEALED = (
    "vault.json",
    "head.sealed",
    "log.jsonl",
    "commitment.json",
    "lock",
    "sealed",
)


_FORMAT = "tramark vault 1"


_SCRYPT = {"n": 2**17, "r": 8, "p": 1}


@dataclass(frozen=True)
class KeySource:
    """Where a vault's key comes from: a passphrase or a key file."""

    passphrase: str | None = field(default=None, repr=False)
    key_file: Path | None = None


def default_key_file(path: str | Path) -> Path:
    """Where the key file of a vault is looked for: beside it.

    >>> default_key_file("run/vault").as_posix()
    'run/vault.key'
    """
    path = Path(path)
    return path.with_name(path.name + ".key")


def make_key_file(path: str | Path) -> Path:
    """Make a new key file: 32 random bytes that only their owner can read. No file is ever replaced."""
    path = Path(path)
    try:
        write_synced(path, [secrets.token_bytes(32)], flags=os.O_EXCL)
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
    """Where to take the key of the vault at `path` from.

    What is given comes first, then `TRAMARK_PASSPHRASE`, then the key file beside the vault, then `prompt`.
    For a vault that exists, only the kind that it is locked with is looked for.
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
    """The header: how the vault is locked, and its data key locked that way."""
    salt = secrets.token_bytes(_SALT).hex()
    lock: dict[str, Any] = {"kind": "key file", "salt": salt}
    if source.key_file is None:
        lock = {"kind": "passphrase", "salt": salt, **_SCRYPT}
    header: dict[str, Any] = {"format": _FORMAT, "id": vault_id, "lock": lock}
    nonce = secrets.token_bytes(12)
    wrapped = nonce + AESGCM(_locking_key(lock, source)).encrypt(nonce, key, canonical(header))
    return header_text(header | {"wrapped": wrapped.hex()})


def unwrap(header: Mapping[str, Any], source: KeySource) -> bytes:
    kind = header["lock"]["kind"]
    if (kind == "key file") != (source.key_file is not None):
        raise WrongKey(f"this vault is locked with a {kind}")
    wrapped = bytes.fromhex(header["wrapped"])
    bound = canonical({name: header[name] for name in ("format", "id", "lock")})
    try:
        return AESGCM(_locking_key(header["lock"], source)).decrypt(wrapped[:12], wrapped[12:], bound)
    except InvalidTag:
        raise WrongKey(
            "wrong passphrase" if kind == "passphrase" else f"{source.key_file} is not this vault's key"
        ) from None


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


def header_text(header: Mapping[str, Any]) -> bytes:
    # The checksum is no protection: it tells a damaged file from a wrong passphrase.
    check = sha256(canonical(header)).hex()
    return pretty({**header, "check": check})


def read_header(path: Path) -> dict[str, Any]:
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
        intact = header_text(header) == text and check == sha256(canonical(header)).hex()
        known = header["format"] == _FORMAT and lock["kind"] in ("passphrase", "key file")
        # Limits, lest a forged header make scrypt take all memory.
        if lock["kind"] == "passphrase":
            known = known and 2 <= lock["n"] <= 2**20 and 1 <= lock["r"] <= 32 and 1 <= lock["p"] <= 16
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{HEADER} was changed") from None
    if not intact:
        raise Damaged(f"{HEADER} was changed")
    if not known:
        raise VaultError(f"{path} is a vault of a kind that this version does not know")
    return header  # type: ignore[no-any-return]

"""Sealed files: encrypted, and bound to their vault and their name.

A file has its own key, made from the vault's data key, a salt, the vault's id and the file's path (the label). Its
content is encrypted with AES-256-GCM in chunks of one MiB. The nonce of a chunk is its number and whether it is the
last one, so no chunk can be moved or cut off. `docs/reference/vault.md` has the bytes.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tramark.errors import Damaged

SALT, CHUNK = 32, 1 << 20

_MAGIC = b"tramark sealed 1"
_TAG = 16


def seal(key: bytes, vault_id: str, label: str, data: bytes) -> Iterator[bytes]:
    """The bytes of the sealed file `label`, part by part."""
    salt = secrets.token_bytes(SALT)
    yield _MAGIC + salt
    cipher = AESGCM(_file_key(key, vault_id, label, salt))
    view = memoryview(data)
    count = max(1, -(-len(view) // CHUNK))
    for number in range(count):
        chunk = view[number * CHUNK : (number + 1) * CHUNK]
        yield cipher.encrypt(_nonce(number, last=number == count - 1), chunk, None)


def unseal(key: bytes, vault_id: str, root: Path, label: str) -> Iterator[bytes]:
    """The content of the sealed file `label` under `root`, chunk by chunk, each of them authentic."""
    try:
        with (root / label).open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise InvalidTag
            cipher = AESGCM(_file_key(key, vault_id, label, file.read(SALT)))
            number, chunk = 0, file.read(CHUNK + _TAG)
            while True:
                following = file.read(CHUNK + _TAG)
                yield cipher.decrypt(_nonce(number, last=not following), chunk, None)
                if not following:
                    return
                number, chunk = number + 1, following
    except FileNotFoundError:
        raise Damaged(f"{label} is missing") from None
    except InvalidTag:
        raise Damaged(f"{label} was changed, or is not the file of this name") from None


def _file_key(key: bytes, vault_id: str, label: str, salt: bytes) -> bytes:
    # With one key per file, nonces can simply count.
    return HKDF(SHA256(), 32, salt, b"tramark sealed\0" + vault_id.encode() + b"\0" + label.encode()).derive(key)


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])

"""vault.seal"""

import secrets
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tramark.errors import Damaged

_MAGIC = b"tramark sealed 1"


_SALT, _CHUNK, _TAG = 32, 1 << 20, 16


def seal(key: bytes, vault_id: str, label: str, data: bytes) -> Iterator[bytes]:
    """The bytes of a sealed file: chunks, numbered, the last one marked, so that none is moved or cut off."""
    salt = secrets.token_bytes(_SALT)
    yield _MAGIC + salt
    cipher = AESGCM(_file_key(key, vault_id, label, salt))
    view = memoryview(data)
    count = max(1, -(-len(view) // _CHUNK))
    for number in range(count):
        chunk = view[number * _CHUNK : (number + 1) * _CHUNK]
        yield cipher.encrypt(_nonce(number, last=number == count - 1), chunk, None)


def unseal(key: bytes, vault_id: str, root: Path, label: str) -> Iterator[bytes]:
    """The content of a sealed file, chunk by chunk, each of them authentic."""
    try:
        with (root / label).open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise InvalidTag
            cipher = AESGCM(_file_key(key, vault_id, label, file.read(_SALT)))
            number, chunk = 0, file.read(_CHUNK + _TAG)
            while True:
                following = file.read(_CHUNK + _TAG)
                yield cipher.decrypt(_nonce(number, last=not following), chunk, None)
                if not following:
                    return
                number, chunk = number + 1, following
    except FileNotFoundError:
        raise Damaged(f"{label} is missing") from None
    except InvalidTag:
        raise Damaged(f"{label} was changed, or is not the file of this name") from None


def _file_key(key: bytes, vault_id: str, label: str, salt: bytes) -> bytes:
    # A key per file: its nonces can simply count, and the name and the vault are bound to the content.
    return HKDF(SHA256(), 32, salt, b"tramark sealed\0" + vault_id.encode() + b"\0" + label.encode()).derive(key)


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])

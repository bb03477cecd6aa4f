"""The vault's signing key: what it signs, and how it is replaced by another.

A new key is announced by a further commitment that the old key and the new one sign, so that whoever trusts the old
one can follow to the new one.
"""

from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tramark.errors import SettingError
from tramark.evidence import commitment as commitments
from tramark.evidence.beacon import Beacon
from tramark.vault import commit
from tramark.vault.storage import SIGNING, Storage, now

if TYPE_CHECKING:
    from tramark.keys.keyring import Keyring

OWN_PURPOSES = ("commitment", "new key")
"""What the vault alone signs."""


def sign(storage: Storage, purpose: str, message: bytes) -> str:
    """A signature by the vault's present key, for any purpose but the vault's own."""
    if purpose in OWN_PURPOSES:
        raise SettingError("commitments are signed by the vault itself")
    return commitments.sign(signing_key(storage), purpose, message)


def commit_again(storage: Storage, keyring: "Keyring", *, retouched: bool, beacon: Beacon | None) -> commit.Chain:
    """The chain with a further commitment, to a keyring that has changed."""
    chain = storage.chain()
    added = commit.commit(
        keyring,
        signing_key(storage),
        vault=storage.id,
        time=now(),
        after=chain[-1][0],
        retouched=retouched,
        beacon=beacon,
    )
    return [*chain, added]


def rotate(storage: Storage) -> tuple[str, str]:
    """Replace the signing key by a new one, and forget the old one; returns both public keys (hex)."""
    with storage.mutex:
        chain, old, new = storage.chain(), signing_key(storage), Ed25519PrivateKey.generate()
        added = commit.hand_over(chain[-1][0], old, new, time=now())
        public = commit.public_key(old), added.public_key
        rotated = {"event": "signing-key-rotated", "from": public[0], "to": public[1], "commitment": added.digest}
        storage.commit([rotated], {SIGNING: new.private_bytes_raw()}, publish=[*chain, (added, b"")])
        return public


def signing_key(storage: Storage) -> Ed25519PrivateKey:
    """The vault's present signing key."""
    return Ed25519PrivateKey.from_private_bytes(storage.get(SIGNING))

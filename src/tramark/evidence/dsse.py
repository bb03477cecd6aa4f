"""DSSE envelopes: a payload with any number of Ed25519 signatures, as in-toto and sigstore tools read them.

A signature is over `DSSEv1 <length> <type> <length> <payload>`, so the payload need not be canonical and what was
signed is never parsed before the signature is checked. The `keyid` of a signature is the signer's public key in hex.
It says who claims to have signed; whether to trust that key is for the reader to decide, by its fingerprint.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tramark.errors import BadProof, Unreadable


@dataclass(frozen=True)
class Envelope:
    """A payload, its type, and the signatures by public key (hex).

    >>> key = Ed25519PrivateKey.generate()
    >>> signed = Envelope(b"{}", "text/json").signed(key)
    >>> Envelope.read(signed.text()).signers() == (key.public_key().public_bytes_raw().hex(),)
    True
    """

    payload: bytes
    kind: str
    signatures: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that are signed: DSSE's pre-authentication encoding."""
        kind = self.kind.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.payload), self.payload)

    def signed(self, key: Ed25519PrivateKey) -> Self:
        """The envelope with one more signature."""
        name = key.public_key().public_bytes_raw().hex()
        return replace(self, signatures={**self.signatures, name: key.sign(self.signed_bytes)})

    def signers(self) -> tuple[str, ...]:
        """The public keys (hex) that signed; `BadProof` if any signature does not hold, or if there is none."""
        if not self.signatures:
            raise BadProof("nobody signed it")
        for name, signature in self.signatures.items():
            try:
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(name)).verify(signature, self.signed_bytes)
            except (InvalidSignature, ValueError):
                raise BadProof(f"the signature of the key {name[:16]!r}… does not hold") from None
        return tuple(self.signatures)

    def text(self) -> bytes:
        """The envelope as JSON, for a file."""
        plain = {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": self.kind,
            "signatures": [
                {"keyid": name, "sig": base64.b64encode(signature).decode()}
                for name, signature in self.signatures.items()
            ],
        }
        return json.dumps(plain, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, text: bytes) -> Self:
        """The envelope in a file, its signatures unchecked; `Unreadable` if it is none."""
        try:
            plain = json.loads(text)
            found = [(item["keyid"], base64.b64decode(item["sig"], validate=True)) for item in plain["signatures"]]
            payload, kind = base64.b64decode(plain["payload"], validate=True), plain["payloadType"]
            if not all(type(value) is str for value in (kind, *dict(found))) or len(dict(found)) < len(found):
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Unreadable("this is not a DSSE envelope with a signature by each key") from None
        return cls(payload, kind, dict(found))

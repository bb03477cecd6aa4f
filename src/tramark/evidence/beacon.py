"""Public beacons: chance that nobody in the federation controls, added to the answers that were committed to.

Whoever knows the answers while the questions are still being made could make questions that any model answers so. A
commitment that settles questions, or clients, can therefore name a later round of a public beacon. When that round's
value is out, client i's answer to question q is

    (committed symbol + digit of XOF(value, commitment, i, q)) mod r,

which nobody could know when the questions were settled. The commitment that counts for a client is the one that settled
the questions or, for a client that joined later, the one with which it joined.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tramark.errors import BadProof, SettingError

DIGITS = 31
"""Bits of every 64-bit word of the stream that are used at most; see `keys.streams.codewords`."""


class Beacon(NamedTuple):
    """Which value of which beacon: its source, the round, and when that round is published (ISO 8601 with zone)."""

    source: str
    round: str
    time: str


class BeaconSource(Protocol):
    """Where a server gets a beacon from: `TraMark(…, beacon=…)` asks it before it writes any answer."""

    def announce(self) -> Beacon:
        """A round that is not out yet. The commitment that settles the questions names it."""

    def value(self, beacon: Beacon) -> bytes:
        """The value of that round; waits until it is out. The new commitment is published when this is called."""


def beacon_key(value: bytes, commitment: str) -> bytes:
    """The key of the shifts that a beacon's value gives to the answers of a commitment (its digest in hex)."""
    if len(value) < 16:
        raise SettingError(f"a beacon's value of {len(value)} bytes can be guessed: at least 16 are needed")
    return hashlib.sha256(b"tramark beacon\0" + bytes.fromhex(commitment) + value).digest()


def shifts(key: bytes, client: str, questions: Iterable[int], classes: int) -> dict[int, int]:
    """What is added to a client's committed symbols, by question.

    >>> shifts(bytes(32), "alice", [0, 1, 639], 10)
    {0: 0, 1: 1, 639: 6}
    """
    asked = list(questions)
    digits = max(1, int(DIGITS / math.log2(classes)))
    shake = hashlib.shake_256()
    for part in (key, b"str:codeword", b"str:" + client.encode()):
        shake.update(len(part).to_bytes(8, "little") + part)
    stream = shake.digest(8 * (max(asked, default=0) // digits + 1))
    words = [int.from_bytes(stream[8 * (q // digits) :][:8], "little") & (2**63 - 1) for q in asked]
    return {q: word // classes ** (q % digits) % classes for q, word in zip(asked, words, strict=True)}


def shifted(
    symbols: Mapping[int, int], client: str, classes: int, *, value: bytes | None, commitment: str
) -> dict[int, int]:
    """A client's answers, given its committed symbols and the value of the beacon that the commitment names."""
    if value is None:
        raise BadProof("the commitment names a beacon, but its value is not in the annex")
    added = shifts(beacon_key(value, commitment), client, symbols, classes)
    return {question: (symbol + added[question]) % classes for question, symbol in symbols.items()}


def from_plain(plain: Sequence[str] | None) -> Beacon | None:
    """The beacon in a commitment's plain values; `ValueError` if it is none."""
    if plain is None:
        return None
    found = Beacon(*plain)
    if not all(type(word) is str and word for word in found):
        raise ValueError
    return found

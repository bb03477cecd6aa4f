"""Randomness that only the holder of a secret can repeat.

Everything secret in a federation (questions, answers) is drawn from SHAKE-256 keyed with the
federation's secret and separated by context, so that a keyring is 32 bytes and a few numbers. The bytes
are turned into numbers by integer arithmetic alone, so that they are the same on every machine and in every
version of torch: a leak may have to be traced years later.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

Context = str | int


def stream(secret: bytes, *context: Context, length: int) -> bytes:
    """`length` pseudo-random bytes, independent for different contexts.

    >>> stream(b"s" * 32, "answers", "alice", length=2) == stream(b"s" * 32, "answers", "bob", length=2)
    False
    """
    shake = hashlib.shake_256()
    # Lengths go in front of the parts, so that ("ab", "c") and ("a", "bc") are different contexts.
    for part in (secret, *(f"{type(c).__name__}:{c}".encode() for c in context)):
        shake.update(len(part).to_bytes(8, "little") + part)
    return shake.digest(length)


def integers(secret: bytes, *context: Context, count: int, below: int) -> Tensor:
    """`count` independent integers, uniform on 0 … below-1 (to within below / 2**63)."""
    words = _buffer(stream(secret, *context, length=8 * count), torch.int64)
    return (words & (2**63 - 1)) % below


def octets(secret: bytes, *context: Context, shape: tuple[int, ...]) -> Tensor:
    """A tensor of independent uniform bytes."""
    return _buffer(stream(secret, *context, length=math.prod(shape)), torch.uint8).reshape(shape)


def fractions(secret: bytes, *context: Context, shape: tuple[int, ...]) -> Tensor:
    """A tensor of independent numbers, uniform on the multiples of 2**-24 in [0, 1)."""
    count = math.prod(shape)
    return (integers(secret, *context, count=count, below=2**24).float() / 2**24).reshape(shape)


def permutation(secret: bytes, *context: Context, count: int) -> Tensor:
    """A random order of 0 … count-1."""
    return torch.argsort(integers(secret, *context, count=count, below=2**62), stable=True)


def codewords(secret: bytes, names: Sequence[str], places: Sequence[int], *, length: int, symbols: int) -> Tensor:
    """Each name's symbols (0 … symbols-1) at some places of its own codeword of this length: names × places.

    A codeword is made of the digits, in base `symbols`, of a stream of 64-bit words. A word yields as many digits as
    stay uniform to within 2**-32: with a million names, most of the time goes into the streams. A longer codeword
    begins with the shorter one.
    """
    digits = max(1, int(31 / math.log2(symbols)))
    place = torch.tensor(places, dtype=torch.int64)
    octets = 8 * math.ceil(length / digits)
    words = bytearray().join(stream(secret, "codeword", name, length=octets) for name in names)
    table = torch.frombuffer(words, dtype=torch.int64).view(len(names), -1) & (2**63 - 1)
    return table[:, place // digits] // symbols ** (place % digits) % symbols


def _buffer(data: bytes, dtype: torch.dtype) -> Tensor:
    # torch.frombuffer refuses an empty buffer, and one that it may not write to.
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)

"""Randomness that only the holder of a secret can repeat.

Everything secret in a federation (questions, answers) is drawn from SHAKE-256 keyed with the
federation's secret and separated by context, so that a keyring is 32 bytes and a few numbers. The bytes
are turned into numbers by integer arithmetic alone: the same on every machine and in every version of
torch, for as long as somebody may want to trace a leak.
"""

import hashlib
import math

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


def _buffer(data: bytes, dtype: torch.dtype) -> Tensor:
    # torch.frombuffer refuses an empty buffer, and one that it may not write to.
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)

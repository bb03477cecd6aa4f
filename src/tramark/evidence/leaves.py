"""The leaves of the trees in a commitment: what is hashed for an answer, a variant, a client and a question."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tramark.evidence.merkle import hashes, leaf_hash, roots


def answer_leaf(salt: bytes, name: bytes, question: int, answer: int) -> bytes:
    """The leaf of a client's answer to a question; `name` is the hash of the client's name."""
    return _salted_leaf(salt, b"answer", name + _u32(question) + _u32(answer))


def client_leaves(
    names: NDArray[np.uint8], salts: NDArray[np.uint8], first: int, questions: Sequence[int], answers: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The leaves, in the top tree, of many clients' answers to the same questions: what `client_leaf` makes of each.

    `names` are hashes of their names (clients × 32 bytes), `salts` those of their answers (clients × questions × 32).
    """
    size = answers.shape
    asked = np.broadcast_to(np.array(questions, ">u4"), size)
    content = (salts, _spread(b"answer\0\0", size), np.broadcast_to(names[:, None], (*size, 32)))
    trees = hashes(_rows(b"\0", *content, _octets(asked), _octets(answers.astype(">u4"))))
    sizes = _spread(_u32(first) + _u32(len(questions)), size[:1])
    return hashes(_rows(b"\0client\0\0", names, sizes, roots(trees)))


def _rows(before: bytes, *parts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.concatenate([_spread(before, parts[0].shape[:-1]), *parts], axis=-1)


def _spread(content: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(content, np.uint8), (*shape, len(content)))


def _octets(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(*numbers.shape, 4)


def variant_leaf(salt: bytes, question: int, variant: int, digest: str) -> bytes:
    """The leaf of a question's variant, whose input has this `array_digest`."""
    return _salted_leaf(salt, b"variant", _u32(question) + _u32(variant) + unhex(digest))


def client_leaf(name: bytes, first: int, count: int, root: bytes) -> bytes:
    """The leaf, in the top tree, of a client's answers; `name` is the hash of the client's name."""
    return _branch_leaf(b"client", name, first, count, root)


def question_leaf(question: int, first: int, count: int, root: bytes) -> bytes:
    """The leaf, in the top tree, of a question's variants."""
    return _branch_leaf(b"question", _u32(question), first, count, root)


def _salted_leaf(salt: bytes, domain: bytes, content: bytes) -> bytes:
    # All salts have one length, and domains are padded to one, so that no two contents have the same encoding.
    return leaf_hash(salt + domain.ljust(8, b"\0") + content)


def _branch_leaf(domain: bytes, name: bytes, first: int, count: int, root: bytes) -> bytes:
    # The salts below hide what the root stands for, so this leaf needs no salt of its own.
    return leaf_hash(domain.ljust(8, b"\0") + name + _u32(first) + _u32(count) + root)


def unhex(text: str, length: int = 32) -> bytes:
    """The bytes of a hexadecimal text; `ValueError` if there are not so many, or if it could be written otherwise."""
    value = bytes.fromhex(text)
    # With spaces and capitals, two different files could say the same.
    if len(value) != length or value.hex() != text:
        raise ValueError
    return value


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")

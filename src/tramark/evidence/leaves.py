"""The leaves of the trees in a commitment: what is hashed for an answer, a variant, a client and a question."""

from collections.abc import Sequence
from hashlib import sha256

from tramark.evidence.merkle import leaf_hash


def answer_leaf(salt: bytes, name: bytes, question: int, answer: int) -> bytes:
    """The leaf of a client's answer to a question; `name` is the hash of the client's name."""
    return answer_leaves([salt], name, [question], [answer])[0]


def answer_leaves(salts: Sequence[bytes], name: bytes, questions: Sequence[int], answers: Sequence[int]) -> list[bytes]:
    """The leaves of a client's answers to some questions. With a million clients, every call counts."""
    domain = b"answer\0\0" + name
    return [
        sha256(b"\0" + salt + domain + (question << 32 | answer).to_bytes(8, "big")).digest()
        for salt, question, answer in zip(salts, questions, answers, strict=True)
    ]


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

"""vault.commit"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tramark.evidence.commitment import (
    Commitment,
    _branch_leaf,
    _salted_leaf,
    _u32,
    _variant_leaf,
    array_digest,
    canonical,
    sha256,
    sign,
)
from tramark.evidence.merkle import MerkleTree

if TYPE_CHECKING:
    from torch import Tensor

    from tramark.keys.keyring import Keyring


SALT = 32


def tensor_digest(tensor: "Tensor") -> str:
    """SHA-256 of a tensor: its type, its shape and its numbers.

    >>> import torch
    >>> raw = torch.zeros(2, 3, dtype=torch.uint8)
    >>> tensor_digest(raw) == array_digest("uint8", (2, 3), bytes(6))
    True
    """
    import torch

    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return array_digest(str(tensor.dtype).removeprefix("torch."), tensor.shape, plain.view(torch.uint8).numpy().data)


def state_digest(state: Mapping[str, "Tensor"], *, known: Mapping[str, str] | None = None) -> str:
    """SHA-256 of a model's state: what the log records of an issued model.

    It is the hash of the names and digests of the tensors, so that tensors which all clients share need be
    hashed once: pass their digests as `known`.
    """
    known = known or {}
    return sha256(canonical({name: known.get(name) or tensor_digest(state[name]) for name in state})).hex()


def commit(
    keyring: "Keyring",
    key: Ed25519PrivateKey,
    *,
    vault: str,
    time: str,
    after: Commitment | None = None,
    retouched: bool = False,
) -> tuple[Commitment, list[bytes]]:
    """Commit to a keyring, or to the clients that joined, and the questions chosen, since the commitment `after`.

    `retouched` says that the chosen questions were, since then. Returns the signed commitment and the leaves of its top
    tree, which openings start from.
    """
    first = sum(after.clients) if after else 0
    clients = keyring.clients[first:]
    if after and not clients and keyring.chosen == after.chosen and not retouched:
        raise ValueError("nobody has joined since the last commitment, and no other questions were chosen")
    if keyring.assignment == "label":
        questions: Sequence[int] = range(first, len(keyring.clients))
    else:
        questions = range(keyring.pool) if after is None else keyring.chosen if retouched else ()
    leaves = [_client_leaf(client, _answers(keyring, client)) for client in clients]
    leaves += [_question_leaf(question, _variants(keyring, question)) for question in questions]
    unsigned = Commitment(
        vault=vault,
        number=after.number + 1 if after else 1,
        previous=after.digest if after else "",
        time=time,
        assignment=keyring.assignment,
        classes=keyring.classes,
        clients=(first, len(clients)),
        questions=(questions.start if isinstance(questions, range) else 0, len(questions)),
        chosen=keyring.chosen,
        root=MerkleTree(leaves).root.hex() if leaves else "",
        public_key=key.public_key().public_bytes_raw().hex(),
    )
    return replace(unsigned, signature=sign(key, "commitment", unsigned.body)), leaves


def prove_answers(
    keyring: "Keyring", client: str, questions: Iterable[int], commitment: Commitment, leaves: Sequence[bytes]
) -> dict[str, Any]:
    """Open a client's answers to `questions`, and nothing else, as plain values for `verify_answers`."""
    index = keyring.clients.index(client) - commitment.clients[0]
    if not 0 <= index < commitment.clients[1]:
        raise ValueError(f"client {client!r} is not in commitment {commitment.number}")
    branch = _answers(keyring, client)
    return {
        "commitment": commitment.number,
        "client": client,
        "index": index,
        "path": _hex(MerkleTree(leaves).path(index)),
        "first": branch.first,
        "count": len(branch.values),
        "answers": [{"question": q, "answer": branch.values[q - branch.first], **branch.open(q)} for q in questions],
    }


def prove_questions(
    keyring: "Keyring", wanted: Mapping[int, Iterable[int]], commitment: Commitment, leaves: Sequence[bytes]
) -> dict[str, Any]:
    """Open the digests of some held-out variants of some questions, for `verify_questions`.

    `wanted` maps a question to the numbers of its variants (the first held-out one is `variants("held-out").start`).
    """
    top, asked = MerkleTree(leaves), commitment.asked
    opened = []
    for question, variants in wanted.items():
        if question not in asked:
            raise ValueError(f"question {question} is not in commitment {commitment.number}")
        branch = _variants(keyring, question)
        opened.append(
            {
                "question": question,
                "path": _hex(top.path(commitment.clients[1] + asked.index(question))),
                "first": branch.first,
                "count": len(branch.values),
                "variants": [
                    {"variant": v, "sha256": branch.values[v - branch.first], **branch.open(v)} for v in variants
                ],
            }
        )
    return {"commitment": commitment.number, "questions": opened}


@dataclass(frozen=True)
class _Branch:
    """One client's answers, or one question's variants, numbered from `first`: a tree of salted leaves."""

    first: int
    values: Sequence[Any]
    salts: Sequence[bytes]
    tree: MerkleTree

    def open(self, number: int) -> dict[str, Any]:
        index = number - self.first
        if not 0 <= index < len(self.values):
            raise ValueError(f"{number} is not among the {len(self.values)} committed from {self.first} on")
        return {"salt": self.salts[index].hex(), "path": _hex(self.tree.path(index))}


def _answers(keyring: "Keyring", client: str) -> _Branch:
    if keyring.assignment == "label":
        key = keyring.key(client)
        first, values = key.questions[0], list(key.answers)
    else:
        alone = replace(keyring, clients=(client,), departed=frozenset())
        first, values = 0, alone.codebook(range(keyring.pool))[0].tolist()
    salts = _salts(keyring, "answers", client, count=len(values))
    name = sha256(client.encode())
    leaves = [
        _salted_leaf(salt, b"answer", name + _u32(first + i) + _u32(answer))
        for i, (salt, answer) in enumerate(zip(salts, values, strict=True))
    ]
    return _Branch(first, values, salts, MerkleTree(leaves))


def _variants(keyring: "Keyring", question: int) -> _Branch:
    raw = keyring.raw([question], "held-out")[0]
    digests = [tensor_digest(variant) for variant in raw]
    salts = _salts(keyring, "variants", question, count=len(digests))
    first = keyring.variants("held-out").start
    leaves = [
        _variant_leaf(salt, question, first + i, digest)
        for i, (salt, digest) in enumerate(zip(salts, digests, strict=True))
    ]
    return _Branch(first, digests, salts, MerkleTree(leaves))


def _salts(keyring: "Keyring", *context: str | int, count: int) -> list[bytes]:
    from tramark.keys import streams

    stream = streams.stream(keyring.secret, "commitment", *context, length=SALT * count)
    return [stream[i : i + SALT] for i in range(0, len(stream), SALT)]


def _client_leaf(client: str, branch: _Branch) -> bytes:
    return _branch_leaf(b"client", sha256(client.encode()), branch.first, len(branch.values), branch.tree.root)


def _question_leaf(question: int, branch: _Branch) -> bytes:
    return _branch_leaf(b"question", _u32(question), branch.first, len(branch.values), branch.tree.root)


def _hex(path: Iterable[bytes]) -> list[str]:
    return [step.hex() for step in path]

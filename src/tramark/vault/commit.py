"""Commit to a keyring, and open parts of it: what needs the secret. `tramark.evidence.commitment` checks the results.

Salts come from the keyring's secret, so a commitment can be opened at any time from the keyring and the leaves of its
top tree, which the vault keeps.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tramark.errors import Damaged, SettingError
from tramark.evidence.beacon import Beacon
from tramark.evidence.commitment import (
    Commitment,
    answer_leaf,
    array_digest,
    canonical,
    client_leaf,
    question_leaf,
    sha256,
    sign,
    variant_leaf,
)
from tramark.evidence.federation import FEDERATION
from tramark.evidence.merkle import MerkleTree
from tramark.vault.files import pretty

if TYPE_CHECKING:
    from torch import Tensor

    from tramark.keys.keyring import Keyring

Chain = list[tuple[Commitment, list[bytes]]]
"""A vault's commitments, each with the leaves of its top tree, which stay sealed."""

SALT = 32


def chain_text(chain: Chain) -> bytes:
    """The content of the sealed file of commitments."""
    return canonical([{"commitment": c.to_dict(), "leaves": _hex(leaves)} for c, leaves in chain])


def read_chain(text: bytes) -> Chain:
    """The chain that `chain_text` wrote."""
    return [
        (Commitment.from_dict(item["commitment"]), [bytes.fromhex(leaf) for leaf in item["leaves"]])
        for item in json.loads(text)
    ]


def public_text(chain: Chain) -> bytes:
    """The content of `commitment.json`: the commitments without their leaves."""
    return pretty({"commitments": [commitment.to_dict() for commitment, _ in chain]})


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

    It is the hash of the names and digests of the tensors. Tensors that all clients share are hashed once if their
    digests are passed as `known`.
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
    simulated: bool = False,
    beacon: Beacon | None = None,
) -> tuple[Commitment, list[bytes]]:
    """A signed commitment to a keyring, and the leaves of its top tree, from which it is opened.

    After an earlier commitment, `after`, it covers the clients that joined since, and the questions that were chosen.
    With `retouched`, the chosen questions were also retouched since, and are committed to again. `simulated` says of
    the first commitment, and so of all that follow, that the secret comes from a seed. `beacon` names
    the round of a public beacon whose value will be added to the answers.
    """
    first = sum(after.clients) if after else 0
    clients = keyring.clients[first:]
    same = after is not None and (keyring.chosen, keyring.common) == (after.chosen, after.common)
    if same and not clients and not retouched:
        raise ValueError("nobody has joined since the last commitment, and no other questions were chosen")
    if keyring.assignment == "label":
        questions: Sequence[int] = range(first, len(keyring.clients))
    else:
        questions = range(keyring.pool) if after is None else keyring.in_use if retouched else ()
    leaves = [answers_of(keyring, client).top_leaf for client in clients]
    leaves += [variants_of(keyring, question).top_leaf for question in questions]
    leaves += [answers_of(keyring, FEDERATION).top_leaf] if after is None and keyring.common else []
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
        public_key=public_key(key),
        simulated=after.simulated if after else simulated,
        beacon=beacon,
        common=keyring.common,
    )
    return replace(unsigned, signature=sign(key, "commitment", unsigned.body)), leaves


def hand_over(after: Commitment, old: Ed25519PrivateKey, new: Ed25519PrivateKey, *, time: str) -> Commitment:
    """A commitment that changes nothing but the signing key. Both keys sign it."""
    unsigned = replace(
        after,
        number=after.number + 1,
        previous=after.digest,
        time=time,
        clients=(sum(after.clients), 0),
        questions=(0, 0),
        root="",
        public_key=public_key(new),
        signature="",
        endorsement="",
        beacon=None,
    )
    body = unsigned.body
    return replace(unsigned, signature=sign(new, "commitment", body), endorsement=sign(old, "new key", body))


def public_key(key: Ed25519PrivateKey) -> str:
    """The public half of a signing key, in hex."""
    return key.public_key().public_bytes_raw().hex()


def prove_answers(
    keyring: "Keyring", client: str, questions: Iterable[int], commitment: Commitment, leaves: Sequence[bytes]
) -> dict[str, Any]:
    """Open a client's answers to `questions`, and nothing else, as plain values for `verify_answers`."""
    if client == FEDERATION:
        index, there = commitment.size - 1, commitment.has_federation
    else:
        index = keyring.clients.index(client) - commitment.clients[0]
        there = 0 <= index < commitment.clients[1]
    if not there:
        raise SettingError(f"client {client!r} is not in commitment {commitment.number}")
    branch = answers_of(keyring, client)
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
            raise SettingError(f"question {question} is not in commitment {commitment.number}")
        branch = variants_of(keyring, question)
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


def open_answers(keyring: "Keyring", client: str, questions: Iterable[int], chain: Chain) -> dict[str, Any]:
    """Open a client's answers to `questions` by the commitment with which it joined, or the federation's own."""
    if client == FEDERATION:
        return prove_answers(keyring, client, questions, *chain[0])
    keyring.key(client)
    number = keyring.clients.index(client)
    for commitment, leaves in chain:
        if number < sum(commitment.clients):
            return prove_answers(keyring, client, questions, commitment, leaves)
    raise Damaged(f"client {client!r} is in the keyring, but in no commitment")


def open_questions(keyring: "Keyring", wanted: Mapping[int, Iterable[int]], chain: Chain) -> list[dict[str, Any]]:
    """Open variants of questions: a proof per commitment that has any of them."""
    proofs, left = [], dict(wanted)
    # The last commitment first: retouched questions are committed to again, and only the last of these holds.
    for commitment, leaves in reversed(chain):
        here = {question: left.pop(question) for question in list(left) if question in commitment.asked}
        if here:
            proofs.append(prove_questions(keyring, here, commitment, leaves))
    if left:
        raise SettingError(f"not all of these questions were committed to: {', '.join(map(str, left))}")
    return proofs[::-1]


@dataclass(frozen=True)
class Branch:
    """One client's answers, or one question's variants, numbered from `first`: a tree of salted leaves.

    `top_leaf` is the leaf of the top tree that stands for the branch.
    """

    first: int
    values: Sequence[Any]
    salts: Sequence[bytes]
    tree: MerkleTree
    top_leaf: bytes

    def open(self, number: int) -> dict[str, Any]:
        """The salt and the path of one leaf."""
        index = number - self.first
        if not 0 <= index < len(self.values):
            raise SettingError(f"{number} is not among the {len(self.values)} committed from {self.first} on")
        return {"salt": self.salts[index].hex(), "path": _hex(self.tree.path(index))}


def answers_of(keyring: "Keyring", client: str) -> Branch:
    """The answers of a client, or of the federation: to all questions of the pool, or to the client's own (label)."""
    if keyring.assignment == "label":
        key = keyring.key(client)
        first, values = key.questions[0], list(key.answers)
    else:
        # What a beacon adds later is no part of what is committed to.
        plain, first, everything = replace(keyring, beacons=()), 0, range(keyring.pool)
        if client == FEDERATION:
            values = list(plain.common_answers(everything))
        else:
            alone = replace(plain, clients=(client,), departed=frozenset())
            values = alone.codebook(everything)[0].tolist()
    salts = _salts(keyring, "answers", client, count=len(values))
    name = sha256(client.encode())
    leaves = [
        answer_leaf(salt, name, question, answer)
        for question, (salt, answer) in enumerate(zip(salts, values, strict=True), first)
    ]
    tree = MerkleTree(leaves)
    return Branch(first, values, salts, tree, client_leaf(name, first, len(values), tree.root))


def variants_of(keyring: "Keyring", question: int) -> Branch:
    """The digests of a question's held-out variants."""
    digests = [tensor_digest(variant) for variant in keyring.raw([question], "held-out")[0]]
    salts = _salts(keyring, "variants", question, count=len(digests))
    first = keyring.variants("held-out").start
    leaves = [
        variant_leaf(salt, question, variant, digest)
        for variant, (salt, digest) in enumerate(zip(salts, digests, strict=True), first)
    ]
    tree = MerkleTree(leaves)
    return Branch(first, digests, salts, tree, question_leaf(question, first, len(digests), tree.root))


def _salts(keyring: "Keyring", *context: str | int, count: int) -> list[bytes]:
    # Imported here because it loads torch, which opening and auditing a vault do not need.
    from tramark.keys import streams

    stream = streams.stream(keyring.secret, "commitment", *context, length=SALT * count)
    return [stream[i : i + SALT] for i in range(0, len(stream), SALT)]


def _hex(path: Iterable[bytes]) -> list[str]:
    return [step.hex() for step in path]

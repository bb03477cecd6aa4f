"""Commit to a keyring, and open parts of it: what needs the secret. `tramark.evidence.commitment` checks the results.

Salts come from the keyring's secret, so a commitment can be opened at any time from the keyring and the leaves of its
top tree, which the vault keeps.
"""

import json
from binascii import hexlify
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tramark.errors import Damaged, SettingError
from tramark.evidence.beacon import Beacon
from tramark.evidence.commitment import (
    CHOSEN,
    Commitment,
    canonical,
    sha256,
    sign,
)
from tramark.evidence.federation import FEDERATION
from tramark.evidence.merkle import MerkleTree, root_of
from tramark.vault.branches import answers_of, hexes, tensor_digest, top_leaves, variants_of
from tramark.vault.files import pretty

if TYPE_CHECKING:
    from torch import Tensor

    from tramark.keys.keyring import Keyring

Chain = list[tuple[Commitment, bytes]]
"""A vault's commitments, each with the leaves of its top tree, one after the other, which stay sealed."""

HASH = 32


def chain_text(chain: Chain) -> bytes:
    """The content of the sealed file of commitments, as canonical JSON."""
    # Put together by hand: with a million clients, every copy of the leaves counts.
    parts = [b"["]
    for commitment, leaves in chain:
        before = b"," if len(parts) > 1 else b""
        parts += [before, b'{"commitment":', canonical(commitment.to_dict()), b',"leaves":"', hexlify(leaves), b'"}']
    return b"".join([*parts, b"]"])


def read_chain(text: bytes) -> Chain:
    """The chain that `chain_text` wrote; early versions wrote a list of leaves."""
    chain = []
    for item in json.loads(text):
        leaves = item["leaves"] if isinstance(item["leaves"], str) else "".join(item["leaves"])
        chain.append((Commitment.from_dict(item["commitment"]), bytes.fromhex(leaves)))
    return chain


def public_text(chain: Chain) -> bytes:
    """The content of `commitment.json`: the commitments without their leaves."""
    return pretty({"commitments": [commitment.to_dict() for commitment, _ in chain]})


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
) -> tuple[Commitment, bytes]:
    """A signed commitment to a keyring, and the leaves of its top tree, from which it is opened.

    After an earlier commitment, `after`, it covers the clients that joined since, and the questions that were chosen;
    if these are others than before, all clients, unless the vault has committed to their answers to the whole pool.
    With `retouched`, the chosen questions were also retouched since, and are committed to again. `simulated` says of
    the first commitment, and so of all that follow, that the secret comes from a seed. `beacon` names
    the round of a public beacon whose value will be added to the answers.
    """
    code = keyring.assignment == "code"
    scope = after.answers if after else CHOSEN if code else ""
    others = after is not None and scope and keyring.chosen != after.chosen
    first = sum(after.clients) if after and not others else 0
    clients = range(first, len(keyring.clients))
    same = after is not None and (keyring.chosen, keyring.common) == (after.chosen, after.common)
    if same and not clients and not retouched:
        raise ValueError("nobody has joined since the last commitment, and no other questions were chosen")
    questions: Sequence[int] = clients
    if code:
        questions = range(keyring.pool) if after is None else keyring.in_use if retouched else ()
    parts = [*top_leaves(keyring, clients, _committed(keyring, scope))]
    parts += [variants_of(keyring, question).top_leaf for question in questions]
    if after is None and keyring.common:
        parts.append(answers_of(keyring, FEDERATION, range(keyring.pool)).top_leaf)
    leaves = b"".join(parts)
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
        root=root_of(leaves).hex() if leaves else "",
        public_key=public_key(key),
        simulated=after.simulated if after else simulated,
        beacon=beacon,
        common=keyring.common,
        answers=scope,
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
    keyring: "Keyring", client: str, questions: Iterable[int], commitment: Commitment, leaves: bytes
) -> dict[str, Any]:
    """Open a client's answers to `questions`, and nothing else, as plain values for `verify_answers`."""
    if client == FEDERATION:
        index, there = commitment.size - 1, commitment.has_federation
    else:
        index = keyring.row(client) - commitment.clients[0]
        there = 0 <= index < commitment.clients[1]
    if not there:
        raise SettingError(f"client {client!r} is not in commitment {commitment.number}")
    scope = "" if client == FEDERATION else commitment.answers
    branch = answers_of(keyring, client, commitment.chosen if scope else _committed(keyring, scope))
    return {
        "commitment": commitment.number,
        "client": client,
        "index": index,
        "path": hexes(_tree(leaves).path(index)),
        "first": branch.first,
        "count": len(branch.values),
        "answers": [{"question": q, "answer": branch.value(q), **branch.open(q)} for q in questions],
    }


def prove_questions(
    keyring: "Keyring", wanted: Mapping[int, Iterable[int]], commitment: Commitment, leaves: bytes
) -> dict[str, Any]:
    """Open the digests of some held-out variants of some questions, for `verify_questions`.

    `wanted` maps a question to the numbers of its variants (the first held-out one is `variants("held-out").start`).
    """
    top, asked = _tree(leaves), commitment.asked
    opened = []
    for question, variants in wanted.items():
        if question not in asked:
            raise SettingError(f"question {question} is not in commitment {commitment.number}")
        branch = variants_of(keyring, question)
        opened.append(
            {
                "question": question,
                "path": hexes(top.path(commitment.clients[1] + asked.index(question))),
                "first": branch.first,
                "count": len(branch.values),
                "variants": [{"variant": v, "sha256": branch.value(v), **branch.open(v)} for v in variants],
            }
        )
    return {"commitment": commitment.number, "questions": opened}


def open_answers(keyring: "Keyring", client: str, questions: Iterable[int], chain: Chain) -> dict[str, Any]:
    """Open a client's answers to `questions` by the last commitment that has the client, or the federation's own."""
    if client == FEDERATION:
        return prove_answers(keyring, client, questions, *chain[0])
    number = keyring.row(client)
    for commitment, leaves in reversed(chain):
        if commitment.clients[0] <= number < sum(commitment.clients):
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


def _committed(keyring: "Keyring", scope: str) -> Sequence[int]:
    """The questions to which clients' answers are committed to."""
    return keyring.chosen if scope else range(keyring.pool)


def _tree(leaves: bytes) -> MerkleTree:
    return MerkleTree([leaves[start : start + HASH] for start in range(0, len(leaves), HASH)])

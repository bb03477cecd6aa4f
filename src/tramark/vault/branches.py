"""The trees of one client's answers and of one question's variants, from which commitments are made and opened.

Salts come from the keyring's secret, so these trees can be made again at any time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tramark.errors import SettingError
from tramark.evidence.commitment import array_digest, sha256
from tramark.evidence.federation import FEDERATION
from tramark.evidence.leaves import answer_leaf, client_leaf, client_leaves, question_leaf, variant_leaf
from tramark.evidence.merkle import MerkleTree

if TYPE_CHECKING:
    from torch import Tensor

    from tramark.keys.keyring import Keyring

SALT = 32

TOGETHER = 1024
"""Clients whose codewords are drawn at a time."""


@dataclass(frozen=True)
class Branch:
    """One client's answers, or one question's variants: a tree of salted leaves.

    `numbers` are those of the questions or variants. Openings show them as counted from `first`. `top_leaf` is the leaf
    of the top tree that stands for the branch.
    """

    first: int
    numbers: Sequence[int]
    values: Sequence[Any]
    salts: Sequence[bytes]
    tree: MerkleTree
    top_leaf: bytes

    def value(self, number: int) -> Any:
        """The value of one leaf."""
        return self.values[self._index(number)]

    def open(self, number: int) -> dict[str, Any]:
        """The salt and the path of one leaf."""
        index = self._index(number)
        return {"salt": self.salts[index].hex(), "path": hexes(self.tree.path(index))}

    def _index(self, number: int) -> int:
        if number not in self.numbers:
            raise SettingError(f"{number} is not among the {len(self.numbers)} that were committed to")
        return self.numbers.index(number)


def answers_of(keyring: "Keyring", client: str, questions: Sequence[int] | None = None) -> Branch:
    """The answers of a client, or of the federation, to `questions`: those chosen, unless told; label: to its own."""
    questions = keyring.chosen if questions is None else questions
    if client == FEDERATION:
        return _branch(keyring, client, questions, replace(keyring, beacons=()).common_answers(questions))
    row = keyring.row(client)
    if keyring.assignment == "label":
        return _branch(keyring, client, range(row, row + 1), [row])
    [own] = replace(keyring, beacons=()).codebook(questions, clients=slice(row, row + 1)).tolist()
    return _branch(keyring, client, questions, own)


def top_leaves(keyring: "Keyring", clients: range, questions: Sequence[int]) -> Iterator[bytes]:
    """The leaves, in the top tree, of some clients' answers to `questions`, some leaves at a time.

    Clients are given by their numbers. With label answers, a client's leaf is that of its own question.
    """
    if keyring.assignment == "label":
        yield from (answers_of(keyring, keyring.clients[row]).top_leaf for row in clients)
        return
    # What a beacon adds later is no part of what is committed to.
    plain = replace(keyring, beacons=())
    for start in clients[::TOGETHER]:
        some = slice(start, min(start + TOGETHER, clients.stop))
        names, book = keyring.clients[some], plain.codebook(questions, clients=some).numpy()
        context, first = _context(questions)
        salts = b"".join([_stream(keyring, *context(name), count=len(questions)) for name in names])
        hashed = b"".join([sha256(name.encode()) for name in names])
        yield client_leaves(
            np.frombuffer(hashed, np.uint8).reshape(-1, SALT),
            np.frombuffer(salts, np.uint8).reshape(*book.shape, SALT),
            first,
            questions,
            book,
        ).tobytes()


def _context(questions: Sequence[int]) -> tuple[Callable[[str], list[str]], int]:
    """What salts of a client's answers to some questions are drawn for, by its name, and the `first` of its leaf."""
    if isinstance(questions, range):
        return lambda client: ["answers", client], questions.start
    # Other questions need other salts: those of the last ones may have been shown.
    chosen = " ".join(map(str, questions))
    return lambda client: ["chosen", client, chosen], 0


def _branch(keyring: "Keyring", client: str, questions: Sequence[int], values: Sequence[int]) -> Branch:
    context, first = _context(questions)
    salts, name = _salts(keyring, *context(client), count=len(questions)), sha256(client.encode())
    items = zip(salts, questions, values, strict=True)
    tree = MerkleTree([answer_leaf(salt, name, question, answer) for salt, question, answer in items])
    return Branch(first, questions, values, salts, tree, client_leaf(name, first, len(values), tree.root))


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
    numbers = range(first, first + len(digests))
    return Branch(first, numbers, digests, salts, tree, question_leaf(question, first, len(digests), tree.root))


def _salts(keyring: "Keyring", *context: str | int, count: int) -> list[bytes]:
    stream = _stream(keyring, *context, count=count)
    return [stream[i : i + SALT] for i in range(0, len(stream), SALT)]


def _stream(keyring: "Keyring", *context: str | int, count: int) -> bytes:
    # Imported here because it loads torch, which opening and auditing a vault do not need.
    from tramark.keys import streams

    return streams.stream(keyring.secret, "commitment", *context, length=SALT * count)


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


def hexes(path: Iterable[bytes]) -> list[str]:
    """Hashes as texts."""
    return [step.hex() for step in path]
